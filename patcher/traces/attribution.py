"""Which unit launched a task, and what each nanosecond of a unit was: a timeline made into a capture.

A task belongs to the unit in which it was asked for on the host; where no link says when that was, to the unit that the
device was in. On the device a unit reaches from its first kernel on the busiest compute stream to that of the next
one. One walk over the tasks in the order of their begin gives every nanosecond to one of seven parts, so they add up
to the unit exactly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from patcher.traces import facts
from patcher.traces.hosts import Hosts
from patcher.traces.model import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    KINDS,
    PARTS,
    Capture,
    Collective,
    Kernel,
    Lanes,
    Span,
    Unit,
)
from patcher.traces.timeline import FAMILIES, UNCOUNTED, UNKNOWN, Mark, Timeline

PROMPT_NS = 20_000
"""A kernel that starts within this time of its launch: the guides' near-vertical line between both."""

EARLY_NS = 10_000
"""A kernel that starts this long before its launch: the clocks of host and device were not aligned well."""

_PIXELS = 1200
"""Spans that are nearer to each other than this part of their unit are drawn as one."""

_COMPUTE, _COMMUNICATION, _COPY = (KINDS.index(kind) for kind in (COMPUTE, COMMUNICATION, COPY))


class Segment(NamedTuple):
    """A stretch of the host that belongs to one unit, or with ``mark`` None to iterations that are not counted."""

    begin: int
    end: int
    mark: Mark | None


@dataclass(slots=True)
class Window:
    """What a segment did on the device: where it is there, how many tasks it asked for, and the longest of these."""

    segment: Segment
    first: int | None = None
    begin: int = 0
    end: int = 0
    tasks: int = 0
    last: int = 0
    longest_ns: int = 0
    longest: str = ""


class Launches(NamedTuple):
    """How the tasks of the units lie to their launches: how many there are, how many of these have one, and how many
    begin more than 10 µs before it, together by ``lead_ns``.
    """

    tasks: int = 0
    linked: int = 0
    early: int = 0
    lead_ns: int = 0


class Attribution(NamedTuple):
    """A timeline in its units, and what the checks have to know of it beside the capture."""

    capture: Capture
    windows: tuple[Window, ...]
    launches: Launches


def marks_of(found: Timeline) -> tuple[str, list[Mark], list[Mark]]:
    """Who marked the units, their marks in order, and the stretches that do not count.

    Of several threads that mark, the one that does most often. A single ``ProfilerStep#`` around many marks of an
    engine is not the unit: those are.
    """
    by_family: dict[str, dict[int, list[Mark]]] = {}
    for thread, mark in found.marks:
        by_family.setdefault(mark.family, {}).setdefault(thread, []).append(mark)
    marks: dict[str, list[Mark]] = {}
    for family, threads in by_family.items():
        busiest: list[Mark] = max(threads.values(), key=len)
        marks[family] = sorted(busiest, key=lambda mark: (mark.begin, -mark.end))
    uncounted = marks.pop(UNCOUNTED, [])
    families = [family for family in FAMILIES if family in marks]
    if not families:
        return "", [], uncounted
    chosen = families[0]
    if len(marks[chosen]) == 1:
        chosen = next((family for family in families[1:] if len(marks[family]) > 1), chosen)
    told = [mark for family in families for mark in marks[family] if family != chosen and mark.requests is not None]
    return chosen, list(_completed(marks[chosen], told)), uncounted


def _completed(marks: Sequence[Mark], told: Sequence[Mark]) -> Iterator[Mark]:
    """``marks`` with a number, and with what a mark of the engine says that is the only one within."""
    for number, mark in enumerate(marks):
        within = [other for other in told if mark.begin <= other.begin < mark.end]
        numbered = mark if mark.number is not None else mark._replace(number=number)
        if len(within) == 1:
            numbered = numbered._replace(
                requests=within[0].requests, tokens=within[0].tokens, context=within[0].context
            )
        yield numbered


def segments_of(marks: Sequence[Mark], uncounted: Sequence[Mark]) -> list[Segment]:
    """The host in stretches: each mark up to the next one's begin, or to an uncounted one that lies within."""
    cuts: list[tuple[int, int, Mark | None]] = [(mark.begin, mark.end, mark) for mark in marks]
    cuts += [(mark.begin, mark.end, None) for mark in uncounted]
    cuts.sort(key=lambda cut: cut[0])
    found = []
    for at, (begin, end, mark) in enumerate(cuts):
        following = cuts[at + 1][0] if at + 1 < len(cuts) else None
        found.append(Segment(begin, end if following is None else following, mark))
    return found


def attributed(found: Timeline, only: tuple[int, int] | None = None) -> Attribution:
    """``found`` in units; with ``only`` those whose number lies in this half-open range, and what they launched."""
    family, marks, uncounted = marks_of(found)
    order = found.in_order()
    segments = segments_of(marks or _whole(found), uncounted)
    owner = _owners(found, segments)
    windows = _windows(found, segments, owner, order)
    if _own_unlinked(found, segments, windows, owner, order):
        windows = _windows(found, segments, owner, order)
    parts = _parts(found, windows, order)
    chosen = [
        at for at, (_, _, mark) in enumerate(segments)
        if mark is not None and (only is None or only[0] <= (mark.number or 0) < only[1])
    ]  # fmt: skip
    hosts = Hosts(found, segments, owner, chosen)
    told = facts.units(found.facts)
    units = tuple(_unit(windows[at], parts[at], hosts.phases_of(at), told) for at in chosen)
    kernels, launches, prompt = _kernels(found, owner, set(chosen))
    capture = Capture(
        source=found.source, form=found.form, rank=found.rank, device=found.device, units=units, kernels=kernels,
        operators=hosts.operators(), modules=hosts.modules(), facts=found.facts, vendor=found.vendor, marks=family,
        lanes=tuple(_lanes(found, units, windows, owner, order)),
        collectives=tuple(_collectives(found, segments, owner, set(chosen), order)), prompt_share=prompt,
    )  # fmt: skip
    return Attribution(capture, tuple(windows[at] for at in chosen), launches)


def _whole(found: Timeline) -> list[Mark]:
    """The whole trace as one unit, where nothing marks units; none if it is empty."""
    times = list(found.spans())
    first = min((time for time in found.tasks.asked if time != UNKNOWN), default=None)
    times += [(first, max(found.tasks.asked) + 1)] if first is not None else []
    return [Mark("", "the whole trace", min(b for b, _ in times), max(e for _, e in times), 0)] if times else []


def _owners(found: Timeline, segments: Sequence[Segment]) -> array[int]:
    """Task → the segment that asked for it; UNKNOWN where none did, or no link says."""
    begins = [segment.begin for segment in segments]
    end = segments[-1].end if segments else 0
    return array("i", (bisect_right(begins, asked) - 1 if asked < end else UNKNOWN for asked in found.tasks.asked))


def _own_unlinked(
    found: Timeline, segments: Sequence[Segment], windows: Sequence[Window], owner: array[int], order: Sequence[int]
) -> bool:
    """Give tasks without a link to the segment that the device is in when they begin, if there are some.

    Where no task has a link, that is the segment which the host is in: better is not to be had.
    """
    asked, begin = found.tasks.asked, found.tasks.begin
    unlinked = [at for at in order if asked[at] == UNKNOWN]
    real = [at for at, window in enumerate(windows) if window.end > window.begin]
    if len(unlinked) == len(order):
        real = list(range(len(segments)))
        begins, end = [segment.begin for segment in segments], max((segment.end for segment in segments), default=0)
    else:
        begins, end = [windows[at].begin for at in real], windows[real[-1]].end if real else 0
    for task in unlinked:
        place = bisect_right(begins, begin[task]) - 1
        owner[task] = real[place] if place >= 0 and begin[task] < end else UNKNOWN
    return bool(unlinked)


def _windows(found: Timeline, segments: Sequence[Segment], owner: Sequence[int], order: Sequence[int]) -> list[Window]:
    """Where each segment is on the device."""
    tasks, windows = found.tasks, [Window(segment) for segment in segments]
    busy: Counter[int] = Counter()
    for at, segment in enumerate(owner):
        if segment != UNKNOWN and tasks.kind[at] == _COMPUTE:
            busy[tasks.stream[at]] += tasks.end[at] - tasks.begin[at]
    busiest = max(busy, key=lambda stream: (busy[stream], -stream), default=UNKNOWN)
    ranked = [4] * len(windows)  # how good a beginning is: of the busiest stream, compute, communication, a copy
    for at in order:
        if owner[at] == UNKNOWN:
            continue
        window, begin, end, kind = windows[owner[at]], tasks.begin[at], tasks.end[at], tasks.kind[at]
        rank = 0 if kind == _COMPUTE and tasks.stream[at] == busiest else 1 + kind
        if rank < ranked[owner[at]]:
            ranked[owner[at]], window.first = rank, begin
        window.tasks += 1
        window.last = max(window.last, end)
        if end - begin > window.longest_ns:
            window.longest_ns, window.longest = end - begin, found.names.texts[tasks.name[at]]
    _chain([window for window in windows if window.first is not None])
    return windows


def _chain(windows: Sequence[Window]) -> None:
    """Let each window reach to the next one's first kernel, and the last one to its last kernel."""
    reached = 0
    for at, window in enumerate(windows):
        window.begin = reached = max(window.first or 0, reached) if at else (window.first or 0)
        following = windows[at + 1].first if at + 1 < len(windows) else window.last
        window.end = max(window.begin, following or 0)


def _parts(found: Timeline, windows: Sequence[Window], order: Sequence[int]) -> list[list[int]]:
    """The seven parts of each window, in the order of ``PARTS``.

    Between the begins of two tasks that follow each other nothing begins, so each kind runs up to where the furthest
    of its tasks reaches, and then no more: one step of the walk needs no list of what is running.
    """
    parts = [[0] * len(PARTS) for _ in windows]
    real = [(window.end, own) for window, own in zip(windows, parts, strict=True) if window.end > window.begin]
    if not real:
        return parts
    tasks, reach = found.tasks, [0] * len(KINDS)
    now = next(window.begin for window in windows if window.end > window.begin)
    columns = (map(column.__getitem__, order) for column in (tasks.begin, tasks.end, tasks.kind, tasks.launched))
    last = real[-1][0]
    following = iter(real)
    end, own = next(following)
    for begin, until, kind, launched in chain(zip(*columns, strict=True), [(last, last, 0, UNKNOWN)]):
        while now < begin:
            if begin < end:
                _add_step(own, now, begin, reach, launched)
                now = begin
            else:
                _add_step(own, now, end, reach, launched)
                now = end
                if end == last:
                    return parts
                end, own = next(following)
        if until > reach[kind]:
            reach[kind] = until
    return parts


def _add_step(parts: list[int], now: int, until: int, reach: Sequence[int], launched: int) -> None:
    """Add what is between ``now`` and ``until``, when the next task may begin that was ``launched`` then."""
    compute, communication, copy = reach
    busy = now
    if compute > now:
        busy = compute = min(compute, until)
        parts[0] += compute - now
    if communication > now:
        communication = min(communication, until)
        both = min(communication, busy) - now
        parts[0] -= both
        parts[1] += both
        parts[2] += communication - now - both
        busy = max(busy, communication)
    if copy > busy:
        copy = min(copy, until)
        parts[3] += copy - busy
        busy = copy
    if busy < until:
        if launched == UNKNOWN:
            parts[6] += until - busy
        elif launched <= busy:
            parts[5] += until - busy
        else:
            handed = min(launched, until)
            parts[4] += handed - busy
            parts[5] += until - handed


def _unit(window: Window, parts: Sequence[int], phases: dict[str, int], told: Mapping[int, Mapping[str, Any]]) -> Unit:
    begin, end, mark = window.segment
    assert mark is not None  # noqa: S101  (what does not count is no unit)
    number = mark.number or 0
    own = told.get(number, {})
    marked = {"requests": mark.requests, "tokens": mark.tokens, "context": mark.context}
    held: dict[str, Any] = {name: facts.number(own, name) for name in (*facts.HELD, "uncounted")}
    held |= {name: value for name, value in marked.items() if held[name] is None}
    return Unit(
        number=number, host_ns=min(mark.end, end) - begin, kernels=window.tasks, phases=phases, name=mark.name,
        begin_ns=window.begin, padded=facts.numbers(own, "padded"), **held, **dict(zip(PARTS, parts, strict=True)),
    )  # fmt: skip


def _kernels(
    found: Timeline, owner: Sequence[int], chosen: Set[int]
) -> tuple[tuple[Kernel, ...], Launches, float | None]:
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
    kernels = [Kernel(found.names.texts[name], KINDS[kind], *values) for (name, kind), values in sums.items()]
    kernels.sort(key=lambda kernel: (-kernel.ns, kernel.name, kernel.kind))
    return tuple(kernels), Launches(count, linked, early, lead), prompt / computing if computing else None


def _collectives(
    found: Timeline, segments: Sequence[Segment], owner: Sequence[int], chosen: Set[int], order: Sequence[int]
) -> Iterator[Collective]:
    """The collectives of the chosen segments, numbered within their unit and group."""
    tasks, numbers = found.tasks, Counter[tuple[int, str]]()
    for at in order:
        if tasks.kind[at] != _COMMUNICATION or owner[at] not in chosen:
            continue
        mark = segments[owner[at]].mark
        name, group = found.names.texts[tasks.name[at]], found.groups.get(at, "")
        index = numbers[owner[at], group]
        numbers[owner[at], group] += 1
        transit, wait, idle = found.transits.get(at, (None, None, None))
        yield Collective(
            group, index, name, tasks.end[at] - tasks.begin[at], transit, wait, idle, mark.number or 0 if mark else 0
        )


def _lanes(
    found: Timeline, units: Sequence[Unit], windows: Sequence[Window], owner: Sequence[int], order: Sequence[int]
) -> Iterator[Lanes]:
    """What ran in the median unit and, if it is another one, in the slowest."""
    picture = Capture("", "", None, "", tuple(units))
    shown = {}
    for why, unit in (("median", picture.median_unit), ("slowest", picture.slowest_unit)):
        if unit is not None and unit.device_ns and id(unit) not in shown:
            shown[id(unit)] = why
            at = next(at for at, window in enumerate(windows) if window.segment.mark and _is(window, unit))
            yield Lanes(unit.number, why, unit.device_ns, _streams(found, windows[at], at, owner, order))


def _is(window: Window, unit: Unit) -> bool:
    mark = window.segment.mark
    return mark is not None and window.begin == unit.begin_ns and (mark.number or 0) == unit.number


def _streams(
    found: Timeline, window: Window, segment: int, owner: Sequence[int], order: Sequence[int]
) -> dict[str, tuple[Span, ...]]:
    """Stream → what ran there in ``window``, merged to what can be seen."""
    tasks, texts, near = found.tasks, found.names.texts, (window.end - window.begin) // _PIXELS
    streams: dict[str, list[Span]] = {}
    for at in order:
        begin, end = max(tasks.begin[at], window.begin), min(tasks.end[at], window.end)
        if begin >= end:
            continue
        kind, own = KINDS[tasks.kind[at]], owner[at] == segment
        spans = streams.setdefault(texts[tasks.stream[at]], [])
        last = spans[-1] if spans else None
        offset = begin - window.begin
        if (
            last is not None and (last.kind, last.own) == (kind, own) and offset - last.begin_ns - last.ns <= near
            and min(last.ns, end - begin) <= 4 * near
        ):  # fmt: skip
            name = last.name if last.name == texts[tasks.name[at]] else ""
            until = max(last.begin_ns + last.ns, offset + end - begin)
            spans[-1] = Span(last.begin_ns, until - last.begin_ns, kind, name, own, last.count + 1)
        else:
            spans.append(Span(offset, end - begin, kind, texts[tasks.name[at]], own))
    return {stream: tuple(spans) for stream, spans in streams.items()}
