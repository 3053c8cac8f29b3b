"""Windows that a profiler recorded during a run, found by the metadata beside their traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patcher.messages import CommandLine
from patcher.timeline.model import Lane, RecordedWindow, Run
from patcher.traces import sidecar
from patcher.traces.sidecar import Metadata
from patcher.workers.life import plain_host

MOST = 1_000
"""Most metadata files that are read."""


def windows(folder: Path, lanes: Sequence[Lane], run: Run, wall: float) -> tuple[RecordedWindow, ...]:
    """Return the windows that were recorded during ``run``, give or take a minute, sorted by start.

    Metadata files in ``folder`` tell of them. At most 1,000 are read; damaged ones, and those without times, are
    skipped. ``wall`` is the Unix time in seconds at which the run's clock is 0.
    """
    recorded = list[RecordedWindow]()
    for file in sorted(folder.glob(f"*{sidecar.SUFFIX}"))[:MOST]:
        try:
            metadata = sidecar.read(file)
        except ValueError:
            continue
        times = _begin_and_end(metadata)
        if times is None or not run.started - 60 <= times[0] <= run.started + run.seconds + 60:
            continue
        place = (metadata.pid, plain_host(metadata.host))
        lane = next((at for at, lane in enumerate(lanes) if (lane.pid, plain_host(lane.host)) == place), None)
        trace = sidecar.trace_of(file)
        title = (
            " ".join(filter(None, (metadata.unit, metadata.window.text if metadata.window else ""))) or metadata.stage
        )
        start, end = (round(time - wall, 6) for time in times)
        recorded.append(RecordedWindow(trace, title, start, end, lane, str(CommandLine("report", str(trace)))))
    return tuple(sorted(recorded, key=lambda window: window.start))


def _begin_and_end(metadata: Metadata) -> tuple[float, float] | None:
    """Return begin and end of a window's steps in seconds since 1970; None if the ``metadata`` have no times in ns."""
    units = metadata.raw.get("units")
    entries = [unit for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []
    moments = (unit.get(key) for unit in entries for key in ("begin", "end"))
    times = [time for time in moments if type(time) is int and 0 < time < 1 << 63]
    return (min(times) / 1e9, max(times) / 1e9) if times else None
