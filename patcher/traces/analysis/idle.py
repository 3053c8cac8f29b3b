"""The stretches in which nothing runs on the device: what lies between two tasks, of any stream and kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from patcher.traces.analysis.segments import Split
from patcher.traces.model import FREE, LEAD_IN
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

LATE_NS, WAITING_NS = 100_000, 20_000
"""Gaps up to which the host merely takes its time for each kernel, and the device for the begin of one."""

MOST_LATENCY_NS = 1_000_000
"""Longest launch latency of an idle device, usually some µs; a kernel that starts later waits for something else."""

_PARTS = tuple(FREE)


class Idle(NamedTuple):
    """A stretch of ``ns`` in which no task runs; ``place`` is that of the next task in the order of begins.

    ``before`` is the task that ended last, ``part`` the part of the step that most of the stretch belongs to.
    """

    begin: int
    end: int
    ns: int
    before: int
    place: int
    segment: int
    part: str


def idle_stretches(trace: RankTrace, cuts: Split, chosen: Collection[int]) -> Iterator[Idle]:
    """Yield every stretch of the ``chosen`` segments in which no task runs on the device, in order, with its reason.

    ``chosen`` has indices of segments (steps) in ``cuts``. The stretches add up to the free time of the segments and
    the time before their first kernels. None reaches from one segment into the next.
    """
    tasks, segments, blocked = trace.tasks, cuts.segments, trace.blocking_calls()
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
                part = LEAD_IN
                if begin >= segments[number].starts and first >= segments[number].starts:
                    parts = idle_parts(first, begin, tasks.launched[cuts.order[place]], blocked)
                    part = _PARTS[parts.index(max(parts))]
                yield Idle(first, begin, begin - first, before, place, number, part)
        if end > reach:
            reach, before = end, cuts.order[place]


def idle_parts(begin: int, end: int, launched: int, blocked: Mapping[int, int]) -> tuple[int, int, int, int, int]:
    """Divide a stretch of an idle device by the reasons why it is idle, and return the ns of each, in order of `FREE`.

    The reasons are: host-bound, launch latency, blocked launch call, stream wait, and unknown. It is a stream wait if
    the next task was launched before the stretch, or over 1 ms before it starts. ``launched`` is when the call that
    launched the next task began, or UNKNOWN. ``blocked`` maps the begin of each long launch call to its end.
    """
    if launched == UNKNOWN:
        return 0, 0, 0, 0, end - begin
    call = min(max(launched, begin), end)
    held = min(max(blocked.get(launched, 0), call), end)
    late, within, after = call - begin, held - call, end - held
    waits = launched < begin or after > MOST_LATENCY_NS
    return (late, 0, within, after, 0) if waits else (late, after, within, 0, 0)
