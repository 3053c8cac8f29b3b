"""Targets by their names, and where to look for them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from patcher.messages import SEMICOLON, CommandLine, Note, StepResult, Text, joined, usage
from patcher.options import option, words_of
from patcher.options.headings import PLACE
from patcher.options.notations import AnyText, FilePath
from patcher.targets import find as targets
from patches import projects

if TYPE_CHECKING:
    from patcher.recipe import Upstream
    from patcher.targets.interpreters import Environment
    from patcher.targets.target import Discovery, Target


class Search(Protocol):
    """The places to look for targets."""

    @property
    def words(self) -> tuple[str, ...]:
        """The options that lead there, to be typed again."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of a cluster that are all alike here, the first one's paths are shown; () for this machine."""

    def again(self, word: str, instead: str) -> CommandLine:
        """The whole command line once more, with ``instead`` for ``word``."""

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:
        """The installed project that ``word`` names; :class:`Problem` NO_TARGET, VERSION, ENVIRONMENT or USAGE."""

    def discover(self) -> Discovery:
        """All that is there, and every root with a store; :class:`Problem` where the search itself leads nowhere."""


@dataclass(frozen=True)
class SearchOptions:
    """A search of this machine: ``--path``, ``--python``, or neither; ``typed`` is the whole command line.

    ``environment`` is what ``python`` has answered, if it is not to run for each word; ``origin`` are the options that
    lead here where they are others (those of a cluster).
    """

    nodes: ClassVar[tuple[str, ...]] = ()
    path: Path | None = option(
        FilePath("DIR"), PLACE, "Site-packages, unpacked wheel or checkout that holds the package.", default=None
    )
    python: str | None = option(AnyText("EXE"), PLACE, "Look in the environment of this interpreter.", default=None)
    typed: tuple[str, ...] = ()
    environment: Environment | None = None
    origin: tuple[str, ...] | None = None

    def with_environment(self) -> SearchOptions:
        """The same search with the answer of ``python``; :class:`Problem` where it has none."""
        if self.python is None:
            return self
        return replace(self, environment=targets.environment_of(self.python, projects.projects()))

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:
        """See `Search`."""
        target = self.target(word, command)
        return projects.upstream(target.project.name), target

    def target(self, word: str, command: str) -> Target:
        """The same without the recipes, which take as long to import as all the rest."""
        name, version = _parsed(word)
        known_projects = projects.projects()
        return targets.find(
            next(project for project in known_projects if project.name == name),
            path=self.path,
            python=self.python,
            version=version,
            projects=known_projects,
            command=command,
            again=lambda text: self.again(word, text),
            environment=self.environment,
        )

    def discover(self) -> Discovery:
        """See `Search`."""
        # A checkout's version costs git 0.1 s, and nobody needs it of all that is there.
        found = targets.discover(
            projects.projects(), path=self.path, python=self.python, git=False, environment=self.environment
        )
        return found if self.origin is None else found._replace(searched=(shlex.join(self.origin),))

    def again(self, word: str, instead: str) -> CommandLine:
        """See `Search`."""
        return CommandLine(*(instead if typed == word else typed for typed in self.typed))

    @property
    def words(self) -> tuple[str, ...]:
        """See `Search`."""
        return words_of(self) if self.origin is None else self.origin


def parse_target(word: str) -> tuple[Upstream, str | None]:
    """The project that ``TARGET`` or ``TARGET==VERSION`` names, and the version; :class:`Problem` for any other.

    The recipes of other projects are not imported: that takes as long as all that `status` does.
    """
    name, version = _parsed(word)
    return projects.upstream(name), version


def _parsed(word: str) -> tuple[str, str | None]:
    return targets.parse(word, projects.projects())


def named_projects(names: Sequence[str], search: Search) -> set[str]:
    """The projects that ``names`` mean. Raises Problem (USAGE, NO_TARGET) for a version, or what is no project."""
    known_projects = projects.projects()
    chosen = set()
    for word in names:
        name, _ = targets.parse(word.partition("==")[0], known_projects)
        if "==" in word:
            raise usage(Text("{word}: patches are found by target, not by version", word), search.again(word, name))
        chosen.add(name)
    return chosen


def nothing_found(names: Sequence[str], discovery: Discovery) -> Note:
    """Say that no patch of ``names`` was found, and where was looked."""
    what = Text("no patch of {names}", ", ".join(names)) if names else Text("nothing is patched")
    return Note(what, Text("looked in: {places}", joined(SEMICOLON, discovery.searched)))


def report_nothing(names: Sequence[str], discovery: Discovery, *, here: bool = False) -> StepResult:
    """The same as a result, with a warning for each project that is there but cannot be patched.

    ``here``: something is patched elsewhere.
    """
    warnings = StepResult.noted((problem.note for problem in discovery.problems), "warning")
    text, detail = nothing_found(names, discovery)
    if here:
        text = Text("{nothing} here", text)
    return StepResult((joined(SEMICOLON, (text, detail)),)) + warnings
