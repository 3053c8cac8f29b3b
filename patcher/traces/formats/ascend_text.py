"""The export of torch_npu.profiler as text: ``trace_view.json`` and the tables beside it.

Its rows are distinguished by their arguments, for the names of their processes may stand behind them. A task of the
device carries the ``connection_id`` of the call of CANN that launched it; where no call has it, the flow
``HostToDevice`` says when that was. The flow ``async_npu`` leads to the operator of the framework that called for it,
which with the task queue lies earlier, on another thread.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from patcher.progress import Progress, ignore
from patcher.traces.formats import ascend
from patcher.traces.formats.ascend_kernels import KernelTable
from patcher.traces.formats.chrome import Args, ChromeEvents, Event, nanoseconds, times
from patcher.traces.marks import NAMED, NUMBERED, UNCOUNTED
from patcher.traces.measured import KernelUse
from patcher.traces.messages import message
from patcher.traces.model import COPY, KINDS
from patcher.traces.rank_trace import LONG_CALL, NN_MODULE, RankTrace, several_problem
from patcher.traces.trace_columns import UNKNOWN, HostCalls, RangeColumns, StringTable

_COMPUTING = "Computing"
"""Name of the rows of the vendor's Overlap Analysis in which the device computes; they overlap no other of them."""


def read(file: Path, mark_pattern: re.Pattern[str] | None = None, progress: Progress = ignore) -> RankTrace:
    """Return the trace of a rank from its ``trace_view.json``. Raises Problem (TRACE) for a file that is no trace."""
    reader = _Reader(file, mark_pattern, progress)
    reader.source.feed(reader.add_events)
    return reader.finished()


_QUEUED_COPY = "Dequeue@acl_memcpy_"
"""Begin of the name of a range in which torch_npu's queue starts a copy; the remainder is the copy's direction."""

_COPY = KINDS.index(COPY)


class TextTrace(RankTrace):
    """A trace with the vendor's table of kernels, which lies in the folder of ``file``."""

    def __init__(self, file: Path, mark_pattern: re.Pattern[str] | None = None) -> None:
        super().__init__(str(file), "ascend-text", mark_pattern)
        self.table = KernelTable(file.parent)

    def kernel_uses(self, _segments: Sequence[int], units: Mapping[int, int]) -> tuple[KernelUse, ...]:
        """Return the measures of kernels as `RankTrace.kernel_uses` does.

        The kernels of the whole trace are counted if it has marks of steps that are not the profiler's, or none.
        """
        families = {mark.family for _, mark in self.marks} - {UNCOUNTED, NAMED}
        return self.table.uses(units.values() if families == {NUMBERED} else None)


class _Flows:
    """Flows of one kind from the host to the device: where each begins, and the time at which it ends."""

    def __init__(self) -> None:
        self.begins = HostCalls()
        self.ends, self.ids = array("q"), array("q")

    def add(self, event: Event, flow: int, thread: Callable[[Event], int]) -> None:
        """Add the begin (``ph`` "s") or the end ("f") of the flow with the id ``flow``, an arrow from a call to a task.

        ``thread`` returns the thread number of an event.
        """
        if event.ph == "s":
            self.begins.add(flow, nanoseconds(event.ts), thread(event))
        elif event.ph == "f":
            self.ends.append(nanoseconds(event.ts))
            self.ids.append(flow)

    def by_end(self) -> HostCalls:
        """Return the calls in which flows begin, keyed by the ns at which the flow ends and its task begins.

        Flows of which the begin or the end is missing are left out.
        """
        calls = HostCalls()
        for place, time, thread in self.begins.earliest(self.ids):
            calls.add(self.ends[place], time, thread)
        return calls


class _Reader:
    """Reader that fills a trace block by block; links wait in columns until all tasks are read."""

    def __init__(self, file: Path, mark_pattern: re.Pattern[str] | None, progress: Progress) -> None:
        self.source = ChromeEvents(file, progress)
        self.trace = TextTrace(file, mark_pattern)
        ascend.set_rank(self.trace, file.parent)
        self.trace.device = "Ascend NPU"
        self.trace.vendor = ascend.vendor_steps(file.parent)
        self.transits = ascend.measures_by_name(file.parent)
        self.calls = HostCalls()  # of CANN, with threads numbered as in ``cann_threads``
        self.long: dict[int, RangeColumns] = {}  # the long ones, likewise
        self.queued_copies = RangeColumns()
        self.enqueued, self.handed = _Flows(), _Flows()  # from operators, and from CANN
        self.ids, self.cann_threads = StringTable(), StringTable()
        self.devices: set[object] = set()

    def add_events(self, events: Iterator[Event]) -> None:
        """Add the events to the trace, or keep them for `finished`; kinds that are not read are skipped.

        Raises ValueError, OverflowError or TypeError for a time that is no number.
        """
        trace = self.trace
        for event in events:
            if event.ph == "X":
                if event.cat == "cpu_op":
                    backward = event.args is not None and bool(event.args.forward)
                    trace.add_operator(event.name, *times(event), trace.thread(event.pid, event.tid), backward=backward)
                elif event.cat == "python_function":
                    thread = trace.thread(event.pid, event.tid)
                    if event.name.startswith(NN_MODULE):
                        trace.add_module(event.name, *times(event), thread)
                    else:
                        trace.add_frame(event.name, *times(event), thread)
                elif event.name.startswith(_QUEUED_COPY):
                    self.queued_copies.add(*times(event), trace.names[event.name.removeprefix("Dequeue@")])
                elif event.args is not None:
                    self._add_other(event, event.args)
                elif event.name == _COMPUTING and not event.cat:
                    begin, end = times(event)
                    trace.vendor_computing_ns = (trace.vendor_computing_ns or 0) + end - begin
            elif event.cat == "async_npu":
                self.enqueued.add(event, self._id(event.id), lambda event: trace.thread(event.pid, event.tid))
            elif event.cat == "HostToDevice":
                self.handed.add(event, self._id(event.id), lambda event: self.cann_threads[str(event.tid)])

    def _add_other(self, event: Event, args: Args) -> None:
        """Add a task of the device, a call of CANN, a collective, or a range of mstx; ignore any other event."""
        if args.task is not None:
            self._add_task(event, args, args.task)
        elif args.level is not None:
            self._add_call(event, args)
        elif args.connection is not None:
            carried = message("", args.count, None, args.type, None)
            ascend.add_collective(self.trace, times(event), event.name, "", self.transits, args.connection, carried)
        elif args.domain is not None:
            thread = self.trace.thread(event.pid, event.tid)
            self.trace.add_range(event.name, *times(event), thread, module=args.domain == "Module")

    def _add_task(self, event: Event, args: Args, task_type: str) -> None:
        """Add a task of the device under the type of its kernel; a type that only orders others is skipped.

        A type for which rlpatch has no rule is noted as unknown.
        """
        kind = ascend.kind_of_task(task_type, event.name)
        if kind is not None:
            name = self.trace.table.types.get(event.name) or _type(event.name)
            self.devices.add(event.pid)
            if not ascend.is_known(task_type):
                self.trace.unknown.add(task_type)
            self.trace.add_task(*times(event), kind, name, f"stream {event.tid}", args.connection)

    def _add_call(self, event: Event, args: Args) -> None:
        """Keep a call of CANN as a launch, if it has a connection, and as a long call, if it takes 20 µs or more."""
        thread = self.cann_threads[str(event.tid)]
        if args.connection is not None:
            self.calls.add(args.connection, nanoseconds(event.ts), thread)
        if event.dur * 1000 >= LONG_CALL:
            name = self.trace.names[event.name.rpartition("@")[2]]
            self.long.setdefault(thread, RangeColumns()).add(*times(event), name)

    def _id(self, value: int | str) -> int:
        """Return the id of a flow as a number of 63 bits; CANN's can be larger, or texts."""
        number = int(value) if isinstance(value, int) or value.isdigit() else -1
        return number if 0 <= number < 1 << 63 else -2 - self.ids[str(value)]

    def finished(self) -> RankTrace:
        """Link the tasks with their launches and operators, add the long calls, and return the trace.

        Call it after the last event. Raises Problem (TRACE) for several devices.
        """
        trace, tasks = self.trace, self.trace.tasks
        if len(self.devices) > 1:
            raise several_problem(self.source.path, "devices", self.devices)
        trace.cut, trace.lost = self.source.cut, self.source.lost
        numbers = {str(tid): number for (_, tid), number in trace.threads.items()}
        callers = [numbers.get(tid, UNKNOWN) for tid in self.cann_threads.texts]
        for calls in (self.calls, self.handed.begins):
            calls.thread = array("i", map(callers.__getitem__, calls.thread))
        for thread, ranges in self.long.items():
            trace.calls.setdefault(callers[thread], RangeColumns()).extend(ranges)
        tasks.link(self.calls, tasks.key)
        without = (
            begin if launched == UNKNOWN else UNKNOWN
            for begin, launched in zip(tasks.begin, tasks.launched, strict=True)
        )
        tasks.link(self.handed.by_end(), array("q", without))
        tasks.link(self.enqueued.by_end(), tasks.begin)
        self._name_directions()
        return trace

    def _name_directions(self) -> None:
        """Add its direction to the name of each copy that was launched within a range of torch_npu's queue."""
        trace, ranges = self.trace, self.queued_copies
        ranges.sort()
        texts = trace.names.texts
        for task, (kind, launched) in enumerate(zip(trace.tasks.kind, trace.tasks.launched, strict=True)):
            if kind != _COPY:
                continue
            at = bisect_right(ranges.begin, launched) - 1
            if at >= 0 and launched < ranges.end[at]:
                name = f"{texts[trace.tasks.name[task]]} ({texts[ranges.name[at]]})"
                trace.tasks.name[task] = trace.names[name]


def _type(name: str) -> str:
    """Return the type of a kernel without a table: ``aclnnMuls_MulAiCore_Mul`` is a Mul; any other name stays."""
    kernel = name.rpartition("_")[2]
    return kernel if name.startswith("aclnn") and "_" in name and not kernel.isdigit() else name
