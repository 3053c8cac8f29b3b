"""The attribution of each nanosecond of a step: from a trace to its profile.

One walk over the tasks in the order of their begin gives every nanosecond of a step, from its first kernel on, to one
of nine parts, so they add up to the step exactly.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, NamedTuple

from patcher.traces import model
from patcher.traces.analysis.allocations import device_allocations
from patcher.traces.analysis.copy_launches import copy_launches
from patcher.traces.analysis.gaps import GapSums
from patcher.traces.analysis.host_steps import host_steps
from patcher.traces.analysis.hosts import HostSums
from patcher.traces.analysis.idle import idle_parts
from patcher.traces.analysis.lanes import build_lanes
from patcher.traces.analysis.late_ranges import late_range
from patcher.traces.analysis.nested import HostThread, covered_ns, host_thread
from patcher.traces.analysis.rates import rates_by_operator
from patcher.traces.analysis.replays import CapturedSet, join_replays
from patcher.traces.analysis.segments import Segment, Split, split
from patcher.traces.analysis.unit_classes import classes_by_segment
from patcher.traces.messages import CollectiveMessage
from patcher.traces.rank_trace import GRAPH_CAPTURE, RankTrace
from patcher.traces.sidecar import UnitMetadata
from patcher.traces.trace_columns import UNKNOWN

PROMPT_NS = 20_000
"""A kernel that starts within this time of its launch: the guides' near-vertical line between both."""

EARLY_NS = 10_000
"""A kernel that starts this long before its launch: the clocks of host and device were not aligned well."""

_FREE = [*model.PARTS].index(next(iter(model.FREE)))
_COMPUTE, _COMMUNICATION = model.KINDS.index(model.COMPUTE), model.KINDS.index(model.COMMUNICATION)


class Launches(NamedTuple):
    """Counts of the steps' tasks: all, linked to a launch, and begun over 10 µs before it, in sum by ``lead_ns``."""

    tasks: int = 0
    linked: int = 0
    early: int = 0
    lead_ns: int = 0


class Attribution(NamedTuple):
    """The profile of a trace, with the segments of its steps and the counts of launches that the checks need."""

    profile: model.RankProfile
    segments: tuple[Segment, ...]
    launches: Launches


def attributed(
    trace: RankTrace, only: tuple[int, int] | None = None, captured: Sequence[CapturedSet] = (), *, classes: bool = True
) -> Attribution:
    """Attribute the time of each step of a trace to parts, and return the profile of these steps.

    Also return the segments of the steps, and counts of their tasks by what is known of the launch.

    ``only`` is a half-open range of step numbers; None takes all steps. ``captured`` has the graphs that were captured:
    kernels of their replays get the operators and modules of the capture. With ``classes`` each step's time is also
    divided among classes of work, such as attention or communication.
    """
    cuts = split(trace)
    parts = _parts_by_segment(trace, cuts)
    chosen = _choose_steps(cuts, only)
    threads = [host_thread(trace, thread) for thread in range(len(trace.operators))]
    gaps = GapSums(trace, cuts, chosen, threads)
    metadata = trace.metadata.units if trace.metadata else {}
    contents = {number: _step_contents(cuts.segments[number], metadata) for number in chosen}
    tokens = {number: held["tokens"] for number, held in contents.items()}
    replays = join_replays(trace, cuts, set(chosen), tokens, captured)
    hosts = HostSums(trace, cuts, chosen, threads, replays)
    units = {
        number: _recorded_unit(cuts.segments[number], parts[number], hosts.times[number], contents[number])
        for number in chosen
    }
    if classes:
        divided = classes_by_segment(trace, cuts, units, threads)
        units = {number: replace(unit, classes=divided[number]) for number, unit in units.items()}
    calls = {"calls": gaps.activities.calls, "Python": gaps.activities.functions}
    drawn = tuple(build_lanes(trace, units, cuts, calls))
    kernels, launches, prompt_share = _sum_kernels(trace, cuts.owner, units)
    kernels_of_steps = _kernels_of_steps(trace, cuts.owner, units)
    by_graph = _launches_by_graph(trace, cuts.owner, units)
    sums_by_inputs = {
        (trace.names.texts[name], *trace.shapes[name]): row
        for name, row in hosts.operator_calls.items() if name in trace.shapes
    }  # fmt: skip
    profile = model.RankProfile(
        source=trace.source, form=trace.form, rank=trace.rank, device=trace.device, units=tuple(units.values()),
        kernels=kernels, operators=hosts.operators, modules=hosts.modules, metadata=trace.metadata, world=trace.world,
        late_modules=hosts.late_modules, host_steps=host_steps(trace, cuts, chosen, threads),
        kernels_of_steps=kernels_of_steps,
        inputs_of_steps=_inputs_of_steps(trace, cuts, units, threads) if kernels_of_steps else {},
        settings=trace.settings, vendor=trace.vendor, marks=cuts.family, lanes=drawn,
        collectives=tuple(_collectives(trace, units, cuts)), prompt_share=prompt_share,
        gaps=gaps.gaps(units, {picture.number for picture in drawn}),
        rates=rates_by_operator(sums_by_inputs, trace.device),
        kernel_uses=trace.kernel_uses(cuts.owner, {segment: unit.number for segment, unit in units.items()}),
        replays=replays.result, graph_share=_graph_share(by_graph),
        graph_shares=_graph_shares(by_graph, units),
        memory=tuple(device_allocations(trace, cuts, chosen, threads)),
        has_shapes=trace.has_shapes, has_stacks=trace.has_stacks,
        capture_share=_capture_share(trace, [cuts.segments[number] for number in chosen]),
        copy_launches=copy_launches(
            trace, cuts, {at: unit.number for at, unit in units.items()}, gaps.activities.frames
        ),
        kernel_operators={
            (trace.names.texts[kernel], trace.names.texts[name], trace.shapes.get(name, ("",))[0]): ns
            for (kernel, name), ns in hosts.kernel_operators.items()
        },
        late_range=late_range(trace, cuts, chosen, threads, gaps.activities.frames, gaps.late),
        idle_between={units[segment].number: ns for segment, ns in gaps.between.by_segment.items()},
        range_between=late_range(trace, cuts, chosen, threads, gaps.activities.frames, gaps.between, in_one=True),
    )  # fmt: skip
    return Attribution(profile, tuple(cuts.segments[number] for number in chosen), launches)


def _choose_steps(cuts: Split, only: tuple[int, int] | None) -> list[int]:
    """Return the indices of the segments that are steps with a number in the half-open range ``only``; None: all."""
    return [
        number for number, segment in enumerate(cuts.segments)
        if segment.mark and (only is None or only[0] <= (segment.mark.number or 0) < only[1])
    ]  # fmt: skip


def _parts_by_segment(trace: RankTrace, cuts: Split) -> list[list[int]]:
    """Return for each segment of ``cuts`` the ns of each part of a step, in the order of ``PARTS``.

    A segment is the stretch of one step, or of uncounted iterations. One without tasks on the device has only zeros.
    """
    # Between two begins no task starts, so the latest end of each kind so far tells until when that kind runs.
    parts = [[0] * len(model.PARTS) for _ in cuts.segments]
    on_device = [
        (segment.starts, segment.ends, sums)
        for segment, sums in zip(cuts.segments, parts, strict=True) if segment.ends > segment.starts
    ]  # fmt: skip
    if not on_device:
        return parts
    tasks, reach = trace.tasks, [0] * len(model.KINDS)
    now, last = on_device[0][0], on_device[-1][1]
    columns = (map(column.__getitem__, cuts.order) for column in (tasks.begin, tasks.end, tasks.kind, tasks.launched))
    segments, blocked = iter(on_device), trace.blocking_calls()
    _, segment_end, sums = next(segments)
    for begin, end, kind, launched in chain(zip(*columns, strict=True), [(last, last, 0, UNKNOWN)]):
        while now < begin:
            until = min(begin, segment_end)
            _add_stretch(sums, now, until, reach, launched, blocked)
            now = until
            if now == last:
                return parts
            if now == segment_end:
                _, segment_end, sums = next(segments)
        if end > reach[kind]:
            reach[kind] = end
    return parts


def _add_stretch(
    parts: list[int], now: int, until: int, reach: Sequence[int], launched: int, blocked: Mapping[int, int]
) -> None:
    """Divide the stretch of a step from ``now`` to ``until`` among ``parts``, the ns of each of ``PARTS``, in place.

    No task begins within the stretch. ``reach`` is the latest end of the computing, communicating and copying tasks so
    far; copying counts where nothing else runs. ``launched`` is the time at which the next task was launched, or
    UNKNOWN. ``blocked`` maps the begin of each long launch call to its end. All are ns of one clock.
    """
    # Each task takes this step: comparisons are several times as fast as min and max.
    compute, communication, copy = reach
    if compute < now:
        compute = now
    elif compute > until:
        compute = until
    busy = both = compute
    if communication > now:
        if communication > until:
            communication = until
        if compute < communication:
            both, busy = compute, communication
        else:
            both, busy = communication, compute
        parts[1] += both - now
        parts[2] += communication - both
    else:
        both = now
    parts[0] += compute - both
    free = busy
    if copy > busy:
        free = until if copy > until else copy
        parts[3] += free - busy
    if free < until:
        for part, ns in enumerate(idle_parts(free, until, launched, blocked), _FREE):
            parts[part] += ns


def _step_contents(segment: Segment, metadata: Mapping[int, UnitMetadata]) -> dict[str, Any]:
    """Return the `UnitMetadata` fields of a step, such as requests and tokens; None for what is not known.

    ``metadata`` maps step numbers to what a probe wrote beside the trace. What it lacks is taken from the step's mark.
    """
    fields = asdict(metadata.get(segment.step.number or 0, UnitMetadata()))
    return fields | {name: value for name, value in segment.step.contents.items() if fields[name] is None}


def _recorded_unit(
    segment: Segment, parts: Sequence[int], phases: dict[str, int], contents: Mapping[str, Any]
) -> model.RecordedUnit:
    """Return the record of a step: its times, kernels and contents.

    ``segment`` is the step's stretch of the trace. ``parts`` has the ns of each of ``PARTS``, in that order. ``phases``
    maps forward, backward and optimizer to ns, ``contents`` has what the step contains, such as requests, by field of
    the result.
    """
    step = segment.step
    fields = {**contents, **dict(zip(model.PARTS, parts, strict=True))}
    return model.RecordedUnit(
        number=step.number or 0, host_ns=step.end - segment.begin, kernels=segment.tasks,
        phases=phases, name=step.name, begin_ns=segment.leads, lead_in_ns=segment.starts - segment.leads, **fields,
    )  # fmt: skip


def _sum_kernels(
    trace: RankTrace, owner: Sequence[int], chosen: Container[int]
) -> tuple[tuple[model.Kernel, ...], Launches, float | None]:
    """Return the kernels of the ``chosen`` segments, the counts of their launches, and the share that starts promptly.

    ``owner`` has the segment (mostly a step) of each task. Kernels are summed by name and kind, longest total first.
    The share, 0 to 1, is that of the compute kernels with a known launch that begin less than 20 µs after it, or before
    it. It is None if no compute kernel has a known launch.
    """
    tasks = trace.tasks
    sums = defaultdict[tuple[int, int], list[int]](lambda: [0, 0, 0])
    count = linked = early = lead = computing = prompt = 0
    for segment, name, kind, begin, end, launched in zip(
        owner, tasks.name, tasks.kind, tasks.begin, tasks.end, tasks.launched, strict=True
    ):
        if segment not in chosen:
            continue
        row = sums[name, kind]
        row[0] += 1
        row[1] += end - begin
        row[2] = max(row[2], end - begin)
        count += 1
        if launched == UNKNOWN:
            continue
        linked += 1
        if begin < launched - EARLY_NS:
            early += 1
            lead += launched - begin
        if kind == _COMPUTE:
            computing += 1
            prompt += begin < launched + PROMPT_NS
    kernels = [
        model.Kernel(trace.names.texts[name], model.KINDS[kind], *values) for (name, kind), values in sums.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.ns, kernel.name, kernel.kind))
    return tuple(kernels), Launches(count, linked, early, lead), prompt / computing if computing else None


def _kernels_of_steps(
    trace: RankTrace, owner: Sequence[int], units: Mapping[int, model.RecordedUnit]
) -> dict[int, dict[str, int]]:
    """Return number of a step → name → ns of its compute kernels with at least 5 % of its computing time.

    Empty if no step takes over 1.3 times the shortest on the device. ``owner`` has the segment of each task, ``units``
    maps segments to steps.
    """
    times = [unit.device_ns for unit in model.units_on_device(tuple(units.values()))]
    if not times or max(times) <= model.SLOW * min(times):
        return {}
    tasks, texts = trace.tasks, trace.names.texts
    sums: dict[int, Counter[int]] = {segment: Counter() for segment in units}
    for segment, name, kind, begin, end in zip(owner, tasks.name, tasks.kind, tasks.begin, tasks.end, strict=True):
        if kind == _COMPUTE and segment in sums:
            sums[segment][name] += end - begin
    return {
        units[segment].number: {
            texts[name]: ns for name, ns in kernels.items() if ns >= model.LARGE_KERNEL * kernels.total()
        }
        for segment, kernels in sums.items()
    }


def _inputs_of_steps(
    trace: RankTrace, cuts: Split, units: Mapping[int, model.RecordedUnit], threads: Sequence[HostThread]
) -> dict[int, int]:
    """Return number of a step → checksum of the operators that begin in it, with the shapes of their inputs.

    Only operators whose shapes were recorded count, in any order; empty if none has shapes. ``units`` maps segments to
    steps, ``threads`` has the operators of each thread.
    """
    if not trace.shapes:
        return {}
    sums: dict[int, int] = {}
    for segment, unit in units.items():
        counts = Counter[int]()
        for thread in threads:
            begins = thread.operators.begin
            first, last = (bisect_left(begins, at) for at in (cuts.segments[segment].begin, cuts.segments[segment].end))
            counts.update(thread.operators.name[first:last])
        rows = sorted(
            (trace.names.texts[name], *trace.shapes[name], count)
            for name, count in counts.items() if name in trace.shapes
        )  # fmt: skip
        sums[unit.number] = zlib.crc32(repr(rows).encode())
    return sums


def _launches_by_graph(
    trace: RankTrace, owner: Sequence[int], chosen: Container[int]
) -> dict[int, tuple[int, int]] | None:
    """Return segment → the tasks that replayed CUDA or HIP graphs launched, and all tasks with a known launch.

    Tasks of one graph launch have its correlation id in common. ``chosen`` are the segments (steps) that count,
    ``owner`` has the segment of each task. None if none of these tasks has a known launch, and for traces of other
    devices.
    """
    if trace.form not in ("torch", "nsys"):
        return None
    tasks = trace.tasks
    counts = Counter(
        (segment, key) for segment, key, launched in zip(owner, tasks.key, tasks.launched, strict=True)
        if segment in chosen and launched != UNKNOWN
    )  # fmt: skip
    together = Counter[int]()
    every = Counter[int]()
    for (segment, _), count in counts.items():
        every[segment] += count
        together[segment] += count if count > 1 else 0
    return {segment: (together[segment], count) for segment, count in every.items()} or None


def _graph_share(launches: Mapping[int, tuple[int, int]] | None) -> float | None:
    """Return the share (0 to 1) of tasks that graphs launched, in all segments; None if nothing is known."""
    if launches is None:
        return None
    return sum(together for together, _ in launches.values()) / sum(every for _, every in launches.values())


def _graph_shares(
    launches: Mapping[int, tuple[int, int]] | None, units: Mapping[int, model.RecordedUnit]
) -> dict[int, float]:
    """Return number of a step → the share (0 to 1) of its tasks that graphs launched; empty if nothing is known.

    ``units`` maps segments to steps.
    """
    return {units[at].number: together / every for at, (together, every) in (launches or {}).items()}


def _capture_share(trace: RankTrace, steps: Sequence[Segment]) -> float:
    """Return the share (0 to 1) of the host's time in ``steps`` during which a thread captures a graph."""
    captures = sorted(
        (begin, end)
        for calls in trace.calls.values()
        for begin, end, name in zip(calls.begin, calls.end, calls.name, strict=True)
        if trace.names.texts[name] == GRAPH_CAPTURE
    )
    captured = sum(covered_ns(captures, segment.step.begin, segment.step.end) for segment in steps)
    whole = sum(segment.step.end - segment.step.begin for segment in steps)
    return captured / whole if whole else 0.0


def _collectives(trace: RankTrace, units: Mapping[int, model.RecordedUnit], cuts: Split) -> Iterator[model.Collective]:
    """Yield the collectives of the steps in order of their begin; ``units`` maps segments to steps.

    Each gets as its ``index`` how many collectives of its group began before in the same step. An unknown size, transit
    or waiting is None, an unknown group "".
    """
    tasks, numbers = trace.tasks, Counter[tuple[int, str]]()
    for task in cuts.order:
        segment = cuts.owner[task]
        if tasks.kind[task] == _COMMUNICATION and segment in units:
            group = trace.groups.get(task, "")
            index = numbers[segment, group]
            numbers[segment, group] += 1
            transit, wait, idle = trace.transits.get(task, (None, None, None))
            message = trace.messages.get(task, CollectiveMessage())
            yield model.Collective(
                group, index, trace.names.texts[tasks.name[task]], tasks.end[task] - tasks.begin[task], transit, wait,
                idle, units[segment].number, **message._asdict(),
            )  # fmt: skip
