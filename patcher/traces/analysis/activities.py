"""Activity of the host while the device was empty: the call, frame, range or operator that covers most of a gap."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from patcher.traces.analysis.idle import LATE_NS, Idle
from patcher.traces.analysis.nested import HostThread, NestedRanges
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import LONG_CALL, RankTrace
from patcher.traces.trace_columns import UNKNOWN, RangeColumns

_CALLS = 16  # of a thread that may lie within each other
WAITS = re.compile(r"synchroni[sz]e|memcpy|wait", re.IGNORECASE)
"""Calls of a device's runtime that end when the device has come to an end: then nothing is left for it to do."""

FREES = r"(?:(?:cuda|hip|aclrt)Free|(?:cu|hip)Mem(?:Unmap|Release|AddressFree)|aclrt(?:UnmapMem|ReleaseMemAddress))\w*"
"""Calls of a device's runtime that free its memory."""

ALLOCATES = re.compile(
    rf"{FREES}|(?:cuda|hip|aclrt)Malloc|(?:cu|hip)Mem(?:AddressReserve|Create|Map|SetAccess)|aclrt(?:Map|Reserve)Mem"
)
"""Calls of a device's runtime that allocate or free its memory."""


_COMMENTS = ("record_param_comms",)
"""Operators of torch that do nothing themselves: this one holds the parameters of a collective."""


class HostActivity(NamedTuple):
    """Activity of the host for ``ns`` of a gap: all ranges of one ``name``, of which the longest begins at ``begin``.

    ``name`` and ``thread`` are numbers in the trace. ``is_operator`` tells an operator from a call of the runtime, a
    frame or a range.
    """

    begin: int
    ns: int
    name: int
    thread: int
    is_operator: bool = False


class HostActivities:
    """Ranges of each thread, to look up the one that covers most of a gap; ``main`` is the thread with the marks."""

    def __init__(self, trace: RankTrace, cuts: Split, threads: Sequence[HostThread]) -> None:
        self.trace, self.cuts, self.threads = trace, cuts, threads
        self.calls = {thread: NestedRanges(ranges) for thread, ranges in trace.calls.items()}
        self.functions = {thread: NestedRanges(ranges) for thread, ranges in trace.functions.items()}
        self.frames = dict(_nested_by_thread(trace.functions, trace.frames))
        self.overheads = NestedRanges(trace.overheads)
        self.main = main_thread(trace)

    @cached_property
    def memory_names(self) -> frozenset[int]:
        """Names of calls that allocate or free device memory, as numbers."""
        return frozenset(name for name, text in enumerate(self.trace.names.texts) if ALLOCATES.match(text))

    @cached_property
    def waiting_names(self) -> frozenset[int]:
        """Names of calls that wait for the device, as numbers."""
        return frozenset(name for name, text in enumerate(self.trace.names.texts) if WAITS.search(text))

    @cached_property
    def comment_names(self) -> frozenset[int]:
        """Names of operators that only describe the one around them, as numbers."""
        return frozenset(name for name, text in enumerate(self.trace.names.texts) if text in _COMMENTS)

    def call_in(self, gap: Idle) -> HostActivity | None:
        """Return the call of the device's runtime that covers at least half of a gap; None without one.

        It is None, too, if nothing tells when the next task was launched. Calls of one name count together. The call is
        looked for on the thread that enqueued the task, then, for a gap of 100 µs or more, on the main one. If the task
        waited in a queue for most of the gap, it is the longest such call of all threads. What the driver or the
        profiler does during such a call comes first.
        """
        if self.trace.tasks.launched[self.cuts.order[gap.place]] == UNKNOWN:
            return None
        if overhead := covering(self.overheads, gap.begin, gap.end, self._searched_threads(gap)[0]):
            return overhead
        threads = [*self.calls] if self._waited_in_queue(gap) else self._searched_threads(gap)
        activities = (
            covering(self.calls[thread], gap.begin, gap.end, thread) for thread in threads if thread in self.calls
        )
        covers = filter(None, activities)
        call = max(covers, key=attrgetter("ns"), default=None) if self._waited_in_queue(gap) else next(covers, None)
        return self._memory_calls(gap, call.thread) if call and call.name in self.memory_names else call

    def _memory_calls(self, gap: Idle, thread: int) -> HostActivity | None:
        """Return the calls of a thread that allocate or free memory as one if they cover half of a gap, else None.

        They do one job. Its name is theirs, such as ``cuMemCreate/cuMemSetAccess``, without those that take little.
        """
        calls, texts, times, last = self.calls[thread], self.trace.names.texts, Counter[str](), gap.begin
        indices = [index for index in overlapping(calls, last, gap.end) if calls.name[index] in self.memory_names]
        for index in indices:
            times[texts[calls.name[index]]] += max(min(calls.end[index], gap.end) - max(calls.begin[index], last), 0)
            last = max(last, calls.end[index])
        ns = times.total()
        names = sorted(name for name in times if 10 * times[name] >= ns)  # a tenth of the time is worth a name
        begin = calls.begin[indices[0]] if indices else UNKNOWN
        return HostActivity(begin, ns, self.trace.names["/".join(names)], thread) if 2 * ns >= gap.ns else None

    def activity_in(self, gap: Idle) -> HostActivity | None:
        """Return the call that covers at least half of a gap, else the Python frame or operator that does; else None.

        Calls that allocate and free memory count together. Of several that do, the shortest one, which is the inner
        one, is returned. Threads are searched as by `call_in`. Only a single call counts if the task waited in a queue
        for most of the gap.
        """
        if (call := self.call_in(gap)) or self._waited_in_queue(gap):
            return call
        for thread in self._searched_threads(gap):
            candidates = [self._memory_calls(gap, thread)] if thread in self.calls else []
            if thread in self.frames:
                candidates.append(covering(self.frames[thread], gap.begin, gap.end, thread))
            if 0 <= thread < len(self.threads):
                operator = covering(self.threads[thread].operators, gap.begin, gap.end, thread, self.comment_names)
                candidates.append(operator and operator._replace(is_operator=True))
            if activity := min(filter(None, candidates), key=attrgetter("ns"), default=None):
                return activity
        return None

    def synchronising_call(self, gap: Idle) -> int:
        """Return the latest synchronising call that the host was in when the gap began, or had left for at most 20 µs.

        The device ran empty because the host waited in that call. The result is the number of its name in the trace's
        names, UNKNOWN without such a call. The thread that enqueued the task after the gap is searched first, then, for
        a gap of 100 µs or more, the main one.
        """
        for thread in self._searched_threads(gap):
            calls = self.calls.get(thread)
            if calls is None:
                continue
            last = bisect_right(calls.begin, gap.begin)
            for at in range(last - 1, max(last - 1 - _CALLS, -1), -1):
                name = calls.name[at]
                if calls.end[at] >= gap.begin - LONG_CALL and name in self.waiting_names:
                    return name
        return UNKNOWN

    def _searched_threads(self, gap: Idle) -> list[int]:
        """Return the thread that enqueued the task after a gap, then for a gap of 100 µs or more the main one."""
        thread = self.trace.tasks.thread[self.cuts.order[gap.place]]
        return [thread, self.main] if thread != self.main and gap.ns >= LATE_NS else [thread]

    def _waited_in_queue(self, gap: Idle) -> bool:
        """Tell whether the task after a gap waited in a queue of the host for over half of the gap."""
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        asked, launched = tasks.enqueued[task], tasks.launched[task]
        return 2 * (launched - max(asked, gap.begin)) > gap.ns


def covering(
    ranges: NestedRanges, begin: int, end: int, thread: int, ignored: Collection[int] = ()
) -> HostActivity | None:
    """Return the innermost activity that covers at least half of ``begin`` to ``end`` (ns); None without any.

    Ranges of one name count as one activity, and time within several of them counts once. If several names cover half,
    that with least time is the innermost one. ``thread`` is only noted in the result. Names in ``ignored`` (as numbers)
    don't count.
    """
    covered = _covering_half(ranges, begin, end)
    half = [(ns, -index, name) for name, (ns, _, _, index) in covered.items() if name not in ignored]
    if not half:
        return None
    ns, index, name = min(half)
    return HostActivity(ranges.begin[-index], ns, name, thread)


def covering_names(ranges: NestedRanges, begin: int, end: int) -> list[int]:
    """Return the names of all activities that cover at least half of ``begin`` to ``end`` (ns), as numbers."""
    return list(_covering_half(ranges, begin, end))


def _covering_half(ranges: NestedRanges, begin: int, end: int) -> dict[int, list[int]]:
    """Return each name (its number) whose ranges cover at least half of ``begin`` to ``end``, with how much they cover.

    The value is a list: ns covered, end of the last range, ns of the longest range, and its index. Only the parts of
    ranges between ``begin`` and ``end`` count.
    """
    sums: dict[int, list[int]] = {}
    for index in overlapping(ranges, begin, end):
        first, last = max(ranges.begin[index], begin), min(ranges.end[index], end)
        row = sums.setdefault(ranges.name[index], [0, first, -1, index])
        row[0] += max(last - max(first, row[1]), 0)
        row[1] = max(row[1], last)
        if last - first > row[2]:
            row[2:] = last - first, index
    return {name: row for name, row in sums.items() if 2 * row[0] >= end - begin}


def overlapping(ranges: NestedRanges, begin: int, end: int) -> Iterator[int]:
    """Yield the indices of the ranges that overlap ``begin`` to ``end``, by their begin, outer before inner."""
    first, last = bisect_right(ranges.begin, begin), bisect_left(ranges.begin, end)
    (innermost,) = ranges.innermost([begin])
    yield from reversed(list(ranges.around(innermost)))
    yield from range(first, last)


def _nested_by_thread(*sources: Mapping[int, RangeColumns]) -> Iterator[tuple[int, NestedRanges]]:
    """Yield each thread with the ranges of all ``sources``, nested in one another.

    Each source maps a thread to ranges.
    """
    for thread in dict.fromkeys(thread for source in sources for thread in source):
        ranges = RangeColumns()
        for source in sources:
            if thread in source:
                ranges.extend(source[thread])
        yield thread, NestedRanges(ranges)


def main_thread(trace: RankTrace) -> int:
    """Return the thread that has most of the marks; UNKNOWN without any."""
    threads = Counter(thread for thread, _ in trace.marks)
    return max(threads, key=threads.__getitem__, default=UNKNOWN)
