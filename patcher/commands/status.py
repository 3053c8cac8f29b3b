"""``status``: what is there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from patcher.commands.finding import SearchOptions
from patcher.commands.patched import PatchedRoot, patched_roots, report_nothing
from patcher.report import Report

if TYPE_CHECKING:
    from patcher.change import Record


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
