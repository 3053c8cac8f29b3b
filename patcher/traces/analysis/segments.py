"""The stretches of the host that belong to the steps, which of them launched a task, and where each is on the device.

A task belongs to the step in which it was enqueued on the host; where no link says when that was, to the step that the
device was in. On the device a step reaches from its first kernel on the busiest compute stream to that of the next one;
the first one has a lead-in, too.
"""

from __future__ import annotations

import itertools
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from patcher.messages import Text
from patcher.traces.marks import FAMILIES, NAMED, UNCOUNTED, WANTED, Mark
from patcher.traces.model import COMPUTE, KINDS, lower_median
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

_COMPUTE = KINDS.index(COMPUTE)
_NEVER = 1 << 63

_EMPTY = 0.1
"""Share of the median step below which a last step without a task was stopped right after its mark began."""

_STARTS_PROFILER = re.compile(r"torch/profiler/profiler\.py\(\d+\): (?:__enter__|start)$")
_STOPS_PROFILER = re.compile(r"torch/profiler/profiler\.py\(\d+\): (?:__exit__|stop)$")
"""Frames in which torch.profiler starts and stops recording."""


@dataclass(slots=True)
class Segment:
    """A stretch of the host that belongs to one step, or with ``mark`` None to iterations that are not counted.

    On the device it reaches from ``starts`` to ``ends``, and its lead-in from ``leads`` to ``starts``; ``first`` is the
    begin of its first kernel, and ``last`` the end of the last one of its ``tasks``.
    """

    begin: int
    end: int
    mark: Mark | None
    first: int = 0
    leads: int = 0
    starts: int = 0
    ends: int = 0
    tasks: int = 0
    last: int = 0

    @property
    def step(self) -> Mark:
        """The mark of the step that the segment belongs to, which ends with the segment at the latest."""
        assert self.mark is not None  # noqa: S101  (what is not counted is no step)
        return self.mark._replace(end=min(self.mark.end, self.end))


class Split(NamedTuple):
    """A timeline split into segments, in order.

    ``family`` is that of the marks, "" where the whole trace is one step. ``owner`` is the segment that enqueued a
    task, UNKNOWN where none did or no link exists; ``order`` are the tasks in the order of their begin.
    """

    family: str
    segments: list[Segment]
    owner: array[int]
    order: Sequence[int]


def split(trace: RankTrace) -> Split:
    """Split a trace at the marks of its steps into segments, and find the segment to which each task belongs.

    A segment reaches from its mark to the next one, the last one to the end of its mark. A task belongs to the segment
    in which the host enqueued it, or if that is unknown, in which it begins; outside of all segments it belongs to
    none. Uncounted stretches are segments without a mark. If there are no marks, the whole trace is one step. A last
    step in which hardly anything was recorded is uncounted, too.
    """
    family, marks, uncounted = step_marks(trace)
    order, enqueued = trace.tasks.in_order(), trace.tasks.enqueued
    segments = [Segment(mark.begin, mark.end, mark) for mark in marks or _mark_of_trace(trace)]
    segments += [Segment(mark.begin, mark.end, None) for mark in uncounted]
    segments.sort(key=lambda segment: segment.begin)
    for segment, following in itertools.pairwise(segments):
        segment.end = following.begin  # a mark reaches to the next one, or to what is uncounted within it
    begins = [segment.begin for segment in segments]
    end = segments[-1].end if segments else 0
    owner = array("i", (bisect_right(begins, time) - 1 if time < end else UNKNOWN for time in enqueued))
    is_whole = not family and len(segments) == 1
    if is_whole:  # every task is of the only unit, whether or not its launch was recorded
        owner = array("i", [0]) * len(owner)
    _place_on_device(trace, segments, owner, order)
    unlinked = [at for at in order if enqueued[at] == UNKNOWN]
    if unlinked and not is_whole:
        _assign_unlinked(trace, segments, owner, unlinked)
        segments = [Segment(segment.begin, segment.end, segment.mark) for segment in segments]
        _place_on_device(trace, segments, owner, order)
    if trace.metadata is None and _was_stopped_at_once(segments):  # a window of rlpatch ends with a whole step
        segments[-1].mark = None
    return Split(family, segments, owner, order)


def _was_stopped_at_once(segments: Sequence[Segment]) -> bool:
    """Tell whether the last of the ``segments`` has no task on the device, and takes hardly any time on the host.

    Its mark began before the profiler stopped, as that of ``profiler.step()`` does. The steps before it must have
    tasks.
    """
    whole = [segment for segment in segments[:-1] if segment.mark is not None]
    if not any(segment.tasks for segment in whole) or segments[-1].mark is None or segments[-1].tasks:
        return False
    *usual, last = (segment.step.end - segment.begin for segment in (*whole, segments[-1]))
    return last < _EMPTY * lower_median(usual)


def step_marks(trace: RankTrace) -> tuple[str, list[Mark], list[Mark]]:
    """Return the family of the marks that stand for steps, these marks in order, and the marks of uncounted stretches.

    Each mark of a step has a number. Stretches are uncounted if rlpatch marked them so, or if the numbers of the marks
    around them skip a step. A family is a kind of mark, such as ``ProfilerStep#``. The first one in the order of
    preference that the trace has is taken, on the thread with most of its marks. But a single mark, unless the user's
    ``--marks`` chose it, gives way to a later family with several, other than the program's own ranges. Without step
    marks, the family is "", and the list of marks empty.
    """
    threads: dict[str, dict[int, list[Mark]]] = {}
    for thread, mark in trace.marks:
        threads.setdefault(mark.family, {}).setdefault(thread, []).append(mark)
    marks: dict[str, list[Mark]] = {}
    for family, by_thread in threads.items():
        busiest: list[Mark] = max(by_thread.values(), key=len)
        marks[family] = sorted(busiest, key=lambda mark: (mark.begin, -mark.end))
    uncounted = marks.pop(UNCOUNTED, [])
    if NAMED in marks:
        marks[NAMED] = _numbered_steps(marks[NAMED])
    families = [family for family in (WANTED, *FAMILIES) if marks.get(family)]
    if not families:
        return "", [], uncounted
    chosen = families[0]
    if chosen == WANTED:
        marks[chosen] = list(_outermost(marks[chosen]))
    elif len(marks[chosen]) == 1:
        several = (family for family in families[1:] if family != NAMED and len(marks[family]) > 1)
        chosen = next(several, chosen)
    engine_marks = [mark for family in families for mark in marks[family] if family != chosen and mark.contents]
    uncounted += _uncounted_between(marks[chosen])
    return chosen, list(_with_numbers(marks[chosen], engine_marks)), uncounted


def _numbered_steps(marks: Sequence[Mark]) -> list[Mark]:
    """Return the outermost marks of the name that covers the most time, if they can be steps; else an empty list.

    `marks` are sorted by begin, outer ones before inner ones, and not empty. They can be if there are several, their
    numbers rise, and they cover at least half of the time from the first to the last. Digits of a name do not count.
    """
    names: dict[str, list[Mark]] = {}
    for mark in _outermost(marks):
        names.setdefault(re.sub(r"\d+", "", mark.name), []).append(mark)
    steps = max(names.values(), key=_covered)
    rises = all((mark.number or 0) < (following.number or 0) for mark, following in itertools.pairwise(steps))
    return steps if len(steps) > 1 and rises and 2 * _covered(steps) >= steps[-1].end - steps[0].begin else []


def _covered(marks: Sequence[Mark]) -> int:
    """Return the total length of marks in ns; they must not overlap."""
    return sum(mark.end - mark.begin for mark in marks)


def _uncounted_between(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Yield an `UNCOUNTED` mark for each stretch between two marks whose numbers skip a step.

    A stretch counts if it takes over half as long as the mark before it. Without the `UNCOUNTED` mark, the step before
    would reach to the end of the stretch, and seem to take as long as several steps.
    """
    for mark, following in itertools.pairwise(marks):
        skips = mark.number is not None and following.number is not None and following.number > mark.number + 1
        if skips and 2 * (following.begin - mark.end) > mark.end - mark.begin:
            yield Mark(UNCOUNTED, UNCOUNTED, mark.end, following.begin)


def _outermost(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Yield the marks that begin within no mark yielded before; ``marks`` are by begin, the outer before the inner."""
    end = -_NEVER
    for mark in marks:
        if mark.begin >= end:
            yield mark
            end = mark.end


def _with_numbers(marks: Sequence[Mark], engine_marks: Sequence[Mark]) -> Iterator[Mark]:
    """Yield the ``marks`` of steps, each with a number and, if known, with contents such as requests.

    A mark without a number gets its position in ``marks``, from 0. If exactly one of ``engine_marks`` begins within the
    step, its contents replace those of the mark.
    """
    for number, mark in enumerate(marks):
        within = [other for other in engine_marks if mark.begin <= other.begin < mark.end]
        numbered = mark if mark.number is not None else mark._replace(number=number)
        yield numbered._replace(contents=within[0].contents) if len(within) == 1 else numbered


def _mark_of_trace(trace: RankTrace) -> list[Mark]:
    """Return one mark, numbered 0, around the whole trace; an empty list if the trace has no events.

    Without a device, Python counts from the end of the profiler's start to its stop, too: no operator need run then.
    """
    times = list(trace.spans())
    if times and not len(trace.tasks):
        times += _span_of_frames(trace)
    first = min((time for time in trace.tasks.enqueued if time != UNKNOWN), default=None)
    times += [(first, max(trace.tasks.enqueued) + 1)] if first is not None else []
    return [Mark("", Text("the whole trace"), min(b for b, _ in times), max(e for _, e in times), 0)] if times else []


def _span_of_frames(trace: RankTrace) -> Iterator[tuple[int, int]]:
    """Yield begin and end in ns of the Python frames on the thread with most operators; nothing without frames.

    The frames that start and stop torch.profiler do not count, nor what lies before or after them.
    """
    busiest = max(range(len(trace.operators)), key=lambda thread: len(trace.operators[thread].begin))
    frames = trace.frames.get(busiest)
    if not frames:
        return
    begin, end = min(frames.begin), max(frames.end)
    for first, last, name in zip(frames.begin, frames.end, frames.name, strict=True):
        if _STARTS_PROFILER.search(trace.names.texts[name]):
            begin = max(begin, last)
        elif _STOPS_PROFILER.search(trace.names.texts[name]):
            end = min(end, first)
    if begin < end:
        yield begin, end


def _assign_unlinked(trace: RankTrace, segments: Sequence[Segment], owner: array[int], unlinked: Sequence[int]) -> None:
    """Set the ``owner`` of tasks whose launch is unknown (``unlinked``), in place, to the segment in which they begin.

    A segment's stretch on the device counts, or if no task at all has a launch, that on the host. A task between two
    stretches belongs to the first of them; before the first or after the last stretch, it gets UNKNOWN.
    """
    begin = trace.tasks.begin
    stretches = [
        (segment.starts, segment.ends, at) for at, segment in enumerate(segments) if segment.ends > segment.starts
    ]
    if len(unlinked) == len(trace.tasks):
        stretches = [(segment.begin, segment.end, at) for at, segment in enumerate(segments)]
    begins = [begins for begins, _, _ in stretches]
    for task in unlinked:
        place = bisect_right(begins, begin[task]) - 1
        owner[task] = stretches[place][2] if place >= 0 and begin[task] < stretches[-1][1] else UNKNOWN


def _place_on_device(trace: RankTrace, segments: Sequence[Segment], owner: Sequence[int], order: Sequence[int]) -> None:
    """Set the times of ``segments`` on the device (``leads``, ``starts``, ``ends``), and the numbers of their tasks.

    A segment starts at its first computing task on the busiest stream; without one, at its first other computing task,
    else collective, else copy. It ends where the next one starts, the last segment at the end of its last task. Only
    the first segment may have time before its start, from ``leads`` on. A segment without tasks stays as it is.
    ``owner`` has the segment of each task, ``order`` the tasks by begin.
    """
    tasks, busiest = trace.tasks, _busiest_stream(trace, owner)
    ranked = [4] * len(segments)  # how good a beginning is: of the busiest stream, compute, communication, a copy
    for at in order:
        if owner[at] == UNKNOWN:
            continue
        segment, begin, end, kind = segments[owner[at]], tasks.begin[at], tasks.end[at], tasks.kind[at]
        rank = 0 if kind == _COMPUTE and tasks.stream[at] == busiest else 1 + kind
        if rank < ranked[owner[at]]:
            ranked[owner[at]], segment.first = rank, begin
        segment.tasks += 1
        segment.last = max(segment.last, end)
    real = [segment for segment in segments if segment.tasks]
    starts = itertools.accumulate((segment.first for segment in real), max)
    ends = (*(segment.first for segment in real[1:]), *(segment.last for segment in real[-1:]))
    for segment, start, end in zip(real, starts, ends, strict=True):
        segment.leads, segment.starts, segment.ends = start, start, max(start, end)
    if real:
        real[0].leads = _device_begin(trace, real[0], segments.index(real[0]), owner, order)


def _busiest_stream(trace: RankTrace, owner: Sequence[int]) -> int:
    """Return the stream whose tasks compute longest, among the tasks that belong to a segment; UNKNOWN without any.

    ``owner`` has the segment of each task, or UNKNOWN.
    """
    tasks, busy = trace.tasks, Counter[int]()
    for at, segment in enumerate(owner):
        if segment != UNKNOWN and tasks.kind[at] == _COMPUTE:
            busy[tasks.stream[at]] += tasks.end[at] - tasks.begin[at]
    return max(busy, key=lambda stream: (busy[stream], -stream), default=UNKNOWN)


def _device_begin(trace: RankTrace, segment: Segment, number: int, owner: Sequence[int], order: Sequence[int]) -> int:
    """Return when ``segment`` begins on the device: at its mark or first task, but not before earlier work has ended.

    The mark counts only if it ends after the first task begins; otherwise the host ran ahead of the device. Without a
    mark, the result is the time ``starts``. ``number`` is the index of the segment, ``owner`` has the segment of each
    task, ``order`` the tasks by begin. The result is in ns.
    """
    if segment.mark is None:
        return segment.starts
    tasks, earliest, before = trace.tasks, segment.starts, -_NEVER
    for at in order:
        if tasks.begin[at] >= segment.starts:
            break
        if owner[at] == number:
            earliest = min(earliest, tasks.begin[at])
        else:
            before = max(before, tasks.end[at])
    if segment.mark.end > earliest:
        earliest = min(earliest, segment.begin)
    return min(max(earliest, before), segment.starts)
