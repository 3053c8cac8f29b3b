"""``traces`` and ``analyse``: what was recorded, and the offline parsing of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from patcher.errors import Kind, Problem
from patcher.report import Detail, Report
from patcher.traces import folders
from patcher.traces.folders import Capture, Trace


def traces(folder: Path) -> Report:
    """What lies in ``folder``, capture by capture. Raises: Problem (USAGE) where there is no such folder."""
    found = recorded(folder)
    report = Report("traces", data={"folder": str(folder), "captures": [_row(capture) for capture in found]})
    if not found:
        report.note("no trace of any tool lies here", f"looked in {folder} and all below it")
    return report


def recorded(folder: Path) -> list[Capture]:
    """The captures below a folder that the user named."""
    if not folder.exists():
        cause = f"there is no {folder}"
        raise Problem(Kind.USAGE, cause, hint="the log of the run and `rlpatch status` name the folder of the traces")
    return folders.captures(Path(folder).resolve())


def said(report: Report) -> list[str]:
    """What is said below the table: the next command of each capture, and with -v what is wrong with each trace."""
    rows: Any = report.data["captures"]
    lines: list[str] = []
    for number, row in enumerate(rows, 1):
        wrong = [trace for trace in row["traces"] if trace["why"]]
        lines += [Detail(f"  {number}  {Path(trace['path']).name}: {trace['why']}") for trace in wrong]
        lines.append(f"  {number}  next: {row['next']}" if row["next"] else f"  {number}  {_nothing(row)}")
    return lines


def _nothing(row: Any) -> str:
    if row["state"] == folders.FOREIGN:
        return str(row["traces"][0]["why"])
    return f"record again: {folders.STATES[row['state']]}"


def _row(capture: Capture) -> dict[str, Any]:
    first = capture.first
    units = capture.steps
    return {
        "target": first.target, "release": first.release, "stage": first.stage, "role": first.role,
        "rollout": first.rollout, "step": first.step, "form": first.form, "ours": first.ours,
        "asked": window(first.asked), "got": got(units, first.asked), "units": None if units is None else list(units),
        "ranks": ranks(capture), "ranks_found": list(capture.found), "state": capture.state, "size": capture.size,
        "next": capture.command, "traces": [_trace(trace) for trace in capture.traces],
    }  # fmt: skip


def _trace(trace: Trace) -> dict[str, Any]:
    return {
        "path": str(trace.path), "state": trace.state, "why": trace.why, "size": trace.size, "host": trace.host,
        "replica": trace.replica, "rank": trace.rank, "pid": trace.pid, "exports": list(trace.exports),
        "ended": trace.ended, "facts": dict(trace.facts),
    }  # fmt: skip


def window(asked: tuple[int, int | None] | None) -> str:
    """A window as it is typed; "" where nobody knows."""
    return "" if asked is None else f"{asked[0]}:{'' if asked[1] is None else asked[1]}"


def got(units: Iterable[int] | None, asked: tuple[int, int | None] | None) -> str:
    """The units that are there, as a window where they are one; "" where nobody knows, "none" for none."""
    if units is None:
        return ""
    numbers = sorted(units)
    if not numbers:
        return "none"
    first, end = numbers[0], numbers[-1] + 1
    text = f"{first}:{end}"
    if len(numbers) < end - first:
        return f"{text} ({len(numbers)} units)"
    if asked and asked[1] is not None and (first, end) != asked:
        return f"{text} ({len(numbers)} of {asked[1] - asked[0]})"
    return text


def ranks(capture: Capture) -> str:
    """The ranks that left a trace, and how many there should be where that was written down."""
    numbers = capture.found
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    asked, world = capture.first.ranks, capture.first.world
    if asked and asked != "all":
        missing = {int(rank) for rank in asked.split(",") if rank.isdigit()} - set(numbers)
        return f"{text or 'none'} of {asked}" if missing else text
    if world and world > len(numbers):
        return f"{text or 'none'} of {world}"
    return text
