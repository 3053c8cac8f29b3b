"""What torch_npu.profiler exports as text: ``trace_view.json`` and the tables beside it.

Its rows are told apart by their arguments, for the names of their processes may stand behind them. A task of the
device carries the ``connection_id`` of the call of CANN that launched it; the flow ``async_npu`` leads to the operator
of the framework that asked for it, which with the task queue lies earlier, on another thread.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from patcher.errors import Kind, Problem
from patcher.traces import ascend
from patcher.traces.blocks import Blocks, Event, nanoseconds
from patcher.traces.model import COMMUNICATION
from patcher.traces.names import OUTPUT
from patcher.traces.timeline import NN_MODULE, UNKNOWN, Names, Timeline, joined, module_class


def read(file: Path) -> Timeline:
    """The timeline of a rank, from the ``trace_view.json`` of its folder; Problem (TRACE) if it is none."""
    reader = _Reader(file)
    reader.blocks.feed(reader.take)
    return reader.timeline()


class _Reader:
    """Fills a timeline block by block; links wait in columns until all tasks are there."""

    def __init__(self, file: Path) -> None:
        output = file.parent
        folder = output.parent if output.name == OUTPUT else output
        self.blocks = Blocks(file)
        self.found = Timeline(str(file), "ascend-text")
        self.found.rank, _ = ascend.info(folder)
        self.found.device = "Ascend NPU"
        self.found.vendor = ascend.vendor_steps(output)
        self.types = ascend.types(output)
        self.transits = ascend.transits(output)
        self.kinds: dict[str, str | None] = {}
        self.connections, self.calls, self.callers = array("q"), array("q"), array("i")  # of CANN
        self.task_connections = array("q")
        self.begins, self.flows = array("q"), array("q")  # where a flow ends on the device
        self.flow_ids, self.asked, self.askers = array("q"), array("q"), array("i")  # where it begins on the host
        self.ids, self.cann_threads = Names(), Names()
        self.devices: set[object] = set()
        self.marks: set[str] = set()
        self.met: Counter[str] = Counter()

    def take(self, events: Iterator[Event]) -> None:
        """Take what the events say; ValueError, OverflowError or TypeError at one that says no time."""
        found = self.found
        for event in events:
            if event.ph == "X":
                if event.cat == "cpu_op":
                    self._operator(event)
                elif event.cat == "python_function":
                    if event.name.startswith(NN_MODULE):
                        begin, end = _times(event)
                        found.modules[found.thread(event.pid, event.tid)].add(
                            begin, end, found.names(module_class(event.name))
                        )
                elif event.args is not None:
                    self._other(event)
            elif event.cat == "async_npu":
                time, flow = nanoseconds(event.ts), self._id(event.id)
                if event.ph == "s":
                    self.flow_ids.append(flow)
                    self.asked.append(time)
                    self.askers.append(found.thread(event.pid, event.tid))
                elif event.ph == "f":
                    self.begins.append(time)
                    self.flows.append(flow)

    def _operator(self, event: Event) -> None:
        found = self.found
        begin, end = _times(event)
        thread = found.thread(event.pid, event.tid)
        if found.mark(event.name, begin, end, thread):
            return
        found.operators[thread].add(begin, end, found.names(event.name))
        if event.args is not None and event.args.forward:
            found.backward.add(thread)

    def _other(self, event: Event) -> None:
        """A task of the device, a collective, a call of CANN, or a range of mstx."""
        args, found = event.args, self.found
        if args is None:
            return
        if args.task is not None:
            if args.task not in self.kinds:
                self.kinds[args.task] = ascend.kind_of(args.task)
                if not ascend.is_known(args.task):
                    found.unknown.add(args.task)
            kind = self.kinds[args.task]
            if kind is not None:
                name = self.types.get(event.name) or _type(event.name)
                self.devices.add(event.pid)
                self._task(event, kind, name, f"stream {event.tid}", args.connection)
        elif args.connection is not None and args.level is None:
            name, group = ascend.collective(event.name)
            at = len(found.tasks)
            self._task(event, COMMUNICATION, name, f"group {group}", args.connection)
            if group:
                found.groups[at] = group
            known = self.transits.get(event.name, [])
            if self.met[event.name] < len(known):
                found.transits[at] = known[self.met[event.name]]
            self.met[event.name] += 1
        elif args.level is not None:
            if args.connection is not None:
                self.calls.append(nanoseconds(event.ts))
                self.connections.append(args.connection)
                self.callers.append(self.cann_threads(str(event.tid)))
        elif args.domain is not None:
            begin, end = _times(event)
            thread = found.thread(event.pid, event.tid)
            if not found.mark(event.name, begin, end, thread) and args.domain == "Module":
                found.modules[thread].add(begin, end, found.names(event.name))

    def _task(self, event: Event, kind: str, name: str, stream: str, connection: int | None) -> None:
        found = self.found
        begin, end = _times(event)
        found.tasks.add(begin, end, kind, found.names(name), found.names(stream))
        self.task_connections.append(UNKNOWN if connection is None else connection)

    def _id(self, value: int | str) -> int:
        if isinstance(value, str):
            return int(value) if value.isdigit() else -2 - self.ids(value)
        return value

    def timeline(self) -> Timeline:
        """The timeline, when all events have been taken."""
        found, tasks = self.found, self.found.tasks
        if len(self.devices) > 1:
            cause = f"{self.blocks.path.name} holds the tasks of {len(self.devices)} devices"
            raise Problem(Kind.TRACE, cause, found.source, "parse each rank into a folder of its own")
        found.cut, found.lost = self.blocks.cut, self.blocks.lost
        numbers = {str(tid): number for number, (_, tid) in enumerate(found.threads)}
        callers = [numbers.get(tid, UNKNOWN) for tid in self.cann_threads.texts]
        for task, call in joined(self.task_connections, self.connections, self.calls):
            tasks.launched[task] = tasks.asked[task] = self.calls[call]
            tasks.thread[task] = callers[self.callers[call]]
        heads = dict(joined(self.flows, self.flow_ids, self.asked))
        ends = array("q", (self.begins[at] for at in heads))
        starts = array("q", heads.values())
        for task, flow in joined(tasks.begin, ends, starts):
            tasks.asked[task] = self.asked[starts[flow]]
            tasks.thread[task] = self.askers[starts[flow]]
            if tasks.launched[task] == UNKNOWN:
                tasks.launched[task] = tasks.asked[task]
        return found


def _times(event: Event) -> tuple[int, int]:
    begin = nanoseconds(event.ts)
    return begin, begin + round(event.dur * 1000)


def _type(name: str) -> str:
    """The type of a kernel that no table names: ``aclnnMuls_MulAiCore_Mul`` is a Mul."""
    return name.rpartition("_")[2] if name.startswith("aclnn") and "_" in name else name
