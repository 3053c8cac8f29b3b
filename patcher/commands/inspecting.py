"""``status`` and ``diff``: what is there, and what would be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import markers, plan
from patcher.calls import folded
from patcher.commands.applying import notes_of, plans_for
from patcher.commands.finding import Search, SearchOptions
from patcher.commands.patched import PatchedRoot, patched_roots, report_nothing
from patcher.commands.where import Where
from patcher.errors import Kind, Problem
from patcher.report import Report

if TYPE_CHECKING:
    from patcher.change import Record
    from patcher.request import ProfileRequest


def status(names: Sequence[str], search: SearchOptions) -> Report:
    """What is patched where, since when, and whether it is still as rlpatch left it."""
    entries: list[dict[str, object]] = []
    report = Report("status", data={"patches": entries})
    roots, found = patched_roots(names, search)
    if not roots:
        report_nothing(report, names, found)
    for root in roots:
        if root.pending:
            held = f"{root.path} holds an interrupted run"
            report.warn(f"a root holds an interrupted run; next: rlpatch recover{search.option}", held)
        entries.extend(_state(report, root, record, search) for record in root.records)
    return report


def _state(report: Report, root: PatchedRoot, record: Record, search: SearchOptions) -> dict[str, object]:
    # What a checkout is costs git 0.1 s; there the state of the files has to tell.
    wheels = (target for target in root.targets if target.installed_as in ("wheel", "unpacked"))
    installed = next((target.version for target in wheels if target.project.name == record.patch.target), None)
    states = root.states(record)
    since = f"since {record.applied_at}" if record.applied_at else "known by its marks only (was .rlpatch removed?)"
    release = record.version or installed or "(unknown version)"
    report.lines.append(f"{record.patch} on {release} in {root.path}, {since}")
    if record.options:
        report.lines.append(f"  rlpatch apply {record.patch.target} {shlex.join(record.options)}{search.option}")
    if installed is not None and record.version and installed != record.version:
        report.lines.append(f"  warning: {installed or 'an unknown version'} is installed there now")
    for state in states:
        report.lines.append(f"  {state.state} {state.path}" + (f": {state.detail}" if state.detail else ""))
    return {
        "target": record.patch.target, "stage": record.patch.stage, "role": record.patch.role, "root": str(root.path),
        "version": record.version, "installed": installed, "since": record.applied_at, "options": list(record.options),
        "files": [state._asdict() for state in states],
    }  # fmt: skip


def diff(names: Sequence[str], where: Where, request: ProfileRequest | None, *, calls: bool = False) -> Report:
    """A diff from pristine to patched: of what is applied, or with ``request`` of what would be.

    With ``calls`` each inserted block is folded: that is for people, and no diff that can be applied.
    """
    report = Report("diff")
    # Nodes whose files are alike have one diff, whatever else differs there.
    shown: dict[tuple[int, tuple[File, ...]], tuple[Path, Search]] = {}
    for search in where.searches(report, names, "diff", writes=False):
        files = _planned(report, names, search, request) if request else _applied(report, names, search)
        for number, (root, below) in enumerate(files.items()):
            shown.setdefault((number, tuple(below)), (root, search))
    if len(shown) > 1:
        choose = " or ".join(dict.fromkeys(search.alone(root) for root, search in shown.values()))
        raise Problem(Kind.USAGE, "the patched files lie below several roots, and a diff has only one", hint=choose)
    report.raw = b"".join(plan.diff(*file) for _, below in shown for file in below)
    if calls:
        report.raw = folded(report.raw)
    first = next((str(root) for root, _ in shown.values()), "")
    report.data = {"root": first, "diff": report.raw.decode("utf-8", "replace")}
    return report


File = tuple[str, bytes, bytes]
"""Path, pristine and patched bytes of a file."""
Files = dict[Path, list[File]]
"""Root → its files."""


def _planned(report: Report, names: Sequence[str], search: Search, request: ProfileRequest) -> Files:
    files: Files = {}
    for _, made in plans_for(report, names, search, request, "diff"):
        shown = (*made.edit.changes[: len(made.places)], *made.gone)
        changes = [(str(change.path), change.pristine, change.after) for change in shown]
        files.setdefault(made.target.root, []).extend(changes)
        notes_of(report, made)
    return files


def _applied(report: Report, names: Sequence[str], search: Search) -> Files:
    files: Files = {}
    roots, found = patched_roots(names, search)
    for root in roots:
        wanted = {file for record in root.records for file in record.files}
        for file, data in root.marked().items():
            if file in wanted:
                pristine = markers.strip(data, where=str(root.path / file))
                files.setdefault(root.path, []).append((file, pristine, data))
    if not files:
        what, *looked = report_nothing(report, names, found)
        report.note(what, *looked)
    return files
