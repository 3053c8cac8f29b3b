"""The nested ranges of one thread: the range around each, and those that are open at a moment."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, RangeColumns

_NEVER = 1 << 63

_ALIKE = 0.9
"""Part of the most time that a range has to have, to be named instead of one around it."""


class NestedRanges:
    """Ranges of a thread by begin; ``parent`` is the index of the range around each. Sorts ``ranges`` in place."""

    def __init__(self, ranges: RangeColumns) -> None:
        ranges.sort()
        self.begin, self.end, self.name = ranges.begin, ranges.end, ranges.name
        self.parent = array("i")
        open_ranges, open_ends = [UNKNOWN], [_NEVER]
        for index, (begin, end) in enumerate(zip(self.begin, self.end, strict=True)):
            while open_ends[-1] <= begin:
                open_ranges.pop()
                open_ends.pop()
            self.parent.append(open_ranges[-1])
            open_ranges.append(index)
            open_ends.append(end)

    def innermost(self, times: Iterable[int]) -> Iterator[int]:
        """Yield for each of ``times`` (ns, ascending) the index of the innermost range that contains it, or UNKNOWN."""
        started, index = 0, UNKNOWN
        for time in times:
            if started < len(self.begin) and self.begin[started] <= time:
                started = bisect_right(self.begin, time, started)
                index = started - 1
            while index != UNKNOWN and self.end[index] <= time:
                index = self.parent[index]
            yield index

    def around(self, index: int) -> Iterator[int]:
        """Yield the index of a range and of all ranges around it, the innermost first; nothing for UNKNOWN."""
        while index != UNKNOWN:
            yield index
            index = self.parent[index]


def covered_ns(spans: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """Return for how many ns of ``begin`` to ``end`` any of ``spans`` lasts: (begin, end), sorted by begin."""
    reach, covered = begin, 0
    for first, last in spans:
        covered += max(min(last, end) - max(first, reach), 0)
        reach = max(reach, last)
    return covered


def innermost_with_most(ns_of: Mapping[int, int], length_of: Mapping[int, int]) -> int:
    """Return the innermost of the names with about the most ns: that with the least length of those with 90 % of it."""
    most = max(ns_of.values())
    return min((name for name, ns in ns_of.items() if ns >= _ALIKE * most), key=length_of.__getitem__)


class HostThread(NamedTuple):
    """Operators and modules of one thread, as nested ranges."""

    operators: NestedRanges
    modules: NestedRanges


def host_thread(trace: RankTrace, thread: int) -> HostThread:
    """Return the nested ranges of a thread."""
    return HostThread(NestedRanges(trace.operators[thread]), NestedRanges(trace.modules[thread]))
