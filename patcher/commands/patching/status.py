"""``status``, and what other commands find patched as it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patcher.changes.change import Record
from patcher.commands.finding import Search, SearchOptions
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.messages.report import CommandResult, StepResult
from patcher.targets import applied
from patcher.targets import find as targets
from patcher.targets.applied import PatchPayload
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery
from patches.projects import projects


@dataclass(frozen=True)
class Status:
    """The result of ``status``."""

    patches: tuple[PatchPayload, ...] = ()


def status(names: Sequence[str], search: SearchOptions) -> CommandResult:
    """What is patched where, since when, and whether it is still as rlpatch left it."""

    def again(record: Record) -> str:
        return CommandLine("apply", record.patch.target, *record.options, *search.words) if record.options else ""

    roots, found = patched_roots(names, search)
    step = StepResult() if roots else report_nothing(names, found)
    patches: list[PatchPayload] = []
    for root in roots:
        if root.pending:
            text = f"a root holds an interrupted run; next: {CommandLine('recover', *search.words)}"
            step += StepResult.noted([Note(text, f"{root.path} holds an interrupted run")], "warning")
        found_here, payloads = applied.status(root, again)
        step += found_here
        patches += payloads
    return CommandResult("status", step, data=Status(tuple(patches)))


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
