"""The declaration of another profiler: how it is switched on, by a word, a variable or a configuration.

``patches`` declares them; ``patcher.guards`` holds them against an environment, a launch script and a command. What
counts as ``ON`` is what records without anybody asking further, since two recordings in one process lose data or end in
a segfault. A profiler that waits for a request is ``ARMED``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text


class State(enum.Enum):
    """State of a profiler, in rising order of severity; only `ON` stops an `apply`."""

    OFF = Text("off")
    ARMED = Text("armed")
    UNKNOWN = Text("unknown")
    ON = Text("on")

    @property
    def severity(self) -> int:
        """Rank of the state, from 0 for off to 3 for on."""
        return list(State).index(self)


class Form(enum.Enum):
    """Form of a switch, which says where to look for it."""

    VARIABLE = "environment variable"
    OPTION = "command line option"
    PROGRAM = "program"
    REQUEST = "request"
    KEY = "key of a runtime environment of Ray"


class Switch(NamedTuple):
    """Way to switch a profiler on: a variable, an option, a program, a request or a key of Ray's runtime environment.

    `releases` is a version specifier, "" for all. `values` maps known values in lower case to a state, `otherwise` is
    the state of all others. If an option's value is a JSON object, `keys` decide, and `--name.key value` is understood,
    too. `programs` matches programs that take the option; their arguments may come from variables, or from the file
    behind an option in `files`; their options in `flags` take no value. For a program, `programs` matches its command
    from its name on, if it is one that profiles. `requested_by` tells which commands are the request: each alternative
    is a tuple of regular expressions that must each match a whole word of the command, or none if they begin with `!`.
    A variable that the release ignores has `otherwise` OFF, and `why` says since when. `code` are texts that a release
    with this switch contains (with `!`: does not), which decides for a development tree.
    """

    profiler: str
    form: Form
    name: str
    otherwise: State
    why: str
    source: str
    off: str
    values: tuple[tuple[str, State], ...] = (("", State.OFF), ("0", State.OFF))
    keys: tuple[str, ...] = ()
    releases: str = ""
    requested_by: tuple[tuple[str, ...], ...] = ()
    code: tuple[str, ...] = ()
    programs: str = ""
    flags: str = "(?!)"
    files: str = "(?!)"

    def state(self, value: str | None) -> State:
        """Return the state of the profiler when the switch has this value: that in `values`, else `otherwise`.

        None stands for a value that only the run knows: the state is UNKNOWN, unless the release ignores the variable.
        """
        if value is None and self.otherwise is not State.OFF:
            return State.UNKNOWN
        value = value or ""
        return dict(self.values).get(value.strip().lower(), self.otherwise)


def override(name: str, value: object) -> str:
    """Return the override of Hydra that sets the key `name`, as typed: `a.b=1`, `null` for None."""
    text = "null" if value is None else str(value).replace(", ", ",")
    return f"{name}={text}"


class Key(NamedTuple):
    """Key of a configuration that decides whether a profiler is on.

    `values` are those that make a difference: the first switches it off, the last on.
    """

    name: str
    values: tuple[object, ...]


class ConfigSwitch(NamedTuple):
    """Profiler that a Hydra configuration switches on.

    `state` takes the values of the `keys` by name, None for a missing key. `armed` replaces `why` if the state is
    ARMED. The user is told to change the first key that switches the profiler off by itself. `releases` and `code` are
    as in `Switch`.
    """

    profiler: str
    keys: tuple[Key, ...]
    state: Callable[[Mapping[str, object]], State]
    why: str
    source: str
    releases: str = ""
    armed: str = ""
    code: tuple[str, ...] = ()

    @property
    def off(self) -> str:
        """Override that sets the first key to what switches it off."""
        return override(self.keys[0].name, self.keys[0].values[0])


class Application(NamedTuple):
    """Project whose programs are configured by Hydra.

    `packages` hold its programs, the project's own package first. `folder`, relative to the target's root, holds the
    configurations `defaults`, which count if no started program is known. `names` is a pattern of words that name a
    profiler in a configuration, `main` of the text of a program that composes one; `option` is the option that names
    the file, "" for Hydra's own.
    """

    packages: tuple[str, ...]
    folder: str
    defaults: tuple[str, ...]
    names: str
    switches: tuple[ConfigSwitch, ...]
    main: str = r"hydra\.main\(([^)]*)\)"
    option: str = ""


_BUILT_BETWEEN = re.compile(r"(^|\.)g[0-9a-f]{6,}")  # of a commit, as git describes it


class Release(NamedTuple):
    """Version of a project ("" if unknown), its published releases, and its installed package if there is one."""

    version: str
    published: tuple[str, ...] = ()
    package: Path | None = None

    def has(self, switch: Switch | ConfigSwitch) -> bool:
        """Tell whether this version has a switch; True if neither the version nor the code tells.

        The version of a development tree lags behind its code, by months in verl and vllm-ascend. There, the previous
        minor release or a later one must have the switch, and the installed code must read it.
        """
        from packaging.specifiers import SpecifierSet  # 15 ms, not for --help
        from packaging.version import InvalidVersion, Version

        declared = SpecifierSet(switch.releases)
        try:
            version = Version(self.version)
        except InvalidVersion:
            return self._code_knows(switch)
        there = declared.contains(version, prereleases=True)
        if self.version in self.published or not (version.is_devrelease or _BUILT_BETWEEN.search(version.local or "")):
            return there
        published = sorted(map(Version, self.published))
        minors = [release.release[:2] for release in published if release.release[:2] < version.release[:2]]
        later = [release for release in published if release.release[:2] >= max(minors, default=())]
        there = there or not published or any(declared.contains(release, prereleases=True) for release in later)
        return there and self._code_knows(switch)

    def _code_knows(self, switch: Switch | ConfigSwitch) -> bool:
        """Tell whether the installed code has the texts in `switch.code`, and lacks those with a leading "!"."""
        if self.package is None or not switch.code:
            return True
        code = _code(self.package)
        return not code or all((text.lstrip("!").encode() in code) != text.startswith("!") for text in switch.code)


@cache
def _code(package: Path) -> bytes:
    """Return all readable Python sources of a package, joined; b"" if there are none. They are read only once."""
    sources = []
    for file in package.rglob("*.py"):
        with suppress(OSError):
            sources.append(file.read_bytes())
    return b"\n".join(sources)
