"""What torch_npu.profiler exports as text: ``trace_view.json`` and the tables beside it.

Its rows are distinguished by their arguments, for the names of their processes may stand behind them. A task of the
device carries the ``connection_id`` of the call of CANN that launched it; the flow ``async_npu`` leads to the operator
of the framework that called for it, which with the task queue lies earlier, on another thread.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from patcher.progress import Progress, ignore
from patcher.traces.formats import ascend
from patcher.traces.formats.ascend_kernels import TextTimeline
from patcher.traces.formats.chrome import Args, ChromeEvents, Event, nanoseconds, times
from patcher.traces.messages import message
from patcher.traces.names import OUTPUT
from patcher.traces.timeline import (
    LONG_CALL,
    NN_MODULE,
    UNKNOWN,
    HostCalls,
    RangeColumns,
    StringTable,
    Timeline,
    module_class,
    several,
)


def read(file: Path, wanted: re.Pattern[str] | None = None, progress: Progress = ignore) -> Timeline:
    """The timeline of a rank, from the ``trace_view.json`` of its folder; Problem (TRACE) if it is none."""
    reader = _Reader(file, wanted, progress)
    reader.source.feed(reader.take)
    return reader.timeline()


class _Reader:
    """Fills a timeline block by block; links wait in columns until all tasks are there."""

    def __init__(self, file: Path, wanted: re.Pattern[str] | None, progress: Progress) -> None:
        output = file.parent
        folder = output.parent if output.name == OUTPUT else output
        self.source = ChromeEvents(file, progress)
        self.found: Timeline = TextTimeline(file, wanted)
        self.found.rank, self.found.world = ascend.rank_of(folder), ascend.world_of(folder)
        self.found.device, self.found.settings = "Ascend NPU", ascend.settings_of(folder)
        self.found.vendor = ascend.vendor_steps(output)
        self.types = ascend.types(output)
        self.transits = ascend.transits(output)
        self.calls = HostCalls()  # of CANN, with threads numbered as in ``cann_threads``
        self.long: dict[int, RangeColumns] = {}  # the long ones, likewise
        self.operators = HostCalls()  # where a flow begins on the host
        self.begins, self.flows = array("q"), array("q")  # where it ends on the device
        self.ids, self.cann_threads = StringTable(), StringTable()
        self.devices: set[object] = set()

    def take(self, events: Iterator[Event]) -> None:
        """Add the events; ValueError, OverflowError or TypeError at one whose time is no number."""
        found = self.found
        for event in events:
            if event.ph == "X":
                if event.cat == "cpu_op":
                    self._operator(event)
                elif event.cat == "python_function":
                    if event.name.startswith(NN_MODULE):
                        thread, name = found.thread(event.pid, event.tid), module_class(event.name)
                        found.modules[thread].add(*times(event), found.names[name])
                elif event.args is not None:
                    self._other(event, event.args)
            elif event.cat == "async_npu":
                time, flow = nanoseconds(event.ts), self._id(event.id)
                if event.ph == "s":
                    self.operators.add(flow, time, found.thread(event.pid, event.tid))
                elif event.ph == "f":
                    self.begins.append(time)
                    self.flows.append(flow)

    def _operator(self, event: Event) -> None:
        found = self.found
        begin, end = times(event)
        thread = found.thread(event.pid, event.tid)
        if found.mark(event.name, begin, end, thread):
            return
        found.operators[thread].add(begin, end, found.names[event.name])
        if event.args is not None and event.args.forward:
            found.backward.add(thread)

    def _other(self, event: Event, args: Args) -> None:
        """Add a task of the device, a collective, a call of CANN, or a range of mstx."""
        found = self.found
        if args.task is not None:
            kind = ascend.kind_of(args.task)
            if kind is not None:
                name = self.types.get(event.name) or _type(event.name)
                self.devices.add(event.pid)
                if not ascend.is_known(args.task):
                    found.unknown.add(args.task)
                found.add_task(*times(event), kind, name, f"stream {event.tid}", args.connection)
        elif args.level is not None:
            thread = self.cann_threads[str(event.tid)]
            if args.connection is not None:
                self.calls.add(args.connection, nanoseconds(event.ts), thread)
            if event.dur * 1000 >= LONG_CALL:
                call = found.names[event.name.rpartition("@")[2]]
                self.long.setdefault(thread, RangeColumns()).add(*times(event), call)
        elif args.connection is not None:
            carried = message("", args.count, None, args.type, None)
            ascend.add_collective(found, times(event), event.name, "", self.transits, args.connection, carried)
        elif args.domain is not None:
            begin, end = times(event)
            thread = found.thread(event.pid, event.tid)
            if not found.mark(event.name, begin, end, thread) and args.domain == "Module":
                found.modules[thread].add(begin, end, found.names[event.name])

    def _id(self, value: int | str) -> int:
        if isinstance(value, str):
            return int(value) if value.isdigit() else -2 - self.ids[value]
        return value

    def timeline(self) -> Timeline:
        """The timeline, when all events have been added."""
        found, tasks = self.found, self.found.tasks
        if len(self.devices) > 1:
            raise several(self.source.path, "devices", self.devices)
        found.cut, found.lost = self.source.cut, self.source.lost
        numbers = {str(tid): number for (_, tid), number in found.threads.items()}
        callers = [numbers.get(tid, UNKNOWN) for tid in self.cann_threads.texts]
        self.calls.thread = array("i", map(callers.__getitem__, self.calls.thread))
        for thread, ranges in self.long.items():
            found.calls.setdefault(callers[thread], RangeColumns()).extend(ranges)
        tasks.link(self.calls, tasks.key)
        flows = HostCalls()  # by the begin of the task at which they end
        for at, time, thread in self.operators.earliest(self.flows):
            flows.add(self.begins[at], time, thread)
        tasks.link(flows, tasks.begin)
        return found


def _type(name: str) -> str:
    """The type of a kernel that no table names: ``aclnnMuls_MulAiCore_Mul`` is a Mul."""
    return name.rpartition("_")[2] if name.startswith("aclnn") and "_" in name else name
