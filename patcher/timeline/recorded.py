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
    """Return the windows below ``folder`` whose units lie in the run, whose clock is 0 at the time ``wall``."""
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
        lane = next(
            (at for at, lane in enumerate(lanes) if lane.pid == facts.pid and _same(lane.host, facts.host)), None
        )
        trace = sidecar.trace_of(file)
        title = " ".join(filter(None, (facts.unit, facts.window.text if facts.window else "")))
        start, end = (round(time - wall, 6) for time in times)
        yield RecordedWindow(trace, title or facts.stage, start, end, lane, str(CommandLine("report", str(trace))))


def _same(host: str, other: str) -> bool:
    return "".join(c if c.isalnum() else "_" for c in host) == "".join(c if c.isalnum() else "_" for c in other)


def _times(facts: Metadata) -> tuple[float, float] | None:
    """Return begin and end of the recorded units, in seconds since the epoch; None where they are not known."""
    units = facts.raw.get("units")
    entries = [unit for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []
    moments = (unit.get(key) for unit in entries for key in ("begin", "end"))
    times = [time for time in moments if type(time) is int and 0 < time < 1 << 63]
    return (min(times) / 1e9, max(times) / 1e9) if times else None
