"""``diff``: what is applied, or would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patcher import markers, plan
from patcher.calls import folded
from patcher.commands.applying import notes_of, plans_for
from patcher.commands.finding import Search
from patcher.commands.patched import patched_roots, report_nothing
from patcher.commands.where import Where
from patcher.errors import Kind, Problem
from patcher.report import Report

if TYPE_CHECKING:
    from patcher.request import ProfileRequest


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
