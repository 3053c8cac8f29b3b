"""Memory over a run: who holds what at each peak, what gives memory back, what grows, and who had more than usual."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from patcher.timeline.files import HostNote, KeptSpan, MemoryNote, Notes, ProcessDevice
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
    """Device or host; equal for all processes on it."""

    of: str
    name: str
    joined_by: str
    identity: str


def place_of(process: Process, device: ProcessDevice) -> MemoryHome:
    """Return the ``device`` of a process as a place that processes share, named "host:number".

    Its identity is the uuid, or else its name. The number is looked up in the list of devices that the process may see.
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
    lanes: set[int] = field(default_factory=set)
    total: int = 0

    def add(self, at: int, used: int, roles: dict[str, int], most: int) -> None:
        """Add a point: time ``at`` (microseconds), bytes ``used``, and the bytes that each of ``roles`` holds of them.

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
        notes: Mapping[int, Notes],
        devices: Mapping[int, ProcessDevice],
    ) -> None:
        """Add a step: its spans, and the notes and devices of the processes, by the process's index.

        This updates peaks, curves, changes, series and KV caches. ``number`` is None after the last step that ended.
        """
        for at, device in devices.items():
            self.devices[at] = self._unique(place_of(self.processes[at], device))
            self.names[self.devices[at]] = device.name
            self.curves[self.devices[at]].total = device.total << 20
        by_process = defaultdict[int, list[KeptSpan]](list)
        for span in sorted(spans, key=lambda span: (span.start, -end_of(span))):
            by_process[span.process].append(span)
        before = {at: held.note for at, held in self.held.items()}
        wakes = {at: dict(_sleeps(by_process[at], _with(before.get(at), note.memory))) for at, note in notes.items()}
        self._sweep(number, notes, wakes, by_process)
        for at, of_process in notes.items():
            history = _with(before.get(at), of_process.memory)
            self._note_changes(at, by_process[at], history)
            self._note_series(number, at, history, by_process[at])
            self._note_cache(number, at, of_process)
        self._note_syncs(by_process, notes)

    def _unique(self, device: MemoryHome) -> MemoryHome:
        """Return the equal device that was seen before, else ``device`` with a name that no other device has."""
        places = {place.identity: place for place in self.curves}
        if device.identity in places:
            return places[device.identity]
        taken = any(place.name == device.name and place.of == "device" for place in self.curves)
        return device._replace(name=f"{device.name} {device.identity[:12]}") if taken else device

    def _sweep(
        self, number: int | None, notes: Mapping[int, Notes], wakes: Mapping[int, Mapping[int, tuple[int, int, str]]],
        spans: Mapping[int, Sequence[KeptSpan]],
    ) -> None:  # fmt: skip
        """Go through the notes of step ``number`` in the order of time, and keep the peak of each device and host.

        All mappings are by the process's index. ``wakes`` has the sleeps and wake-ups by the time of their note, as
        `_sleeps` yields them; ``spans`` are those of the step.
        """
        events: list[tuple[int, int, MemoryNote | HostNote]] = []
        for process, of in notes.items():
            events += [(taken.at, process, taken) for taken in of.memory]
            events += [(taken.at, process, taken) for taken in of.host]
        highest: dict[MemoryHome, _Moment] = {}
        for at, process, note in sorted(events, key=lambda event: event[0]):
            if isinstance(note, HostNote):
                self.host_notes[self.hosts[process]] = note
                self.curves[self.hosts[process]].total = note.total
            else:
                held = self.held.setdefault(process, _Held(note))
                held.note = note if note.reserved is not None else MemoryNote(*note[:2], *held.note[2:])
                if change := wakes.get(process, {}).get(at):
                    held.unmapped, held.asleep = max(held.unmapped + change[0] - change[1], 0), change[0] > 0
            for place, used in self._moments(process, note):
                if place not in highest or used > highest[place].used:
                    sizes = [(holder, size, self.held[holder].asleep) for holder, size in self._holders(place, at)]
                    highest[place] = _Moment(at, used, sizes)
        for place, moment in highest.items():
            key = (place, number)
            if key not in self.peaks or moment.used > self.peaks[key].used:
                self.peaks[key] = self._peak(place, number, moment, spans)

    def _moments(self, process: int, note: MemoryNote | HostNote) -> Iterator[tuple[MemoryHome, int]]:
        """Yield the host or device whose use ``note`` tells, with the bytes in use, and add them to its curve.

        Nothing is yielded if the device or its free memory is unknown. ``process`` is the index of the process that
        noted it.
        """
        if isinstance(note, HostNote):
            yield from self._moment(self.hosts[process], note.at, note.total - note.available)
            return
        device = self.devices.get(process)
        if device and note.free is not None:
            yield from self._moment(device, note.at, max(self.curves[device].total - note.free, 0))

    def _moment(self, place: MemoryHome, at: int, used: int) -> Iterator[tuple[MemoryHome, int]]:
        """Add the bytes ``used`` at time ``at`` (microseconds) to a place's curve, by role; yield place and bytes."""
        roles = defaultdict[str, int](int)
        for process, size in self._holders(place, at):
            roles[self.processes[process].role] += size
        self.curves[place].add(at, used, dict(roles), max(POINTS // max(len(self.curves), 1), 20))
        yield place, used

    def _holders(self, place: MemoryHome, at: int) -> Iterator[tuple[int, int]]:
        """Yield the index of each process on a host or device, with the bytes that it holds there at time ``at``."""
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
        """Return ``moment``, the highest of a place in a step, as a peak: its holders, their activities, and the phase.

        ``number`` is that of the step, None after the last one. ``spans`` are those of each process in the step. In a
        large run only the twelve largest holders are listed.
        """
        at, used = moment.at, moment.used
        holders = [
            MemoryHolder(
                self._who(process), self.lane_of[process], size, place.of == "device" and asleep,
                _doing(spans.get(process, ()), at),
            )
            for process, size, asleep in sorted(moment.sizes, key=lambda holder: -holder[1])
            if size
        ]  # fmt: skip
        most = len(holders) if len(self.processes) <= ALL_HELD else HELD
        phase = _doing(spans.get(self.driver, ()), at, ("phase",)) if self.driver is not None else ""
        total, other = self.curves[place].total, max(used - sum(holder.bytes for holder in holders), 0)
        return MemoryPeak(place.of, place.name, number, seconds(at), phase, used, total, tuple(holders[:most]), other)

    def _who(self, process: int) -> str:
        """Return the name of a process for people."""
        named = self.processes[process]
        return label(named.role, named.replica, named.rank)

    def _note_changes(self, process: int, spans: Sequence[KeptSpan], history: Sequence[MemoryNote]) -> None:
        """Add to ``changes`` what sleeps of a process gave back, and what its works had reserved and then returned.

        ``process`` is its index; ``spans`` and ``history``, its notes in order, are those of one step.
        """
        role = self.processes[process].role
        for freed, _, name in dict(_sleeps(spans, history)).values():
            self.changes["sleep", role, name].append(freed)
        on_device = [note for note in history if note.reserved is not None]
        for work in _outermost(span for span in spans if span.kind == "work" and span.end is not None):
            inside = [note.reserved or 0 for note in on_device if work.start <= note.at < end_of(work)]
            after = next((note.reserved or 0 for note in on_device if note.at >= end_of(work)), None)
            if inside and after is not None:
                self.changes["offload", role, work.name].append(max(inside) - after)

    def _note_syncs(self, spans: Mapping[int, Sequence[KeptSpan]], notes: Mapping[int, Notes]) -> None:
        """Add to ``changes`` what each device needed within the step's weight sync, beyond its use before and after.

        ``spans`` and ``notes`` are those of each process, by its index.
        """
        used = defaultdict[MemoryHome, list[tuple[int, int]]](list)
        syncs = defaultdict[MemoryHome, list[KeptSpan]](list)
        for process, of in notes.items():
            if device := self.devices.get(process):
                total = self.curves[device].total
                used[device] += [(note.at, total - note.free) for note in of.memory if note.free is not None]
                syncs[device] += [span for span in spans.get(process, ()) if span.kind == "sync" and span.end]
        for device, of_device in syncs.items():
            first, last = min((span.start for span in of_device), default=0), max(map(end_of, of_device), default=0)
            inside = sorted(moment for moment in used[device] if first <= moment[0] <= last)
            if len(inside) > 2:
                sizes = [size for _, size in inside]
                self.changes["sync", "", of_device[0].name].append(max(sizes) - max(sizes[0], sizes[-1]))

    def _note_series(
        self, number: int | None, process: int, history: Sequence[MemoryNote], spans: Sequence[KeptSpan]
    ) -> None:
        """Add the memory of a process at the end of step ``number``, and its most private memory in the step.

        With the latter go its time, its activity by ``spans``, and the microseconds with more than the mean of the
        least and the most. ``process`` is the index; nothing is added without a ``history`` of notes.
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
            series.most[number] = (highest.private, highest.at, above, _doing(spans, highest.at))

    def _note_cache(self, number: int | None, process: int, notes: Notes) -> None:
        """Keep the most KV-cache blocks that an engine had in use in any step so far, with the number of that step.

        ``process`` is the index of the engine's process.
        """
        most = max(notes.cache, key=lambda note: note.used, default=None)
        before = self.cache.get(process)
        if most and (before is None or most.used > before.used):
            self.cache[process] = CacheUse(self._who(process), self.lane_of[process], number, most.used, most.total)

    def built(self) -> RunMemory:
        """Return the memory of the run: places, peaks, changes, growth, excesses and KV caches, each list sorted.

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
            tuple(sorted(map(self._place, self.curves), key=lambda place: (place.of, place.place))),
            tuple(self.peaks.values()),
            tuple(sorted(changes, key=lambda change: (change.kind, -abs(change.median)))),
            tuple(sorted(growth, key=lambda row: -row.per_step * row.steps)),
            tuple(sorted(excesses, key=lambda row: -row.bytes)),
            tuple(sorted(self.cache.values(), key=lambda cache: -cache.used / max(cache.total, 1))),
        )

    def _place(self, place: MemoryHome) -> MemoryPlace:
        """Return a host or device with its lanes and curve; its roles are in the order of its processes."""
        curve = self.curves[place]
        processes = [at for at in sorted(self.held) if place in (self.hosts[at], self.devices.get(at))]
        roles = tuple(dict.fromkeys(self.processes[at].role for at in processes))
        return MemoryPlace(
            place.of, place.name, place.joined_by, place.identity, self.names.get(place, ""), curve.total,
            tuple(self.lane_of[at] for at in processes), roles,
            tuple((seconds(at), used, tuple(sizes.get(role, 0) for role in roles)) for at, used, sizes in curve.points),
        )  # fmt: skip

    def _growth(self, process: int) -> Iterator[MemoryGrowth]:
        """Yield the growth per step of a process's memory, from the second step on.

        It is memory allocated on the device, reserved there but unused, or private memory on the host.

        ``process`` is its index. Memory that does not grow yields nothing.
        """
        device, host = self.devices.get(process), self.host_notes.get(self.hosts[process])
        newest = self.held[process].note
        on_device, series = newest.free if device else None, self.series[process]
        for of, by_step, left in (
            ("device", series.allocated, on_device),
            ("cached", series.unused, on_device),
            ("host", series.private, host.available if host else None),
        ):
            values = [value for number, value in by_step.items() if number is not None][1:]
            slope = _slope(values)
            if slope is not None:
                yield MemoryGrowth(
                    of, self._who(process), self.lane_of[process], values[0], values[-1], round(slope), len(values),
                    None if left is None else int(left // slope),
                )  # fmt: skip

    def _excesses(self, process: int, grown: Mapping[tuple[int, str], int]) -> Iterator[MemoryExcess]:
        """Yield the steps in which a process had more private memory than usual, without the first step.

        ``process`` is its index; ``grown`` has the bytes per step of growing memory by (lane, "host" or "device"): this
        growth is taken out. Adjacent steps with the same peak are one. With fewer than four steps nothing is yielded.
        """
        steps = [*self.series[process].most.items()][1:]
        if len(steps) < FEWEST:
            return
        slope = grown.get((self.lane_of[process], "host"), 0)
        levels = [most - slope * order for order, (_, (most, *_)) in enumerate(steps)]
        usual = statistics.median(levels)
        spread = statistics.median(abs(level - usual) for level in levels)
        host = self.host_notes.get(self.hosts[process])
        least = max(LEAST, ERRORS * spread, SHARE * usual, 0 if host is None else 0.002 * host.total)
        lasting: MemoryExcess | None = None
        for order, (number, (_, moment, above, doing)) in enumerate(steps):
            if levels[order] - usual <= least:
                continue
            if lasting and lasting.at == seconds(moment):  # nothing was noted since: it goes on from the step before
                lasting = dataclasses.replace(lasting, seconds=lasting.seconds + seconds(above))
                continue
            if lasting:
                yield lasting
            lasting = MemoryExcess(
                self._who(process), self.lane_of[process], number, seconds(moment), seconds(above),
                round(levels[order] - usual), round(usual + slope * order), doing,
            )  # fmt: skip
        if lasting:
            yield lasting


def _with(before: MemoryNote | None, notes: Sequence[MemoryNote]) -> list[MemoryNote]:
    """Return the notes of a step in the order of time, after the last note of the step before."""
    return [*([before] if before else []), *sorted(notes, key=lambda note: note.at)]


def _outermost(spans: Iterable[KeptSpan]) -> Iterator[KeptSpan]:
    """Yield the spans that begin after the last yielded one has ended; ``spans`` are sorted by start, longest first."""
    until = None
    for span in spans:
        if until is None or span.start >= until:
            until = end_of(span)
            yield span


def _sleeps(spans: Sequence[KeptSpan], history: Sequence[MemoryNote]) -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Yield for each sleep or wake-up the time of the note after it, and (device bytes, allocator's bytes, name).

    ``spans`` and ``history`` are those of one process. The bytes are freed ones, negative if taken. An engine's sleep
    takes memory from under its allocator, whose numbers then stay (``vllm/device_allocator/cumem.py``,
    ``torch_memory_saver``). A sleep without a note before and after is skipped.
    """
    on_device = [note for note in history if note.free is not None and note.reserved is not None]
    for span in _outermost(span for span in spans if span.kind == "sleep" and span.end is not None):
        before = next((note for note in reversed(on_device) if note.at <= span.start), None)
        after = next((note for note in on_device if note.at >= end_of(span)), None)
        if before and after:
            freed = (after.free or 0) - (before.free or 0), (before.reserved or 0) - (after.reserved or 0)
            yield after.at, (*freed, span.name)


def _doing(spans: Sequence[KeptSpan], at: int, kinds: Sequence[str] = ("phase", "work", "sync", "sleep")) -> str:
    """Return the name of the innermost span of ``kinds`` at time ``at`` (microseconds); "" if there is none.

    ``spans`` are sorted by start; those named "step" are left out.
    """
    around = [span for span in spans if span.kind in kinds and span.start <= at <= end_of(span) and span.name != "step"]
    return around[-1].name if around else ""


def _slope(values: Sequence[int]) -> float | None:
    """Return by how much ``values``, in bytes, grow from one to the next, as the median over all pairs.

    None if they do not grow for sure: 85 % of the pairs must rise, and the whole growth must be beyond chance. So a
    single jump is no growth.
    """
    if len(values) < FEWEST:
        return None
    every = -(-len(values) // _COMPARED)
    values = [round(statistics.median(values[at : at + every])) for at in range(0, len(values), every)]
    pairs = [(b - a) / (j - i) for i, a in enumerate(values) for j, b in enumerate(values[i + 1 :], i + 1)]
    slope = statistics.median(pairs)
    level = statistics.median(value - slope * at for at, value in enumerate(values))
    spread = statistics.median(abs(value - slope * at - level) for at, value in enumerate(values))
    grown = slope * (len(values) - 1)
    rising = sum(pair >= 0 for pair in pairs) / len(pairs)
    enough = grown > max(LEAST, SHARE * level, ERRORS * spread)
    return slope / every if enough and rising >= RISING else None
