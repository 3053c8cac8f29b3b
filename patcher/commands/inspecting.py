"""``status`` and ``diff``: what is there, and what would be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import edits, markers
from patcher.calls import folded
from patcher.command_line import CommandLine
from patcher.commands import describing
from patcher.commands.finding import Search, SearchOptions
from patcher.commands.patched import PatchedRoot, nothing_found, patched_roots, report_nothing
from patcher.commands.planning import plan_targets
from patcher.errors import Kind, Problem
from patcher.notes import Message, Note
from patcher.report import Report, StepResult

if TYPE_CHECKING:
    from patcher.change import Record
    from patcher.commands.where import Where
    from patcher.request import Request
    from patcher.state import FileState


@dataclass(frozen=True)
class PatchPayload:
    """An applied patch; ``installed`` is the version that is there now, None where nothing tells."""

    target: str
    stage: str
    role: str
    root: str
    version: str
    installed: str | None
    since: str
    options: tuple[str, ...]
    files: tuple[dict[str, str], ...]


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
            step += StepResult(notes=(Message("warning", text, f"{root.path} holds an interrupted run"),))
        for record in root.records:
            states, installed = root.states(record), _installed(root, record)
            step += StepResult(tuple(_lines(root, record, states, installed, search)))
            patches.append(_payload(root, record, states, installed))
    return Report("status", step, data=Status(tuple(patches)))


def _installed(root: PatchedRoot, record: Record) -> str | None:
    # What a checkout is costs git 0.1 s; there the state of the files has to tell.
    wheels = (target for target in root.targets if target.installed_as in ("wheel", "unpacked"))
    return next((target.version for target in wheels if target.project.name == record.patch.target), None)


def _lines(
    root: PatchedRoot, record: Record, states: Sequence[FileState], installed: str | None, search: SearchOptions
) -> list[str]:
    since = f"since {record.applied_at}" if record.applied_at else "known by its marks only (was .rlpatch removed?)"
    release = record.version or installed or "(unknown version)"
    lines = [f"{record.patch} on {release} in {root.path}, {since}"]
    if record.options:
        lines.append(f"  {CommandLine('apply', record.patch.target, *record.options, *search.words)}")
    if installed is not None and record.version and installed != record.version:
        lines.append(f"  warning: {installed or 'an unknown version'} is installed there now")
    return lines + [f"  {one.state} {one.path}" + (f": {one.detail}" if one.detail else "") for one in states]


def _payload(root: PatchedRoot, record: Record, states: Sequence[FileState], installed: str | None) -> PatchPayload:
    patch, files = record.patch, tuple(state._asdict() for state in states)
    place = str(root.path)
    return PatchPayload(*patch, place, record.version, installed, record.applied_at, record.options, files)


@dataclass(frozen=True)
class Diff:
    """The result of ``diff``: the first root with a difference ("" for none), and the text."""

    root: str
    diff: str


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
    if len(shown) > 1:
        choose = " or ".join(dict.fromkeys(shlex.join(search.alone(root)) for root, search in shown.values()))
        raise Problem(Kind.USAGE, "the patched files lie below several roots, and a diff has only one", hint=choose)
    raw = b"".join(edits.diff(*file) for _, below in shown for file in below)
    raw = folded(raw) if calls else raw
    first = next((str(root) for root, _ in shown.values()), "")
    return Report("diff", step, data=Diff(first, raw.decode("utf-8", "replace")), raw=raw)


File = tuple[str, bytes, bytes]
"""Path, pristine and patched bytes of a file."""
Files = dict[Path, list[File]]
"""Root → its files."""


def _planned(names: Sequence[str], search: Search, request: Request) -> tuple[Files, StepResult]:
    files: Files = {}
    plans, step = plan_targets(names, search, request, "diff")
    for plan in (one.plan for one in plans):
        shown = (*plan.edit.changes[: len(plan.places)], *plan.gone)
        changes = [(str(change.path), change.pristine, change.after) for change in shown]
        files.setdefault(plan.target.root, []).extend(changes)
    return files, reduce(add, (describing.notes(one.plan) for one in plans), step)


def _applied(names: Sequence[str], search: Search) -> tuple[Files, StepResult]:
    files: Files = {}
    roots, found = patched_roots(names, search)
    for root in roots:
        wanted = {file for record in root.records for file in record.files}
        for file, data in root.marked().items():
            if file in wanted:
                pristine = markers.strip(data, where=str(root.path / file))
                files.setdefault(root.path, []).append((file, pristine, data))
    if files:
        return files, StepResult()
    return files, report_nothing(names, found) + StepResult.noted([Note(*nothing_found(names, found))])
