"""The roots that hold patches of the targets that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from patcher.commands.finding import Search
from patcher.errors import Kind, Problem
from patcher.report import Report
from patcher.targets import find as targets
from patcher.targets.patched import PatchedRoot as PatchedRoot
from patcher.targets.patched import patched
from patches.projects import projects

if TYPE_CHECKING:
    from patcher.targets.target import Discovery


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


def report_nothing(report: Report, names: Sequence[str], found: Discovery) -> tuple[str, str]:
    """Say that no patch was found, and where was looked; both come out, too."""
    what = f"no patch of {', '.join(names)}" if names else "nothing is patched"
    looked = f"looked in: {'; '.join(found.searched)}"
    report.lines.append(f"{what}; {looked}")
    for problem in found.problems:
        report.warn(*problem.note)
    return what, looked
