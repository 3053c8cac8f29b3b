"""What a configuration says, as the words of a command line: they go before those that are typed.

    targets = ["vllm-ascend==0.11.0rc1", "verl"]
    decode = "30:60"
    save-path = "traces"

    [presets.tail]
    at-tail = 8

Values are written as they are typed, so the same notations read them and say what is wrong. What is typed wins: an
option over that of the file, a window over the windows of the file, targets over its targets.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patcher.commands.finding import SearchOptions
from patcher.config import UNITS
from patcher.messages.errors import Kind, Problem
from patcher.options import flag, options_of
from patcher.options.headings import WINDOW
from patcher.options.notations import Flag
from patcher.request import OPTIONS

TARGETS, PRESETS = "targets", "presets"
PATCHING = ("apply", "run", "bundle")

_SEARCH = {flag(name) for name in options_of(SearchOptions)}
_CHOOSING = {*(f"--{unit}" for unit in UNITS), *map(flag, ("stage", "timeline", "builtin"))}
"""The options that choose what is recorded: with one of them typed, no option of that heading is taken."""
_WINDOWS = {*_CHOOSING, *(spec.flag for spec in OPTIONS.values() if spec.heading == WINDOW)}
_KNOWN = {*_WINDOWS, *_SEARCH, *(spec.flag for spec in OPTIONS.values())}
_PATHS = {*_SEARCH, flag("save_path")}
_SWITCHES = {spec.flag: isinstance(spec.notation, Flag) and spec.notation.negated for spec in OPTIONS.values()}


@dataclass(frozen=True)
class Configuration:
    """What a file holds: targets, options by how they are typed with the words of each, and presets of options."""

    file: Path
    targets: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def chosen(self, preset: str | None) -> Mapping[str, tuple[str, ...]]:
        """The options with those of a preset, whose windows go before the others. Raises Problem (USAGE)."""
        if preset is None:
            return self.options
        if preset not in self.presets:
            known = ", ".join(self.presets) or "none"
            cause = f"no preset {preset!r} in the configuration: it has {known}"
            raise Problem(Kind.USAGE, cause, str(self.file), _near(preset, self.presets, "--preset "))
        return {**_without_windows(self.options, self.presets[preset]), **self.presets[preset]}

    def before(self, command: str, typed: Collection[str], preset: str | None) -> tuple[list[str], tuple[str, ...]]:
        """The options that go before the words of a command, and the targets behind them.

        A command that patches takes all; the others take where to search, unless they are asked for a preset.
        ``typed`` are the names of what stands there. Raises Problem (USAGE) for a preset that is not there.
        """
        chosen = _without_windows(self.chosen(preset), typed)
        patching = command in PATCHING or preset is not None
        if not patching:
            chosen = {name: words for name, words in chosen.items() if name in _SEARCH}
        if not _SEARCH.isdisjoint(typed):
            chosen = {name: words for name, words in chosen.items() if name not in _SEARCH}
        words = [word for name, words in chosen.items() if name not in typed for word in words]
        return words, self.targets if patching and TARGETS not in typed else ()


def _without_windows(options: Mapping[str, tuple[str, ...]], others: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """``options``, whose windows give way to those of ``others``."""
    return options if _CHOOSING.isdisjoint(others) else {k: v for k, v in options.items() if k not in _WINDOWS}


def read(path: Path, document: Mapping[str, Any]) -> Configuration:
    """What the table of a file says. Raises Problem (USAGE) for what cannot be typed."""
    table = dict(document)
    targets = table.pop(TARGETS, [])
    presets = _table(path, table.pop(PRESETS, {}), PRESETS)
    return Configuration(
        path,
        tuple(_texts(path, TARGETS, targets)),
        dict(_options(path, table)),
        {name: dict(_options(path, _table(path, one, f"{PRESETS}.{name}"))) for name, one in presets.items()},
    )


def _table(path: Path, value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Problem(
            Kind.USAGE, f"{name} is not a table of options in the configuration", str(path), "rlpatch config -h"
        )
    return value


def _options(path: Path, table: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option as it is typed, and its words."""
    for key, value in table.items():
        name = flag(key)
        if name not in _KNOWN:
            cause = f"no option {key} in a configuration"
            raise Problem(Kind.USAGE, cause, str(path), _near(name.lstrip("-"), [one.lstrip("-") for one in _KNOWN]))
        if isinstance(value, bool):
            if value or _SWITCHES.get(name):
                yield name, (name if value else flag(f"no_{key}"),)
        else:
            text = ",".join(_texts(path, key, value))
            yield name, (name, _path(path.parent, name, text) if name in _PATHS else text)


def _path(folder: Path, name: str, text: str) -> str:
    """A path in the file is one from its folder; an interpreter may be a name that is looked for on PATH."""
    return text if name == flag("python") and "/" not in text else str(folder / Path(text).expanduser())


def _texts(path: Path, key: str, value: object) -> Sequence[str]:
    """A text, a number or a list of them, as they are typed."""
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(one, (str, int, float)) for one in values):
        raise Problem(
            Kind.USAGE, f"{key} is neither a string nor a number, nor a list of these", str(path), f'{key} = "…"'
        )
    return [str(one) for one in values]


def _near(word: str, known: Collection[str], before: str = "") -> str:
    """What was probably meant, with ``before`` it what is typed there."""
    near = difflib.get_close_matches(word, known, 1, cutoff=0.7)
    return f"did you mean {before}{near[0]}?" if near else "`rlpatch apply --help` has the options"
