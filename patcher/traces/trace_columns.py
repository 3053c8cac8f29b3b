"""Columns of whole nanoseconds into which every format is read, some 40 bytes an event.

Readers fill them as they go, so a trace of 10 GB needs less than 1 GB.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, starmap
from typing import Any

from patcher.traces.model import KINDS

UNKNOWN = -1
"""Value of a time, thread, name or index that is not known."""

STRETCH = 1 << 16
"""Number of events that are sorted at once: to sort all would take as much memory as the columns themselves."""


class StringTable(dict[str, int]):
    """Text → its number, the index in ``texts``; looking up a new text adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = self.add_again(text)
        return self[text]

    def add_again(self, text: str) -> int:
        """Add a text once more under a new number, as the name of another thing, and return the number."""
        self.texts.append(text)
        return len(self.texts) - 1


class RangeColumns:
    """Nested ranges of one thread as columns: begin and end in ns, and the number of the name."""

    def __init__(self) -> None:
        self.begin, self.end, self.name = array("q"), array("q"), array("i")

    def __len__(self) -> int:
        return len(self.begin)

    def add(self, begin: int, end: int, name: int) -> None:
        """Add a range (times in ns, number of its name), in any order."""
        self.begin.append(begin)
        self.end.append(end)
        self.name.append(name)

    def extend(self, ranges: RangeColumns) -> None:
        """Add all of ``ranges``, in any order."""
        self.begin.extend(ranges.begin)
        self.end.extend(ranges.end)
        self.name.extend(ranges.name)

    def sort(self) -> None:
        """Sort the ranges by their begin, the outer before the inner one."""
        begin, end = self.begin, self.end
        if all(map(_follows, begin, end, islice(begin, 1, None), islice(end, 1, None))):
            return
        order = sorted_places(len(begin), lambda place: (begin[place], -end[place]))
        for column in (begin, end, self.name):
            column[:] = array(column.typecode, map(column.__getitem__, order))


LARGEST_BYTES = 1 << 60
"""No allocation or device has as many bytes."""


class AllocationColumns:
    """Allocations (positive) and frees (negative) as columns: thread, time in ns, bytes, and the total after it."""

    def __init__(self) -> None:
        self.thread, self.time, self.size, self.total = array("i"), array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.time)

    def add(self, thread: int, time: int, size: int, total: int | None) -> None:
        """Add an allocation of ``size`` bytes, or a free if below 0, by a host thread at ``time`` (ns).

        ``total`` is how many bytes are in use afterwards; None adds ``size`` to the total before. Nothing is added for
        a size or total of 2**60 bytes or more, or a total below 0.
        """
        before = self.total[-1] if self.total else 0
        total = before + size if total is None else total
        if -LARGEST_BYTES < size < LARGEST_BYTES and 0 <= total < LARGEST_BYTES:
            for column, value in ((self.thread, thread), (self.time, time), (self.size, size), (self.total, total)):
                column.append(value)


def _follows(begin: int, end: int, next_begin: int, next_end: int) -> bool:
    """Tell whether two successive ranges are in order: by begin, the outer before the inner one."""
    return begin < next_begin or (begin == next_begin and end >= next_end)


class Tasks:
    """The tasks of the device, a column for each property.

    ``kind`` is an index into ``KINDS``, ``name`` and ``stream`` are numbers of names. ``enqueued`` is when an operator
    of the framework called for it on the host, which decides its unit. ``launched`` is when it was handed to the
    device, which decides how late the host was. ``thread`` is the number of the calling thread. ``key`` links a task
    with the call that launched it. Each of these four is UNKNOWN where no link exists.
    """

    def __init__(self) -> None:
        self.begin, self.end = array("q"), array("q")
        self.kind, self.name, self.stream = array("b"), array("i"), array("i")
        self.enqueued, self.launched = array("q"), array("q")
        self.thread, self.key = array("i"), array("q")

    def __len__(self) -> int:
        return len(self.begin)

    def add(self, begin: int, end: int, kind: str, name: int, stream: int, key: int | None = None) -> None:
        """Add a task: times in ns, a kind of `KINDS`, numbers of its name and stream, and its launch's key, if any.

        An end before the begin becomes the begin. Raises OverflowError for a ``key`` beyond 64 bits, and adds nothing
        then. The other values must be valid.
        """
        self.key.append(UNKNOWN if key is None else key)
        self.begin.append(begin)
        self.end.append(max(begin, end))
        self.kind.append(KINDS.index(kind))
        self.name.append(name)
        self.stream.append(stream)
        self.enqueued.append(UNKNOWN)
        self.launched.append(UNKNOWN)
        self.thread.append(UNKNOWN)

    def link(self, calls: HostCalls, keys: array[int]) -> None:
        """Set ``enqueued`` and ``thread`` of each task by the earliest call with its key, and ``launched`` if unknown.

        ``keys`` has the key of each task; a task without a call stays as it is.
        """
        for task, time, thread in calls.earliest(keys):
            self.enqueued[task] = time
            self.thread[task] = thread
            if self.launched[task] == UNKNOWN:
                self.launched[task] = time

    def in_order(self) -> Sequence[int]:
        """Return the tasks sorted by their begin."""
        return sorted_places(len(self), self.begin.__getitem__)


class HostCalls:
    """Calls on the host as columns: the key that links a call, its time, and the number of its thread."""

    def __init__(self) -> None:
        self.key, self.time, self.thread = array("q"), array("q"), array("i")

    def add(self, key: int, time: int, thread: int) -> None:
        """Add a call: its key, its time in ns, and the number of its thread."""
        self.key.append(key)
        self.time.append(time)
        self.thread.append(thread)

    def earliest(self, keys: array[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (index in ``keys``, time in ns, thread) of the earliest call with each key; skip keys without any."""
        order = sorted_places(len(self.key), lambda call: (self.key[call], self.time[call]))
        ordered_keys = array("q", map(self.key.__getitem__, order))
        for place, key in enumerate(keys):
            if key == UNKNOWN:
                continue
            at = bisect_left(ordered_keys, key)
            if at < len(order) and ordered_keys[at] == key:
                yield place, self.time[order[at]], self.thread[order[at]]


class CapturedLaunches:
    """Launches of a thread during the capture of a graph, in order.

    ``kernel`` is the number of a kernel's name, UNKNOWN if the trace does not name the kernel; ``copy`` is 1 for
    copies.
    """

    def __init__(self, thread: int, begin: int) -> None:
        self.thread, self.begin = thread, begin
        self.time, self.kernel, self.copy = array("q"), array("i"), array("b")

    def add(self, time: int, kernel: int, *, copy: bool) -> None:
        """Add a launch: its time in ns, the number of the kernel's name (or UNKNOWN), and whether it copies."""
        self.time.append(time)
        self.kernel.append(kernel)
        self.copy.append(copy)


def count_unmatched(keys: array[int], present: array[int]) -> int:
    """Return how many of ``keys`` are not among the keys that are ``present``."""
    ordered = array("q", map(present.__getitem__, sorted_places(len(present), present.__getitem__)))
    positions = ((key, bisect_left(ordered, key)) for key in keys)
    return sum(at == len(ordered) or ordered[at] != key for key, at in positions)


def sorted_places(count: int, key: Callable[[int], Any]) -> Sequence[int]:
    """Return the numbers from 0 to ``count`` - 1, sorted by ``key``, which gets such a number; the sort is stable.

    Blocks are sorted and then merged. That is several times as fast as `heapq.merge`, and takes little memory.
    """
    if all(starmap(operator.le, pairwise(map(key, range(count))))):
        return range(count)
    starts = range(0, count, STRETCH)
    runs = [array("i", sorted(range(start, min(start + STRETCH, count)), key=key)) for start in starts]
    merged, positions = array("i"), [0] * len(runs)
    while len(merged) < count:
        unfinished = [(run, at) for run, at in zip(runs, positions, strict=True) if at < len(run)]
        until = min(key(run[min(at + STRETCH, len(run)) - 1]) for run, at in unfinished)
        stretch: list[int] = []
        for number, run in enumerate(runs):
            end = bisect_right(run, until, positions[number], key=key)
            stretch += run[positions[number] : end]
            positions[number] = end
        merged.extend(sorted(stretch, key=key))
    return merged
