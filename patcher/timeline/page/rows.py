"""The rows of the picture, as values: each has bars for one lane, or for many lanes of a role together.

In a row of many lanes, a bar is solid where all of them have the span, and pale where only some have it. Spans that
overlap in one lane (trajectories, requests) are drawn likewise.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import Text
from patcher.timeline.intervals import at_least as ranges_of
from patcher.timeline.intervals import overlap_counts
from patcher.timeline.model import IterationRun, Lane, LaneSpan, RunTimeline

ORDER = ("driver", "agent", "balancer", "reward", "server", "engine", "trainer", "other")
"""Roles from top to bottom: callers before those that they call."""

AT_ONCE = ("trajectory", "request", "serve", "reward")
"""Kinds of which one lane has many at once."""

MANY = 6
ALONE = 2
"""More lanes of a role than ``MANY`` are one row, but for ``ALONE`` of them: those that steps waited for longest."""

HEIGHTS = (16, 12, 6)
LOW = (12, 6, 4)
"""Heights of the levels in pixels; ``LOW`` for a row that holds more than nested intervals."""

_GAP = 5
_LEAST = 13  # has the label of the row

HUES = (
    ("sync", r"update_weights|weight|sync|abort"), ("wait", r"^all_gather|^barrier|wait|^sample$"),
    ("reward", r"reward|score|^rm$"), ("old", r"old_?log|log_?prob"), ("ref", r"ref"), ("values", r"value|critic"),
    ("adv", r"adv"), ("update", r"update|train|optimizer|batch|backward"),
    ("gen", r"gen|rollout|serve|trajectory|request"),
    ("sleep", r"sleep|wake"),
)  # fmt: skip
"""A colour for what is done, whatever the framework calls it: the first pattern that fits the name, then the kind."""


OTHERS = Text("other spans")
"""The name of bars that stand for many names."""


class Interval(NamedTuple):
    """Start and end in seconds; ``notes`` are empty or three numbers: iterations, pure decodes, most requests."""

    start: float
    end: float
    notes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Bars:
    """Bars of one name; ``top`` and ``height`` are pixels within the row.

    ``pale`` marks bars of some, not all, lanes of the row; ``odd`` marks every other one of adjacent units.
    """

    name: str
    hue: str
    top: int
    height: int
    intervals: tuple[Interval, ...]
    pale: bool = False
    odd: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """Lanes, by index, that are drawn as one; ``height`` is in pixels, ``joined`` the number of names in `OTHERS`."""

    role: str
    lanes: tuple[int, ...]
    bars: tuple[Bars, ...]
    height: int
    joined: int = 0


def hue(kind: str, name: str) -> str:
    """Return the colour class of a span, by the first pattern that fits its name or else its kind; "rest" if none fits.

    Syncs, sleeps, waits and polls go by their kind alone; polls look like waits.
    """
    if kind in ("sync", "sleep", "wait", "poll"):
        return {"poll": "wait"}.get(kind, kind)
    return next((color for text in (name, kind) for color, pattern in HUES if re.search(pattern, text)), "rest")


def rows(timeline: RunTimeline, most_names: int) -> tuple[Row, ...]:
    """Return the rows of a run's picture from the top, by role, replica and rank; lanes without records have none.

    Most lanes of a role with over six share a row. ``most_names`` limits the names of bars at each nesting level of a
    row; the shortest-lived names are merged.
    """
    awaited = defaultdict[int, float](float)
    for segment in itertools.chain.from_iterable(step.critical_path for step in timeline.steps):
        if segment.lane is not None:
            awaited[segment.lane] += segment.seconds
    built = []
    for role in ORDER:
        lanes = [at for at, lane in enumerate(timeline.lanes) if lane.role == role and (lane.spans or lane.iterations)]
        lanes.sort(key=lambda at: [(n is None, n or 0) for n in (timeline.lanes[at].replica, timeline.lanes[at].rank)])
        groups = _group_lanes(lanes, awaited)
        levels = 3 if len(groups) <= ALONE else 2
        built += [_row(role, group, [timeline.lanes[at] for at in group], levels, most_names) for group in groups]
    return tuple(built)


def _group_lanes(lanes: Sequence[int], awaited: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Return the lanes of a role, by index, grouped into rows: one lane a row if there are at most six.

    Else the two lanes that steps waited for longest, if for any, have rows of their own, and all others share a row.
    """
    if len(lanes) <= MANY:
        return [(at,) for at in lanes]
    longest = sorted(lanes, key=lambda at: -awaited.get(at, 0.0))[:ALONE]
    alone = [at for at in lanes if at in longest and awaited.get(at)]
    return [*((at,) for at in alone), tuple(at for at in lanes if at not in alone)]


def _row(role: str, indices: tuple[int, ...], lanes: Sequence[Lane], levels: int, most_names: int) -> Row:
    """Return one row of the picture for all ``lanes`` of a role together; ``indices`` are their indices in the run.

    From the top, the row has bars of nested spans or of iterations, then of spans that overlap, as requests do.
    ``levels`` is the number of nesting levels (one if there are iterations), ``most_names`` limits the names at each.
    """
    runs = [run for lane in lanes for run in lane.iterations]
    crowds = {kind: [span for lane in lanes for span in lane.spans if span.kind == kind] for kind in AT_ONCE}
    nested = defaultdict[_Key, list[Interval]](list)
    for lane in lanes:
        for key, interval in _nested_spans(lane, 1 if runs else levels):
            nested[key._replace(odd=key.odd and len(lanes) == 1)].append(interval)
    joined = _join_names(nested, most_names)
    bars, top = _nested_bars(nested, len(lanes), LOW if any(crowds.values()) else HEIGHTS)
    if runs:
        bars += _iterations(runs, len(lanes))
        top = max(top, HEIGHTS[0])
    for kind, spans in crowds.items():
        if spans:
            place = (top + (top > 0), 10 if role == "reward" else 8)
            bars += _overlapping_bars(kind, spans, lanes, place)
            top = sum(place)
    return Row(role, indices, tuple(bars), max(top, _LEAST) + _GAP, joined)


def _overlapping_bars(
    kind: str, spans: Sequence[LaneSpan], lanes: Sequence[Lane], place: tuple[int, int]
) -> Iterator[Bars]:
    """Yield bars for spans of ``kind``: solid where at least half as many overlap as at the peak, else pale.

    Spans that go on end with the last record of their ``lanes``.
    """
    names = {span.name for span in spans} - {""}
    name = names.pop() if len(names) == 1 else kind
    ends = [Interval(span.start, _end(span, lanes)) for span in spans]
    return _pale_and_solid(name, hue(kind, name), place, ends, max(-(-peak(ends) // 2), 1))


class _Key(NamedTuple):
    """Nesting level, colour, name, and whether it is an odd unit: spans that are one path."""

    level: int
    hue: str
    name: str
    odd: bool


def _join_names(nested: dict[_Key, list[Interval]], most: int) -> int:
    """Rename all but the ``most`` longest-lasting names of each level to `OTHERS`, and return how many were renamed.

    ``nested`` is changed in place: the intervals of the renamed names are merged.
    """
    levels = defaultdict[int, list[_Key]](list)
    for key in nested:
        levels[key.level].append(key)
    joined = 0
    for level, keys in levels.items():
        if len(keys) > most:
            keys.sort(key=lambda key: -sum(map(_length, nested[key])))
            intervals = [interval for key in keys[most:] for interval in nested.pop(key)]
            merged_key = _Key(level, "rest", OTHERS, odd=False)
            nested[merged_key] = list(at_least(1, intervals + nested.pop(merged_key, [])))
            joined += len(keys) - most
    return joined


def _nested_bars(
    nested: Mapping[_Key, Sequence[Interval]], lanes: int, heights: Sequence[int]
) -> tuple[list[Bars], int]:
    """Return bars for nested spans, and their total height in pixels.

    ``lanes`` is the number of lanes in the row; bars are solid where all of these have the span. Those of merged names
    (`OTHERS`) are always solid. ``heights`` has the pixels of each level.
    """
    bars: list[Bars] = []
    bottom = 0
    for (level, colour, name, odd), intervals in sorted(nested.items()):
        place = (sum(heights[:level]) + level, heights[level])
        of = 1 if name == OTHERS else lanes
        bars += _pale_and_solid(name, colour, place, intervals, of, odd=odd)
        bottom = sum(place)
    return bars, bottom


def _end(span: LaneSpan, lanes: Sequence[Lane]) -> float:
    """Return the end of a span in seconds; for a span that goes on, the last record of ``lanes``."""
    return span.end if span.end is not None else max(span.start, *(lane.seen[1] for lane in lanes))


def _nested_spans(lane: Lane, levels: int) -> Iterator[tuple[_Key, Interval]]:
    """Yield the spans of a lane that nest, sorted by start, with everything deeper than ``levels`` at the last level.

    A micro-batch or other unit has the colour of the span around it, and every other unit is odd. Marks of steps,
    phases with the name ``step`` and kinds that run many at once (requests, for example) are left out.
    """
    around: list[tuple[float, str]] = []
    units = 0
    spans = [span for span in lane.spans if span.kind not in AT_ONCE and span.kind != "step"]
    for span in sorted(spans, key=lambda span: (span.start, -_end(span, [lane]))):
        if span.kind == "phase" and span.name == "step":
            continue
        while around and around[-1][0] <= span.start + 1e-6:
            around.pop()
        unit = span.kind == "unit"
        units += unit
        colour = around[-1][1] if unit and around else hue(span.kind, span.name)
        end = _end(span, [lane])
        key = _Key(min(len(around), levels - 1), colour, span.name or span.kind, odd=unit and units % 2 == 1)
        yield key, Interval(span.start, end)
        around.append((end, colour))


def _pale_and_solid(
    name: str, colour: str, place: tuple[int, int], intervals: Sequence[Interval], least: int, *, odd: bool = False
) -> Iterator[Bars]:
    """Yield paler bars where any interval lies, then solid bars where at least ``least`` intervals overlap.

    With ``least`` 1, all bars are solid. ``odd`` gives the solid bars another shade, for every other one of adjacent
    units (such as micro-batches).
    """
    if least > 1:
        yield Bars(name, colour, *place, tuple(at_least(1, intervals)), pale=True)
        intervals = tuple(at_least(least, intervals))
    if intervals:
        yield Bars(name, colour, *place, tuple(intervals), odd=odd)


def _iterations(runs: Iterable[IterationRun], lanes: int) -> Iterator[Bars]:
    """Yield bars for runs of iterations, with another colour for those of which over half only decode.

    ``lanes`` is the number of lanes in the row: bars are solid where all of them iterate. Where bars of several lanes
    are merged they have no notes; else each notes its iterations, decodes and requests.
    """
    kinds: dict[str, list[Interval]] = {"iterations": [], "decodes": []}
    for run in runs:
        notes = (run.iterations, run.decodes, run.requests)
        kinds["decodes" if 2 * run.decodes > run.iterations else "iterations"].append(
            Interval(run.start, run.end, notes)
        )
    for name, intervals in kinds.items():
        yield from _pale_and_solid(name, name, (0, HEIGHTS[0]), intervals, lanes)


def peak(intervals: Iterable[Interval]) -> int:
    """Return the maximum number of intervals that overlap."""
    return max((count for _, count in overlap_counts(interval[:2] for interval in intervals)), default=0)


def at_least(least: int, intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the ranges in which at least ``least`` intervals overlap, in order and without notes."""
    return (Interval(*both) for both in ranges_of(least, (interval[:2] for interval in intervals)))


def merged(intervals: Iterable[Interval], shortest: float) -> list[Interval]:
    """Merge neighbours less than ``shortest`` seconds apart, if at least one of them is shorter; return all, sorted.

    The numbers of iterations in the notes are summed; of the requests, the maximum is kept.
    """
    joined: list[Interval] = []
    for interval in sorted(intervals):
        before = joined[-1] if joined else None
        if before and interval.start - before.end < shortest and min(_length(interval), _length(before)) < shortest:
            joined[-1] = Interval(
                before.start, max(before.end, interval.end), _merge_notes(before.notes, interval.notes)
            )
        else:
            joined.append(interval)
    return joined


def _length(interval: Interval) -> float:
    return interval.end - interval.start


def _merge_notes(notes: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    """Return the notes of two merged bars: iterations and decodes summed, the maximum of requests."""
    if not notes or not more:
        return notes or more
    return (notes[0] + more[0], notes[1] + more[1], max(notes[2], more[2]))
