"""The places where the device was free: which kernels a gap lies between, and what the host did meanwhile.

One walk over the tasks finds every stretch in which nothing runs. What is short is one of many alike, and only summed:
kernels that are launched one by one, or that wait for each other. The rest are places: alike are those with the same
kernel before and after, stream, call of the host, operator and module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import eq
from typing import NamedTuple

from patcher.traces import model
from patcher.traces.analysis.holds import Held, HostHolds
from patcher.traces.analysis.hosts import NOWHERE, HostAround, host_around
from patcher.traces.analysis.idle import LATE_NS, WAITING_NS, Idle, idle
from patcher.traces.analysis.nested import HostThread
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

REPLAYED = 3
"""Tasks of one launch, of which on are the replay of a graph."""

KEPT = 1 << 15
"""Gaps that are looked at one by one, the longest; the others are summed by their kernels."""

SHOWN = 100
"""Places that a profile has, those with the most time."""

_NEAR = 8  # tasks to both sides among which others of a replay are looked for


class GapPlace(NamedTuple):
    """Numbers of names, UNKNOWN in what is not at one place: see `model.FreeGap`."""

    graph: str
    before: int
    after: int
    stream: int
    part: str


_Key = tuple[GapPlace, HostAround, int, bool]
"""The place, what was around it on the host, the call, and whether the host was within the operator."""


class GapSums:
    """The gaps of the ``chosen`` segments, summed by what they have in common."""

    def __init__(self, trace: RankTrace, cuts: Split, chosen: Collection[int], threads: Sequence[HostThread]) -> None:
        self.trace, self.cuts = trace, cuts
        self.sums: dict[_Key, _GapSum] = defaultdict(_GapSum)
        self.short: dict[tuple[str, str], _GapSum] = {}
        self.rest: dict[GapPlace, _GapSum] = defaultdict(_GapSum)
        keys = trace.tasks.key
        self.replays = any(map(eq, keys, islice(keys, 1, None))) and any(key != UNKNOWN for key in keys)
        self.calls = HostHolds(trace, cuts, trace.calls)
        self.functions = HostHolds(trace, cuts, trace.functions)
        self.places: list[tuple[Idle, Held | None]] = []
        for gap in idle(trace, cuts, set(chosen)):
            if gap.ns < WAITING_NS:
                self._add_short(gap)
            else:
                self._add_long(gap)
        self._add_places(threads)
        self._add_rest()

    def _add_long(self, gap: Idle) -> None:
        """Sum what is short although it is not the device that waits, and keep the others."""
        held = self.calls.held_in(gap) if self.trace.calls else None
        waits = gap.part == "free_waiting_ns" or self._graph(gap) == "within"
        if held is None and not waits and gap.ns < LATE_NS:
            self._add_short(gap)
            return
        self.places.append((gap, held))
        if len(self.places) > 2 * KEPT:
            longest = sorted(self.places, key=lambda place: -place[0].ns)
            for other, _ in longest[KEPT:]:
                self.rest[self._place(other)].add(other)
            self.places = sorted(longest[:KEPT], key=lambda place: place[0].place)

    def _add_short(self, gap: Idle) -> None:
        graph = "within" if self.replays and self._continues(gap) else ""
        gap_sum = self.short.get((graph, gap.part))
        if gap_sum is None:
            place = GapPlace(graph, UNKNOWN, UNKNOWN, UNKNOWN, gap.part)
            gap_sum = self.short[graph, gap.part] = self.sums[place, NOWHERE, UNKNOWN, False]
        gap_sum.add(gap)

    def _continues(self, gap: Idle) -> bool:
        """Tell whether a short gap lies within a replay, with a quick look: there are as many of them as tasks."""
        order, key = self.cuts.order, self.trace.tasks.key
        own_key = key[order[gap.place]]
        if own_key == UNKNOWN or gap.before == UNKNOWN or key[gap.before] != own_key:
            return False
        near = (*order[max(gap.place - 2, 0) : gap.place - 1], *order[gap.place + 1 : gap.place + 2])
        return any(key[task] == own_key for task in near)

    def _graph(self, gap: Idle) -> str:
        """Say how a gap lies to replays of graphs, all of whose tasks have the key of one launch."""
        if not self.replays:
            return ""
        order, key = self.cuts.order, self.trace.tasks.key
        before = [key[task] for task in order[max(gap.place - _NEAR, 0) : gap.place]]
        after = [key[task] for task in order[gap.place : gap.place + _NEAR]]
        after_graph = after[0]
        last = UNKNOWN if gap.before == UNKNOWN else key[gap.before]
        if (
            after_graph != UNKNOWN
            and after_graph in before
            and before.count(after_graph) + after.count(after_graph) >= REPLAYED
        ):
            return "within"
        behind = last != UNKNOWN and before.count(last) >= REPLAYED
        ahead = after_graph != UNKNOWN and after.count(after_graph) >= REPLAYED
        return {(True, True): "between", (True, False): "behind", (False, True): "before"}.get((behind, ahead), "")

    def _place(self, gap: Idle) -> GapPlace:
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        before = UNKNOWN if gap.before == UNKNOWN else tasks.name[gap.before]
        return GapPlace(self._graph(gap), before, tasks.name[task], tasks.stream[task], gap.part)

    def _moments(self, gap: Idle, held: Held | None, working: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield thread and time of where the host called for what follows a gap, and of where it was meanwhile."""
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        thread, enqueued = tasks.thread[task], tasks.enqueued[task]
        yield thread, enqueued
        if held is None:
            yield thread, (gap.begin + min(max(enqueued, gap.begin), gap.end)) // 2
        elif held.thread in working:
            yield held.thread, held.begin
        else:  # it runs nothing but calls that others ask for
            yield thread, enqueued

    def _add_places(self, threads: Sequence[HostThread]) -> None:
        """Sum the gaps that were kept by their place and by what was around it on the host."""
        working = {*self.trace.tasks.thread, self.calls.main}
        moments = [moment for gap, held in self.places for moment in self._moments(gap, held, working)]
        around = iter(host_around(self.trace, threads, moments))
        for (gap, held), launch, meanwhile in zip(self.places, around, around, strict=True):
            self._add_place(gap, held, launch, meanwhile)

    def _add_place(self, gap: Idle, held: Held | None, launch: HostAround, meanwhile: HostAround) -> None:
        within = held is None and meanwhile.operator != UNKNOWN
        if held is None and not within and self.trace.functions:
            held = self.functions.held_in(gap)
            meanwhile = HostAround(UNKNOWN, launch.module)
        call = held.name if held else UNKNOWN
        host = launch
        if held or within:
            module = launch.module if meanwhile.module == UNKNOWN else meanwhile.module
            host = HostAround(meanwhile.operator, module)
        place = self._place(gap)
        # Whatever the host does while the device waits is not what its place is known by.
        launched = self.trace.tasks.launched[self.cuts.order[gap.place]]
        waits = 2 * (launched - gap.begin) <= gap.ns
        key = (place, launch, UNKNOWN, False) if waits else (place, host, call, within)
        gap_sum = self.sums[key]
        gap_sum.add(gap)
        if held:
            gap_sum.held[call, host] += held.ns

    def _add_rest(self) -> None:
        """Count what was not kept with what was, where its kernels are met with one state of the host alone."""
        keys_of: dict[GapPlace, list[_Key]] = defaultdict(list)
        for key in self.sums:
            keys_of[key[0]].append(key)
        for place, gap_sum in self.rest.items():
            (key, *more) = keys_of[place] or [(place, NOWHERE, UNKNOWN, False)]
            self.sums[(place, NOWHERE, UNKNOWN, False) if more else key].merge(gap_sum)

    def gaps(self, units: Mapping[int, model.RecordedUnit], drawn: Collection[int]) -> tuple[model.FreeGap, ...]:
        """Return the places at which the units were free, that with the most time first.

        ``units`` are by segment, ``drawn`` the numbers of those in which a page shows the places.
        """
        gaps = [self._gap(key, gap_sum, units, drawn) for key, gap_sum in self.sums.items()]
        gaps.sort(key=lambda gap: (-gap.ns, gap.before, gap.after, gap.stream))
        return tuple(gaps[:SHOWN])

    def _gap(
        self, key: _Key, gap_sum: _GapSum, units: Mapping[int, model.RecordedUnit], drawn: Collection[int]
    ) -> model.FreeGap:
        texts = self.trace.names.texts
        place, host, call, within = key
        (call, around), held = max(gap_sum.held.items(), key=lambda item: item[1], default=((call, host), 0))
        if key[2] == UNKNOWN:  # the device waits: only what the host was in for most of that is told
            if 2 * held >= gap_sum.ns:
                host = around
            else:
                call, held = UNKNOWN, 0
        numbers = {"before": place.before, "after": place.after, "stream": place.stream, "call": call,
                 "operator": host.operator, "module": host.module}  # fmt: skip
        fields = {name: "" if number == UNKNOWN else texts[number] for name, number in numbers.items()}
        most, (most_ns, longest) = max(gap_sum.units.items(), key=lambda item: item[1][0])
        spots = {}
        for segment, (_, gap) in gap_sum.units.items():
            unit = units[segment]
            if unit.number in drawn and place.stream != UNKNOWN:
                spots[unit.number] = (gap.begin - unit.begin_ns, gap.ns)
        return model.FreeGap(
            **fields, kind="several" if place.stream == UNKNOWN else "place", graph=place.graph, part=place.part,
            within=within, call_ns=held, ns=gap_sum.ns, count=gap_sum.count, units=len(gap_sum.units),
            unit=units[most].number, unit_ns=most_ns, longest_ns=longest.ns, spots=spots,
            begin_ns=longest.begin - units[most].begin_ns,
        )  # fmt: skip


class _GapSum:
    """Gaps that have all in common: by unit their time and the longest of them, and the calls that held up the host."""

    def __init__(self) -> None:
        self.ns = self.count = 0
        self.units: dict[int, tuple[int, Idle]] = {}
        self.held = Counter[tuple[int, HostAround]]()

    def add(self, gap: Idle) -> None:
        """Add a gap."""
        self._add(gap.segment, gap.ns, gap)
        self.ns += gap.ns
        self.count += 1

    def merge(self, other: _GapSum) -> None:
        """Add all gaps of another sum."""
        for segment, (ns, longest) in other.units.items():
            self._add(segment, ns, longest)
        self.ns += other.ns
        self.count += other.count

    def _add(self, segment: int, ns: int, gap: Idle) -> None:
        sum_ns, longest = self.units.get(segment, (0, gap))
        self.units[segment] = sum_ns + ns, longest if longest.ns >= gap.ns else gap
