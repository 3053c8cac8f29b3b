"""The roots that hold patches of the targets that a user names."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.commands.finding import Search
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.messages.report import StepResult
from patcher.targets import find as targets
from patcher.targets.patched import PatchedRoot as PatchedRoot
from patcher.targets.patched import patched
from patcher.targets.target import Discovery
from patches.projects import projects


def patched_roots(names: Sequence[str], search: Search) -> tuple[list[PatchedRoot], Discovery]:
    """Every root that holds patches of the targets ``names`` (none: of any), and what was found altogether."""
    known = projects()
    wanted = set()
    for word in names:
        name, _ = targets.parse(word.partition("==")[0], known)
        if "==" in word:
            cause = f"{word}: what is applied is known by its target, not by a version"
            raise Problem(Kind.USAGE, cause, hint=search.again(word, name))
        wanted.add(name)
    found = search.discover()
    return patched(found, wanted), found


def nothing_found(names: Sequence[str], found: Discovery) -> Note:
    """That no patch of ``names`` was found, and where was looked."""
    what = f"no patch of {', '.join(names)}" if names else "nothing is patched"
    return Note(what, f"looked in: {'; '.join(found.searched)}")


def report_nothing(names: Sequence[str], found: Discovery) -> StepResult:
    """The same as a result, with a warning for each project that is there but cannot be patched."""
    warnings = StepResult.noted((problem.note for problem in found.problems), "warning")
    return StepResult(("; ".join(nothing_found(names, found)),)) + warnings
