"""The stretches of the host that belong to the units, which of them launched a task, and where each is on the device.

A task belongs to the unit in which it was enqueued on the host; where no link says when that was, to the unit that the
device was in. On the device a unit reaches from its first kernel on the busiest compute stream to that of the next one.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from patcher.traces.model import COMPUTE, KINDS
from patcher.traces.timeline import FAMILIES, UNCOUNTED, UNKNOWN, Mark, Timeline

_COMPUTE = KINDS.index(COMPUTE)


class Segment(NamedTuple):
    """A stretch of the host that belongs to one unit, or with ``mark`` None to iterations that are not counted."""

    begin: int
    end: int
    mark: Mark | None


@dataclass(slots=True)
class DeviceWindow:
    """A segment on the device: from ``begin`` to ``end``, with the number of its tasks, and the longest of these."""

    segment: Segment
    first: int | None = None
    begin: int = 0
    end: int = 0
    tasks: int = 0
    last: int = 0
    longest_ns: int = 0
    longest: str = ""


class Split(NamedTuple):
    """A timeline split into segments, in order, with the window of each.

    ``family`` is that of the marks, "" where the whole trace is one unit. ``owner`` is the segment that enqueued a
    task, UNKNOWN where none did or no link exists; ``order`` are the tasks in the order of their begin.
    """

    family: str
    segments: list[Segment]
    windows: list[DeviceWindow]
    owner: array[int]
    order: Sequence[int]


def split(found: Timeline) -> Split:
    """Split a timeline at the marks of its units."""
    family, marks, uncounted = marks_of(found)
    order = found.in_order()
    segments = segments_of(marks or _whole(found), uncounted)
    begins = [segment.begin for segment in segments]
    end = segments[-1].end if segments else 0
    enqueued = found.tasks.enqueued
    owner = array("i", (bisect_right(begins, time) - 1 if time < end else UNKNOWN for time in enqueued))
    windows = _windows(found, segments, owner, order)
    unlinked = [at for at in order if enqueued[at] == UNKNOWN]
    if unlinked:
        _own_unlinked(found, segments, windows, owner, unlinked)
        windows = _windows(found, segments, owner, order)
    return Split(family, segments, windows, owner, order)


def marks_of(found: Timeline) -> tuple[str, list[Mark], list[Mark]]:
    """The family of the marks of the units, these marks in order, and the stretches that do not count.

    Of several threads with marks, the one with most. A single ``ProfilerStep#`` around many marks of an engine is not
    the unit: those are.
    """
    threads: dict[str, dict[int, list[Mark]]] = {}
    for thread, mark in found.marks:
        threads.setdefault(mark.family, {}).setdefault(thread, []).append(mark)
    marks: dict[str, list[Mark]] = {}
    for family, by_thread in threads.items():
        busiest: list[Mark] = max(by_thread.values(), key=len)
        marks[family] = sorted(busiest, key=lambda mark: (mark.begin, -mark.end))
    uncounted = marks.pop(UNCOUNTED, [])
    families = [family for family in FAMILIES if family in marks]
    if not families:
        return "", [], uncounted
    chosen = families[0]
    if len(marks[chosen]) == 1:
        chosen = next((family for family in families[1:] if len(marks[family]) > 1), chosen)
    engine = [mark for family in families for mark in marks[family] if family != chosen and mark.requests is not None]
    return chosen, list(_completed(marks[chosen], engine)), uncounted


def _completed(marks: Sequence[Mark], engine: Sequence[Mark]) -> Iterator[Mark]:
    """``marks`` with a number, and with the counts of a mark of the engine that is the only one within."""
    for number, mark in enumerate(marks):
        within = [other for other in engine if mark.begin <= other.begin < mark.end]
        numbered = mark if mark.number is not None else mark._replace(number=number)
        if len(within) == 1:
            requests, tokens, context = within[0].requests, within[0].tokens, within[0].context
            numbered = numbered._replace(requests=requests, tokens=tokens, context=context)
        yield numbered


def segments_of(marks: Sequence[Mark], uncounted: Sequence[Mark]) -> list[Segment]:
    """The host in segments: each mark up to the next one's begin, or to an uncounted one that lies within."""
    cuts = [Segment(mark.begin, mark.end, mark) for mark in marks]
    cuts += [Segment(mark.begin, mark.end, None) for mark in uncounted]
    cuts.sort(key=lambda cut: cut.begin)
    shortened = (cut._replace(end=following.begin) for cut, following in itertools.pairwise(cuts))
    return [*shortened, *cuts[-1:]]


def _whole(found: Timeline) -> list[Mark]:
    """The whole trace as one unit, where nothing marks units; none if it is empty."""
    times = list(found.spans())
    first = min((time for time in found.tasks.enqueued if time != UNKNOWN), default=None)
    times += [(first, max(found.tasks.enqueued) + 1)] if first is not None else []
    return [Mark("", "the whole trace", min(b for b, _ in times), max(e for _, e in times), 0)] if times else []


def _own_unlinked(
    found: Timeline, segments: Sequence[Segment], windows: Sequence[DeviceWindow], owner: array[int],
    unlinked: Sequence[int],
) -> None:  # fmt: skip
    """Give the tasks without a link to the segment that the device is in when they begin.

    Where no task has a link, to the segment that the host is in: better is not to be had.
    """
    begin = found.tasks.begin
    if len(unlinked) == len(found.tasks):
        real = list(range(len(segments)))
        begins, end = [segment.begin for segment in segments], max((segment.end for segment in segments), default=0)
    else:
        real = [at for at, window in enumerate(windows) if window.end > window.begin]
        begins, end = [windows[at].begin for at in real], windows[real[-1]].end if real else 0
    for task in unlinked:
        place = bisect_right(begins, begin[task]) - 1
        owner[task] = real[place] if place >= 0 and begin[task] < end else UNKNOWN


def _windows(
    found: Timeline, segments: Sequence[Segment], owner: Sequence[int], order: Sequence[int]
) -> list[DeviceWindow]:
    """Where each segment is on the device."""
    tasks, windows = found.tasks, [DeviceWindow(segment) for segment in segments]
    busy: Counter[int] = Counter()
    for at, segment in enumerate(owner):
        if segment != UNKNOWN and tasks.kind[at] == _COMPUTE:
            busy[tasks.stream[at]] += tasks.end[at] - tasks.begin[at]
    busiest = max(busy, key=lambda stream: (busy[stream], -stream), default=UNKNOWN)
    ranked = [4] * len(windows)  # how good a beginning is: of the busiest stream, compute, communication, a copy
    for at in order:
        if owner[at] == UNKNOWN:
            continue
        window, begin, end, kind = windows[owner[at]], tasks.begin[at], tasks.end[at], tasks.kind[at]
        rank = 0 if kind == _COMPUTE and tasks.stream[at] == busiest else 1 + kind
        if rank < ranked[owner[at]]:
            ranked[owner[at]], window.first = rank, begin
        window.tasks += 1
        window.last = max(window.last, end)
        if end - begin > window.longest_ns:
            window.longest_ns, window.longest = end - begin, found.names.texts[tasks.name[at]]
    _chain([window for window in windows if window.first is not None])
    return windows


def _chain(windows: Sequence[DeviceWindow]) -> None:
    """Let each window reach to the next one's first kernel, and the last one to its last kernel."""
    reached = 0
    for at, window in enumerate(windows):
        window.begin = reached = max(window.first or 0, reached) if at else (window.first or 0)
        following = windows[at + 1].first if at + 1 < len(windows) else window.last
        window.end = max(window.begin, following or 0)
