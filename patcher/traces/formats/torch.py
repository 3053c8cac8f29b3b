"""Traces of torch.profiler: kineto's JSON, plain or gzip, of NVIDIA and AMD GPUs and of CPUs.

The names of categories and arguments are kineto's (``libkineto/src/output_json.cpp``): kernels and copies of the
device, ``…_runtime`` and ``…_driver`` for the calls that launch them, which share their ``correlation`` with what
they launched: all kernels of a replayed graph with the one call. Of other such calls, and of
built-in functions of Python, the long ones are kept. A file into which SGLang merged those of several ranks has the
rank of an event before its process: ``[TP00] 4711``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from patcher.progress import Progress, ignore
from patcher.traces.formats.chrome import BEYOND, Args, ChromeEvents, Event, nanoseconds, times
from patcher.traces.messages import message
from patcher.traces.model import COMMUNICATION, COMPUTE, COPY, CPU
from patcher.traces.rank_trace import LONG_CALL, NN_MODULE, OPTIMIZER, RankTrace, Thread, module_class, several
from patcher.traces.trace_columns import UNKNOWN, CapturedLaunches, HostCalls, RangeColumns, StringTable
from patcher.traces.work import CONCRETE, WORK

MOST_SHAPES, LONGEST = 20_000, 2000
"""Operators with shapes of their own that are told apart, and bytes of such shapes: what is beyond goes by its name."""

Append = Callable[[int], None]
_Columns = tuple[int, Append, Append, Append, "_Rank"]
"""The number of a thread, how its operators grow (by begin, end and name), and the rank that it is of."""

_OPERATOR, _LAUNCH, _KERNEL, _COPY, _ANNOTATION, _MODULE, _CALL, _BUILT_IN, _CAPTURE = range(9)
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
}
_LAUNCHES = re.compile(r"launch|memcpy|memset|prefetch|graph|enqueue|exec", re.IGNORECASE)
_CAPTURES = re.compile(r"Stream(Begin|End)Capture")
_COPIES = re.compile(r"memcpy|memset", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"nccl|rccl|hccl|hcom|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|nvshmem|deep_?ep|mscclpp",
    re.IGNORECASE,
)
_STEP = "ProfilerStep#"
"""The mark of torch itself, which kineto wrote as an operator until 2021."""
_NO_ARGS = Args()
_SETTINGS = {
    "record_shapes": "shapes", "profile_memory": "memory", "with_stack": "stacks", "with_flops": "FLOPs",
    "with_modules": "modules", "cuda_runtime_version": "CUDA",
}  # fmt: skip
_OBJECT = re.compile(r"(?: of .*)? at 0x[0-9a-f]+")
"""In the name of a built-in function: whose method it is, which differs from call to call."""

_CLASS = re.compile(r"[A-Z][A-Za-z0-9_]*")
_MERGED = re.compile(r"\[((?:[TDPE]P\d{1,6}-?)+)\] ", re.ASCII)


def read(path: Path, wanted: re.Pattern[str] | None = None, progress: Progress = ignore) -> list[RankTrace]:
    """Return the trace of each rank in a file. Raises Problem (TRACE) if it is none, or a rank has two devices."""
    reader = _Reader(path, wanted, progress)
    reader.source.feed(reader.take)
    return list(reader.timelines())


class _Rank:
    """The timeline of one rank, its launches, open captures, and the devices on which its kernels ran."""

    def __init__(self, source: str, names: StringTable, wanted: re.Pattern[str] | None) -> None:
        self.found = RankTrace(source, "torch", wanted)
        self.found.names = names
        self.launches = HostCalls()
        self.captures: dict[int, CapturedLaunches] = {}  # those that a thread has begun
        self.devices: set[object] = set()


class _Reader:
    """Fills the timelines block by block; launches wait in columns until all kernels are there."""

    def __init__(self, path: Path, wanted: re.Pattern[str] | None, progress: Progress) -> None:
        self.source, self.wanted = ChromeEvents(path, progress), wanted
        self.category_of = functools.cache(self._marked) if wanted else _category
        self.names = StringTable()
        self.operators: dict[str, int] = {}  # of operators alone, by name
        self.stream_of = functools.cache(lambda stream: self.names[f"stream {stream}"])
        self.shaped: dict[tuple[str, bytes, bytes, bytes], int] = {}
        self.ranks: dict[str, _Rank] = {}  # by label; "" where nobody merged anything
        self.processes: dict[object, _Rank] = {}
        self.take_other = {
            _LAUNCH: self._add_launch, _KERNEL: self._add_task, _COPY: self._add_task, _ANNOTATION: self._annotate,
            _MODULE: self._annotate, _CALL: self._add_call, _BUILT_IN: self._add_built_in, _CAPTURE: self._add_capture,
        }  # fmt: skip
        self.ranges: dict[Thread, _Columns] = {}

    def take(self, events: Iterator[Event]) -> None:
        """Add the events; ValueError, OverflowError or TypeError at one whose time is no number."""
        # This runs a million times for each GB: what it needs is bound before, and nothing is called that need not be.
        category_of, ranges, operators, shaped, work = self.category_of, self.ranges, self.operators, self._shaped, WORK
        pid = tid = None
        dot, low, high = ord("."), -BEYOND, BEYOND
        for event in events:
            if event.ph != "X":
                continue
            name = event.name
            number = operators.get(name) if event.cat == "cpu_op" else None
            if number is None:
                category = category_of(event.cat, name)
                if category != _OPERATOR:
                    if category != UNKNOWN:
                        self.take_other[category](event, category)
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
                thread, add_begin, add_end, add_name, rank = ranges.get((pid, tid)) or self._thread(event)
            if not low < end < high:  # before anything is added: the columns stay as long as each other
                raise OverflowError(f"no duration: {event.dur}")
            add_begin(begin)
            add_end(end)
            args = event.args
            if args is None:
                add_name(number)
                continue
            add_name(shaped(name, args) if name in work and args.dims else number)
            if args.forward:
                rank.found.backward.add(thread)

    def _shaped(self, name: str, args: Args) -> int:
        """The number of an operator by its name and shapes; by its name alone where these are too many, or untyped."""
        concrete = bytes(args.concrete) if name in CONCRETE else b""
        key = name, bytes(args.dims), bytes(args.kinds), concrete
        number = self.shaped.get(key)
        if number is None:
            if len(self.shaped) >= MOST_SHAPES or max(map(len, key)) > LONGEST or not args.kinds:
                return self.names[name]
            number = self.shaped[key] = self.names.add_again(name)
        return number

    def _marked(self, text: str, name: str) -> int:
        """Return the category of an event, where ranges of the host with certain names are marks."""
        host = text.lower() == "python_function" or _CATEGORIES.get(text.lower()) == _OPERATOR
        return _ANNOTATION if host and self.wanted and self.wanted.search(name) else _category(text, name)

    def _add_launch(self, event: Event, _category: int) -> None:
        correlation = None if event.args is None else event.args.correlation
        if correlation is not None:
            thread, _, _, _, rank = self.ranges.get((event.pid, event.tid)) or self._thread(event)
            time = nanoseconds(event.ts)
            rank.launches.add(correlation, time, thread)
            if rank.captures and thread in rank.captures:
                self._add_captured(rank, rank.captures[thread], event, time)
        if event.dur * 1000 >= LONG_CALL:
            self._add_call(event, _category)

    def _add_captured(self, rank: _Rank, graph: CapturedLaunches, event: Event, time: int) -> None:
        """Keep a launch that a graph is captured of; HIP names the kernel, CUDA does not."""
        kernel = event.args and event.args.kernel
        copy = _COPIES.search(event.name) is not None
        if copy or "launch" in event.name.lower():
            graph.add(time, rank.found.names[str(kernel)] if kernel else UNKNOWN, copy=copy)

    def _add_capture(self, event: Event, _category: int) -> None:
        thread, _, _, _, rank = self.ranges.get((event.pid, event.tid)) or self._thread(event)
        rank.captures.pop(thread, None)
        if "Begin" in event.name:
            rank.captures[thread] = graph = CapturedLaunches(thread, nanoseconds(event.ts))
            rank.found.captured.append(graph)
        self._add_call(event, _category)

    def _add_call(self, event: Event, _category: int) -> None:
        if event.dur * 1000 >= LONG_CALL:
            thread, *_, rank = self.ranges.get((event.pid, event.tid)) or self._thread(event)
            rank.found.add_call(event.name, *times(event), thread)

    def _add_built_in(self, event: Event, _category: int) -> None:
        if event.dur * 1000 >= LONG_CALL:
            thread, *_, rank = self.ranges.get((event.pid, event.tid)) or self._thread(event)
            name = rank.found.names[_OBJECT.sub("", event.name[:1000]).strip("<>")]
            rank.found.functions.setdefault(thread, RangeColumns()).add(*times(event), name)

    def _thread(self, event: Event) -> _Columns:
        rank = self._rank(event.pid)
        thread = rank.found.thread(event.pid, event.tid)
        columns = rank.found.operators[thread]
        columns_of = thread, columns.begin.append, columns.end.append, columns.name.append, rank
        self.ranges[event.pid, event.tid] = columns_of
        return columns_of

    def _rank(self, process: int | str) -> _Rank:
        """Return the rank of a process; of all but merged traces there is one."""
        rank = self.processes.get(process)
        if rank is None:
            merged = _MERGED.match(process) if isinstance(process, str) else None
            label = merged[1] if merged else ""
            source = f"{self.source.path} [{label}]" if label else str(self.source.path)
            rank = self.processes[process] = self.ranks.setdefault(label, _Rank(source, self.names, self.wanted))
        return rank

    def _add_task(self, event: Event, category: int) -> None:
        begin, end = times(event)
        rank, args = self._rank(event.pid), event.args or _NO_ARGS
        trace = rank.found
        kind = COPY if category == _COPY else _kind_of(event.name)
        stream = event.tid if args.stream is None else args.stream
        trace.tasks.add(begin, end, kind, self.names[event.name], self.stream_of(stream), args.correlation)
        if args.group is not None:
            trace.groups[len(trace.tasks) - 1] = str(args.group)
        if args.collective is not None:
            carried = message(args.collective, args.sent, args.received, args.dtype, args.ranks)
            trace.messages[len(trace.tasks) - 1] = carried
        if category == _KERNEL:
            rank.devices.add(event.pid if args.device is None else args.device)

    def _annotate(self, event: Event, category: int) -> None:
        begin, end = times(event)
        trace = self._rank(event.pid).found
        thread = trace.thread(event.pid, event.tid)
        if category == _MODULE:
            trace.modules[thread].add(begin, end, trace.names[module_class(event.name)])
        elif trace.add_mark(event.name, begin, end, thread):
            return
        elif event.name.startswith(OPTIMIZER):
            trace.operators[thread].add(begin, end, trace.names[event.name])
        elif _CLASS.fullmatch(event.name):  # what --module-ranges leaves in a trace of torch.profiler
            trace.modules[thread].add(begin, end, trace.names[event.name])

    def timelines(self) -> Iterator[RankTrace]:
        """Yield the timelines, when all events have been added."""
        header = self.source.header
        distributed = header.get("distributedInfo")
        fields = distributed if isinstance(distributed, Mapping) else {}
        own, world = (value if type(value := fields.get(name)) is int else None for name in ("rank", "world_size"))
        numbers = _numbers(self.ranks)
        shapes = {number: tuple(text.decode() for text in inputs) for (_, *inputs), number in self.shaped.items()}
        for label, rank in sorted(self.ranks.items()) or [("", self._rank(0))]:
            trace = rank.found
            if len(rank.devices) > 1:
                raise several(self.source.path, "devices", rank.devices)
            trace.cut, trace.lost, trace.shapes = self.source.cut, self.source.lost, shapes
            trace.settings = {word: str(header[name]) for name, word in _SETTINGS.items() if name in header}
            trace.rank, trace.world = numbers.get(label) if label else own, world
            trace.device = _device(header, next(iter(rank.devices), None))
            trace.tasks.link(rank.launches, trace.tasks.key)
            yield trace


def _numbers(labels: Collection[str]) -> dict[str, int]:
    """The rank of each label of SGLang, which counts TP within PP; nothing where that does not tell them apart."""
    places = [{name[:2]: int(name[2:]) for name in label.split("-") if name} for label in labels]
    size = 1 + max((place.get("TP", 0) for place in places), default=0)
    ranks = [place.get("PP", 0) * size + place.get("TP", 0) for place in places]
    return dict(zip(labels, ranks, strict=True)) if len(set(ranks)) == len(ranks) else {}


@functools.lru_cache(maxsize=1 << 16)  # names are long, few, and met millions of times
def _kind_of(name: str) -> str:
    """Classify a kernel of a GPU by its name, for nothing else in a trace does: NCCL, RCCL and vLLM's own are known."""
    return COMMUNICATION if _COLLECTIVE.search(name, 0, 1000) else COMPUTE  # a damaged name can have millions


@functools.cache
def _category(text: str, name: str) -> int:
    """Return the number of the category of an event; UNKNOWN where nothing is read of such an event."""
    category = _LAUNCH if text.lower().endswith(("_runtime", "_driver")) else _CATEGORIES.get(text.lower(), UNKNOWN)
    if category == _OPERATOR and name.startswith(_STEP):
        return _ANNOTATION
    if category == _LAUNCH and not _LAUNCHES.search(name):
        return _CAPTURE if _CAPTURES.search(name) else _CALL
    if category == _MODULE and not name.startswith(NN_MODULE):
        return _BUILT_IN if name.startswith("<built-in ") else UNKNOWN
    return category


def _device(header: Mapping[str, Any], number: object) -> str:
    """The name of the device whose number the kernels carry, or the first that has one; CPU where there is neither."""
    devices = [device for device in header.get("deviceProperties") or () if isinstance(device, Mapping)]
    if number is None and not devices:
        return CPU
    own = [device for device in devices if device.get("id") == number]
    return str(next((name for device in (*own, *devices) if (name := device.get("name"))), "GPU"))
