"""``status`` and ``diff``: what is there, and what would be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import edits
from patcher.calls import folded
from patcher.command_line import CommandLine
from patcher.commands import describing
from patcher.commands.finding import Search, SearchOptions
from patcher.commands.patched import nothing_found, patched_roots, report_nothing
from patcher.commands.planning import plan_targets
from patcher.notes import Note
from patcher.report import Report, StepResult
from patcher.targets import applied
from patcher.targets.applied import Diff, Files, PatchPayload

if TYPE_CHECKING:
    from patcher.change import Record
    from patcher.commands.where import Where
    from patcher.request import Request


@dataclass(frozen=True)
class Status:
    """The result of ``status``."""

    patches: tuple[PatchPayload, ...] = ()


def status(names: Sequence[str], search: SearchOptions) -> Report:
    """What is patched where, since when, and whether it is still as rlpatch left it."""
    roots, found = patched_roots(names, search)
    step = StepResult() if roots else report_nothing(names, found)
    patches: list[PatchPayload] = []
    for root in roots:
        if root.pending:
            text = f"a root holds an interrupted run; next: {CommandLine('recover', *search.words)}"
            step += StepResult.noted([Note(text, f"{root.path} holds an interrupted run")], "warning")
        found_here, payloads = applied.status(root, lambda record: _again(record, search))
        step += found_here
        patches += payloads
    return Report("status", step, data=Status(tuple(patches)))


def _again(record: Record, search: SearchOptions) -> str:
    """The command line that applies a record again."""
    return CommandLine("apply", record.patch.target, *record.options, *search.words) if record.options else ""


def diff(names: Sequence[str], where: Where, request: Request | None, *, calls: bool = False) -> Report:
    """A diff from pristine to patched: of what is applied, or with ``request`` of what would be.

    With ``calls`` each inserted block is folded: that is for people, and no diff that can be applied.
    """
    searches, step = where.searches(names, "diff", writes=False)
    # Nodes whose files are alike have one diff, whatever else differs there.
    shown: dict[tuple[int, tuple[File, ...]], tuple[Path, Search]] = {}
    for search in searches:
        files, found = _planned(names, search, request) if request else _applied(names, search)
        step += found
        for number, (root, below) in enumerate(files.items()):
            shown.setdefault((number, tuple(below)), (root, search))
    applied.refuse_several([shlex.join(search.alone(root)) for root, search in shown.values()])
    raw = b"".join(edits.diff(*file) for _, below in shown for file in below)
    raw = folded(raw) if calls else raw
    first = next((str(root) for root, _ in shown.values()), "")
    return Report("diff", step, data=Diff(first, raw.decode("utf-8", "replace")), raw=raw)


File = tuple[str, bytes, bytes]
"""Path, pristine and patched bytes of a file."""


def _planned(names: Sequence[str], search: Search, request: Request) -> tuple[Files, StepResult]:
    files: Files = {}
    plans, step = plan_targets(names, search, request, "diff")
    for plan in (one.plan for one in plans):
        shown = (*plan.edit.changes[: len(plan.places)], *plan.gone)
        changes = [(str(change.path), change.pristine, change.after) for change in shown]
        files.setdefault(plan.target.root, []).extend(changes)
    return files, sum((describing.notes(one.plan) for one in plans), step)


def _applied(names: Sequence[str], search: Search) -> tuple[Files, StepResult]:
    roots, found = patched_roots(names, search)
    files = applied.patched_files(roots)
    if files:
        return files, StepResult()
    return files, report_nothing(names, found) + StepResult.noted([Note(*nothing_found(names, found))])
