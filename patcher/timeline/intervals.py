"""Intervals in whole microseconds: their union, the gaps between them, and how long they overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar

ENDLESS = 1 << 61
"""Later than any record."""

by_start = attrgetter("start")
"""Sort key: the start of a span."""


class Timed(Protocol):
    """A value with a start and an end in microseconds."""

    @property
    def start(self) -> int:
        """Return the start in microseconds."""

    @property
    def end(self) -> int | None:
        """Return the end in microseconds; None if the interval still goes on."""


T = TypeVar("T", bound=Timed)
_Time = TypeVar("_Time", int, float)


class TimeRange(NamedTuple):
    """Start and end in microseconds."""

    start: int
    end: int


def end_of(interval: Timed) -> int:
    """Return the end in microseconds; ENDLESS if the interval still goes on."""
    return ENDLESS if interval.end is None else interval.end


def covered(parts: Iterable[Timed], low: int = -ENDLESS, high: int = ENDLESS, *, gap: int = 0) -> list[TimeRange]:
    """Return the union of ``parts`` (in any order) within ``low`` to ``high``, sorted; times are in microseconds.

    Gaps of at most ``gap`` between parts count as covered. A part that still goes on lasts until ``high``, and one
    outside of the range is ignored.
    """
    union = list[TimeRange]()
    for begin, end in sorted((max(part.start, low), min(end_of(part), high)) for part in parts):
        if begin >= end:
            continue
        if union and begin <= union[-1].end + gap:
            union[-1] = TimeRange(union[-1].start, max(end, union[-1].end))
        else:
            union.append(TimeRange(begin, end))
    return union


def uncovered(union: Sequence[TimeRange], low: int, high: int) -> list[TimeRange]:
    """Return the ranges of ``low`` to ``high`` outside of ``union``, which is sorted, without overlaps."""
    edges = [TimeRange(low, low), *union, TimeRange(high, high)]
    return [TimeRange(before.end, after.start) for before, after in pairwise(edges) if after.start > before.end]


def length(parts: Iterable[Timed]) -> int:
    """Return the sum of the lengths of ``parts`` in microseconds."""
    return sum(end_of(part) - part.start for part in parts)


def overlaps(parts: Iterable[T], union: Sequence[TimeRange]) -> Iterator[tuple[T, int]]:
    """Yield (part, microseconds) for each pair of one of ``parts`` and a range of ``union`` that overlap.

    A part that overlaps several ranges comes once for each. Both must be sorted, and neither may overlap itself.
    """
    first = 0
    for part in parts:
        end = end_of(part)
        while first < len(union) and union[first].end <= part.start:
            first += 1
        at = first
        while at < len(union) and union[at].start < end:
            yield part, min(end, union[at].end) - max(part.start, union[at].start)
            at += 1


def overlap_counts(ranges: Iterable[tuple[_Time, _Time]]) -> Iterator[tuple[_Time, int]]:
    """Yield (time, number of ranges from then on) for each start and end of ``ranges``, in order."""
    changes = Counter[_Time]()
    for start, end in ranges:
        changes[start] += 1
        changes[end] -= 1
    count = 0
    for time in sorted(changes):
        count += changes[time]
        yield time, count


def at_least(least: int, ranges: Iterable[tuple[_Time, _Time]]) -> Iterator[tuple[_Time, _Time]]:
    """Yield the ranges in which at least ``least`` of ``ranges`` overlap, in order."""
    begun: _Time | None = None
    for time, count in overlap_counts(ranges):
        if begun is None and count >= least:
            begun = time
        elif begun is not None and count < least:
            yield begun, time
            begun = None
