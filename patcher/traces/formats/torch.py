"""Traces of torch.profiler: kineto's JSON, plain or gzip, of NVIDIA and AMD GPUs and of CPUs.

The names of categories and arguments are kineto's (``libkineto/src/output_json.cpp``): kernels and copies of the
device, ``…_runtime`` and ``…_driver`` for the calls that launch them, which share their ``correlation`` with what
they launched: all kernels of a replayed graph with the one call. Of other such calls, and of frames and built-in
functions of Python, the long ones are kept. A file into which SGLang merged those of several ranks has the rank of an
event before its process: ``[TP00] 4711``.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Text
from patcher.progress import Progress, ignore
from patcher.traces.families import is_collective
from patcher.traces.formats.chrome import BEYOND, Args, ChromeEvents, Event, nanoseconds, times
from patcher.traces.messages import message
from patcher.traces.model import COMMUNICATION, COMPUTE, COPY, CPU
from patcher.traces.rank_trace import (
    GRAPH_CAPTURE,
    LONG_CALL,
    NN_MODULE,
    TICK,
    RankTrace,
    Thread,
    several_problem,
)
from patcher.traces.trace_columns import (
    UNKNOWN,
    AllocationColumns,
    CapturedLaunches,
    HostCalls,
    RangeColumns,
    StringTable,
    count_unmatched,
)
from patcher.traces.work import CONCRETE, WORK

MOST_SHAPES, LONGEST = 20_000, 2000
"""Operators with shapes of their own that are told apart, and bytes of such shapes: what is beyond goes by its name."""

Append = Callable[[int], None]
_OPERATOR, _LAUNCH, _KERNEL, _COPY, _ANNOTATION, _MODULE, _CALL, _BUILT_IN, _CAPTURE, _FRAME, _UNREAD = range(11)
_OVERHEAD = 11
_CATEGORIES = {
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "kernel": _KERNEL,
    "concurrent_kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "gpu_memset": _COPY,
    "memcpy": _COPY,
    "memset": _COPY,
    "user_annotation": _ANNOTATION,
    "python_function": _MODULE,
    "runtime": _LAUNCH,
    "overhead": _OVERHEAD,
}
_LEFT_OUT = frozenset(
    (
        "", "ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward", "trace",
        "gpu_user_annotation", "cpu_instant_event", "cuda_sync", "cuda_event", "collective_comm",
        "external_correlation", "cuda_profiler_range", "gpu_pm_counter", "mtia_counters", "python_function",
    )
)  # fmt: skip
"""Categories of kineto (``libkineto/src/ActivityType.cpp``) of which a report needs nothing."""

_LAUNCHES = re.compile(r"launch|memcpy|memset|prefetch|graph|enqueue|exec", re.IGNORECASE)
_CAPTURES = re.compile(r"Stream(Begin|End)Capture")
_ONE_KERNEL = "LaunchKernel"
"""Part of the name of a call that launches one kernel, such as ``cudaLaunchKernelExC`` or ``hipLaunchKernel``."""
_COPIES = re.compile(r"memcpy|memset", re.IGNORECASE)
_HOLDS_HOST = re.compile(r"Loading|Compiler|Request|Init")  # of CUPTI's overheads; a thread of its own flushes buffers
_ON_DEVICE = re.compile(
    r"aten::_?(?:cudnn|miopen)_(?!is_acceptable$)|aten::_(?:flash|efficient)_attention_(?:forward|backward)$"
)
"""Operators of torch that run on a GPU alone; ``cudnn_is_acceptable`` is a question that RNNs ask on a CPU, too."""
_ON_CPU = re.compile(r"aten::_?mkldnn_")
"""Operators of torch that run on a CPU alone."""
_STEP = "ProfilerStep#"
"""The mark of torch itself, which kineto wrote as an operator until 2021."""
_NO_ARGS = Args()
_MEMORY = "[memory]"
_SETTINGS = {
    "record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stacks", "with_flops": "FLOPs",
    "with_modules": "modules", "cuda_runtime_version": "CUDA",
}  # fmt: skip
_OBJECT = re.compile(r"(?: of .*)? at 0x[0-9a-f]+")
"""Part of a built-in function's name that differs from call to call: its object and address."""

_DIGIT = re.compile(rb"\d")
_MERGED = re.compile(r"\[((?:[TDPE]P\d{1,6}-?)+)\] ", re.ASCII)


def read(path: Path, mark_pattern: re.Pattern[str] | None = None, progress: Progress = ignore) -> list[RankTrace]:
    """Return the trace of each rank in a file: one, unless SGLang merged several. ``progress`` gets the bytes read.

    A host range whose name matches ``mark_pattern`` marks a step. Raises Problem (TRACE) for no trace, or a rank with
    two devices.
    """
    reader = _Reader(path, mark_pattern, progress)
    reader.source.feed(reader.add_events)
    return list(reader.traces())


class _HostThread(NamedTuple):
    """A host thread: its rank, its number, and the functions that append to the columns of its operators."""

    rank: _Rank
    number: int
    add_begin: Append
    add_end: Append
    add_name: Append


class _Rank:
    """The trace of one rank, its launches, open captures (by thread), and the devices on which its kernels ran.

    ``kernel_launches`` has the correlation ids of calls that launch one kernel each, outside of captures. ``has_calls``
    tells that calls of the device's runtime were recorded, whether they launch anything or not.
    """

    def __init__(self, source: str, names: StringTable, mark_pattern: re.Pattern[str] | None) -> None:
        self.trace = RankTrace(source, "torch", mark_pattern)
        self.trace.names = names
        self.launches = HostCalls()
        self.kernel_launches = array("q")
        self.captures: dict[int, CapturedLaunches] = {}
        self.devices: set[object] = set()
        self.has_calls = False


class _Reader:
    """Reader that fills the traces block by block; launches wait in columns until all kernels are read."""

    def __init__(self, path: Path, mark_pattern: re.Pattern[str] | None, progress: Progress) -> None:
        self.source, self.mark_pattern = ChromeEvents(path, progress), mark_pattern
        self.category_of = functools.cache(self._category_by_pattern) if mark_pattern else _category_of
        self.names = StringTable()
        self.operators: dict[str, int] = {}  # of operators alone, by name
        self.stream_of = functools.cache(lambda stream: self.names[f"stream {stream}"])
        self.shaped: dict[tuple[str, bytes, bytes, bytes], int] = {}
        self.ranks: dict[str, _Rank] = {}  # by label; "" where nobody merged anything
        self.processes: dict[object, _Rank] = {}
        self.threads: dict[Thread, _HostThread] = {}
        self.has_shapes = self.has_stacks = False
        self.overheads = RangeColumns()
        self.short_events = set[bytes]()
        self.add_other = {
            _LAUNCH: self._add_launch,
            _KERNEL: self._add_kernel,
            _COPY: self._add_task,
            _ANNOTATION: self._add_annotation,
            _MODULE: self._add_module,
            _CALL: self._add_call,
            _BUILT_IN: self._add_built_in,
            _CAPTURE: self._add_capture,
            _FRAME: self._add_frame,
            _UNREAD: self._add_unread,
            _OVERHEAD: self._add_overhead,
        }

    def add_events(self, events: Iterator[Event]) -> None:
        """Add the events to the traces; categories that a report does not need are skipped.

        Raises ValueError, OverflowError or TypeError for a time that is no number.
        """
        # This runs a million times for each GB: what it needs is bound before, and nothing is called that need not be.
        category_of, operators, shaped, work = self.category_of, self.operators, self._number_with_shapes, WORK
        has_shapes = self.has_shapes
        pid = tid = None
        dot = ord(".")
        low, high = -BEYOND, BEYOND
        for event in events:
            if event.ph != "X":
                if event.name == _MEMORY:
                    self._add_allocation(event)
                continue
            name = event.name
            number = operators.get(name) if event.cat == "cpu_op" else None
            if number is None:
                category = category_of(event.cat, name)
                if category != _OPERATOR:
                    if category != UNKNOWN:
                        self.add_other[category](event)
                    continue
                number = operators[name] = self.names[name]
            text = bytes(event.ts)
            try:
                begin = int(text.replace(b".", b"", 1)) if text[-4] == dot else nanoseconds(text)
            except (ValueError, IndexError):  # 1.2e5, 0, and what is no number
                begin = nanoseconds(text)
            end = begin + round(event.dur * 1000)
            if tid != event.tid or pid != event.pid or tid is None:  # most are of the thread of the one before
                pid, tid = event.pid, event.tid
                thread = self._thread(event)
                add_begin, add_end, add_name = thread.add_begin, thread.add_end, thread.add_name
            if not low < end < high:  # before anything is added: the columns stay as long as each other
                raise OverflowError(Text("an event has the invalid duration {duration}", event.dur))
            add_begin(begin)
            add_end(end)
            args = event.args
            if args is None:
                add_name(number)
                continue
            if args.dims and not has_shapes:
                has_shapes = self.has_shapes = bool(_DIGIT.search(args.dims))
            add_name(shaped(name, args) if name in work and args.dims else number)
            if args.forward:
                thread.rank.trace.backward.add(thread.number)

    def _number_with_shapes(self, name: str, args: Args) -> int:
        """Return the number of an operator's name for calls with the same shapes and types of inputs, added if new.

        Calls of operators in `CONCRETE` also need the same values. It is the number of the plain name beyond 20,000
        different shapes, for texts of over 2000 bytes, and without types.
        """
        concrete = bytes(args.concrete) if name in CONCRETE else b""
        key = name, bytes(args.dims), bytes(args.kinds), concrete
        number = self.shaped.get(key)
        if number is None:
            if len(self.shaped) >= MOST_SHAPES or max(map(len, key)) > LONGEST or not args.kinds:
                return self.names[name]
            number = self.shaped[key] = self.names.add_again(name)
        return number

    def _category_by_pattern(self, category: str, name: str) -> int:
        """Return the number of the category in which rlpatch reads an event, for a trace read with a ``mark_pattern``.

        A range of the host whose name matches the pattern is an annotation, so that it can mark a step; for any other
        event ``category`` and ``name`` decide as without a pattern.
        """
        host = category.lower() == "python_function" or _CATEGORIES.get(category.lower()) == _OPERATOR
        if host and self.mark_pattern and self.mark_pattern.search(name):
            return _ANNOTATION
        return _category_of(category, name)

    def _thread(self, event: Event) -> _HostThread:
        """Return the host thread of an event; a new one is added to the trace of its rank."""
        thread = self.threads.get((event.pid, event.tid))
        if thread is None:
            rank = self._rank(event.pid)
            number = rank.trace.thread(event.pid, event.tid)
            ranges = rank.trace.operators[number]
            thread = _HostThread(rank, number, ranges.begin.append, ranges.end.append, ranges.name.append)
            self.threads[event.pid, event.tid] = thread
        return thread

    def _rank(self, process: int | str) -> _Rank:
        """Return the rank to which a process belongs, made if missing."""
        rank = self.processes.get(process)
        if rank is None:
            merged = _MERGED.match(process) if isinstance(process, str) else None
            label = merged[1] if merged else ""
            source = f"{self.source.path} [{label}]" if label else str(self.source.path)
            rank = self.processes[process] = self.ranks.setdefault(label, _Rank(source, self.names, self.mark_pattern))
        return rank

    def _add_launch(self, event: Event) -> None:
        """Keep a launch by its correlation id, if it has one, and add it to the graph that its thread captures, if any.

        The call is added, too, if it takes 20 µs or more.
        """
        if event.args is not None and event.args.correlation is not None:
            thread, time = self._thread(event), nanoseconds(event.ts)
            thread.rank.launches.add(event.args.correlation, time, thread.number)
            graph = thread.rank.captures.get(thread.number)
            if graph is not None:
                copy = _COPIES.search(event.name) is not None
                if copy or "launch" in event.name.lower():
                    kernel = event.args.kernel  # HIP names the kernel here, CUDA does not
                    graph.add(time, self.names[str(kernel)] if kernel else UNKNOWN, copy=copy)
            elif _ONE_KERNEL in event.name:
                thread.rank.kernel_launches.append(event.args.correlation)
        self._add_call(event)

    def _add_capture(self, event: Event) -> None:
        """Begin or end the captured graph of a thread by the call ``event``, and add the graph's range when it ends.

        The call is added, too, if it takes 20 µs or more.
        """
        thread = self._thread(event)
        captured = thread.rank.captures.pop(thread.number, None)
        if captured and "End" in event.name:
            thread.rank.trace.add_call(GRAPH_CAPTURE, captured.begin, nanoseconds(event.ts), thread.number)
        if "Begin" in event.name:
            graph = CapturedLaunches(thread.number, nanoseconds(event.ts))
            thread.rank.captures[thread.number] = graph
            thread.rank.trace.captured.append(graph)
        self._add_call(event)

    def _add_call(self, event: Event) -> None:
        """Note that the rank has calls of the device's runtime, and add this call if it takes 20 µs or more."""
        self._rank(event.pid).has_calls = True
        if event.dur * 1000 >= LONG_CALL:
            thread = self._thread(event)
            thread.rank.trace.add_call(event.name, *times(event), thread.number)

    def _add_built_in(self, event: Event) -> None:
        """Add a call of a C function if it takes 20 µs or more; its object's address is left out of the name."""
        if self._is_long(event):
            thread = self._thread(event)
            name = self.names[_OBJECT.sub("", event.name[:1000]).strip("<>")]
            thread.rank.trace.functions.setdefault(thread.number, RangeColumns()).add(*times(event), name)

    def _is_long(self, event: Event) -> bool:
        """Note that there are stacks, and tell whether a call is long; of a short one, only its time is kept."""
        self.has_stacks = True
        if event.dur * 1000 >= LONG_CALL:
            return True
        text = bytes(event.ts)  # mostly with three decimals: whole milliseconds end before seven characters
        self.short_events.add(text[:-7] if text[-4:-3] == b"." else b"%d" % (nanoseconds(text) // TICK))
        return False

    def _add_allocation(self, event: Event) -> None:
        """Add an allocation, or a free, of a device's memory; that of the host (``c10::DeviceType`` 0) is left out."""
        args = event.args or _NO_ARGS
        if args.bytes is not None and args.place is not None and args.place_kind:
            thread = self._thread(event)
            columns = thread.rank.trace.allocations.setdefault(args.place, AllocationColumns())
            columns.add(thread.number, nanoseconds(event.ts), args.bytes, args.allocated)

    def _add_overhead(self, event: Event) -> None:
        """Add what the driver or the profiler does; kineto does not tell in which thread."""
        if _HOLDS_HOST.search(event.name) and event.dur * 1000 >= LONG_CALL:
            self.overheads.add(*times(event), self.names[event.name])

    def _add_unread(self, event: Event) -> None:
        self._rank(event.pid).trace.unread[event.cat] += 1

    def _add_kernel(self, event: Event) -> None:
        """Add a kernel as a task, which communicates if its name is that of a collective, and note its device."""
        self._add_task(event, COMMUNICATION if is_collective(event.name) else COMPUTE)
        device = (event.args or _NO_ARGS).device
        self._rank(event.pid).devices.add(event.pid if device is None else device)

    def _add_task(self, event: Event, kind: str = COPY) -> None:
        """Add a task of the kind ``kind`` on the device, with its group and message if it is a collective."""
        args = event.args or _NO_ARGS
        trace, name = self._rank(event.pid).trace, self.names[event.name]
        stream = self.stream_of(event.tid if args.stream is None else args.stream)
        task = len(trace.tasks)
        trace.tasks.add(*times(event), kind, name, stream, args.correlation)
        if args.group is not None:
            trace.groups[task] = str(args.group)
        if args.collective is not None:
            trace.messages[task] = message(args.collective, args.sent, args.received, args.dtype, args.ranks)

    def _add_module(self, event: Event) -> None:
        self.has_stacks = True
        span, trace = times(event), self._rank(event.pid).trace
        trace.add_module(event.name, *span, trace.thread(event.pid, event.tid))

    def _add_annotation(self, event: Event) -> None:
        span, trace = times(event), self._rank(event.pid).trace
        trace.add_named_range(event.name, *span, trace.thread(event.pid, event.tid))

    def _add_frame(self, event: Event) -> None:
        if self._is_long(event):
            thread = self._thread(event)
            thread.rank.trace.add_frame(event.name, *times(event), thread.number)

    def traces(self) -> Iterator[RankTrace]:
        """Link the tasks with their launches, and yield the trace of each rank, or one empty trace if there is no rank.

        Each gets rank, world size, device and settings from the file's header; ranks that SGLang merged get theirs from
        their label, or None. Call it after the last event. Raises Problem (TRACE) if a rank has two devices.
        """
        header = self.source.header
        distributed = header.get("distributedInfo")
        fields = distributed if isinstance(distributed, Mapping) else {}
        header_rank, world = (
            value if type(value := fields.get(name)) is int else None for name in ("rank", "world_size")
        )
        numbers = _ranks_of_labels(self.ranks)
        shapes = {number: tuple(text.decode() for text in inputs) for (_, *inputs), number in self.shaped.items()}
        for label, rank in sorted(self.ranks.items()) or [("", self._rank(0))]:
            trace = rank.trace
            if len(rank.devices) > 1:
                raise several_problem(self.source.path, "devices", rank.devices)
            trace.cut, trace.lost = self.source.cut, self.source.lost
            trace.shapes = shapes
            trace.short_events = {int(text) for text in self.short_events if text.isdigit()}
            if len(self.ranks) == 1:
                trace.overheads = self.overheads
            trace.has_shapes, trace.has_stacks = self.has_shapes, self.has_stacks
            trace.settings = {word: str(header[name]) for name, word in _SETTINGS.items() if name in header}
            trace.rank = numbers.get(label) if label else header_rank
            trace.world = world
            trace.device = self._device_of(rank)
            trace.kernel_launches = len(rank.kernel_launches)
            trace.lost_kernels = count_unmatched(rank.kernel_launches, trace.tasks.key)
            trace.tasks.link(rank.launches, trace.tasks.key)
            yield trace

    def _device_of(self, rank: _Rank) -> str:
        """Return the name of a rank's device in the header, CPU if the rank ran nothing there, or that it is unknown.

        It is unknown if the header names none, but launches, operators or events that were not read tell of one.
        """
        header, trace, names = self.source.header, rank.trace, self.names.texts
        device = _device(header, next(iter(rank.devices), None))
        runs_nothing = not (rank.launches.key or trace.captured or len(trace.tasks) or trace.cut)
        if runs_nothing and (rank.has_calls or any(map(_ON_CPU.match, names))):
            device = CPU  # the machine has a device, and the program does not use it
        is_unsure = trace.unread or rank.launches.key or (trace.cut and "deviceProperties" not in header)
        is_unknown = device == CPU and (is_unsure or any(map(_ON_DEVICE.match, names)))
        return Text("unknown device") if is_unknown else device


def _ranks_of_labels(labels: Collection[str]) -> dict[str, int]:
    """Return SGLang's label, such as ``TP00-PP01``, → rank; empty if two labels would have the same rank."""
    places = [{name[:2]: int(name[2:]) for name in label.split("-") if name} for label in labels]
    size = 1 + max((place.get("TP", 0) for place in places), default=0)
    ranks = [place.get("PP", 0) * size + place.get("TP", 0) for place in places]
    return dict(zip(labels, ranks, strict=True)) if len(set(ranks)) == len(ranks) else {}


@functools.cache
def _category_of(category: str, name: str) -> int:
    """Return the number of the category in which rlpatch reads an event, by its name and its ``category`` in JSON.

    UNKNOWN is for events that are skipped on purpose, _UNREAD for those of a category that rlpatch does not know.
    """
    category = category.lower()
    number = _LAUNCH if category.endswith(("_runtime", "_driver")) else _CATEGORIES.get(category, UNKNOWN)
    if number == _OPERATOR and name.startswith(_STEP):
        return _ANNOTATION
    if number == _LAUNCH and not _LAUNCHES.search(name):
        return _CAPTURE if _CAPTURES.search(name) else _CALL
    if number == _MODULE and not name.startswith(NN_MODULE):
        return _BUILT_IN if name.startswith("<built-in ") else _FRAME
    return _UNREAD if number == UNKNOWN and category not in _LEFT_OUT else number


def _device(header: Mapping[str, Any], number: object) -> str:
    """Return the name of the device with this number, else of the first device in the header, else "GPU".

    It is CPU if ``number`` is None and the header has no devices.
    """
    devices = [device for device in header.get("deviceProperties") or () if isinstance(device, Mapping)]
    if number is None and not devices:
        return CPU
    matching = [device for device in devices if device.get("id") == number]
    return str(next((name for device in (*matching, *devices) if (name := device.get("name"))), "GPU"))
