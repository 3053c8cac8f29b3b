"""What each nanosecond of a unit was: a timeline made into a profile.

One walk over the tasks in the order of their begin gives every nanosecond from its first kernel on to one of seven
parts, and what is before that in the first unit is the eighth, so they add up to the unit exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, NamedTuple

from patcher.traces import model
from patcher.traces.analysis.gaps import GapSums
from patcher.traces.analysis.hosts import HostSums
from patcher.traces.analysis.lanes import lanes
from patcher.traces.analysis.rates import rated
from patcher.traces.analysis.replays import CapturedSet, replayed
from patcher.traces.analysis.segments import Segment, Split, split
from patcher.traces.messages import CollectiveMessage
from patcher.traces.sidecar import UnitMetadata
from patcher.traces.timeline import UNKNOWN, Timeline

PROMPT_NS = 20_000
"""A kernel that starts within this time of its launch: the guides' near-vertical line between both."""

EARLY_NS = 10_000
"""A kernel that starts this long before its launch: the clocks of host and device were not aligned well."""

_COMPUTE, _COMMUNICATION, _COPY = (model.KINDS.index(kind) for kind in (model.COMPUTE, model.COMMUNICATION, model.COPY))


class Launches(NamedTuple):
    """The tasks of the units, those with a launch, and those that begin over 10 µs before it, by ``lead_ns`` in sum."""

    tasks: int = 0
    linked: int = 0
    early: int = 0
    lead_ns: int = 0


class Attribution(NamedTuple):
    """A timeline in its units, with what the checks need beside the profile."""

    profile: model.RankProfile
    segments: tuple[Segment, ...]
    launches: Launches


def attributed(found: Timeline, only: tuple[int, int] | None = None, sets: Sequence[CapturedSet] = ()) -> Attribution:
    """``found`` in units; with ``only`` those whose number lies in this half-open range, and what they launched.

    Replays of graphs are joined with those of ``sets``, which were recorded while they were captured.
    """
    cuts = split(found)
    parts = _parts(found, cuts)
    chosen = [
        at for at, segment in enumerate(cuts.segments)
        if segment.mark and (only is None or only[0] <= (segment.mark.number or 0) < only[1])
    ]  # fmt: skip
    gaps = GapSums(found, cuts, chosen)
    known = found.metadata.units if found.metadata else {}
    tokens = {at: _held(cuts.segments[at], known)["tokens"] for at in chosen}
    replays = replayed(found, cuts, set(chosen), tokens, sets)
    hosts = HostSums(found, cuts.segments, cuts.owner, chosen, gaps.places, replays)
    units = {at: _unit(cuts.segments[at], parts[at], hosts.times[at], known) for at in chosen}
    calls = {"calls": gaps.calls.columns, "Python": gaps.functions.columns}
    drawn = tuple(lanes(found, units, cuts, calls))
    kernels, launches, prompt = _kernels(found, cuts.owner, units)
    shaped = {(found.names.texts[at], *found.shapes[at]): row for at, row in hosts.own.items() if at in found.shapes}
    profile = model.RankProfile(
        source=found.source, form=found.form, rank=found.rank, device=found.device, units=tuple(units.values()),
        kernels=kernels, operators=hosts.operators, modules=hosts.modules, metadata=found.metadata, world=found.world,
        settings=found.settings, vendor=found.vendor, marks=cuts.family, lanes=drawn,
        collectives=tuple(_collectives(found, units, cuts)), prompt_share=prompt,
        gaps=gaps.gaps(units, {one.number for one in drawn}), rates=rated(shaped, found.device),
        kernel_uses=found.kernel_uses(cuts.owner, {at: unit.number for at, unit in units.items()}),
        replays=replays.result,
    )  # fmt: skip
    return Attribution(profile, tuple(cuts.segments[at] for at in chosen), launches)


def _parts(found: Timeline, cuts: Split) -> list[list[int]]:
    """The parts of each segment, in the order of ``PARTS``, of which the lead-in is the last.

    Between the begins of two tasks that follow each other nothing begins, so each kind runs up to where the furthest
    of its tasks reaches, and then no more: one step of the walk needs no list of what is running.
    """
    parts = [[0] * (len(model.PARTS) - 1) + [one.starts - one.leads] for one in cuts.segments]
    real = [(one.starts, one.ends, own) for one, own in zip(cuts.segments, parts, strict=True) if one.ends > one.starts]
    if not real:
        return parts
    tasks, reach = found.tasks, [0] * len(model.KINDS)
    now, last = real[0][0], real[-1][1]
    columns = (map(column.__getitem__, cuts.order) for column in (tasks.begin, tasks.end, tasks.kind, tasks.launched))
    following = iter(real)
    _, end, own = next(following)
    for begin, until, kind, launched in chain(zip(*columns, strict=True), [(last, last, 0, UNKNOWN)]):
        while now < begin:
            step = min(begin, end)
            _add_step(own, now, step, reach, launched)
            now = step
            if now == last:
                return parts
            if now == end:
                _, end, own = next(following)
        if until > reach[kind]:
            reach[kind] = until
    return parts


def _add_step(parts: list[int], now: int, until: int, reach: Sequence[int], launched: int) -> None:
    """Add what is between ``now`` and ``until``, when the next task may begin that was ``launched`` then."""
    # Each task takes this step: comparisons are several times as fast as min and max.
    compute, communication, copy = reach
    compute = now if compute < now else until if compute > until else compute
    busy = both = compute
    if communication > now:
        communication = until if communication > until else communication
        both, busy = (compute, communication) if compute < communication else (communication, compute)
        parts[1] += both - now
        parts[2] += communication - both
    else:
        both = now
    parts[0] += compute - both
    idle = busy
    if copy > busy:
        idle = until if copy > until else copy
        parts[3] += idle - busy
    if idle == until:
        return
    if launched == UNKNOWN:
        parts[6] += until - idle
    else:
        handed = idle if launched < idle else until if launched > until else launched
        parts[4] += handed - idle
        parts[5] += until - handed


def _held(segment: Segment, known: Mapping[int, UnitMetadata]) -> dict[str, Any]:
    """What the unit of a segment held, by the metadata, else by its mark."""
    fields = asdict(known.get((segment.mark and segment.mark.number) or 0, UnitMetadata()))
    contents = segment.mark.contents if segment.mark else {}
    return fields | {name: value for name, value in contents.items() if fields[name] is None}


def _unit(
    segment: Segment, parts: Sequence[int], phases: dict[str, int], known: Mapping[int, UnitMetadata]
) -> model.RecordedUnit:
    mark = segment.mark
    assert mark is not None  # noqa: S101  (what does not count is no unit)
    number = mark.number or 0
    fields = _held(segment, known) | dict(zip(model.PARTS, parts, strict=True))
    return model.RecordedUnit(
        number=number, host_ns=min(mark.end, segment.end) - segment.begin, kernels=segment.tasks, phases=phases,
        name=mark.name, begin_ns=segment.leads, **fields,
    )  # fmt: skip


def _kernels(
    found: Timeline, owner: Sequence[int], chosen: Container[int]
) -> tuple[tuple[model.Kernel, ...], Launches, float | None]:
    """What the chosen segments launched, how that lies to the launches, and the share that began promptly."""
    tasks = found.tasks
    sums: dict[tuple[int, int], list[int]] = {}
    count = linked = early = lead = computing = prompt = 0
    for segment, name, kind, begin, end, launched in zip(
        owner, tasks.name, tasks.kind, tasks.begin, tasks.end, tasks.launched, strict=True
    ):
        if segment not in chosen:
            continue
        known = sums.setdefault((name, kind), [0, 0, 0])
        known[0] += 1
        known[1] += end - begin
        known[2] = max(known[2], end - begin)
        count += 1
        if launched != UNKNOWN:
            linked += 1
            if begin < launched - EARLY_NS:
                early += 1
                lead += launched - begin
            if kind == _COMPUTE:
                computing += 1
                prompt += begin < launched + PROMPT_NS
    kernels = [
        model.Kernel(found.names.texts[name], model.KINDS[kind], *values) for (name, kind), values in sums.items()
    ]
    kernels.sort(key=lambda kernel: (-kernel.ns, kernel.name, kernel.kind))
    return tuple(kernels), Launches(count, linked, early, lead), prompt / computing if computing else None


def _collectives(found: Timeline, units: Mapping[int, model.RecordedUnit], cuts: Split) -> Iterator[model.Collective]:
    """The collectives of the units (by segment), numbered within their unit and group."""
    tasks, numbers = found.tasks, Counter[tuple[int, str]]()
    for at in cuts.order:
        owner = cuts.owner[at]
        if tasks.kind[at] == _COMMUNICATION and owner in units:
            name, group = found.names.texts[tasks.name[at]], found.groups.get(at, "")
            index, ns = numbers[owner, group], tasks.end[at] - tasks.begin[at]
            numbers[owner, group] += 1
            transit, wait, idle = found.transits.get(at, (None, None, None))
            carried = found.messages.get(at, CollectiveMessage())._asdict()
            yield model.Collective(group, index, name, ns, transit, wait, idle, units[owner].number, **carried)
