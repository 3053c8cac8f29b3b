"""The calls that held the host up while the device was free: one that has most of a gap, or let it begin."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from patcher.traces.analysis.idle import LATE_NS, Idle
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import LONG_CALL, RankTrace
from patcher.traces.trace_columns import UNKNOWN, RangeColumns

_CALLS = 16  # of a thread that may lie within each other
_DRAINS = re.compile(r"synchroni[sz]e|memcpy|wait", re.IGNORECASE)
"""Calls that end when the device has come to an end: then nothing is left for it to do."""


class Held(NamedTuple):
    """A call of the host that overlaps a gap by ``ns``; ``name`` is the number of its name."""

    begin: int
    ns: int
    name: int
    thread: int


class HostHolds:
    """Long ``calls`` of each thread of a trace, to look up the call that held the host up; ``main`` has the marks."""

    def __init__(self, trace: RankTrace, cuts: Split, calls: Mapping[int, RangeColumns]) -> None:
        self.trace, self.cuts = trace, cuts
        self.columns = {thread: CallColumns(ranges) for thread, ranges in calls.items()}
        self.main = main_thread(trace)

    def held_in(self, gap: Idle) -> Held | None:
        """Return the call that held the host up in a gap; None if there is none, or the next task has no launch.

        Looks at the launching thread, then at the main one; at all threads if the task was enqueued early and launched
        late.
        """
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        asked, launched, thread = tasks.enqueued[task], tasks.launched[task], tasks.thread[task]
        if launched == UNKNOWN:
            return None
        late = 2 * (launched - gap.begin) > gap.ns
        if late and 2 * (launched - max(asked, gap.begin)) > gap.ns:  # what was asked for, another thread hands over
            every = (self._in_call(gap, other, gap.begin, launched) for other in self.columns)
            return max(filter(None, every), key=lambda held: held.ns, default=None)
        until = min(asked + 1, gap.end) if late else gap.end
        begin = gap.begin - LONG_CALL if late else gap.begin
        held = self._in_call(gap, thread, begin, until, draining=late)
        if held is None and thread != self.main and gap.ns >= LATE_NS:
            held = self._in_call(gap, self.main, begin, until, draining=late)
        return held

    def _in_call(self, gap: Idle, thread: int, begin: int, end: int, *, draining: bool = False) -> Held | None:
        """Return the long call that overlaps ``begin`` to ``end`` and covers most of a gap, at least half of it.

        Else, if ``draining``, a synchronising call that began before the gap; else None.
        """
        columns = self.columns.get(thread)
        if columns is None:
            return None
        last = bisect_left(columns.begin, end)
        if not last or columns.reach[last - 1] < begin:
            return None
        best = drained = None
        for at in range(last - 1, max(last - 1 - _CALLS, -1), -1):
            call_begin, call_end, name = columns.begin[at], columns.end[at], columns.name[at]
            if call_end < begin:
                continue
            held = Held(call_begin, max(min(call_end, gap.end) - max(call_begin, gap.begin), 0), name, thread)
            if best is None or held.ns >= best.ns:  # of two within each other the outer one
                best = held
            if draining and call_begin <= gap.begin and _DRAINS.search(self.trace.names.texts[name]):
                drained = held
        return best if best is not None and 2 * best.ns >= gap.ns else drained


def main_thread(trace: RankTrace) -> int:
    """Return the thread that has most of the marks; UNKNOWN without any."""
    threads = Counter(thread for thread, _ in trace.marks)
    return max(threads.items(), key=itemgetter(1), default=(UNKNOWN, 0))[0]


class CallColumns:
    """Calls of a thread by begin; ``reach`` is the latest end of each call and those before it. Sorts ``ranges``."""

    def __init__(self, ranges: RangeColumns) -> None:
        ranges.sort()
        self.begin, self.end, self.name = ranges.begin, ranges.end, ranges.name
        self.reach = array("q", accumulate(self.end, max))
