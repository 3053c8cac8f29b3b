"""A configuration as the words of a command line: they go before those that are typed.

    targets = ["vllm-ascend==0.11.0rc1", "verl"]
    decode = "30:60"
    save-path = "traces"

    [presets.tail]
    at-tail = 8

Values are written as they are typed, so the same notations read them and say what is wrong. What is typed wins: an
option over that of the file, a window over the windows of the file, targets over its targets.

No text of a file becomes an option: a value follows its option, and a target does not begin with a dash.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from patcher.cli import consent
from patcher.cli.nearest import ConfigurationFile, line_of, place
from patcher.commands.finding import SearchOptions
from patcher.config import UNITS
from patcher.messages import Message, Problem, Text, Warned, joined, usage
from patcher.options import flag, options_of
from patcher.options.headings import WINDOW
from patcher.options.notations import Flag
from patcher.request import OPTIONS

TARGETS, PRESETS = "targets", "presets"
PATCHING = ("apply", "run", "bundle")

WITHOUT = ("status", "diff", "revert", "recover")
"""The commands that go on without a file that cannot be used, so that it keeps nobody from removing a patch."""
LOOKING = ("status", "diff", "recover")
"""Those that go on without an interpreter; `revert` would work on another environment than the file names."""
PYTHON = flag("python")

_SEARCH = {flag(name) for name in options_of(SearchOptions)}
_CHOOSING = {*(f"--{unit}" for unit in UNITS), *map(flag, ("stage", "timeline", "builtin"))}
"""The options that choose what is recorded: with one of them typed, no option of that heading is taken."""
_WINDOWS = {*_CHOOSING, *(spec.flag for spec in OPTIONS.values() if spec.heading == WINDOW)}
_KNOWN = {*_WINDOWS, *_SEARCH, *(flag(name) for spec in OPTIONS.values() for name in (spec.name, *spec.aliases))}
_PATHS = {*_SEARCH, flag("save_path")}
_SWITCHES = {spec.flag: spec.notation.negated for spec in OPTIONS.values() if isinstance(spec.notation, Flag)}
"""The options without a value, and whether they have an opposite."""
_KEY, _LONGEST = 40, 4096
"""Characters of a key that are shown; of a text, as many as a path can have."""


@dataclass(frozen=True)
class Configuration:
    """Content of a configuration file; `options` and those of `presets` map an option to its words as typed."""

    file: Path
    targets: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def with_preset(self, preset: str | None) -> Mapping[str, tuple[str, ...]]:
        """Return option → its words in the file, overridden by those in the preset `preset` (None: no preset).

        A preset that chooses what to record replaces all options of windows. Raises Problem (USAGE) for an unknown
        preset.
        """
        if preset is None:
            return self.options
        if preset not in self.presets:
            names = ", ".join(self.presets) or "none"
            cause = Text("the configuration has no preset {preset!r}; available presets: {presets}")
            cause = cause.filled(preset=preset, presets=names)
            raise usage(cause, _suggestion(preset, self.presets, "--preset "), str(self.file))
        return {**_without_windows(self.options, self.presets[preset]), **self.presets[preset]}

    @property
    def interpreters(self) -> tuple[str, ...]:
        """Values of `python` in the file and its presets."""
        tables = (self.options, *self.presets.values())
        return tuple(dict.fromkeys(options[PYTHON][1] for options in tables if PYTHON in options))

    def additions(
        self, command: str, typed: Collection[str], preset: str | None
    ) -> tuple[Mapping[str, tuple[str, ...]], tuple[str, ...]]:
        """Return the options, each with its words, and the targets that the configuration adds to a command line.

        A `command` that patches gets all options, any other only `path` and `python`, unless a preset is typed. What is
        `typed` is not added: a window replaces all windows, and `--path` or `--python` both of these. Raises Problem
        (USAGE) for an unknown preset.
        """
        chosen = _without_windows(self.with_preset(preset), typed)
        patching = command in PATCHING or preset is not None
        if not patching:
            chosen = {name: words for name, words in chosen.items() if name in _SEARCH}
        if not _SEARCH.isdisjoint(typed):
            chosen = {name: words for name, words in chosen.items() if name not in _SEARCH}
        options = {name: words for name, words in chosen.items() if name not in typed}
        return options, self.targets if patching and TARGETS not in typed else ()


def _without_windows(options: Mapping[str, tuple[str, ...]], winning: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return `options`; if `winning` chooses what is recorded, drop all options of windows."""
    return options if _CHOOSING.isdisjoint(winning) else {k: v for k, v in options.items() if k not in _WINDOWS}


def may_ignore(source: ConfigurationFile, command: str, typed: Collection[str]) -> bool:
    """Tell whether a command ignores a configuration file that cannot be used, instead of failing.

    Commands that only look or remove do. Others do if the file was refused unread, and another user owns it or `typed`
    has `--path` or `--python`.
    """
    elsewhere = source.refused is not None and (source.foreign or not _SEARCH.isdisjoint(typed))
    return elsewhere or command in WITHOUT


def read(source: ConfigurationFile) -> Configuration:
    """Parse a configuration. Raises Problem (USAGE) if it is refused, is no TOML, or has an unknown option or value."""
    return _Reader(source).read()


class _Reader(NamedTuple):
    """Parser of a configuration; every method raises Problem (USAGE) with the line of a wrong key or value."""

    source: ConfigurationFile

    def read(self) -> Configuration:
        """Return the configuration: the file's targets and options, and its presets by name."""
        table = dict(self.source.table())
        targets = self._texts(TARGETS, table.pop(TARGETS, []))
        if wrong := [target for target in targets if target.startswith("-")]:
            cause = Text("{target} is an option, not a target: do not list it in `targets` in the configuration")
            hint = Text('list nothing but targets, for example: targets = ["vllm-ascend"]')
            raise self._wrong(cause.filled(wrong[0]), TARGETS, hint, wrong[0])
        tables = self._table(table.pop(PRESETS, {}), PRESETS).items()
        options = dict(self._options(table))
        presets = {self._text(PRESETS, name): dict(self._options(self._table(preset, name))) for name, preset in tables}
        return Configuration(self.source.file, tuple(targets), options, presets)

    def _table(self, value: object, name: str) -> Mapping[str, Any]:
        """Return `value` if it is a table of the file. Raises Problem (USAGE) if not; `name` is its key."""
        if isinstance(value, dict):
            return value
        cause = Text("[{name}] in the configuration is not a table of options", _shown(name))
        raise self._wrong(cause, name, "rlpatch config -h")

    def _options(self, table: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each option in a table as (option, words), such as ("--decode", ("--decode", "30:60")).

        A switch that is false is left out if it has no ``--no-`` form.
        """
        for key, value in table.items():
            name = flag(key)
            if name not in _KNOWN:
                cause = Text("{key} in the configuration is not the name of an option", _shown(key))
                raise self._wrong(cause, key, _suggestion(name[2:_KEY], [option[2:] for option in _KNOWN]))
            if isinstance(value, bool) != (name in _SWITCHES):  # a text would be a word of its own
                cause = Text("{key} in the configuration needs a value", key)
                if name in _SWITCHES:
                    cause = Text("{key} in the configuration must be true or false", key)
                raise self._wrong(cause, key, Text("`rlpatch apply --help` lists the options"))
            if isinstance(value, bool):
                if value or _SWITCHES[name]:
                    yield name, (name if value else flag(f"no_{key}"),)
            else:
                text = ",".join(self._texts(key, value))
                yield name, (name, self._path(key, name, text) if name in _PATHS else text)

    def _path(self, key: str, name: str, text: str) -> str:
        """Return the path `text` below the configuration's folder, unless it is absolute, and with ~ expanded.

        A bare name of an interpreter stays unchanged: it is on PATH.
        """
        try:
            path = Path(text).expanduser()
        except RuntimeError:
            cause = Text("{key} in the configuration starts with ~USER, but this user does not exist", key)
            raise self._wrong(cause, key) from None
        return text if name == PYTHON and "/" not in text else str(self.source.file.parent / path)

    def _texts(self, key: str, value: object) -> Sequence[str]:
        """Return a text, a number or a list of these as typed texts."""
        return [self._text(key, item) for item in (value if isinstance(value, list) else [value])]

    def _text(self, key: str, value: object) -> str:
        """Return a string or number of the file as text. Raises Problem (USAGE) for other types and unusable text."""
        if not isinstance(value, (str, int, float)):
            cause = Text("{key} in the configuration must be a string, a number, or a list of these", key)
            raise self._wrong(cause, key)
        if isinstance(value, int) and value.bit_length() > 64:
            raise self._wrong(Text("the value of {key} in the configuration is too large", key), key, f"{key} = 1")
        text = str(value)
        if len(text) > _LONGEST:
            cause = Text("the text of {key} in the configuration is longer than {limit} characters")
            raise self._wrong(cause.filled(key=key, limit=_LONGEST), key)
        if not text.isprintable():  # a terminal would obey it, and the system takes no NUL
            cause = Text("{key} in the configuration has an unprintable character: {text!a}", key=key, text=text)
            raise self._wrong(cause, key)
        return text

    def _wrong(self, cause: str, key: str, hint: str = "", value: str | None = None) -> Problem:
        where = place(self.source.file, line_of(self.source.text, key, value))
        return usage(cause, hint or f'{key} = "…"', where)


def _shown(key: str) -> str:
    """Return a key of the file for a message: shortened, and escaped if it has unprintable characters."""
    key = key if len(key) <= _KEY else f"{key[:_KEY]}…"
    return key if key.isprintable() else ascii(key)


def _suggestion(word: str, words: Collection[str], before: str = "") -> str:
    """Return a hint with the closest of `words`, with `before` in front of it, or a pointer to the help."""
    if near := difflib.get_close_matches(word, words, 1, cutoff=0.7):
        return Text("did you mean {suggestion}?", f"{before}{near[0]}")
    return Text("`rlpatch apply --help` lists the options")


def add_configuration(
    command: click.Command, ctx: click.Context, args: list[str], source: ConfigurationFile
) -> list[str]:
    """Return the command line `args` with the options and targets of the configuration `source` in front.

    Nothing is added that is typed. `ctx.meta` gets a note on what was added, or a warning if the configuration is
    ignored. Raises Problem (USAGE) if the file cannot be used or its interpreter is not trusted, and the command may
    not ignore that.
    """
    name, notes = str(command.name), ctx.meta.setdefault("configured", [])
    values, _, order = command.make_parser(ctx).parse_args(args=list(args))
    typed = {option for param in order if isinstance(param, click.Option) for option in param.opts}
    if isinstance(values.get(TARGETS), tuple) and values[TARGETS]:
        typed.add(TARGETS)
    preset = values.get("preset")
    try:
        configuration = read(source)
    except Problem as problem:
        if preset is None and may_ignore(source, name, typed):
            notes.append(_warning(problem, Text("rlpatch ignores this configuration file and goes on")))
            return args
        raise
    options, targets = configuration.additions(name, typed, preset)
    if PYTHON in options:
        try:
            consent.require(source, options[PYTHON][1])
        except Problem as problem:
            if name not in LOOKING:
                raise
            notes.append(_warning(problem, Text("rlpatch ignores this interpreter and goes on")))
            options = {option: words for option, words in options.items() if option != PYTHON}
    ctx.meta["presets"] = True
    added = [word for option in options.values() for word in option]
    if added or targets:
        added_words = shlex.join((*targets, *added))
        text = Text("options from {file}: {words}", file=source.file.name, words=added_words)
        notes.append(Message("note", text, str(source.file)))
    return [*added, *targets, *args]


def _warning(problem: Problem, consequence: str) -> Warned:
    """Return a warning with the problem's cause; its detail is `consequence`, then the rest of the problem."""
    _, *detail = problem.lines
    return Warned("warning", problem.cause, joined("\n", (consequence, *detail)))
