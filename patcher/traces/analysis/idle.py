"""The stretches in which nothing runs on the device: what lies between two tasks, of any stream and kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from patcher.traces.analysis.segments import Segment, Split
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

LATE_NS, WAITING_NS = 100_000, 20_000
"""Gaps up to which the host merely takes its time for each kernel, and the device for the begin of one."""


class Idle(NamedTuple):
    """A stretch of ``ns`` in which no task runs; ``place`` is that of the next task in the order of begins.

    ``before`` is the task that ended last, ``part`` the part of the unit that most of the stretch belongs to.
    """

    begin: int
    end: int
    ns: int
    before: int
    place: int
    segment: int
    part: str


def idle(trace: RankTrace, cuts: Split, chosen: Collection[int]) -> Iterator[Idle]:
    """Yield every stretch of the chosen segments in which no task runs, in order.

    The stretches add up to the free time of the segments, lead-in included. None reaches from one segment into the
    next.
    """
    tasks, segments = trace.tasks, cuts.segments
    stretches = iter([(segment.ends, at) for at, segment in enumerate(segments) if segment.ends > segment.leads])
    last, number = next(stretches, (UNKNOWN, UNKNOWN))
    reach, before = min(tasks.begin, default=0), UNKNOWN
    if number != UNKNOWN:
        reach = min(reach, segments[number].leads)
    begins, ends = (map(column.__getitem__, cuts.order) for column in (tasks.begin, tasks.end))
    for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin > reach:
            while begin > last:
                last, number = next(stretches, (UNKNOWN, UNKNOWN))
                if number == UNKNOWN:
                    return
            first = max(reach, segments[number].leads)
            if begin > first and number in chosen:
                part = _part(segments[number], first, begin, tasks.launched[cuts.order[place]])
                yield Idle(first, begin, begin - first, before, place, number, part)
        if end > reach:
            reach, before = end, cuts.order[place]


def _part(segment: Segment, begin: int, end: int, launched: int) -> str:
    """Return the part of the unit that most of a gap is; ``launched`` is the launch of the next task, or UNKNOWN."""
    if begin < segment.starts:
        return "lead_in_ns"
    if launched == UNKNOWN:
        return "free_unknown_ns"
    return "free_host_late_ns" if 2 * (launched - begin) > end - begin else "free_waiting_ns"
