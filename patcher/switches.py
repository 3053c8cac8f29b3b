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
    """The state of a profiler, in rising order of severity; only ``ON`` stops an ``apply``."""

    OFF = Text("off")
    ARMED = Text("armed")
    UNKNOWN = Text("unknown")
    ON = Text("on")

    @property
    def severity(self) -> int:
        """0 for off to 3 for on."""
        return list(State).index(self)


class Form(enum.Enum):
    """The form of a switch: where it is found."""

    VARIABLE = "environment variable"
    OPTION = "command line option"
    PROGRAM = "program"
    REQUEST = "request"


class Switch(NamedTuple):
    """One way in which one profiler is switched on.

    ``releases`` is a specifier of the target's versions, empty for all. ``values`` gives the state of known
    values in lower case, ``otherwise`` of all the others. For an option whose value is a JSON object,
    ``keys`` are those that decide, and ``--name.key value`` is understood as well. Where a word is a name of its
    ``programs``, the option may also be among words that only the run tells, or in the file behind an option of
    ``files``; their options ``flags`` take no value. ``requested_by`` tells which
    launches make an armed profiler record: each alternative is a row of regular expressions, each of which
    has to match one whole word of the command. ``code`` are texts that the code of a release with this switch contains
    (behind a ``!``: does not); they decide where a version says little, as of a development tree.
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
        """The state that a value means; None stands for a value that nobody can know before the run."""
        if value is None:
            return State.UNKNOWN
        return dict(self.values).get(value.strip().lower(), self.otherwise)


class Key(NamedTuple):
    """A key of a configuration that decides whether a profiler is on.

    ``values`` are those that make a difference: the first one switches it off, the last one on.
    """

    name: str
    values: tuple[object, ...]


class ConfigSwitch(NamedTuple):
    """One profiler that a Hydra configuration switches on.

    ``state`` gets the value of each of the ``keys``, None for one that is not there; ``armed`` says what happens if it
    answers ARMED, if that is something else than ``why`` says. The first key that switches it off alone is what the
    user is told to change. ``releases`` and ``code`` are as in :class:`Switch`.
    """

    profiler: str
    keys: tuple[Key, ...]
    state: Callable[[Mapping[str, object]], State]
    why: str
    source: str
    releases: str = ""
    armed: str = ""
    code: tuple[str, ...] = ()


class Application(NamedTuple):
    """A project whose programs are configured by Hydra.

    ``packages`` are those of its programs, the first one is that of the project; ``folder`` (relative to the root of
    the target) holds the configurations ``defaults``, which count where no start of a program is known. ``names``
    is a pattern of the words that name a profiler in one.
    """

    packages: tuple[str, ...]
    folder: str
    defaults: tuple[str, ...]
    names: str
    switches: tuple[ConfigSwitch, ...]


_BUILT_BETWEEN = re.compile(r"(^|\.)g[0-9a-f]{6,}")  # of a commit, as git describes it


class Release(NamedTuple):
    """A version of a project (empty if it is not known), those that were published, and its package if it is here."""

    version: str
    published: tuple[str, ...] = ()
    package: Path | None = None

    def has(self, switch: Switch | ConfigSwitch) -> bool:
        """Whether this version has a switch; where nothing tells, it has.

        The version of a development tree lags its code, by months in verl and in vllm-ascend, and fixes are released
        from branches: it says no more than that the minor release before is in it. So the code decides if it is here,
        else the switches of that release and of all later ones count.
        """
        from packaging.specifiers import SpecifierSet  # 15 ms, not for --help
        from packaging.version import InvalidVersion, Version

        declared = SpecifierSet(switch.releases)
        try:
            version = Version(self.version)
        except InvalidVersion:
            return self._reads(switch)
        there = declared.contains(version, prereleases=True)
        if self.version in self.published or not (version.is_devrelease or _BUILT_BETWEEN.search(version.local or "")):
            return there
        published = sorted(map(Version, self.published))
        minors = [release.release[:2] for release in published if release.release[:2] < version.release[:2]]
        later = [release for release in published if release.release[:2] >= max(minors, default=())]
        there = there or not published or any(declared.contains(release, prereleases=True) for release in later)
        return there and self._reads(switch)

    def _reads(self, switch: Switch | ConfigSwitch) -> bool:
        if self.package is None or not switch.code:
            return True
        code = _code(self.package)
        return not code or all((text.lstrip("!").encode() in code) != text.startswith("!") for text in switch.code)


@cache
def _code(package: Path) -> bytes:
    """All Python sources of a package, as far as they can be read."""
    sources = []
    for file in package.rglob("*.py"):
        with suppress(OSError):
            sources.append(file.read_bytes())
    return b"\n".join(sources)
