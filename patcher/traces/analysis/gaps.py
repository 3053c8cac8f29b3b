"""Where the device was free, place by place: which kernels a gap lies between, and what the host did meanwhile.

One walk over the tasks finds every stretch in which nothing runs. What is short is one of many alike, and only summed:
kernels that are launched one by one, or that wait for each other. The rest are places: alike are those with the same
kernel before and after, stream, call of the host, operator and module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import islice
from operator import eq
from typing import NamedTuple

from patcher.traces import model
from patcher.traces.analysis.holds import Held, HostHolds
from patcher.traces.analysis.hosts import HostPlaces
from patcher.traces.analysis.idle import LATE_NS, WAITING_NS, Idle, idle
from patcher.traces.analysis.segments import Split
from patcher.traces.timeline import UNKNOWN, Timeline

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


class HostAround(NamedTuple):
    """The operator and the module at a moment of the host: numbers of names."""

    operator: int
    module: int


NOWHERE = HostAround(UNKNOWN, UNKNOWN)

_Key = tuple[GapPlace, HostAround, int, bool]
"""The place, what was around it on the host, the call, and whether the host was within the operator."""


class GapSums:
    """The gaps of the ``chosen`` segments, summed by what they have in common.

    ``places`` are the moments of the host about which something has to be known before `gaps` can tell them.
    """

    def __init__(self, found: Timeline, cuts: Split, chosen: Collection[int]) -> None:
        self.found, self.cuts = found, cuts
        self.places = HostPlaces()
        self.sums: dict[_Key, _Sum] = defaultdict(_Sum)
        self.short: dict[tuple[str, str], _Sum] = {}
        self.rest: dict[GapPlace, _Sum] = defaultdict(_Sum)
        keys = found.tasks.key
        self.replays = any(map(eq, keys, islice(keys, 1, None))) and any(key != UNKNOWN for key in keys)
        self.calls = HostHolds(found, cuts, found.calls)
        self.working = {*found.tasks.thread, self.calls.main}
        self.functions = HostHolds(found, cuts, found.functions)
        self.asked: list[tuple[Idle, Held | None]] = []
        for gap in idle(found, cuts, set(chosen)):
            if gap.ns < WAITING_NS:
                self._add_short(gap)
            else:
                self._take(gap)
        for one in self.asked:
            self._ask(*one)

    def _take(self, gap: Idle) -> None:
        """Sum what is short although it is not the device that waits, and keep the others."""
        held = self.calls.held_in(gap) if self.found.calls else None
        waits = gap.part == "free_waiting_ns" or self._graph(gap) == "within"
        if held is None and not waits and gap.ns < LATE_NS:
            self._add_short(gap)
            return
        self.asked.append((gap, held))
        if len(self.asked) > 2 * KEPT:
            self._fold()

    def _ask(self, gap: Idle, held: Held | None) -> None:
        """Ask where the host was when it called for what follows, and then where it was in the gap."""
        tasks, task = self.found.tasks, self.cuts.order[gap.place]
        thread, asked = tasks.thread[task], tasks.enqueued[task]
        self.places.add(thread, asked)
        if held is None:
            self.places.add(thread, (gap.begin + min(max(asked, gap.begin), gap.end)) // 2)
        elif held.thread in self.working:
            self.places.add(held.thread, held.begin)
        else:  # it runs nothing but calls that others ask for
            self.places.add(thread, asked)

    def _fold(self) -> None:
        """Keep the longest, and sum the others by their kernels alone."""
        longest = sorted(self.asked, key=lambda one: -one[0].ns)
        for gap, _ in longest[KEPT:]:
            self.rest[self._place(gap)].add(gap)
        self.asked = sorted(longest[:KEPT], key=lambda one: one[0].place)

    def _add_short(self, gap: Idle) -> None:
        graph = "within" if self.replays and self._continues(gap) else ""
        known = self.short.get((graph, gap.part))
        if known is None:
            place = GapPlace(graph, UNKNOWN, UNKNOWN, UNKNOWN, gap.part)
            known = self.short[graph, gap.part] = self.sums[place, NOWHERE, UNKNOWN, False]
        known.add(gap)

    def _continues(self, gap: Idle) -> bool:
        """Whether a short gap lies within a replay, looked at quickly: there are as many of them as tasks."""
        order, key = self.cuts.order, self.found.tasks.key
        own = key[order[gap.place]]
        if own == UNKNOWN or gap.before == UNKNOWN or key[gap.before] != own:
            return False
        return any(
            key[at] == own
            for at in (*order[max(gap.place - 2, 0) : gap.place - 1], *order[gap.place + 1 : gap.place + 2])
        )

    def _graph(self, gap: Idle) -> str:
        """How a gap lies to replays of graphs, all of whose tasks have the key of one launch."""
        if not self.replays:
            return ""
        order, key = self.cuts.order, self.found.tasks.key
        before = [key[at] for at in order[max(gap.place - _NEAR, 0) : gap.place]]
        after = [key[at] for at in order[gap.place : gap.place + _NEAR]]
        own, last = after[0], UNKNOWN if gap.before == UNKNOWN else key[gap.before]
        if own != UNKNOWN and own in before and before.count(own) + after.count(own) >= REPLAYED:
            return "within"
        behind = last != UNKNOWN and before.count(last) >= REPLAYED
        ahead = own != UNKNOWN and after.count(own) >= REPLAYED
        return {(True, True): "between", (True, False): "behind", (False, True): "before"}.get((behind, ahead), "")

    def _place(self, gap: Idle) -> GapPlace:
        tasks, task = self.found.tasks, self.cuts.order[gap.place]
        before = UNKNOWN if gap.before == UNKNOWN else tasks.name[gap.before]
        return GapPlace(self._graph(gap), before, tasks.name[task], tasks.stream[task], gap.part)

    def gaps(self, units: Mapping[int, model.RecordedUnit], drawn: Collection[int]) -> tuple[model.FreeGap, ...]:
        """The places at which the units were free, that with the most time first.

        ``units`` are by segment, ``drawn`` the numbers of those in which one wants to see the places.
        """
        tasks, order, places = self.found.tasks, self.cuts.order, self.places
        around = map(HostAround, places.operator, places.module)
        for (gap, held), launch, meanwhile in zip(self.asked, around, around, strict=True):
            task = order[gap.place]
            within = held is None and meanwhile.operator != UNKNOWN
            if held is None and not within and self.found.functions:
                held, meanwhile = self.functions.held_in(gap), HostAround(UNKNOWN, launch.module)
            call = held.name if held else UNKNOWN
            host = launch
            if held or within:
                host = HostAround(
                    meanwhile.operator, launch.module if meanwhile.module == UNKNOWN else meanwhile.module
                )
            place = self._place(gap)
            # Whatever the host does while the device waits is not what its place is known by.
            waits = 2 * (tasks.launched[task] - gap.begin) <= gap.ns
            key = (place, launch, UNKNOWN, False) if waits else (place, host, call, within)
            one = self.sums[key]
            one.add(gap)
            if held:
                one.held[call, host] = one.held.get((call, host), 0) + held.ns
        self._add_rest()
        made = [self._gap(key, one, units, drawn) for key, one in self.sums.items()]
        made.sort(key=lambda one: (-one.ns, one.before, one.after, one.stream))
        return tuple(made[:SHOWN])

    def _add_rest(self) -> None:
        """What was not looked at counts with what was, where its kernels are met with one state of the host alone."""
        known: dict[GapPlace, list[_Key]] = defaultdict(list)
        for key in self.sums:
            known[key[0]].append(key)
        for place, one in self.rest.items():
            (key, *others) = known[place] or [(place, NOWHERE, UNKNOWN, False)]
            self.sums[(place, NOWHERE, UNKNOWN, False) if others else key].take(one)

    def _gap(
        self, key: _Key, one: _Sum, units: Mapping[int, model.RecordedUnit], drawn: Collection[int]
    ) -> model.FreeGap:
        texts = self.found.names.texts
        place, host, call, within = key
        (call, around), held = max(one.held.items(), key=lambda item: item[1], default=((call, host), 0))
        if key[2] == UNKNOWN:  # the device waits: only what the host was in for most of that is told
            call, host, held = (call, around, held) if 2 * held >= one.ns else (UNKNOWN, host, 0)
        named = {"before": place.before, "after": place.after, "stream": place.stream, "call": call,
                 "operator": host.operator, "module": host.module}  # fmt: skip
        shown = {name: "" if number == UNKNOWN else texts[number] for name, number in named.items()}
        most, (most_ns, longest) = max(one.units.items(), key=lambda item: item[1][0])
        spots = {
            unit.number: (gap.begin - unit.begin_ns, gap.ns) for at, (_, gap) in one.units.items()
            if (unit := units[at]).number in drawn and place.stream != UNKNOWN
        }  # fmt: skip
        return model.FreeGap(
            **shown, kind="several" if place.stream == UNKNOWN else "place", graph=place.graph, part=place.part,
            within=within, call_ns=held, ns=one.ns, count=one.count, units=len(one.units),
            unit=units[most].number, unit_ns=most_ns, longest_ns=longest.ns, spots=spots,
            begin_ns=longest.begin - units[most].begin_ns,
        )  # fmt: skip


class _Sum:
    """Gaps that have all in common: by unit their time and the longest of them, and the calls that held up the host."""

    def __init__(self) -> None:
        self.ns = self.count = 0
        self.units: dict[int, tuple[int, Idle]] = {}
        self.held: dict[tuple[int, HostAround], int] = {}

    def add(self, gap: Idle) -> None:
        """One more."""
        ns, longest = self.units.get(gap.segment, (0, gap))
        self.units[gap.segment] = ns + gap.ns, longest if longest.ns >= gap.ns else gap
        self.ns += gap.ns
        self.count += 1

    def take(self, others: _Sum) -> None:
        """All of ``others``, too."""
        for segment, (more, other) in others.units.items():
            ns, longest = self.units.get(segment, (0, other))
            self.units[segment] = ns + more, longest if longest.ns >= other.ns else other
        self.ns += others.ns
        self.count += others.count
