"""The places where the device was free: which kernels a gap lies between, and what the host did meanwhile.

One walk over the tasks finds every stretch in which nothing runs. What is short is one of many alike, and only summed:
kernels that are launched one by one, or that wait for each other. The rest are places: alike are those with the same
kernel before and after, stream, call of the host, operator and module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import eq, itemgetter
from typing import NamedTuple

from patcher.traces import model
from patcher.traces.analysis.activities import HostActivities, HostActivity, overlapping
from patcher.traces.analysis.copy_launches import is_of_program
from patcher.traces.analysis.hosts import NOWHERE, HostAround, host_around
from patcher.traces.analysis.idle import LATE_NS, WAITING_NS, Idle, idle_stretches
from patcher.traces.analysis.late_ranges import PARTS, IdleTime
from patcher.traces.analysis.nested import HostThread
from patcher.traces.analysis.segments import Split
from patcher.traces.rank_trace import TICK, RankTrace
from patcher.traces.trace_columns import UNKNOWN

REPLAYED = 3
"""Tasks of one launch, of which on are the replay of a graph."""

KEPT = 1 << 15
"""Gaps that are looked at one by one, the longest; the others are summed by their kernels."""

SHOWN = 100
"""Places that a profile has, those with the most time."""

_STARTED = ("free_latency_ns", "free_blocked_ns", "free_waiting_ns")
"""Parts of a step in which the next task has been launched."""

_EDGE = 10  # part of a gap, at both ends, in which an event tells nothing about it
_NEAR = 8  # tasks to both sides among which others of a replay are looked for


class GapPlace(NamedTuple):
    """Key of a place: kernels and stream as numbers of names, UNKNOWN if these differ; see `model.FreeGap`."""

    graph: str
    before: int
    after: int
    stream: int
    part: str


_Key = tuple[GapPlace, HostAround, int, bool]
"""The place, what was around it on the host, the call, and whether the host was within the operator."""


class GapSums:
    """Gaps of the ``chosen`` segments, summed by their place on the device and the state of the host.

    ``late`` has the host-bound ones, ``between`` the part of these in which no mark of a step is open.
    """

    def __init__(self, trace: RankTrace, cuts: Split, chosen: Collection[int], threads: Sequence[HostThread]) -> None:
        self.trace, self.cuts, self.threads = trace, cuts, threads
        self.sums: dict[_Key, _GapSum] = defaultdict(_GapSum)
        self.short: dict[tuple[str, str], _GapSum] = {}
        self.overflow: dict[GapPlace, _GapSum] = defaultdict(_GapSum)
        keys = trace.tasks.key
        self.replays = any(map(eq, keys, islice(keys, 1, None))) and any(key != UNKNOWN for key in keys)
        self.activities = HostActivities(trace, cuts, threads)
        self.kept: list[tuple[Idle, HostActivity | None]] = []
        self.late, self.between = IdleTime(), IdleTime()
        for gap in idle_stretches(trace, cuts, set(chosen)):
            if gap.part in PARTS:
                self.late.add(gap)
                segment = cuts.segments[gap.segment]
                begin, end = max(gap.begin, segment.step.end), min(gap.end, segment.end)
                if begin < end:
                    self.between.add(gap._replace(begin=begin, ns=end - begin))
            if gap.ns < WAITING_NS:
                self._sum_short(gap)
            else:
                self._keep_or_sum(gap)
        self._sum_kept(threads)
        self._sum_overflow()

    def _keep_or_sum(self, gap: Idle) -> None:
        """Add a short gap to the sum of all short gaps at once; keep any other one, to be summed later by its place.

        A gap is short if it takes under 100 µs, and no call on the host covers it. It also has to lie outside of
        replayed graphs, and mostly before the next launch. Of 65,536 kept gaps (twice `KEPT`), only the longest half
        stays; the others are summed in ``overflow``, by place.
        """
        waits = gap.part in _STARTED or self._graph_position(gap) == "within"
        if gap.ns < LATE_NS and not waits and self.activities.call_in(gap) is None:
            self._sum_short(gap)
            return
        activity = None
        if gap.part != "free_latency_ns":  # then the host waits for the device, if for anything
            activity = self.activities.call_in(gap) if waits else self.activities.activity_in(gap)
        self.kept.append((gap, activity))
        if len(self.kept) > 2 * KEPT:
            longest = sorted(self.kept, key=lambda place: -place[0].ns)
            for other, _ in longest[KEPT:]:
                self.overflow[self._place(other)].add(other)
            self.kept = sorted(longest[:KEPT], key=lambda place: place[0].place)

    def _sum_short(self, gap: Idle) -> None:
        """Add a gap to the sum of all short gaps of the same part of the step, whatever kernels it lies between.

        Gaps within replayed graphs have a sum of their own. Noted is the synchronising call in which the host was when
        the device ran empty.
        """
        graph = "within" if self.replays and self._is_within_replay(gap) else ""
        gap_sum = self.short.get((graph, gap.part))
        if gap_sum is None:
            place = GapPlace(graph, UNKNOWN, UNKNOWN, UNKNOWN, gap.part)
            gap_sum = self.short[graph, gap.part] = self.sums[place, NOWHERE, UNKNOWN, False]
        gap_sum.add(gap)
        if gap.part == "free_host_late_ns" and not graph:
            gap_sum.returned[self.activities.synchronising_call(gap)] += gap.ns

    def _is_within_replay(self, gap: Idle) -> bool:
        """Tell whether a short gap lies within a replayed graph: tasks on both sides and one more share a launch."""
        order, key = self.cuts.order, self.trace.tasks.key
        own_key = key[order[gap.place]]
        if own_key == UNKNOWN or gap.before == UNKNOWN or key[gap.before] != own_key:
            return False
        near = (*order[max(gap.place - 2, 0) : gap.place - 1], *order[gap.place + 1 : gap.place + 2])
        return any(key[task] == own_key for task in near)

    def _graph_position(self, gap: Idle) -> str:
        """Return where a gap lies: "within" a replayed graph, "between" two, "behind" (after) or "before" one; else "".

        Tasks are those of a replayed graph if at least 3 of them near the gap share the key of one launch.
        """
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
        """Return where a gap lies: between which kernels, on which stream, in which part of the step, by which graphs.

        The stream is that of the kernel after the gap. The kernel before is UNKNOWN for the first one.
        """
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        before = UNKNOWN if gap.before == UNKNOWN else tasks.name[gap.before]
        return GapPlace(self._graph_position(gap), before, tasks.name[task], tasks.stream[task], gap.part)

    def _lookup_moments(
        self, gap: Idle, activity: HostActivity | None, working: Collection[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield two moments, as (thread, ns), at which to look up in which operator and module the host was.

        The first is when the task after the gap was enqueued. The second is when ``activity``, which covers the gap,
        began. Without it, or if its thread is not in ``working`` (those that launch tasks, and the main one), it is the
        first again.
        """
        tasks, task = self.trace.tasks, self.cuts.order[gap.place]
        launch = tasks.thread[task], tasks.enqueued[task]
        yield launch
        # A thread outside of ``working`` runs nothing but calls that others ask for.
        yield (activity.thread, activity.begin) if activity and activity.thread in working else launch

    def _sum_kept(self, threads: Sequence[HostThread]) -> None:
        """Add the gaps in ``kept`` to the sums of their places, with the operator and module that the host was in."""
        working = {*self.trace.tasks.thread, self.activities.main}
        moments = [moment for gap, activity in self.kept for moment in self._lookup_moments(gap, activity, working)]
        around = iter(host_around(self.trace, threads, moments))
        for (gap, activity), launch, around_activity in zip(self.kept, around, around, strict=True):
            self._sum_at_place(gap, activity, launch, around_activity)

    def _sum_at_place(
        self, gap: Idle, activity: HostActivity | None, launch: HostAround, around_activity: HostAround
    ) -> None:
        """Add a gap to the sum of its place, with the call that covers most of it on the host.

        ``activity`` is the call, frame or operator that covers most of the gap. ``around_activity`` has the operator
        and module around it, ``launch`` those around the call that enqueued the next task. If ``activity`` is None, or
        the next task was launched before the gap, ``launch`` alone identifies the place.
        """
        place = self._place(gap)
        host = launch
        if activity:
            module = launch.module if around_activity.module == UNKNOWN else around_activity.module
            host = HostAround(around_activity.operator, module)
        within = activity is not None and activity.is_operator
        call = activity.name if activity and not within else UNKNOWN
        # Whatever the host does while the device waits is not what its place is known by.
        key = (place, launch, UNKNOWN, False) if gap.part == "free_waiting_ns" else (place, host, call, within)
        gap_sum = self.sums[key]
        gap_sum.add(gap)
        if activity:
            gap_sum.call_ns[call] += activity.ns
            gap_sum.caller_ns[self._caller(gap, activity)] += activity.ns
        elif gap.part not in _STARTED:
            gap_sum.returned[self.activities.synchronising_call(gap)] += gap.ns

    def _caller(self, gap: Idle, activity: HostActivity) -> int:
        """Return the number of the innermost function or range of the program around a library's call, or UNKNOWN."""
        texts, frames = self.trace.names.texts, self.activities.frames.get(activity.thread)
        if frames is None or is_of_program(texts[activity.name]):
            return UNKNOWN
        (innermost,) = frames.innermost([activity.begin])
        step_begin = self.cuts.segments[gap.segment].begin
        names = [frames.name[index] for index in frames.around(innermost) if frames.begin[index] > step_begin]
        if activity.name in names:
            names = names[len(names) - names[::-1].index(activity.name) :]
        return next((name for name in names if is_of_program(texts[name])), UNKNOWN)

    def _sum_overflow(self) -> None:
        """Add ``overflow``, the sums of gaps that were not kept, to the sums of kept gaps between the same kernels.

        If the kept gaps between two kernels have several sums, by operator and module, the overflow is one more: these
        are unknown for it.
        """
        keys_of: dict[GapPlace, list[_Key]] = defaultdict(list)
        for key in self.sums:
            keys_of[key[0]].append(key)
        for place, gap_sum in self.overflow.items():
            (key, *more) = keys_of[place] or [(place, NOWHERE, UNKNOWN, False)]
            self.sums[(place, NOWHERE, UNKNOWN, False) if more else key].merge(gap_sum)

    def gaps(
        self, units: Mapping[int, model.RecordedUnit], drawn_numbers: Collection[int]
    ) -> tuple[model.FreeGap, ...]:
        """Return the up to 100 places with the most free time of the device, longest first.

        A place is mostly a pair of kernels on a stream. ``units`` maps segments to steps. ``drawn_numbers`` has the
        numbers of the steps that the page draws: for these, each place has the begin and length of its longest gap.
        """
        gaps = [self._free_gap(key, gap_sum, units, drawn_numbers) for key, gap_sum in self.sums.items()]
        gaps.sort(key=lambda gap: (-gap.ns, gap.before, gap.after, gap.stream))
        return tuple(replace(gap, unrecorded=self._is_unrecorded(gap)) for gap in gaps[:SHOWN])

    def _is_unrecorded(self, gap: model.FreeGap) -> bool:
        """Tell whether no event of the host begins or ends in a place's longest gap, but for a tenth at both ends.

        False for a call that begins in less than half of the segments: it may take so long by itself.
        """
        begin, end = gap.at_ns + gap.longest_ns // _EDGE, gap.at_ns + gap.longest_ns * (_EDGE - 1) // _EDGE
        short, frames = self.trace.short_events, self.activities.frames.values()
        if any(tick in short for tick in range(begin // TICK, end // TICK + 1)):
            return False
        of_threads = chain.from_iterable(self.threads)
        is_silent = all(
            ranges.begin[index] <= begin and ranges.end[index] >= end
            for ranges in (*self.activities.calls.values(), *frames, *of_threads)
            for index in overlapping(ranges, begin, end)
        )
        if not is_silent or not gap.call:
            return is_silent
        name, begins = self.trace.names[gap.call], [segment.begin for segment in self.cuts.segments]
        calls = (at for each in frames for at, number in zip(each.begin, each.name, strict=True) if number == name)
        return 2 * len({bisect_right(begins, at) for at in calls}) >= len(begins)

    def _free_gap(
        self, key: _Key, gap_sum: _GapSum, units: Mapping[int, model.RecordedUnit], drawn_numbers: Collection[int]
    ) -> model.FreeGap:
        """Return the `FreeGap` of one place from its sum; all begins but ``at_ns`` are ns from the begin of the step.

        ``units`` maps segments to steps, ``drawn_numbers`` has the numbers of the steps for which the longest gap is
        located. A call is named only if it covers at least half of the time.
        """
        texts = self.trace.names.texts
        place, host, _, within = key
        call, covered = max(gap_sum.call_ns.items(), key=itemgetter(1), default=(UNKNOWN, 0))
        if 2 * covered < gap_sum.ns:
            call, covered = UNKNOWN, 0
        caller, called_ns = max(gap_sum.caller_ns.items(), key=itemgetter(1), default=(UNKNOWN, 0))
        if call == UNKNOWN or 2 * called_ns < gap_sum.ns:
            caller = UNKNOWN
        (returned, returned_ns) = max(gap_sum.returned.items(), key=itemgetter(1), default=(UNKNOWN, 0))
        if place.stream == UNKNOWN and 2 * returned_ns < gap_sum.ns:
            returned = UNKNOWN
        numbers = {"before": place.before, "after": place.after, "stream": place.stream, "call": call,
                   "returned_from": returned, "caller": caller, "operator": host.operator,
                   "module": host.module}  # fmt: skip
        fields = {name: "" if number == UNKNOWN else texts[number] for name, number in numbers.items()}
        most, (most_ns, longest) = max(gap_sum.units.items(), key=lambda item: item[1][0])
        spots = {}
        for segment, (_, gap) in gap_sum.units.items():
            unit = units[segment]
            if unit.number in drawn_numbers and place.stream != UNKNOWN:
                spots[unit.number] = (gap.begin - unit.begin_ns, gap.ns)
        return model.FreeGap(
            **fields, kind="several" if place.stream == UNKNOWN else "place", graph=place.graph, part=place.part,
            within=within, call_ns=covered, ns=gap_sum.ns, count=gap_sum.count, units=len(gap_sum.units),
            unit=units[most].number, unit_ns=most_ns, longest_ns=longest.ns, spots=spots, unrecorded=False,
            begin_ns=longest.begin - units[most].begin_ns, at_ns=longest.begin,
        )  # fmt: skip


class _GapSum:
    """Sum of gaps with one key: per segment their ns and the longest gap, per call the ns covered.

    ``returned`` has the ns of gaps that nothing covers, by the synchronising call from which the host had returned.
    """

    def __init__(self) -> None:
        self.ns = self.count = 0
        self.units: dict[int, tuple[int, Idle]] = {}
        self.call_ns = Counter[int]()
        self.caller_ns = Counter[int]()  # ns covered, by the caller of the call
        self.returned = Counter[int]()

    def add(self, gap: Idle) -> None:
        """Add a gap to the sum, to that of its segment, and to the number of gaps."""
        self._add(gap.segment, gap.ns, gap)
        self.ns += gap.ns
        self.count += 1

    def merge(self, other: _GapSum) -> None:
        """Add the gaps of another sum to this one, but not what the host did during them."""
        for segment, (ns, longest) in other.units.items():
            self._add(segment, ns, longest)
        self.ns += other.ns
        self.count += other.count

    def _add(self, segment: int, ns: int, gap: Idle) -> None:
        """Add ``ns`` of a gap to its segment, and keep the longest gap of each."""
        sum_ns, longest = self.units.get(segment, (0, gap))
        self.units[segment] = sum_ns + ns, longest if longest.ns >= gap.ns else gap
