"""The events of one recorded rank in columns of whole nanoseconds, some 40 bytes each: what every format is read into.

Readers fill it as they go, so a trace of 10 GB needs less than 1 GB; ``analysis`` makes a ``RankProfile`` of it.
"""

from __future__ import annotations

import functools
import operator
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from patcher.messages.errors import Kind, Problem
from patcher.traces.measured import KernelUse
from patcher.traces.messages import CollectiveMessage
from patcher.traces.model import KINDS
from patcher.traces.sidecar import Metadata

UNKNOWN = -1
"""Where a time, a thread or a correlation is not known."""

STRETCH = 1 << 16
"""Ranges that are sorted at once."""

MOST_THREADS = 1 << 16
"""Of one trace: each takes 1 KB, whatever it did."""

MOST_STREAMS = 1 << 10
"""Streams that are merged: a merge looks at all of them for each stretch, so tasks of more are sorted together."""

MANY = 16
"""Calls of one key among which the earliest is looked for: more is nothing that a profiler writes."""

NEAR = 64
"""Calls behind the last one that was looked for among which the next one is looked for first."""

_MOST_NAMES = 64
"""Ranks or devices that a message names."""

Thread = tuple[object, object]
"""The process and the thread of an event on the host, as the trace names them."""

Row = tuple[int, int, int]
"""A range on the host: begin, end, and the number of its name."""

LONG_CALL = 20_000
"""Nanoseconds from which on a call of the device's runtime is kept: shorter ones hold nobody up."""

NN_MODULE = "nn.Module: "
"""What torch's profilers put before the name of a module that calls."""

BACKWARD, OPTIMIZER = "autograd::engine::evaluate_function", "Optimizer.step#"
"""How torch names what autograd runs, and the step of an optimizer."""


def module_class(name: str) -> str:
    """The class in ``nn.Module: Linear_3``: behind it stands which of its objects it is."""
    return re.sub(r"_\d+$", "", name[len(NN_MODULE) :])


class Mark(NamedTuple):
    """A range on the host that is, or may be, a unit; ``family`` is the key of ``FAMILIES`` that its name fits.

    ``contents`` are the requests, tokens and context that an engine writes into it, None where it writes no number.
    """

    family: str
    name: str
    begin: int
    end: int
    number: int | None = None
    contents: Mapping[str, int | None] = {}


UNCOUNTED = "rlpatch:uncounted"
"""The range in which our probe puts iterations between two units that do not count."""


RANGE = "rlpatch:"
"""How the names of our probe's ranges begin; those of a weight sync are its phases, and stand among the modules."""

FAMILIES = {
    "ProfilerStep#": r"ProfilerStep#(?P<number>\d{1,18})",
    # vLLM, as `execute_context_2(600)_generation_30(30)`; forks write the contexts' length behind `sk`
    "execute_": (
        r"execute_(?:\d+_)?context_(?P<requests1>\d{1,9})\((?:sq)?(?P<tokens1>\d{1,12})(?:sk(?P<context1>\d{1,12}))?\w*\)"
        r"_generation_(?P<requests2>\d{1,9})\((?:sq)?(?P<tokens2>\d{1,12})(?:sk(?P<context2>\d{1,12}))?\w*\)"
    ),
    "execute_new_": r"execute_new_(?P<requests1>\d{1,9})_cached_(?P<requests2>\d{1,9})",  # vLLM before 0.12
    # SGLang, as `step[DECODE bs=64]` and `step[EXTEND bs=2 toks=14721]`
    "step[": (
        r"step\[\w+ bs=(?P<requests>\d{1,9})(?: toks=(?P<tokens>\d{1,12}))?"
        r"(?:[^\]]* g_sk=(?P<context>\d{1,12}))?[^\]]*\]"
    ),
    "mark": r"(?:decode|prefill|iteration|mini-batch|micro-batch|call) (?P<number>\d{1,18})",
    UNCOUNTED: re.escape(UNCOUNTED) + "|uncounted(?: decode| prefill| iteration)?",
}
"""Family of marks → the pattern of a name; the first family in a trace gives its units.

The groups are the number and the contents of a mark; those that differ in a digit are summed.
"""


NUMBERED = "ProfilerStep#"
"""The family of marks that carry the number of a unit as the profiler, and our probe, count it."""

WANTED = "--marks"
"""The family of marks whose names somebody typed as a pattern: where it is there, it gives the units."""


class StringTable(dict[str, int]):
    """Text → its number in ``texts``: a trace repeats a few thousand of them millions of times."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __missing__(self, text: str) -> int:
        self[text] = self.again(text)
        return self[text]

    def again(self, text: str) -> int:
        """A number more for a text, for what has it as a name and is yet another thing."""
        self.texts.append(text)
        return len(self.texts) - 1


class RangeColumns:
    """Nested ranges of one thread: begin, end, and the number of the name."""

    def __init__(self) -> None:
        self.begin, self.end, self.name = array("q"), array("q"), array("i")

    def add(self, begin: int, end: int, name: int) -> None:
        """One more range; the order of the calls does not matter."""
        self.begin.append(begin)
        self.end.append(end)
        self.name.append(name)

    def extend(self, others: RangeColumns) -> None:
        """All ranges of another thread, too."""
        self.begin.extend(others.begin)
        self.end.extend(others.end)
        self.name.extend(others.name)

    def in_order(self) -> Iterator[Row]:
        """The ranges in the order of their begin, the outer before the inner one.

        Profilers write them nearly in order, so stretches of them are sorted, and all together only if that will not
        do: it would take more memory than the timeline itself.
        """
        for size in (STRETCH, len(self.begin)):
            if self._is_in_order():
                break
            first = 0
            while first < len(self.begin):
                first = self._sort(first, size)
        return zip(self.begin, self.end, self.name, strict=True)

    def _is_in_order(self) -> bool:
        begin, end = self.begin, self.end
        return all(map(nests, begin, end, islice(begin, 1, None), islice(end, 1, None)))

    def _sort(self, first: int, count: int) -> int:
        """Sort ``count`` from ``first`` on, and what belongs among them; returns where the next stretch begins."""
        begin, end = self.begin, self.end
        last = min(first + count, len(begin))
        latest = max(islice(begin, first, last))
        while last < len(begin) and begin[last] <= latest:
            last += 1
        order = sorted(range(first, last), key=end.__getitem__, reverse=True)
        order.sort(key=begin.__getitem__)
        for column in (begin, end, self.name):
            column[first:last] = array(column.typecode, map(column.__getitem__, order))
        return last


class Tasks:
    """What ran on the device, a column for each property.

    ``kind`` is an index into ``KINDS``, ``name`` and ``stream`` are numbers of names. ``enqueued`` is when an operator
    of the framework called for it on the host, which decides its unit, ``launched`` when it was handed to the device,
    which decides how late the host was; ``thread`` is the number of the calling thread. ``key`` is what the call that
    launched a task carries, too. UNKNOWN where no link exists.
    """

    def __init__(self) -> None:
        self.begin, self.end, self.enqueued, self.launched = array("q"), array("q"), array("q"), array("q")
        self.kind, self.name, self.stream, self.thread = array("b"), array("i"), array("i"), array("i")
        self.key = array("q")

    def __len__(self) -> int:
        return len(self.begin)

    def add(self, begin: int, end: int, kind: str, name: int, stream: int, key: int | None = None) -> None:
        """One more task, not linked yet. Raises OverflowError for a ``key`` beyond all, and adds nothing then."""
        self.key.append(UNKNOWN if key is None else key)
        self.begin.append(begin)
        self.end.append(end if end > begin else begin)
        self.kind.append(KINDS.index(kind))
        self.name.append(name)
        self.stream.append(stream)
        self.enqueued.append(UNKNOWN)
        self.launched.append(UNKNOWN)
        self.thread.append(UNKNOWN)

    def link(self, calls: HostCalls, keys: array[int]) -> None:
        """Take the call whose key a task has in ``keys`` for what enqueued it; and launched it, if nothing did yet."""
        for task, time, thread in calls.earliest(keys):
            self.enqueued[task], self.thread[task] = time, thread
            if self.launched[task] == UNKNOWN:
                self.launched[task] = time


class HostCalls:
    """Calls on the host: the key by which each is linked, its time, and the number of its thread."""

    def __init__(self) -> None:
        self.key, self.time, self.thread = array("q"), array("q"), array("i")

    def add(self, key: int, time: int, thread: int) -> None:
        """One more call."""
        self.key.append(key)
        self.time.append(time)
        self.thread.append(thread)

    def earliest(self, wanted: array[int]) -> Iterator[tuple[int, int, int]]:
        """The places of ``wanted`` with the time and the thread of the call of this key: of several the earliest."""
        order = in_order(array("i", range(len(self.key))), self.key)
        ordered, count = array("q", map(self.key.__getitem__, order)), len(order)
        first = 0
        for at, key in enumerate(wanted):
            if key == UNKNOWN:
                continue
            near = min(first + NEAR, count)  # what runs after another was mostly launched soon after it
            low, high = (first, near) if first < near and ordered[first] < key <= ordered[near - 1] else (0, count)
            first = bisect_left(ordered, key, low, high)
            if first == count or ordered[first] != key:
                continue
            call, last = order[first], first + 1
            if last < count and ordered[last] == key:
                last = bisect_right(ordered, key, last, min(first + MANY, count))
                call = min(order[first:last], key=self.time.__getitem__)
            yield at, self.time[call], self.thread[call]


class CapturedLaunches:
    """What a graph was captured of: the launches of a thread between the begin and the end of its capture, in order.

    ``kernel`` is the number of a kernel's name, UNKNOWN where the trace does not name it, ``copy`` 1 of copies.
    """

    def __init__(self, thread: int, begin: int) -> None:
        self.thread, self.begin = thread, begin
        self.time, self.kernel, self.copy = array("q"), array("i"), array("b")

    def add(self, time: int, kernel: int, *, copy: bool) -> None:
        """One more launch."""
        self.time.append(time)
        self.kernel.append(kernel)
        self.copy.append(copy)


class Timeline:
    """One recorded rank, as its reader fills it.

    ``threads`` are numbered as they come: ``operators`` and ``modules`` hold the ranges of each, ``backward`` those on
    which autograd runs, and ``marks`` what may be a unit, with its thread. ``calls`` are the long calls of the device's
    runtime, by thread, UNKNOWN for threads that run nothing else, ``functions`` those of Python's built-in ones.
    ``captured`` are the graphs that were captured meanwhile, in order.
    ``shapes`` maps the number of a name to the shapes, the types and, where they tell the work, the values of the
    inputs that operators of this number have, in JSON. ``groups``, ``messages`` and ``transits`` map a task to the
    group of the collective that it is, to what that carries, and to how much of it the vendor calls transit, waiting
    and idle. ``cut`` says why the end is missing, ``lost`` counts what could not be read, ``unknown`` names types of
    tasks that are in no table of ours. ``doubts`` are the contradictions between it and the ``metadata`` that a probe
    wrote beside it. A range in whose name ``wanted`` is found is a mark; its group ``number``, if it has one, is the
    unit's.
    """

    def __init__(self, source: str, form: str, wanted: re.Pattern[str] | None = None) -> None:
        self.source, self.form = source, form
        self.wanted = wanted and functools.cache(wanted.search)
        self.rank: int | None = None
        self.world: int | None = None
        self.settings: dict[str, str] = {}
        self.device = ""
        self.names = StringTable()
        self.tasks = Tasks()
        self.threads: dict[Thread, int] = {}
        self.operators: list[RangeColumns] = []
        self.modules: list[RangeColumns] = []
        self.backward: set[int] = set()
        self.calls: dict[int, RangeColumns] = {}
        self.functions: dict[int, RangeColumns] = {}
        self.captured: list[CapturedLaunches] = []
        self.marks: list[tuple[int, Mark]] = []
        self.groups: dict[int, str] = {}
        self.shapes: dict[int, tuple[str, ...]] = {}
        self.messages: dict[int, CollectiveMessage] = {}
        self.transits: dict[int, tuple[int, int, int]] = {}
        self.vendor: dict[str, dict[str, int]] | None = None
        self.metadata: Metadata | None = None
        self.doubts: tuple[str, ...] = ()
        self.cut = ""
        self.lost = 0
        self.unknown: set[str] = set()

    def thread(self, process: object, thread: object) -> int:
        """The number of a thread of the host. Raises Problem (TRACE) for one too many."""
        number = self.threads.setdefault((process, thread), len(self.threads))
        if number == len(self.operators):
            if number == MOST_THREADS:
                raise Problem(Kind.TRACE, f"it holds more than {number:,} threads", self.source, "record it again")
            self.operators.append(RangeColumns())
            self.modules.append(RangeColumns())
        return number

    def add_task(self, begin: int, end: int, kind: str, name: str, stream: str, key: int | None) -> None:
        """One more task, with the texts of its name and its stream."""
        self.tasks.add(begin, end, kind, self.names[name], self.names[stream], key)

    def add_call(self, name: str, begin: int, end: int, thread: int) -> None:
        """Keep a call of the device's runtime, if it is a long one."""
        if end - begin >= LONG_CALL:
            self.calls.setdefault(thread, RangeColumns()).add(begin, end, self.names[name])

    def mark(self, name: str, begin: int, end: int, thread: int) -> bool:
        """Take a range for a mark, or for a phase that our probe names, if its name says that it is one."""
        family, number, contents = _family(name)
        if self.wanted is not None and (found := self.wanted(name)):
            digits = found.groupdict().get("number") or ""
            family, number = WANTED, int(digits) if re.fullmatch(r"\d{1,18}", digits, re.ASCII) else None
        if family:
            self.marks.append((thread, Mark(family, name, begin, end, number, contents)))
        elif name.startswith(RANGE):
            self.modules[thread].add(begin, end, self.names[name.removeprefix(RANGE)])
            return True
        return bool(family)

    def operators_in_order(self) -> Iterator[tuple[int, Iterable[Row]]]:
        """The operators of each thread in the order of their begin; a reader may give those of a thread in pieces."""
        for thread, ranges in enumerate(self.operators):
            yield thread, ranges.in_order()

    def spans(self) -> Iterator[tuple[int, int]]:
        """From when to when there are operators, and tasks; nothing where there are none."""
        columns = [(own.begin, own.end) for own in self.operators]
        for begin, end in (*columns, (self.tasks.begin, self.tasks.end)):
            if begin:
                yield min(begin), max(end)

    def kernel_uses(self, _owner: Sequence[int], _units: Mapping[int, int]) -> tuple[KernelUse, ...]:
        """What was measured of the kernels of the units (number by segment), where a reader knows that.

        The first argument is the segment of each task.
        """
        return ()

    def in_order(self) -> Sequence[int]:
        """The tasks in the order of their begin.

        Profilers write those of a stream in order, so the streams are merged: sorting all of them would take as much
        memory as the timeline itself.
        """
        begin, streams = self.tasks.begin, dict[int, "array[int]"]()
        for at, stream in enumerate(self.tasks.stream):
            streams.setdefault(stream, array("i")).append(at)
        if len(streams) > MOST_STREAMS:
            return in_order(array("i", range(len(begin))), begin)
        return _merged([in_order(own, begin) for own in streams.values()], begin)


def several(path: Path, what: str, values: Iterable[object]) -> Problem:
    """That a file or folder is of several ranks or devices, where a timeline is of one."""
    names = sorted(map(str, values))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"and {len(names) - _MOST_NAMES:,} more"]
    cause = f"{path.name} holds several {what}: {', '.join(names)}"
    return Problem(Kind.TRACE, cause, str(path), "record, export or parse each rank by itself, in a folder of its own")


def in_order(places: array[int], times: array[int]) -> array[int]:
    """``places`` in the order of their times; as they are, if they are in order.

    In stretches that are merged: a list of all of them would take as much memory as the timeline itself.
    """
    time = times.__getitem__
    if all(map(operator.le, map(time, places), map(time, islice(places, 1, None)))):
        return places
    stretches = (places[at : at + STRETCH] for at in range(0, len(places), STRETCH))
    return _merged([array("i", sorted(stretch, key=time)) for stretch in stretches], times)


def _merged(columns: Sequence[array[int]], times: array[int]) -> array[int]:
    """Places of several columns, each in the order of their times, in one: of equal times those of the first column.

    A stretch of them is sorted at once, which is several times as fast as `heapq.merge`, and takes little memory.
    """
    if len(columns) == 1:
        return columns[0]
    found, time, firsts = array("i"), times.__getitem__, [0] * len(columns)
    while open_ends := [
        time(own[min(first + STRETCH, len(own)) - 1])
        for own, first in zip(columns, firsts, strict=True) if first < len(own)
    ]:  # fmt: skip
        until, stretch = min(open_ends), array("i")
        for at, (own, first) in enumerate(zip(columns, firsts, strict=True)):
            firsts[at] = bisect_right(own, until, first, key=time)
            stretch.extend(own[first : firsts[at]])
        found.extend(array("i", sorted(stretch, key=time)))
    return found


def nests(begin: int, end: int, following: int, following_end: int) -> bool:
    """Whether a range follows another in order: it begins later, or with it and lies within."""
    return begin < following or (begin == following and end >= following_end)


@functools.lru_cache(maxsize=1 << 16)
def _family(name: str) -> tuple[str, int | None, Mapping[str, int | None]]:
    """The family of marks that a range of this name is of, its number and its contents; "" if it is no mark."""
    for family, pattern in FAMILIES.items():
        if found := re.fullmatch(pattern, name):
            fields: dict[str, int | None] = {}
            for group, text in found.groupdict().items():
                key = group.rstrip("12")
                known = fields.get(key, 0)
                fields[key] = None if text is None or known is None else known + int(text)
            if name.startswith("step[DECODE ") and fields["tokens"] is None:  # a token for each request
                fields["tokens"] = fields["requests"]
            return family, fields.pop("number", None), fields
    return "", None, {}
