"""Targets by their names, and where to look for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from patcher.messages import SEMICOLON, CommandLine, Note, StepResult, Text, joined, usage
from patcher.messages.command_line import quoted
from patcher.options import Options, option, words_of
from patcher.options.headings import PLACE
from patcher.options.notations import AnyText, FolderPaths
from patcher.targets import find as targets
from patches import projects

if TYPE_CHECKING:
    from patcher.recipe import Upstream
    from patcher.targets.target import Discovery, Target


class Search(Protocol):
    """Place to look for targets."""

    @property
    def words(self) -> tuple[str, ...]:
        """Options that restrict a command line to this search, such as `--path DIR`."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Cluster nodes with the same installation, whose paths are those on the first node; () for this machine."""

    def again(self, instead: Mapping[str, Sequence[str]]) -> CommandLine:
        """Return the whole command line again, with the words of `instead` in place of its keys."""

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:
        """Return the installed project that `word` names. Raises Problem (NO_TARGET, VERSION, ENVIRONMENT, USAGE)."""

    def discover(self) -> Discovery:
        """Return all installed targets and every root with a store. Raises Problem if the place does not exist."""


class SearchOptions(Options):
    """Search of this machine, at `--path` or `--python` or by default; `typed` is the whole command line.

    `origin` holds the options to print instead, such as those of a cluster.
    """

    nodes: ClassVar[tuple[str, ...]] = ()
    path: tuple[Path, ...] = option(
        FolderPaths("DIR"),
        PLACE,
        "Site-packages, unpacked wheel or checkout with the package. Repeat the option for more places.",
        default=(),
        default_text="",
    )
    python: str | None = option(
        AnyText("EXE"), PLACE, "Look for targets in the environment of this interpreter.", default=None
    )
    typed: tuple[str, ...] = ()
    origin: tuple[str, ...] | None = None

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:
        """See `Search`."""
        target = self.find_target(word, command)
        return projects.upstream(target.project.name), target

    def find_target(self, word: str, command: str) -> Target:
        """Return the installed target that `word` names, without importing recipes. Raises Problem as `find`."""
        known_projects = projects.projects()
        name, version = targets.parse(word, known_projects)
        return targets.find(
            next(project for project in known_projects if project.name == name),
            paths=self.path,
            python=self.python,
            version=version,
            projects=known_projects,
            command=command,
            again=lambda text: self.again({word: [text]}),
        )

    def discover(self) -> Discovery:
        """Return all installed targets and every root with a store; the versions of checkouts are not read."""
        # A checkout's version costs git 0.1 s, and nobody needs it of all that is there.
        discovery = targets.discover(projects.projects(), paths=self.path, python=self.python, git=False)
        return discovery if self.origin is None else discovery._replace(searched=(quoted(self.origin),))

    def again(self, instead: Mapping[str, Sequence[str]]) -> CommandLine:
        """See `Search`."""
        return CommandLine(*(word for typed in self.typed for word in instead.get(typed, (typed,))))

    @property
    def words(self) -> tuple[str, ...]:
        """See `Search`."""
        return words_of(self) if self.origin is None else self.origin


def parse_target(word: str) -> tuple[Upstream, str | None]:
    """Return the project and the version (None: any) of `TARGET` or `TARGET==VERSION`. Raises Problem."""
    name, version = targets.parse(word, projects.projects())
    return projects.upstream(name), version


def named_projects(names: Sequence[str], search: Search) -> set[str]:
    """Return the names of the projects that the typed targets `names` mean, such as "vllm" for "VLLM".

    Raises Problem: USAGE for a target with a version, NO_TARGET for an unknown one.
    """
    known_projects = projects.projects()
    chosen = set()
    for word in names:
        name, _ = targets.parse(word.partition("==")[0], known_projects)
        if "==" in word:
            cause = Text("{word}: this command takes a target without a version", word)
            raise usage(cause, search.again({word: [name]}))
        chosen.add(name)
    return chosen


def nothing_found(names: Sequence[str], discovery: Discovery, *, is_elsewhere: bool) -> Note:
    """Return a note that no patch of `names` (none: of any) was found, or none here if one `is_elsewhere`."""
    text = Text("no patch was found here") if is_elsewhere else Text("no patch was found")
    if names:
        text = Text("no patch of {targets} was found here") if is_elsewhere else Text("no patch of {targets} was found")
        text = text.filled(", ".join(names))
    return Note(text, Text("looked in: {places}", joined(SEMICOLON, discovery.searched)))


def report_nothing(names: Sequence[str], discovery: Discovery, *, is_elsewhere: bool = False) -> StepResult:
    """Return a report that no patch of `names` was found, with warnings of targets that cannot be patched."""
    warnings = StepResult.noted((problem.note for problem in discovery.problems), "warning")
    text, detail = nothing_found(names, discovery, is_elsewhere=is_elsewhere)
    return StepResult((joined(SEMICOLON, (text, detail)),)) + warnings
