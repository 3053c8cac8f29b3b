"""Choose the plan of a bundle for a target: its files decide, not what its version says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import NamedTuple

from patcher.bundle.plans import Bundle, BundledPlan, FilePlan
from patcher.changes import edits, markers
from patcher.changes.change import Change, Edit, PatchId, Record
from patcher.messages import Kind, Problem
from patcher.store.filesystem.files import digest
from patcher.store.folder import StoreFolder
from patcher.targets.target import Target


class FittedPlan(NamedTuple):
    """Plan of a bundle and its edit of a target; `replaces` is the record of the same patch with other options."""

    plan: BundledPlan
    target: Target
    edit: Edit
    replaces: Record | None

    @property
    def changed(self) -> bool:
        """Whether applying changes a file or the record."""
        return bool(self.edit.add) or any(change.before != change.after for change in self.edit.changes)


def fit(bundle: Bundle, target: Target) -> FittedPlan:
    """Return the plan of `bundle` that was made for the files of `target`, with its edit.

    Raises Problem: VERSION for a release without a plan, FOREIGN_EDIT if a file was changed or has another patch, and
    those of reading files and the store.
    """
    plans = [plan for plan in bundle.plans if plan.patch.target == target.project.name]
    same = [plan for plan in plans if _public(plan.version) == _public(target.version)]
    for plan in [*same, *(plan for plan in plans if plan not in same)]:
        changes = [_change(file, plan.patch, target) for file in plan.files]
        if all(changes):
            return _fitted_plan(plan, target, [change for change in changes if change], bundle.tool)
    raise _no_fit(same, plans, target)


def _public(version: str) -> str:
    """Return a version without its local part: 0.11.0rc1 for 0.11.0rc1+g67dd255."""
    return version.partition("+")[0]


def _change(file: FilePlan, patch: PatchId, target: Target) -> Change | None:
    """Return the change of a file; None if it is missing or differs from the file that was planned for."""
    path = PurePosixPath(file.path)
    before = target.read_existing(path)
    if before is None:
        return None
    pristine = markers.strip(before, [patch], where=str(target.root / path))
    if digest(pristine) != file.before:
        return None
    return Change(path, before, file.applied(pristine), pristine)


def _fitted_plan(plan: BundledPlan, target: Target, changes: Sequence[Change], tool: str) -> FittedPlan:
    """Return ``plan`` with the edit that makes ``changes`` and registers the patch.

    The edit also takes lines of this patch, applied earlier with other options, out of files that the plan lacks.
    """
    files = tuple(file.path for file in plan.files)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = Record(plan.patch, target.version or plan.version, plan.options, files, now, tool)
    previous = next((other for other in StoreFolder(target.root).records() if other.patch == plan.patch), None)
    if previous:  # an earlier window may have needed more files
        more = previous._replace(files=tuple(path for path in previous.files if path not in files))
        removal = edits.revert(target.root, target.read_existing, [more], [plan.patch])
        changes = [*changes, *removal.changes]
    registered = previous is not None and previous[:4] == record[:4]
    unchanged = registered and all(change.before == change.after for change in changes)
    edit = Edit(target.root, tuple(changes), () if unchanged else (record,))
    return FittedPlan(plan, target, edit, None if registered else previous)


def _no_fit(same: Sequence[BundledPlan], plans: Sequence[BundledPlan], target: Target) -> Problem:
    """Return the problem that explains why none of ``plans`` fits: another patch, release, or content of a file."""
    name, made_for = target.project.name, " and ".join(plan.version for plan in plans)
    unfit = [(plan, file) for plan in same or plans for file in plan.files if not _change(file, plan.patch, target)]
    for plan, file in unfit:
        data, where = target.read_existing(PurePosixPath(file.path)), str(target.root / file.path)
        if data is not None and digest(markers.strip(data, where=where)) == file.before:
            other_patches = ", ".join(str(mark.patch) for mark in markers.marked(data) if mark.patch != plan.patch)
            cause = f"the file contains lines of a patch that is not in this bundle ({other_patches})"
            hint = "remove that patch first, or use rlpatch itself here, which adds a patch to a patched file"
            return Problem(Kind.FOREIGN_EDIT, cause, where, hint)
    if not same:
        here = f"{target.version} here" if target.version else "an unknown release here"
        command = f"rlpatch bundle {name}=={target.version or 'VERSION'}"
        hint = f"make a bundle for it on a machine where it is installed: {command}"
        cause = f"{name} is {here}, but this bundle was made for {made_for}"
        return Problem(Kind.VERSION, cause, str(target.root), hint)
    plan, file = unfit[0]
    other = PurePosixPath(file.path)
    cause = f"{other.name} differs from the file of {name} {plan.version} that this bundle was made for"
    if not target.exists(other):
        cause = f"{other.name} of {name} {plan.version} is missing"
    again = f"pip install --force-reinstall --no-deps {name}=={plan.version}"
    hint = f"reinstall that release ({again}), or make a bundle on this machine, which takes the files as they are"
    return Problem(Kind.FOREIGN_EDIT, cause, str(target.root / other), hint)
