"""``diff``: what is applied, or would be."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from patcher.changes import edits
from patcher.commands import applied
from patcher.commands.applied import Diff, Files
from patcher.commands.finding import Search, nothing_found, report_nothing
from patcher.commands.patching import describing
from patcher.commands.patching.planning import plan_targets
from patcher.commands.patching.roots import patched_elsewhere, patched_roots
from patcher.commands.where import Where, searches
from patcher.messages import CommandLine, CommandResult, Problem, StepResult, Text
from patcher.request import ProfileRequest


def diff(names: Sequence[str], where: Where, request: ProfileRequest | None, *, calls: bool = False) -> CommandResult:
    """Return the diff from unpatched to patched files: of the applied patches, or of what `request` would apply.

    With `calls`, each inserted block is folded to one line, so `git apply` does not accept the diff. Cluster nodes with
    equal files share one diff. Raises Problem: USAGE if the files are below several roots, FOREIGN_EDIT if somebody
    edited lines of an applied patch.
    """
    places, step = searches(where, names, "diff", writes=False)
    # Nodes whose files are alike have one diff, whatever else differs there.
    groups: dict[tuple[int, tuple[File, ...]], tuple[Path, str]] = {}
    for search in places:
        files, planning = _planned_files(names, search, request) if request else _applied_files(names, search)
        step += planning
        for number, (root, below) in enumerate(files.items()):
            option = ("--nodes", search.nodes[0]) if search.nodes else ("--path", str(root))
            groups.setdefault((number, tuple(below)), (root, shlex.join(option)))
    applied.refuse_several([option for _, option in groups.values()])
    raw = b"".join(edits.diff(*file) for _, below in groups for file in below)
    raw = edits.fold_blocks(raw) if calls else raw
    first = next((str(root) for root, _ in groups.values()), "")
    return CommandResult("diff", step, data=Diff(first, raw.decode("utf-8", "replace")), raw=raw)


File = tuple[str, bytes, bytes]
"""Path, pristine and patched bytes of a file."""


def _planned_files(names: Sequence[str], search: Search, request: ProfileRequest) -> tuple[Files, StepResult]:
    """Return the files that `request` would patch, by root, and a report with the problems and notes of the plans."""
    files: dict[Path, dict[str, File]] = {}
    plans, step = plan_targets(names, search, request, "diff")
    for plan in (planned.plan for planned in plans):
        shown_changes = (*plan.edit.changes[: len(plan.places)], *plan.cleared)
        changes = [(str(change.path), change.pristine, change.after) for change in shown_changes]
        # A later plan for the same file knows the lines of an earlier one.
        files.setdefault(plan.target.root, {}).update((change[0], change) for change in changes)
        step += describing.notes(plan)
    return {root: [*below.values()] for root, below in files.items()}, step


def _applied_files(names: Sequence[str], search: Search) -> tuple[Files, StepResult]:
    """Return the patched files of the targets `names` by root, and a report on why there are none, if so."""
    roots, discovery = patched_roots(names, search)
    files: Files = {}
    for root in roots:
        try:
            files |= applied.patched_files([root])
        except Problem as problem:
            if root.records and not root.mirror:
                raise problem.replace(hint=applied.restore_hint(root.path)) from None
            raise
    if files:
        return files, StepResult()
    is_elsewhere = not search.words and bool(patched_elsewhere(names, search, discovery))
    note = nothing_found(names, discovery, is_elsewhere=is_elsewhere)
    if is_elsewhere:
        command = CommandLine("status", *names, "--everywhere")
        note = note._replace(
            text=Text("{nothing}; to list patches in other places: {command}", nothing=note.text, command=command)
        )
    return files, report_nothing(names, discovery, is_elsewhere=is_elsewhere) + StepResult.noted([note])
