"""The trace of one rank as its reader fills it: columns, marks, and what is known of the rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from patcher.messages import Kind, Problem, Text
from patcher.traces.families import is_collective
from patcher.traces.marks import RANGE, Mark, mark_named
from patcher.traces.measured import KernelUse
from patcher.traces.messages import CollectiveMessage
from patcher.traces.model import COMMUNICATION, COMPUTE
from patcher.traces.sidecar import Metadata
from patcher.traces.trace_columns import AllocationColumns, CapturedLaunches, RangeColumns, StringTable, Tasks

MOST_THREADS = 1 << 16
"""Largest number of threads in a trace: each takes 1 KB, whatever it did."""

_LONGEST = 1000
"""Characters of a frame's name that are kept."""

_MOST_NAMES = 64
"""Largest number of ranks or devices that a message names."""

LONG_CALL = 20_000
"""Shortest call of the device's runtime that is kept, in nanoseconds: shorter ones hold nobody up."""

TICK = 1_000_000  # nanoseconds: the unit of the times of events that are too short to be kept

GRAPH_CAPTURE = "graph capture"
"""Name of the range, among a thread's calls of the runtime, in which it captures a graph instead of running kernels."""

BLOCKING_CALL = 100_000
"""Shortest launch call that counts as one that blocks, in nanoseconds: usual ones take 2 to 50 µs."""

NN_MODULE = "nn.Module: "
"""Prefix of the name of a module in torch's profilers."""

BACKWARD, OPTIMIZER = "autograd::engine::evaluate_function", "Optimizer.step#"
"""Names in torch of ranges that autograd runs, and of the optimizer's step."""

_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]*")

Thread = tuple[object, object]
"""The process and the thread of an event on the host, as the trace names them."""


class RankTrace:
    """The trace of one rank.

    ``threads`` are numbered as they come: ``operators`` and ``modules`` hold the ranges of each, ``backward`` those on
    which autograd runs, and ``marks`` what may be a unit, with its thread. ``calls`` are the long calls of the device's
    runtime by thread (UNKNOWN for a thread that runs nothing else), ``functions`` those of Python's built-in functions,
    ``overheads`` when the driver loads code or the profiler prepares itself, ``frames`` the long frames of Python and
    ranges of the user, and ``short_events`` the ms in which functions begin that are not kept. ``captured`` are the
    graphs that were captured meanwhile, in order. ``allocations`` are those of each device by its number. ``shapes``
    maps the number of a name to the shapes, types and, where they decide the work, values of the inputs of its
    operators, in JSON. ``groups``, ``messages`` and ``transits`` map a task to the group of the collective that it is,
    to what that carries, and to how much of it the vendor calls transit, waiting and idle. ``cut`` says why the end is
    missing, ``lost`` counts what could not be read, ``kernel_launches`` and ``lost_kernels`` the calls that launch one
    kernel each, and those of them whose kernel is missing. ``unknown`` has the types of tasks that no table knows,
    ``unread`` counts the events of each category that the reader does not know. ``vendor_computing_ns`` is how long the
    device computes by the vendor's analysis within the trace, None without one. ``doubts`` are the contradictions
    between the trace and the ``metadata`` that a probe wrote beside it. ``has_shapes`` and ``has_stacks`` tell whether
    events have the shapes of inputs, and whether there are frames of Python; None if the reader does not look for them.
    """

    def __init__(self, source: str, form: str, mark_pattern: re.Pattern[str] | None = None) -> None:
        self.source, self.form, self.mark_pattern = source, form, mark_pattern
        self.rank: int | None = None
        self.world: int | None = None
        self.settings: dict[str, str] = {}
        self.has_shapes: bool | None = None
        self.has_stacks: bool | None = None
        self.device = ""
        self.names = StringTable()
        self.tasks = Tasks()
        self.threads: dict[Thread, int] = {}
        self.operators: list[RangeColumns] = []
        self.modules: list[RangeColumns] = []
        self.backward: set[int] = set()
        self.calls: dict[int, RangeColumns] = {}
        self.overheads = RangeColumns()
        self.functions: dict[int, RangeColumns] = {}
        self.frames: dict[int, RangeColumns] = {}
        self.short_events: set[int] = set()
        self.captured: list[CapturedLaunches] = []
        self.marks: list[tuple[int, Mark]] = []
        self.allocations: dict[int, AllocationColumns] = {}
        self.groups: dict[int, str] = {}
        self.shapes: dict[int, tuple[str, ...]] = {}
        self.messages: dict[int, CollectiveMessage] = {}
        self.transits: dict[int, tuple[int, int, int]] = {}
        self.vendor: dict[str, dict[str, int]] | None = None
        self.vendor_computing_ns: int | None = None
        self.metadata: Metadata | None = None
        self.doubts: tuple[str, ...] = ()
        self.cut = ""
        self.lost = 0
        self.kernel_launches = self.lost_kernels = 0
        self.unknown: set[str] = set()
        self.unread = Counter[str]()

    def thread(self, process: object, thread: object) -> int:
        """Return the index in ``operators`` and ``modules`` of a host thread; a thread not seen before is added.

        ``process`` and ``thread`` are its ids in the trace. Raises Problem (TRACE) for too many.
        """
        number = self.threads.setdefault((process, thread), len(self.threads))
        if number == len(self.operators):
            if number == MOST_THREADS:
                raise Problem(
                    Kind.TRACE,
                    Text("the trace has more than {limit:,} threads, too many for rlpatch", number),
                    self.source,
                    Text("record the trace again"),
                )
            self.operators.append(RangeColumns())
            self.modules.append(RangeColumns())
        return number

    def add_task(self, begin: int, end: int, kind: str, name: str, stream: str, key: int | None) -> None:
        """Add a task of the device: times in ns, a kind of `KINDS`, the names of kernel and stream, its launch's key.

        A compute kernel whose name is that of a collective counts as communication.
        """
        if kind == COMPUTE and is_collective(name):
            kind = COMMUNICATION
        self.tasks.add(begin, end, kind, self.names[name], self.names[stream], key)

    def add_call(self, name: str, begin: int, end: int, thread: int) -> None:
        """Add a call of the device's runtime if it takes at least `LONG_CALL`."""
        if end - begin >= LONG_CALL:
            self.calls.setdefault(thread, RangeColumns()).add(begin, end, self.names[name])

    def add_operator(self, name: str, begin: int, end: int, thread: int, *, backward: bool = False) -> None:
        """Add a range as a mark or a module if `add_mark` knows its name, else as an operator of its thread.

        Begin and end are in ns. ``backward`` notes that autograd runs on that thread.
        """
        if not self.add_mark(name, begin, end, thread):
            self.operators[thread].add(begin, end, self.names[name])
            if backward:
                self.backward.add(thread)

    def add_range(self, name: str, begin: int, end: int, thread: int, *, module: bool) -> None:
        """Add a range of the user or the probe as the mark of a step if it is named as one, else as a module or frame.

        Begin and end are in ns. A frame shorter than 20 µs is left out.
        """
        if self.add_mark(name, begin, end, thread):
            return
        if module:
            self.modules[thread].add(begin, end, self.names[name])
        else:
            self.add_frame(name, begin, end, thread)

    def add_named_range(self, name: str, begin: int, end: int, thread: int, *, by_class: bool = True) -> None:
        """Add a range that a program named: an optimizer's step as an operator, others as `add_range` does.

        With ``by_class``, a class name is a module: ``--module-ranges`` puts one around each call.
        """
        if name.startswith(OPTIMIZER):
            self.add_operator(name, begin, end, thread)
        else:
            self.add_range(name, begin, end, thread, module=by_class and _CLASS.fullmatch(name) is not None)

    def add_frame(self, name: str, begin: int, end: int, thread: int) -> None:
        """Add a frame of Python, or a range that is neither mark nor module, if it takes at least `LONG_CALL`."""
        if end - begin >= LONG_CALL:
            self.frames.setdefault(thread, RangeColumns()).add(begin, end, self.names[name[:_LONGEST]])

    def add_module(self, name: str, begin: int, end: int, thread: int) -> None:
        """Add a call of a module under its class: ``nn.Module: Linear_3`` is the third Linear."""
        self.modules[thread].add(begin, end, self.names[re.sub(r"_\d+$", "", name[len(NN_MODULE) :])])

    def add_mark(self, name: str, begin: int, end: int, thread: int) -> bool:
        """Add a range if its name marks a step, or a phase of rlpatch's probe (as a module); return whether it did."""
        if mark := mark_named(name, self.mark_pattern):
            self.marks.append((thread, mark._replace(begin=begin, end=end)))
        elif name.startswith(RANGE):
            self.modules[thread].add(begin, end, self.names[name.removeprefix(RANGE)])
        else:
            return False
        return True

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield (first begin, last end) in ns of each thread's operators, then of the device tasks; skip empty ones."""
        columns = [(ranges.begin, ranges.end) for ranges in self.operators]
        for begin, end in (*columns, (self.tasks.begin, self.tasks.end)):
            if begin:
                yield min(begin), max(end)

    def blocking_calls(self) -> dict[int, int]:
        """Return begin → end, in ns, of each call from the host into CUDA or CANN that takes 100 µs or more."""
        return {
            begin: end for ranges in self.calls.values() for begin, end in zip(ranges.begin, ranges.end, strict=True)
            if end - begin >= BLOCKING_CALL
        }  # fmt: skip

    def kernel_uses(self, _segments: Sequence[int], _units: Mapping[int, int]) -> tuple[KernelUse, ...]:
        """Return calls, time and pipeline ratios of the kernels in the steps; empty for a format that has no ratios.

        The first argument has the index of each task's segment (a step, or the time between two steps). The second maps
        the segments that count to the numbers of their steps.
        """
        return ()


def several_problem(path: Path, what: str, values: Iterable[object]) -> Problem:
    """Build the Problem (TRACE) that a path holds several ranks, or devices, of which only one is allowed.

    ``what`` is "ranks" or "devices"; ``values`` are their names, of which up to 64 are listed.
    """
    names = sorted(map(str, values))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [Text("and {count:,} more", len(names) - _MOST_NAMES)]
    listed = ", ".join(names)
    cause = Text("{path} contains data of several ranks: {ranks}", path=path.name, ranks=listed)
    if what == "devices":
        cause = Text("{path} contains data of several devices: {devices}", path=path.name, devices=listed)
    return Problem(Kind.TRACE, cause, str(path), Text("record, export or parse each rank into a separate folder"))
