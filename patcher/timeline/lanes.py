"""The lanes of a timeline: what each process did, in as much detail as a page can show."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from patcher.timeline.files import IterationColumns, KeptSpan, Reader
from patcher.timeline.intervals import end_of
from patcher.timeline.model import IterationRun, Lane, LaneSpan
from patcher.timeline.path import GAP_US
from patcher.timeline.runs import Process
from patcher.timeline.shares import seconds

MOST = 120_000
"""Most spans of all lanes together, and most runs of iterations; each lane may have an equal part. Beyond that, the
shortest spans are left out, and neighbouring runs are merged.
"""

LEAST = 200
"""Fewest entries that a lane keeps, however many lanes there are."""


class RunLanes:
    """Lanes of all processes: one each, and a second one for an engine that runs in a trainer's process."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.places = [(at, role) for at, process in enumerate(processes) for role in _roles(process)]
        self.builders = [LaneBuilder(processes[at], role, len(self.places)) for at, role in self.places]
        self._first = {at: lane for lane, (at, _) in reversed([*enumerate(self.places)])}
        self._by_place = {place: lane for lane, place in enumerate(self.places)}

    def index(self, process: int, role: str) -> int:
        """Return the index of a process's lane for ``role``, else of its first lane."""
        return self._by_place.get((process, role), self._first[process])

    def take_from(self, process: int, reader: Reader, before: int) -> None:
        """Move the records that ended before ``before`` (microseconds) from a process's ``reader`` to its lanes.

        Iterations go to its lane as an engine. Spans go to its lane as a trainer, or to its only lane.
        """
        engine = self._by_place.get((process, "engine"))
        if engine is not None:
            self.builders[engine].add_iterations(reader.iterations, before)
        self.builders[self.index(process, "trainer")].add(reader.forget(before))

    def built(self) -> tuple[Lane, ...]:
        """Return the finished lanes, numbered from 0 within each role."""
        numbers = defaultdict[str, "itertools.count[int]"](itertools.count)
        return tuple(builder.build(next(numbers[builder.role])) for builder in self.builders)


def _roles(process: Process) -> tuple[str, ...]:
    """Return the roles for which a process gets a lane: two for an engine that also trains."""
    return ("engine", "trainer") if process.role == "engine" and "trainer" in process.roles else (process.role,)


class LaneBuilder:
    """Collector of the records of one process for one lane, bounded in size."""

    def __init__(self, process: Process, role: str, lanes: int) -> None:
        """Start an empty lane of ``role``; ``lanes`` is the number of all lanes, which share the limit of spans."""
        self.process, self.role, self.most = process, role, max(MOST // lanes, LEAST)
        self.spans: list[KeptSpan] = []
        self.left_out = self.dropped = 0
        self.runs: list[IterationRun] = []
        self.gap = GAP_US

    def add(self, spans: Iterable[KeptSpan]) -> None:
        """Add spans, except marks of steps; if there are too many, drop the shortest and count them in ``left_out``."""
        self.spans += [span for span in spans if span.kind != "step"]
        if len(self.spans) > 2 * self.most:
            self._thin()

    def _thin(self) -> None:
        self.left_out += max(len(self.spans) - self.most, 0)
        self.spans = sorted(self.spans, key=_length, reverse=True)[: self.most]

    def add_iterations(self, columns: IterationColumns, before: int) -> None:
        """Add the iterations of ``columns`` that ended by ``before`` (microseconds), merged into runs with small gaps.

        If there are too many runs, those with larger gaps are merged, too.
        """
        iterations = list[IterationRun]()
        for start, end, requests, tokens in columns:
            if end > before:
                break
            iterations.append(IterationRun(start, end, 1, int(tokens <= requests), requests))
        self.runs += _merge_runs(iterations, self.gap)
        while len(self.runs) > self.most:
            self.gap *= 2
            self.runs = _merge_runs(self.runs, self.gap)

    def build(self, number: int) -> Lane:
        """Return the finished lane, with times in seconds, as lane ``number`` of its role (from 0)."""
        self._thin()
        ordered = sorted(self.spans, key=lambda span: (span.start, -_length(span)))
        spans = tuple(
            LaneSpan(seconds(span.start), None if span.end is None else seconds(span.end), span.kind, span.name)
            for span in ordered
        )
        runs = tuple(run._replace(start=seconds(run.start), end=seconds(run.end)) for run in self.runs)
        times = [time for part in (spans, runs) for start, end, *_ in part for time in (start, end) if time is not None]
        recorded_range = (min(times, default=0.0), max(times, default=0.0))
        head = self.process.head
        return Lane(
            self.role, number, self.process.replica, self.process.rank, head.host, head.pid, head.command,
            spans, runs, self.left_out, recorded_range, head.ended, self.dropped,
        )  # fmt: skip


def _length(span: KeptSpan) -> int:
    return end_of(span) - span.start


def _merge_runs(runs: Iterable[IterationRun], gap: int) -> list[IterationRun]:
    """Merge neighbouring runs of iterations with at most ``gap`` microseconds between them; ``runs`` are in order."""
    joined = list[IterationRun]()
    for run in runs:
        last = joined[-1] if joined else None
        if last is None or run.start - last.end > gap:
            joined.append(run)
        else:
            joined[-1] = IterationRun(
                last.start, max(last.end, run.end), last.iterations + run.iterations, last.decodes + run.decodes,
                max(last.requests, run.requests),
            )  # fmt: skip
    return joined
