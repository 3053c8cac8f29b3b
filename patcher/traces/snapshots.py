"""Memory snapshots of torch: the peak and who holds it, unit by unit what grows, and what is cached but unused.

The format is that of ``torch.cuda.memory._snapshot()`` (``torch_npu.npu.memory`` alike). Values of a wrong type count
as missing.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages import Kind, Problem, Text
from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import reading
from patcher.traces import sidecar
from patcher.traces.folders.walk import OTHER, SNAPSHOT, walk
from patcher.traces.formats import pickled
from patcher.traces.measured import UnitAllocations

MARK = "rlpatch_unit"
"""Function in the stack of the allocation that marks the begin of a unit."""

LISTED = 12
"""Holders and blocks of each list."""

_OURS = ("/torch/", "/torch_npu/", "torch\\")
_DEEP = 200
"""Frames of a stack that are looked at."""


class Origin(NamedTuple):
    """Code that allocated memory: innermost module, operator and frame outside of torch; "" for what is unknown.

    A module is a ``forward`` in a file, a frame ``file:line function``.
    """

    module: str = ""
    operator: str = ""
    frame: str = ""


@dataclasses.dataclass(frozen=True)
class LiveMemory:
    """Live memory of one origin, in bytes and blocks; ``units`` are those that allocated it, as far as known."""

    origin: Origin
    bytes: int
    blocks: int
    units: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class UnitMemory(UnitAllocations):
    """Memory in a unit, in bytes, with what it allocated and ``left`` behind."""

    left: int


@dataclasses.dataclass(frozen=True)
class Failure:
    """Allocation that failed: bytes requested, free on the device, and cached by the allocator but unused."""

    unit: int | None
    requested: int
    free: int | None
    unused: int


@dataclasses.dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device. ``peak_unit`` is None outside of units, or without marks.

    ``reserved`` and ``in_use`` are those at the end, ``unused`` is cached by the allocator, the largest free block
    ``largest_free``. ``holders`` hold the peak, ``blocks`` are the largest ones at the end, ``growth`` is what units
    left behind. ``unknown`` is allocated without a stack at the peak.
    """

    device: int
    peak: int
    peak_unit: int | None
    reserved: int
    in_use: int
    unused: int
    largest_free: int
    unknown: int
    holders: tuple[LiveMemory, ...]
    growth: tuple[LiveMemory, ...]
    blocks: tuple[LiveMemory, ...]
    units: tuple[UnitMemory, ...]
    failures: tuple[Failure, ...]
    events: int


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """One snapshot file: its devices with memory, and ``cut``: older allocations were dropped from the history."""

    source: str
    unit: str
    devices: tuple[DeviceMemory, ...]
    cut: bool


class _Event(NamedTuple):
    """An allocation (positive) or a free (negative) of ``size`` bytes."""

    address: int
    size: int
    frames: Sequence[Any]


def read(path: Path, progress: Progress = ignore) -> Snapshot:
    """Return the peak, steps and holders of each device in a memory snapshot of torch.

    ``progress`` gets the number of bytes of each read. Raises Problem (TRACE) for any other file or one that is too
    large, OSError if it cannot be read.
    """
    segments, traces, about = _load_content(path, progress)
    marked = [number for number in _list(about.get("marked")) if type(number) is int]
    by_device = defaultdict[int, list[Mapping[str, Any]]](list)
    for segment in segments:
        by_device[_number(segment, "device")].append(segment)
    numbers = sorted({*by_device, *(at for at, trace in enumerate(traces) if trace)})
    devices = tuple(
        _device_memory(number, by_device[number], _list(traces[number]) if number < len(traces) else [], marked)
        for number in numbers
    )
    unit, most = about.get("unit"), about.get("most")
    cut = type(most) is int and any(device.events >= most for device in devices)
    return Snapshot(str(path), unit if isinstance(unit, str) else "", devices, cut)


def _load_content(
    path: Path, progress: Progress
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Any], Mapping[str, Any]]:
    """Return the segments in a memory snapshot, the history of each device, and the fields that rlpatch added.

    Raises Problem (TRACE) for a file that is no snapshot or too large, OSError if it cannot be read.
    """
    if path.stat().st_size > pickled.MOST_BYTES:
        cause = Text(
            "{file} is larger than {limit} GB, so rlpatch does not read it",
            file=path.name,
            limit=pickled.MOST_BYTES >> 30,
        )
        raise Problem(Kind.TRACE, cause, str(path), Text("record fewer steps, with a shorter window"))
    with reading(path) as file:
        data = pickled.load(file.read(), path.name, progress)
    fields = data if isinstance(data, dict) else {"segments": data}  # before torch 2.1 a list of segments
    segments = [segment for segment in _list(fields.get("segments")) if isinstance(segment, dict)]
    if not segments and "device_traces" not in fields:
        cause = Text("{file} has no memory segments, so it is not a memory snapshot of torch", path.name)
        raise Problem(Kind.TRACE, cause, str(path), Text("run `rlpatch traces` to see what was recorded"))
    about = fields.get("rlpatch")
    return segments, _list(fields.get("device_traces")), about if isinstance(about, dict) else {}


def split_off_snapshots(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the memory snapshots among ``paths``, and the other paths.

    A file is a snapshot if its name ends in ``.pickle`` or ``.pkl``; a file of step metadata counts as its trace. A
    folder is replaced by the snapshots below it, if these are the only traces there that rlpatch can read.
    """
    snapshots, other_paths = list[Path](), list[Path]()
    for path in map(sidecar.trace_of, paths):
        if path.is_dir():
            kinds = dict(walk(path, lambda _error: None))
            below = sorted(file for file, kind in kinds.items() if kind == SNAPSHOT)
            alone = bool(below) and {*kinds.values()} <= {SNAPSHOT, OTHER}
            snapshots += below if alone else []
            other_paths += [] if alone else [path]
        else:
            is_pickle = path.is_file() and path.suffix in (".pickle", ".pkl")
            (snapshots if is_pickle else other_paths).append(path)
    return snapshots, other_paths


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    return value if type(value) is int and 0 <= value < 1 << 60 else 0


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _stack_of(values: Mapping[str, Any]) -> Sequence[Any]:
    """Return the stack of a block or an event, innermost first; empty if it has none.

    Older snapshots keep the stack in a block's history.
    """
    frames = values.get("frames")
    if not frames and (history := _list(values.get("history"))) and isinstance(history[0], dict):
        frames = history[0].get("frames")
    return _list(frames)


def _device_memory(
    number: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Any], marked: Sequence[int]
) -> DeviceMemory:
    """Return the memory of device ``number`` at the end, and over its history.

    ``segments`` are what its allocator has reserved, ``trace`` is the history of allocations and frees, ``marked`` has
    the numbers of the steps that rlpatch marked. Each list of the result has up to 12 entries, largest first; only code
    that left memory behind in several steps is in ``growth``.
    """
    live, free = dict[int, _Event](), [0]
    for segment in segments:
        address = _number(segment, "address")
        for block in (block for block in _list(segment.get("blocks")) if isinstance(block, dict)):
            size, at = _number(block, "size"), _number(block, "address") or address
            if _text(block, "state").startswith("active"):
                live[at] = _Event(at, size, _stack_of(block))
            else:
                free.append(size)
            address = at + size
    reserved, in_use = sum(_number(segment, "total_size") for segment in segments), sum(b.size for b in live.values())
    history = _History(trace, live, marked)
    names = _Names()
    held = history.live_after(history.peak_at)
    grown = [(event, unit) for event, unit in history.left_behind() if unit is not None]
    return DeviceMemory(
        number, history.peak, history.unit_at(history.peak_at), reserved, in_use, max(reserved - in_use, 0), max(free),
        sum(event.size for event, _ in held if not event.frames),
        tuple(_sum_by_origin(held, names)[:LISTED]),
        tuple(group for group in _sum_by_origin(grown, names) if len(group.units) > 1)[:LISTED],
        tuple(
            LiveMemory(names.origin(event.frames), event.size, 1)
            for event in sorted(live.values(), key=lambda event: -event.size)[:LISTED]
        ),
        tuple(history.units()),
        tuple(history.failures(max(reserved - in_use, 0))),
        len(trace),
    )  # fmt: skip


class _History:
    """Allocations and frees of one device, in order, with the marks of units among them."""

    def __init__(self, trace: Sequence[Any], live: Mapping[int, _Event], marked: Sequence[int]) -> None:
        """Take a ``trace``, what is ``live`` at its end, and the numbers of the units that were ``marked``."""
        entries = [entry for entry in trace if isinstance(entry, dict)]
        freeing = (
            "free_completed" if any(entry.get("action") == "free_completed" for entry in entries) else "free_requested"
        )
        self.events: list[_Event] = []
        self.oom: list[tuple[int, Mapping[str, Any]]] = []
        marks = list[int]()
        allocated = dict[int, _Event]()
        before = dict(live)  # then what was allocated before the history began
        for entry in entries:
            action, frames = entry.get("action"), _stack_of(entry)
            event = _Event(_number(entry, "addr"), _number(entry, "size"), frames)
            if action == "alloc":
                if any(isinstance(frame, dict) and frame.get("name") == MARK for frame in frames[:3]):
                    marks.append(len(self.events))
                allocated[event.address] = event
                before.pop(event.address, None)
                self.events.append(event)
            elif action == freeing:
                origin = allocated.pop(event.address, None)
                if origin is None:
                    before[-len(before) - 1] = event._replace(frames=())
                self.events.append(_Event(event.address, -event.size, origin.frames if origin else ()))
            elif action == "oom":
                self.oom.append((len(self.events), entry))
        self.before = sum(event.size for event in before.values())
        self.first = [*before.values()]
        numbers = list(marked)[-len(marks) :] if marks and marked else []
        self.marks = list(zip(marks[-len(numbers) :], numbers, strict=True)) if numbers else []
        self.totals = [self.before]
        for event in self.events:
            self.totals.append(self.totals[-1] + event.size)
        self.peak_at = max(range(len(self.totals)), key=self.totals.__getitem__)
        self.peak = self.totals[self.peak_at]

    def unit_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield each step as (number, index of its first event, index after its last event).

        The last mark only ends the last step, unless memory ran out after it; then a step begins there, too.
        """
        ends = [at for at, _ in self.marks[1:]]
        if self.oom and self.marks and self.oom[-1][0] > self.marks[-1][0]:
            ends.append(len(self.events))
        for (at, number), end in zip(self.marks, ends, strict=False):
            yield number, at, end

    def unit_at(self, at: int) -> int | None:
        """Return the number of the step in which an event (its index) lies; None outside of steps."""
        return next((number for number, start, end in self.unit_ranges() if start < at <= end), None)

    def units(self) -> Iterator[UnitMemory]:
        """Yield the device memory of each step whose end is known, in order.

        The allocations with which rlpatch marks steps do not count as allocated.
        """
        left_bytes = defaultdict[int, int](int)
        for event, unit in self.left_behind():
            if unit is not None:
                left_bytes[unit] += event.size
        for number, start, end in self.unit_ranges():
            grown = [event.size for event in self.events[start:end] if event.size > 0 and not _is_mark(event)]
            yield UnitMemory(
                number, self.totals[start], self.totals[end], max(self.totals[start : end + 1]), sum(grown), len(grown),
                left_bytes[number],
            )  # fmt: skip

    def live_after(self, until: int) -> list[tuple[_Event, int | None]]:
        """Return the allocations not freed after the first ``until`` events: pairs (event, number of the step of it).

        The number is None for an allocation before the first event, or outside of a recorded step.
        """
        step_of: list[int | None] = [None] * len(self.events)
        for number, start, end in self.unit_ranges():
            step_of[start:end] = [number] * (end - start)
        live = dict[int, tuple[_Event, int | None]]()
        freed = set[int]()
        for event, step in zip(self.events[:until], step_of, strict=False):
            if event.size > 0:
                live[event.address] = (event, step)
            elif live.pop(event.address, None) is None:
                freed.add(event.address)
        return [*((event, None) for event in self.first if event.address not in freed), *live.values()]

    def left_behind(self) -> list[tuple[_Event, int | None]]:
        """Return what is live at the end of the last step, each with the step that allocated it, or None."""
        end = max((end for *_, end in self.unit_ranges()), default=len(self.events))
        return [(event, unit) for event, unit in self.live_after(end) if not _is_mark(event)]

    def failures(self, unused: int) -> Iterator[Failure]:
        """Yield the allocations that failed; ``unused`` is how many bytes the allocator cached at the end."""
        for at, entry in self.oom:
            free = entry.get("device_free")
            yield Failure(self.unit_at(at), _number(entry, "size"), free if type(free) is int else None, unused)


def _is_mark(event: _Event) -> bool:
    return any(isinstance(frame, dict) and frame.get("name") == MARK for frame in event.frames[:3])


def _sum_by_origin(live: Iterable[tuple[_Event, int | None]], names: _Names) -> list[LiveMemory]:
    """Return live memory by origin, the largest first."""
    sizes, counts = defaultdict[Origin, int](int), defaultdict[Origin, int](int)
    units = defaultdict[Origin, set[int]](set)
    for event, unit in live:
        origin = names.origin(event.frames)
        sizes[origin] += event.size
        counts[origin] += 1
        if unit is not None:
            units[origin].add(unit)
    return [
        LiveMemory(origin, size, counts[origin], tuple(sorted(units[origin])))
        for origin, size in sorted(sizes.items(), key=lambda item: -item[1])
    ]


class _Names(dict[int, Origin]):
    """Origins of stacks, by their identity: many allocations share one."""

    def origin(self, frames: Sequence[Any]) -> Origin:
        """Return the code in which a stack (innermost frame first) allocated memory: module, operator and frame.

        The result is remembered by the identity of ``frames``, which must stay alive and unchanged.
        """
        if frames and id(frames) not in self:
            self[id(frames)] = _origin_of_stack([frame for frame in frames[:_DEEP] if isinstance(frame, dict)])
        return self[id(frames)] if frames else Origin()


def _origin_of_stack(frames: Sequence[Mapping[str, Any]]) -> Origin:
    """Return the innermost module, operator and frame outside of torch in a stack; "" for each that is missing.

    A module is a function ``forward``. An operator is one of ATen, or else a Python function of torch.
    """
    module = operator = outside = ""
    for frame in frames:
        file, name = _text(frame, "filename")[-200:], _text(frame, "name")[:200]
        short = f"{'/'.join(file.split('/')[-2:])}:{_number(frame, 'line')} {name}"
        in_torch = any(part in file for part in _OURS)
        if not operator and name.startswith("at::_ops::"):
            operator = f"aten::{name.split('::')[2]}"
        elif not operator and in_torch and file.endswith(".py") and not outside:
            operator = name
        if not module and name == "forward":
            module = short
        if not outside and file.endswith(".py") and not in_torch:
            outside = short
    return Origin(module, operator, outside)
