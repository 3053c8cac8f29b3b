"""Memory over a run: who holds it at each peak, what frees it, where it grows, and where it is more than usual."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

from patcher.timeline.files import CacheNote, HostNote, KeptSpan, MemoryNote, Note, ProcessDevice
from patcher.timeline.intervals import end_of
from patcher.timeline.lanes import RunLanes
from patcher.timeline.model import (
    CacheUse,
    MemoryChange,
    MemoryExcess,
    MemoryGrowth,
    MemoryHolder,
    MemoryPeak,
    MemoryPlace,
    RunMemory,
    label,
)
from patcher.timeline.runs import Process
from patcher.timeline.shares import seconds

FEWEST = 4
"""Steps after the first below which nothing is said of growth, nor of what is usual."""

LEAST = 64_000_000
"""Bytes below which growth and excess are noise: allocators keep and return as much."""

LEAST_CHANGE = 100_000_000
"""Bytes of device memory that a sleep, an offload or a sync must change to be listed."""

SHARE = 0.02
"""Share of what a process has by which it must grow, or of a host by which a process must exceed what is usual."""

ERRORS = 5
"""Multiple of the typical deviation that is no chance."""

RISING = 0.85
"""Share of the pairs of steps between which memory grows, if it grows."""

_COMPARED = 60
"""Values that are compared pair by pair; of more steps, medians of neighbours."""

POINTS = 20_000
"""Points of the curves of all places."""

ALL_HELD, HELD = 64, 12
"""Processes for which every holder of a peak is listed, and holders listed in larger runs."""


class MemoryHome(NamedTuple):
    """Device or host; ``identity`` is equal for all processes on it."""

    of: str
    name: str
    joined_by: str
    identity: str


def device_home(process: Process, device: ProcessDevice) -> MemoryHome:
    """Return the ``device`` of a process, named "host:number"; its ``identity`` is equal for all processes on it.

    That is the uuid, or without one the name. The number is the entry for the device's index in the process's list of
    visible devices, or the index if the list has no such entry.
    """
    visible = [text.strip() for text in device.visible.split(",")]
    number = visible[device.index] if device.index < len(visible) and visible[device.index] else str(device.index)
    name = f"{process.head.host}:{number}"
    return MemoryHome("device", name, "uuid", device.uuid) if device.uuid else MemoryHome("device", name, "index", name)


@dataclass
class _Held:
    """Newest note of a process, and the bytes that its sleep took from the device but not from its allocator."""

    note: MemoryNote
    unmapped: int = 0
    asleep: bool = False

    @property
    def on_device(self) -> int:
        """Return the bytes that the process holds on the device."""
        return max((self.note.reserved or 0) - self.unmapped, 0)


class _Freed(NamedTuple):
    """Bytes that a sleep freed on the device and in the allocator (negative: took), and the name of its span."""

    device: int
    allocator: int
    span: str


class _Moment(NamedTuple):
    """Bytes in use on a place at a time (microseconds), and those of each process, with whether it is asleep."""

    at: int
    used: int
    sizes: list[tuple[int, int, bool]]


@dataclass
class _Series:
    """Memory of a process step by step: at the end of each, and the most in it with its time and duration."""

    private: dict[int | None, int] = field(default_factory=dict)
    allocated: dict[int | None, int] = field(default_factory=dict)
    unused: dict[int | None, int] = field(default_factory=dict)
    most: dict[int | None, tuple[int, int, int, str]] = field(default_factory=dict)


@dataclass
class _Curve:
    """Points of a place: time, bytes in use, and the bytes of each role."""

    points: list[tuple[int, int, dict[str, int]]] = field(default_factory=list)
    total: int = 0

    def add(self, at: int, used: int, roles: dict[str, int], most: int) -> None:
        """Add a point: time ``at`` (microseconds), bytes in use (``used``), and the part of these that each role holds.

        If there are more than twice ``most`` points, keep only the higher one of each two neighbours.
        """
        self.points.append((at, used, roles))
        if len(self.points) > 2 * most:
            pairs = (self.points[first : first + 2] for first in range(0, len(self.points), 2))
            self.points = [max(pair, key=lambda point: point[1]) for pair in pairs]


class MemoryCollector:
    """Memory of a run, fed step by step."""

    def __init__(
        self, processes: Sequence[Process], driver: int | None, lanes: RunLanes, ends: Mapping[int, int]
    ) -> None:
        """Prepare for ``processes``, by index; ``driver`` is the one whose phases are named.

        ``ends`` has the times (microseconds) after which processes hold nothing.
        """
        self.processes, self.driver, self.ends = processes, driver, ends
        self.lane_of = [lanes.index(at, process.role) for at, process in enumerate(processes)]
        self.held: dict[int, _Held] = {}
        self.devices: dict[int, MemoryHome] = {}
        self.hosts = [
            MemoryHome("host", process.head.host, "host", f"{process.head.boot} {process.head.host}")
            for process in processes
        ]
        self.host_notes: dict[MemoryHome, HostNote] = {}
        self.curves: dict[MemoryHome, _Curve] = defaultdict(_Curve)
        self.names: dict[MemoryHome, str] = {}
        self.series = defaultdict[int, _Series](_Series)
        self.peaks: dict[tuple[MemoryHome, int | None], MemoryPeak] = {}
        self.changes = defaultdict[tuple[str, str, str], list[int]](list)
        self.cache: dict[int, CacheUse] = {}

    def feed(
        self,
        number: int | None,
        spans: Iterable[KeptSpan],
        notes: Mapping[int, Sequence[Note]],
        devices: Mapping[int, ProcessDevice],
    ) -> None:
        """Add a step: its spans, and the memory notes and devices of the processes, by the process's index.

        ``number`` is that of the step, None after the last step that ended.
        """
        for at, device in devices.items():
            self.devices[at] = self._known_or_renamed(device_home(self.processes[at], device))
            self.names[self.devices[at]] = device.name
            self.curves[self.devices[at]].total = device.total << 20
        by_process = defaultdict[int, list[KeptSpan]](list)
        for span in sorted(spans, key=lambda span: (span.start, -end_of(span))):
            by_process[span.process].append(span)
        memory_notes = {
            at: [note for note in of_process if isinstance(note, MemoryNote)] for at, of_process in notes.items()
        }
        histories = {
            at: [*([self.held[at].note] if at in self.held else []), *sorted(of_process, key=lambda note: note.at)]
            for at, of_process in memory_notes.items()
        }
        sleeps = {at: dict(_memory_freed_by_sleeps(by_process[at], history)) for at, history in histories.items()}
        self._keep_peaks(number, notes, sleeps, by_process)
        for at, history in histories.items():
            self._add_freed_memory(at, by_process[at], history, sleeps[at].values())
            self._keep_step_memory(number, at, history, by_process[at])
            self._keep_cache_peak(number, at, notes[at])
        self._add_sync_changes(by_process, memory_notes)

    def _known_or_renamed(self, device: MemoryHome) -> MemoryHome:
        """Return the known place of the same device, else ``device``, renamed if another device has its name."""
        places = {place.identity: place for place in self.curves}
        if device.identity in places:
            return places[device.identity]
        is_name_taken = any(place.name == device.name and place.of == "device" for place in self.curves)
        return device._replace(name=f"{device.name} {device.identity[:12]}") if is_name_taken else device

    def _keep_peaks(
        self, number: int | None, notes: Mapping[int, Sequence[Note]], sleeps: Mapping[int, Mapping[int, _Freed]],
        spans: Mapping[int, Sequence[KeptSpan]],
    ) -> None:  # fmt: skip
        """Go through the memory notes of a step in the order of time, and keep the peak of each device and host.

        A peak replaces only a lower one of the same step. ``sleeps`` has time (microseconds) → what the sleep or
        wake-up before it freed.
        """
        events = [(process, note) for process, of_process in notes.items() for note in of_process]
        highest: dict[MemoryHome, _Moment] = {}
        for process, note in sorted(events, key=lambda event: event[1].at):
            if isinstance(note, CacheNote):
                continue
            if isinstance(note, HostNote):
                self.host_notes[self.hosts[process]] = note
                self.curves[self.hosts[process]].total = note.total
            else:
                held = self.held.setdefault(process, _Held(note))
                held.note = note if note.reserved is not None else MemoryNote(*note[:2], *held.note[2:])
                if freed := sleeps.get(process, {}).get(note.at):
                    held.unmapped = max(held.unmapped + freed.device - freed.allocator, 0)
                    held.asleep = freed.device > 0
            place, used = self._record_use(process, note) or (None, 0)
            if place and (place not in highest or used > highest[place].used):
                sizes = [(holder, size, self.held[holder].asleep) for holder, size in self._holders(place, note.at)]
                highest[place] = _Moment(note.at, used, sizes)
        for place, moment in highest.items():
            key = (place, number)
            if key not in self.peaks or moment.used > self.peaks[key].used:
                self.peaks[key] = self._peak(place, number, moment, spans)

    def _record_use(self, process: int, note: MemoryNote | HostNote) -> tuple[MemoryHome, int] | None:
        """Add a point to the curve of the host or device that ``note`` tells of; return the place and its bytes in use.

        None if the device or its free memory is unknown.
        """
        device = self.devices.get(process)
        if isinstance(note, HostNote):
            place, used = self.hosts[process], note.total - note.available
        elif device and note.free is not None:
            place, used = device, max(self.curves[device].total - note.free, 0)
        else:
            return None
        roles = defaultdict[str, int](int)
        for holder, size in self._holders(place, note.at):
            roles[self.processes[holder].role] += size
        self.curves[place].add(note.at, used, dict(roles), max(POINTS // len(self.curves), 20))
        return place, used

    def _holders(self, place: MemoryHome, at: int) -> Iterator[tuple[int, int]]:
        """Yield (process index, bytes) for each living process with a note on a host or device at time ``at``."""
        for process, held in self.held.items():
            if at > self.ends.get(process, at):
                continue
            if place.of == "host" and self.hosts[process] == place:
                yield process, held.note.private
            elif self.devices.get(process) == place:
                yield process, held.on_device

    def _peak(
        self, place: MemoryHome, number: int | None, moment: _Moment, spans: Mapping[int, Sequence[KeptSpan]]
    ) -> MemoryPeak:
        """Return the peak of a host's or device's memory in a step: its holders and their activities, and the phase.

        Holders are sorted by size, without those of 0 bytes; in a large run only the twelve largest are listed.
        """
        at, used = moment.at, moment.used
        holders = [
            MemoryHolder(
                self._label(process), self.lane_of[process], size, place.of == "device" and asleep,
                _activity_at(spans.get(process, ()), at),
            )
            for process, size, asleep in sorted(moment.sizes, key=lambda holder: -holder[1])
            if size
        ]  # fmt: skip
        most = len(holders) if len(self.processes) <= ALL_HELD else HELD
        phase = _activity_at(spans.get(self.driver, ()), at, ("phase",)) if self.driver is not None else ""
        total, other = self.curves[place].total, max(used - sum(holder.bytes for holder in holders), 0)
        return MemoryPeak(place.of, place.name, number, seconds(at), phase, used, total, tuple(holders[:most]), other)

    def _label(self, index: int) -> str:
        process = self.processes[index]
        return label(process.role, process.replica, process.rank)

    def _add_freed_memory(
        self, process: int, spans: Sequence[KeptSpan], history: Sequence[MemoryNote], sleeps: Iterable[_Freed]
    ) -> None:
        """Add to ``changes`` how many bytes each sleep of a process freed, and how many the end of each work.

        A work is a method that the process executes for the driver; sleeps and works within others do not count. Bytes
        are negative if memory was taken.
        """
        role = self.processes[process].role
        for freed in sleeps:
            self.changes["sleep", role, freed.span].append(freed.device)
        on_device = [(note.at, note.reserved) for note in history if note.reserved is not None]
        for work in _outermost(span for span in spans if span.kind == "work" and span.end is not None):
            inside = [reserved for at, reserved in on_device if work.start <= at < end_of(work)]
            after = next((reserved for at, reserved in on_device if at >= end_of(work)), None)
            if inside and after is not None:
                self.changes["offload", role, work.name].append(max(inside) - after)

    def _add_sync_changes(
        self, spans: Mapping[int, Sequence[KeptSpan]], notes: Mapping[int, Sequence[MemoryNote]]
    ) -> None:
        """Add to ``changes`` each device's peak during the weight sync, in bytes above the larger of its begin and end.

        A device with fewer than three notes during the sync is left out.
        """
        used = defaultdict[MemoryHome, list[tuple[int, int]]](list)
        syncs = defaultdict[MemoryHome, list[KeptSpan]](list)
        for process, of_process in notes.items():
            if device := self.devices.get(process):
                total = self.curves[device].total
                used[device] += [(note.at, total - note.free) for note in of_process if note.free is not None]
                syncs[device] += [span for span in spans.get(process, ()) if span.kind == "sync" and span.end]
        for device, of_device in syncs.items():
            if not of_device:
                continue
            first, last = min(span.start for span in of_device), max(map(end_of, of_device))
            inside = sorted(moment for moment in used[device] if first <= moment[0] <= last)
            if len(inside) > 2:
                sizes = [size for _, size in inside]
                self.changes["sync", "", of_device[0].name].append(max(sizes) - max(sizes[0], sizes[-1]))

    def _keep_step_memory(
        self, number: int | None, process: int, history: Sequence[MemoryNote], spans: Sequence[KeptSpan]
    ) -> None:
        """Keep the memory that a process has at the end of step ``number``, and its peak of private memory in the step.

        With the peak go its time, what the process was doing by ``spans``, and for how many microseconds it had more
        than midway between least and most.
        """
        if not history:
            return
        series, last = self.series[process], history[-1]
        series.private[number] = last.private
        newest = next((note for note in reversed(history) if note.allocated), last)
        series.allocated[number] = newest.allocated or 0
        series.unused[number] = (newest.reserved or 0) - (newest.allocated or 0)
        highest = max(history, key=lambda note: note.private)
        level = (highest.private + min(note.private for note in history)) / 2
        above = 0
        for note, following in pairwise(history):
            above += following.at - note.at if note.private > level else 0
        if highest.private >= series.most.get(number, (0,))[0]:
            series.most[number] = (highest.private, highest.at, above, _activity_at(spans, highest.at))

    def _keep_cache_peak(self, number: int | None, process: int, notes: Iterable[Note]) -> None:
        """Keep the most KV-cache blocks that an engine ever had in use, with the ``number`` of the step."""
        cache = (note for note in notes if isinstance(note, CacheNote))
        most = max(cache, key=lambda note: note.used, default=None)
        before = self.cache.get(process)
        if most and (before is None or most.used > before.used):
            self.cache[process] = CacheUse(self._label(process), self.lane_of[process], number, most.used, most.total)

    def result(self) -> RunMemory:
        """Return the memory of the run: places, peaks, changes, growth, excesses and KV caches.

        Changes below 100 MB are left out.
        """
        changes = [
            MemoryChange(*key, len(sizes), round(statistics.median(sizes)), max(sizes, key=abs))
            for key, sizes in self.changes.items()
            if abs(max(sizes, key=abs)) >= LEAST_CHANGE
        ]
        growth = [row for process in self.series for row in self._growth(process)]
        grown = {(row.lane, row.of): row.per_step for row in growth}
        excesses = [row for process in self.series for row in self._excesses(process, grown)]
        return RunMemory(
            tuple(sorted(map(self._finished_place, self.curves), key=lambda place: (place.of, place.place))),
            tuple(self.peaks.values()),
            tuple(sorted(changes, key=lambda change: (change.kind, -abs(change.median)))),
            tuple(sorted(growth, key=lambda row: -row.per_step * row.steps)),
            tuple(sorted(excesses, key=lambda row: -row.bytes)),
            tuple(sorted(self.cache.values(), key=lambda cache: -cache.used / max(cache.total, 1))),
        )

    def _finished_place(self, place: MemoryHome) -> MemoryPlace:
        """Return the result for a host or device: its curve, and its lanes and roles in the order of its processes."""
        curve = self.curves[place]
        processes = [at for at in sorted(self.held) if place in (self.hosts[at], self.devices.get(at))]
        roles = tuple(dict.fromkeys(self.processes[at].role for at in processes))
        return MemoryPlace(
            place.of, place.name, place.joined_by, place.identity, self.names.get(place, ""), curve.total,
            tuple(self.lane_of[at] for at in processes), roles,
            tuple((seconds(at), used, tuple(sizes.get(role, 0) for role in roles)) for at, used, sizes in curve.points),
        )  # fmt: skip

    def _growth(self, process: int) -> Iterator[MemoryGrowth]:
        """Yield how a process's memory on device and host grows per step; nothing for memory that does not grow."""
        series = self.series[process]
        newest = self.held[process].note
        free_on_device = newest.free if self.devices.get(process) else None
        host = self.host_notes.get(self.hosts[process])
        yield from self._growth_of("device", process, series.allocated, free_on_device)
        yield from self._growth_of("cached", process, series.unused, free_on_device)
        yield from self._growth_of("host", process, series.private, host.available if host else None)

    def _growth_of(
        self, of: str, process: int, by_step: Mapping[int | None, int], free: int | None
    ) -> Iterator[MemoryGrowth]:
        """Yield how the memory ``of`` a process grows, with ``free`` bytes left (None: unknown), if it grows."""
        values = [(number, value) for number, value in by_step.items() if number is not None][1:]
        slope = _growth_rate(values)
        if slope is not None:
            (begin, first), (end, last) = values[0], values[-1]
            yield MemoryGrowth(
                of, self._label(process), self.lane_of[process], first, last, round(slope), end - begin + 1,
                None if free is None else int(free // slope),
            )  # fmt: skip

    def _excesses(self, process: int, grown: Mapping[tuple[int, str], int]) -> list[MemoryExcess]:
        """Return the steps in which a process had more private host memory than usual; the first step does not count.

        ``grown`` has the bytes per step by which memory grows, by (lane, "host" or "device"); this growth is
        subtracted.
        """
        steps = [*self.series[process].most.items()][1:]
        if len(steps) < FEWEST:
            return []
        slope = grown.get((self.lane_of[process], "host"), 0)
        numbers = [number for number, _ in steps if number is not None]
        numbers += [numbers[-1] + 1] * (len(steps) - len(numbers))  # what follows the last step that ended
        grown_by = [slope * (number - numbers[0]) for number in numbers]
        levels = [most - growth for growth, (_, (most, *_)) in zip(grown_by, steps, strict=True)]
        usual = statistics.median(levels)
        spread = statistics.median(abs(level - usual) for level in levels)
        host = self.host_notes.get(self.hosts[process])
        least = max(LEAST, ERRORS * spread, SHARE * usual, 0 if host is None else 0.002 * host.total)
        excesses = list[MemoryExcess]()
        for order, (number, (_, moment, above, doing)) in enumerate(steps):
            if levels[order] - usual <= least:
                continue
            if excesses and excesses[-1].at == seconds(moment):  # nothing was noted since: it goes on
                excesses[-1] = dataclasses.replace(excesses[-1], seconds=excesses[-1].seconds + seconds(above))
                continue
            excesses.append(
                MemoryExcess(
                    self._label(process), self.lane_of[process], number, seconds(moment), seconds(above),
                    round(levels[order] - usual), round(usual + grown_by[order]), doing,
                )
            )  # fmt: skip
        return excesses


def _outermost(spans: Iterable[KeptSpan]) -> Iterator[KeptSpan]:
    """Yield each of ``spans``, sorted by start (longest first), that begins when the last one has ended."""
    until = None
    for span in spans:
        if until is None or span.start >= until:
            until = end_of(span)
            yield span


def _memory_freed_by_sleeps(spans: Sequence[KeptSpan], history: Sequence[MemoryNote]) -> Iterator[tuple[int, _Freed]]:
    """Yield for each sleep or wake-up (time, what it freed).

    The time is that of the first note after it, in microseconds. A sleep without a note before and after it, or within
    another one, is skipped. An engine's sleep takes memory from under its allocator, whose numbers then stay
    (``vllm/device_allocator/cumem.py``, ``torch_memory_saver``).
    """
    on_device = [
        (note.at, note.free, note.reserved) for note in history if note.free is not None and note.reserved is not None
    ]
    for span in _outermost(span for span in spans if span.kind == "sleep" and span.end is not None):
        before = next((moment for moment in reversed(on_device) if moment[0] <= span.start), None)
        after = next((moment for moment in on_device if moment[0] >= end_of(span)), None)
        if before and after:
            (_, free_before, reserved_before), (at, free, reserved) = before, after
            yield at, _Freed(free - free_before, reserved_before - reserved, span.name)


def _activity_at(spans: Sequence[KeptSpan], at: int, kinds: Sequence[str] = ("phase", "work", "sync", "sleep")) -> str:
    """Return the name of the innermost of ``spans`` (sorted by start) of ``kinds`` at time ``at``, if any."""
    around = [span for span in spans if span.kind in kinds and span.start <= at <= end_of(span) and span.name != "step"]
    return around[-1].name if around else ""


def _growth_rate(values: Sequence[tuple[int, int]]) -> float | None:
    """Return by how many bytes memory grows per step: the median slope over all pairs of ``values``, (step, bytes).

    None for too few values, and unless they surely grow: at least 85 % of the pairs must not fall, and the whole growth
    must be large and beyond chance.
    """
    if len(values) < FEWEST:
        return None
    group_size = -(-len(values) // _COMPARED)
    groups = [values[at : at + group_size] for at in range(0, len(values), group_size)]
    points = [
        (statistics.mean(at for at, _ in group) - values[0][0], statistics.median(value for _, value in group))
        for group in groups
    ]
    pairs = [(b - a) / (j - i) for (i, a), (j, b) in combinations(points, 2)]
    slope = statistics.median(pairs)
    level = statistics.median(value - slope * at for at, value in points)
    spread = statistics.median(abs(value - slope * at - level) for at, value in points)
    grown = slope * (points[-1][0] - points[0][0])
    rising = sum(pair >= 0 for pair in pairs) / len(pairs)
    enough = grown > max(LEAST, SHARE * level, ERRORS * spread)
    return slope if enough and rising >= RISING else None
