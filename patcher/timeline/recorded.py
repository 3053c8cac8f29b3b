"""Windows that profilers of ours recorded in the same run, from the facts beside their traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from patcher.messages.command_line import CommandLine
from patcher.timeline.model import Lane, RecordedWindow, Run
from patcher.traces import sidecar
from patcher.traces.sidecar import Metadata

MOST = 1_000
"""Facts that are looked at."""


def windows(folder: Path, lanes: Sequence[Lane], run: Run, wall: float) -> tuple[RecordedWindow, ...]:
    """Those below ``folder`` whose units lie in the run; ``wall`` is the time of day where the run's clock is 0."""
    return tuple(sorted(_found(folder, lanes, run, wall), key=lambda window: window.start))


def _found(folder: Path, lanes: Sequence[Lane], run: Run, wall: float) -> Iterator[RecordedWindow]:
    for file in sorted(folder.glob(f"*{sidecar.SUFFIX}"))[:MOST]:
        try:
            facts = sidecar.read(file)
        except ValueError:
            continue
        times = _times(facts)
        if times is None or not run.started - 60 <= times[0] <= run.started + run.seconds + 60:
            continue
        lane = next((at for at, one in enumerate(lanes) if one.pid == facts.pid and _same(one.host, facts.host)), None)
        trace = sidecar.trace_of(file)
        title = " ".join(filter(None, (facts.unit, facts.window.text if facts.window else "")))
        start, end = (round(time - wall, 6) for time in times)
        yield RecordedWindow(trace, title or facts.stage, start, end, lane, str(CommandLine("report", str(trace))))


def _same(host: str, other: str) -> bool:
    return "".join(c if c.isalnum() else "_" for c in host) == "".join(c if c.isalnum() else "_" for c in other)


def _times(facts: Metadata) -> tuple[float, float] | None:
    """When its first unit began and its last one ended, in seconds since the epoch; None where that is not known."""
    units = facts.raw.get("units")
    known = [unit for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []
    found = (unit.get(key) for unit in known for key in ("begin", "end"))
    times = [time for time in found if type(time) is int and 0 < time < 1 << 63]
    return (min(times) / 1e9, max(times) / 1e9) if times else None
