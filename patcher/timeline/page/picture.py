"""The picture of a run: its rows as one SVG that is readable without a script; the script zooms.

Each path holds the bars of one name in one row, as horizontal strokes in ticks of the run: nothing else is needed to
draw them at any scale, so they are the script's data too. What else it needs stands beside them as JSON.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from patcher.messages import Text, joined
from patcher.page import zoomable
from patcher.page.markup import Content, Markup, data_block, faint, tag
from patcher.timeline.lengths import seconds
from patcher.timeline.model import (
    NOT_KNOWN,
    ROLES,
    SEVERAL,
    TYPICAL,
    MemoryPlace,
    PathSegment,
    RunTimeline,
    TrainingStep,
    doing,
    label,
)
from patcher.timeline.page import memory
from patcher.timeline.page.rows import OTHERS, Interval, Row, merged, rows

RECORDED, WINDOWS = Text("Recorded windows"), Text("Suggested recording windows")
CAUSES = Text("several causes")
_PATH = Text("critical path: the step waited for this process")
_GAP = Text("critical path: time without any record")
_ITERATING = {"iterations": Text("engine iterations"), "decodes": Text("engine iterations, mostly decode")}
_HINT = Text(
    "Move and zoom: drag or pinch the picture, or click it and use the mouse wheel. Keys: + and − zoom, ← and → move,"
    " 0 shows everything, n and p go to the next and previous step."
)
_DOT = " \N{MIDDLE DOT} "

TICKS = 4_000_000
"""Ticks of the whole run, the smallest interval drawn; a browser's 32-bit numbers still tell them apart."""

_HEAD = 36
_CURVE = 44
_AXIS = 20
_MARKS = 12
_LANE = memory.HEIGHT + memory.GAP
_LABELLED = 0.04  # of the run: bars that long have their name without the script, too
_CROWDED = 120  # lines from one row to another, or steps: beyond, they hide what they explain
_NAMED = 12  # steps whose heads have room for words then


class Frame(NamedTuple):
    """Visible part of the run: ``seconds`` from ``start`` on.

    Bars shorter than ``shortest`` seconds are merged with neighbours.
    """

    start: float
    seconds: float
    shortest: float

    @property
    def end(self) -> float:
        """Return the end of the visible part in seconds."""
        return self.start + self.seconds

    def ticks(self, at: float) -> int:
        """Return the horizontal position of a time in ticks, limited to the frame."""
        return round(min(max((at - self.start) / self.seconds, 0.0), 1.0) * TICKS)

    def percent(self, at: float) -> str:
        """Return the horizontal position of a time as a percentage of the width, with the sign."""
        return f"{self.ticks(at) / TICKS * 100:.3f}%"

    def within(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Return the intervals that overlap the frame."""
        return [interval for interval in intervals if interval.end > self.start and interval.start < self.end]


def visible_frame(timeline: RunTimeline, bars_across: int) -> Frame:
    """Return the part of the run to draw: all steps, with 2 % of their time before and after them.

    All time after the last step is included if it is shorter than twice the longest step. Without steps it is the whole
    run.
    """
    start, end = 0.0, timeline.seconds
    if timeline.steps:
        whole = timeline.steps[-1].end - timeline.steps[0].start
        longest = max(step.seconds for step in timeline.steps)
        start = max(timeline.steps[0].start - 0.02 * whole, 0.0)
        behind = timeline.seconds - timeline.steps[-1].end
        end = timeline.seconds if behind < 2 * longest else timeline.steps[-1].end + 0.02 * whole
    return Frame(start, max(end - start, 1e-6), max(end - start, 1e-6) / bars_across)


class Placed(NamedTuple):
    """A row with its label, and the position of its top in pixels."""

    row: Row
    top: int
    label: str

    @property
    def bottom(self) -> int:
        """Return the vertical position at which the critical path is drawn, in pixels."""
        return self.top + self.row.height - 3


def picture(timeline: RunTimeline, bars_across: int) -> Content:
    """Return the picture of the run as HTML: SVG, controls, legend and notes; None if no process has a row."""
    frame = visible_frame(timeline, bars_across)
    placed, curve, height = _place_rows(timeline, bars_across // 100)
    if not placed:
        return None
    lanes = [(place, height - _AXIS + at * _LANE) for at, place in enumerate(memory.places(timeline))]
    height += len(lanes) * _LANE
    row_bars = [_row_bars(place, frame) for place in placed]
    drawn = [bars for row, _ in row_bars for bars in row]
    around = (
        _window_bars(timeline, frame),
        _request_curve(timeline, frame, curve),
        _critical_path(timeline, placed, frame),
    )
    names = [tag("text", place.label, tag("title", place.label), x=0, y=place.top + 12) for place in placed]
    names.append(tag("text", Text("running requests"), x=0, y=curve + 14))
    most = max((count for _, count in timeline.requests), default=0)
    names.append(tag("text", Text("peak: {count} requests", most), x=0, y=curve + 28, class_="less"))
    if timeline.windows or timeline.recorded:
        names.append(tag("text", Text("recording windows"), x=0, y=_HEAD + 9))
    names += itertools.chain.from_iterable(memory.labels(place, top) for place, top in lanes)
    over = (
        _step_heads(timeline, frame, height),
        _axis(frame, height),
        tag("g", _bar_names(placed, frame), class_="labels"),
    )
    hatch = tag("pattern", tag("path", d=f"M0 1H{TICKS}", class_="hatch"), id="hatch", width=TICKS, height=4,
                patternUnits="userSpaceOnUse")  # fmt: skip
    held = (
        memory.areas(place, top, frame.ticks, (frame.start, frame.end), max(frame.shortest, frame.seconds / 5_000))
        for place, top in lanes
    )
    bars = (tag("defs", hatch), around[0], around[1], drawn, list(itertools.chain.from_iterable(held)), around[2])
    steps = [tag("option", step_head(step), value=step.step) for step in timeline.steps]
    choice = tag("select", tag("option", Text("all steps"), value=""), steps, aria_label=Text("step"))
    return tag(
        "div",
        zoomable(
            names, bars, over, (TICKS, height), choice, label=Text("The run"), whole=Text("all steps"), hint=_HINT
        ),
        _legend(placed, timeline, [place for place, _ in lanes]),
        map(faint, _omission_notes(placed, timeline, frame, sum(merged_count for _, merged_count in row_bars))),
        data_block("run", _script_data(timeline, frame)),
        class_="picture",
    )


def _place_rows(timeline: RunTimeline, most_names: int) -> tuple[list[Placed], int, int]:
    """Return the rows with their positions, the top of the curve of requests, and the total height, in pixels.

    The curve is below the last engine, server, agent or reward row, else below the first row. The height includes the
    curve and the time axis.
    """
    y = _HEAD + 6 + _MARKS * bool(timeline.windows or timeline.recorded)
    built_rows = rows(timeline, most_names)
    serving = ("engine", "server", "agent", "reward")
    below = max((at for at, row in enumerate(built_rows) if row.role in serving), default=0)
    placed, curve = [], y
    for at, row in enumerate(built_rows):
        placed.append(Placed(row, y, _label(row, built_rows, timeline)))
        y += row.height
        if at == below:
            curve, y = y, y + _CURVE + 6
    return placed, curve, y + _AXIS


def _label(row: Row, all_rows: Sequence[Row], timeline: RunTimeline) -> str:
    """Return the label of a row: the role and the number of processes, if it has several."""
    if len(row.lanes) > 1:
        return Text("{role}: {count} processes", role=ROLES[row.role], count=len(row.lanes))
    lane = timeline.lanes[row.lanes[0]]
    role_lanes = [timeline.lanes[at] for other in all_rows if other.role == row.role for at in other.lanes]
    in_replica = [other for other in role_lanes if other.replica == lane.replica]
    alone = lane.replica is not None and len(in_replica) == 1
    name = label(lane.role, lane.replica, None if alone else lane.rank)
    same = len([other for other in in_replica if other.rank == lane.rank]) > 1
    return Text("{process} (#{number})", process=name, number=lane.number) if same else name


def _row_bars(placed: Placed, frame: Frame) -> tuple[list[Markup], int]:
    """Return the bars of a row within the frame as SVG paths, paler first, and how many bars merging removed."""
    paths, merged_count = list[Markup](), 0
    for bars in sorted(placed.row.bars, key=lambda bars: not bars.pale):
        within = frame.within(bars.intervals)
        intervals = merged(within, frame.shortest)
        merged_count += len(within) - len(intervals)
        classes = ["b", f"k-{bars.hue}", *["pale"] * bars.pale, *["odd"] * bars.odd]
        title = joined(_DOT, (_ITERATING.get(bars.name, bars.name), placed.label))
        paths.append(_strokes(intervals, frame, placed.top + bars.top, bars.height, title, classes))
    return paths, merged_count


def _strokes(
    intervals: Sequence[Interval], frame: Frame, top: float, height: int, title: str, classes: Iterable[str]
) -> Markup:
    """Return a bar for each interval, as one SVG path with the notes of the intervals as data.

    Return an empty Markup if none lies in the frame. ``intervals`` must be sorted; their bars are at least a tick wide,
    and never overlap.
    """
    intervals = frame.within(intervals)
    if not intervals:
        return Markup()
    pieces, at = [], 0
    for number, interval in enumerate(intervals):
        start, end = frame.ticks(interval.start), frame.ticks(interval.end)
        start = max(start, at)
        end = max(end, start + 1)
        pieces.append(f"m{start - at} 0h{end - start}" if number else f"M{start} {top + height / 2:g}h{end - start}")
        at = end
    notes = ",".join(" ".join(map(str, interval.notes)) for interval in intervals if interval.notes)
    return tag(
        "path", tag("title", title), d="".join(pieces), class_=" ".join(classes), stroke_width=height,
        data_notes=notes or None,
    )  # fmt: skip


def _window_bars(timeline: RunTimeline, frame: Frame) -> Iterator[Markup]:
    """Yield bars above the rows for recorded and for proposed windows."""
    for window in timeline.recorded:
        ends = [Interval(window.start, window.end)]
        yield _strokes(ends, frame, _HEAD + 2, 8, joined(_DOT, (window.title, RECORDED)), ("b", "mark"))
    for proposed in timeline.windows:
        ends = [Interval(proposed.start, proposed.end)]
        title = joined(_DOT, (proposed.what, WINDOWS))
        yield _strokes(ends, frame, _HEAD + 4, 4, title, ("b", "mark", "proposed"))


def _request_curve(timeline: RunTimeline, frame: Frame, top: int) -> Iterator[Markup]:
    """Yield the curve of running requests as SVG, its top at ``top`` pixels, and the shaded tails of the steps."""
    tails = [Interval(step.tail.start, step.tail.end) for step in timeline.steps if step.tail]
    most = max((count for _, count in timeline.requests), default=0)
    base = top + _CURVE

    def height(count: int) -> int:
        return round(base - count / most * (_CURVE - 4))

    if most:
        least = max(frame.shortest, frame.seconds / 20_000)
        line = memory.step_curve(timeline.requests, frame.ticks, (frame.start, frame.end), least, height)
        title = tag("title", Text("running requests (peak {count})", most))
        yield tag("path", title, d=f"M0 {base}{line}V{base}", class_="curve")
    if tails:
        yield _strokes(sorted(tails), frame, top, _CURVE, Text("tail"), ("b", "tail"))


def _critical_path(timeline: RunTimeline, placed: Sequence[Placed], frame: Frame) -> Iterator[Markup]:
    """Yield the critical path as SVG: lines below the rows of the processes waited for, and links from row to row."""
    lines: dict[tuple[int, bool], list[Interval]] = {}
    links = []
    for step in timeline.steps:
        before: list[int] = []
        for segment in sorted(step.critical_path, key=lambda place: place.start):
            bottoms = _line_positions(segment, placed)
            for y in bottoms:
                lines.setdefault((y, segment.kind == "gap"), []).append(Interval(segment.start, segment.end))
            if before and not set(before) & set(bottoms):
                place, other = min(itertools.product(before, bottoms), key=lambda pair: abs(pair[0] - pair[1]))
                links.append(f"M{frame.ticks(segment.start)} {place}V{other}")
            before = bottoms
    if links:
        yield tag("path", d="".join(links), class_="links crowded" if len(links) > _CROWDED else "links")
    for (y, gap), intervals in sorted(lines.items()):
        title = _GAP if gap else _PATH
        yield _strokes(merged(intervals, frame.shortest), frame, y - 2, 3, title, ("b", "gap" if gap else "way"))


def _line_positions(segment: PathSegment, placed: Sequence[Placed]) -> list[int]:
    """Return the vertical positions, in pixels, at which a segment of the critical path is drawn.

    That is the bottom of its lane's row, else of all rows of its role, else of the first row of ``placed``.
    """
    same_lane = [place.bottom for place in placed if segment.lane in place.row.lanes]
    same_role = {place.bottom for place in placed if place.row.role == segment.role}
    return same_lane or sorted(same_role) or [placed[0].bottom]


def _step_heads(timeline: RunTimeline, frame: Frame, height: int) -> Iterator[Markup]:
    """Yield for each step its boundary over ``height`` pixels, its number, and a bar coloured by the verdict."""
    steps_per_number = math.ceil(len(timeline.steps) / 16)
    for at, step in enumerate(timeline.steps):
        words = len(timeline.steps) <= _NAMED
        head = step_head(step) if words else "" if at % steps_per_number else step.step
        wide = frame.ticks(step.end) - frame.ticks(step.start)
        yield tag(
            "svg",
            tag("path", d=f"M.5 0V{height - _AXIS}", class_="bound"),
            tag("text", head, x=4, y=12, class_="strong"),
            tag("text", words and step_cause(step), x=4, y=25),
            tag("rect", y=_HEAD - 6, width="100%", height=4, class_=f"v-{step.verdict.replace(' ', '-')}"),
            id=f"step-{step.step}", x=frame.percent(step.start), width=f"{wide / TICKS * 100:.3f}%", height=height,
            class_="head",
        )  # fmt: skip


def step_head(step: TrainingStep) -> str:
    """Return number and duration of a step: ``step 14 · 7.6 s``."""
    return joined(_DOT, (Text("step {step}", step.step), seconds(step.seconds)))


def step_cause(step: TrainingStep) -> str:
    """Return a short text on a step's largest cause with its excess; else the verdict: typical, several, unknown."""
    if step.verdict == "limited" and step.limited_by:
        return Text("+{excess} {cause}", excess=seconds(step.limited_by.excess_seconds), cause=step.limited_by.label)
    return CAUSES if step.verdict == SEVERAL else step.verdict if step.verdict == TYPICAL else NOT_KNOWN


def _axis(frame: Frame, height: int) -> Markup:
    """Return the time axis with two to seven round times; ``height`` is that of the picture."""
    step = 10 ** math.floor(math.log10(frame.seconds / 3))
    step *= next(more for more in (1, 2, 5) if frame.seconds / (step * more) <= 7)
    first, last = math.ceil(frame.start / step), math.floor((frame.start + 0.97 * frame.seconds) / step)
    marks = [
        tag(
            "text",
            seconds(at * step),
            x=frame.percent(at * step),
            y=height - 6,
            text_anchor="middle" if at > first else "start",
        )
        for at in range(first, last + 1)
    ]
    return tag("g", marks, class_="times")


def _bar_names(placed: Sequence[Placed], frame: Frame) -> Iterator[Markup]:
    """Yield SVG texts with the names of bars longer than 4 % of the frame, each cut at the end of its bar."""
    for place in placed:
        paler = {(bars.top, bars.name) for bars in place.row.bars if bars.pale}
        for bars in place.row.bars:
            has_label = bars.height > 10 and bars.hue not in ("iterations", "decodes") and bars.name != OTHERS
            has_label = has_label and (bars.pale or (bars.top, bars.name) not in paler)
            for interval in frame.within(bars.intervals) if has_label else ():
                wide = interval.end - interval.start
                if wide > _LABELLED * frame.seconds:
                    text = tag("text", bars.name, x=4, y=bars.height - 4)
                    size = {"width": f"{wide / frame.seconds * 100:.3f}%", "height": bars.height}
                    yield tag("svg", text, x=frame.percent(interval.start), y=place.top + bars.top, **size)


def _legend(placed: Sequence[Placed], timeline: RunTimeline, lanes: Sequence[MemoryPlace]) -> Markup:
    """Return the legend of the lines, shades and colours that the picture has; ``lanes`` are those of memory."""

    def entry(meaning: str, class_: str, height: int = 3) -> Markup:
        line = tag("path", d="M0 5h20", class_=class_, stroke_width=height)
        return tag("li", tag("svg", line, viewBox="0 0 20 10", aria_hidden="true"), meaning)

    pale = any(bars.pale for place in placed for bars in place.row.bars)
    tail = any(step.tail for step in timeline.steps)
    gap = any(segment.kind == "gap" for step in timeline.steps for segment in step.critical_path)
    iterating = {bars.hue for place in placed for bars in place.row.bars} & {"iterations", "decodes"}
    return tag(
        "ul",
        entry(_PATH, "b way"),
        gap and entry(_GAP, "b gap"),
        tail and entry(Text("long tail: fewer than a tenth of the peak number of requests are running"), "b tail", 10),
        [entry(_ITERATING[name], f"b k-{name}", 10) for name in sorted(iterating)],
        pale and entry(Text("paler colour: only some of the processes are busy"), "b k-gen pale", 10),
        [
            entry(Text("memory: {role}", ROLES[role]), f"b m-{role}", 10)
            for role in dict.fromkeys(role for lane in lanes for role in lane.roles)
        ],
        class_="legend",
    )


def _omission_notes(placed: Sequence[Placed], timeline: RunTimeline, frame: Frame, merged_bars: int) -> Iterator[str]:
    """Yield texts on everything that the picture leaves out or merges: time, processes, bars, names and spans."""
    if frame.seconds < 0.97 * timeline.seconds:
        yield Text(
            "The picture shows the run from {start} to {end} (of {total}), without the time before the first step and"
            " after the last one.",
            start=seconds(frame.start),
            end=seconds(frame.end),
            total=seconds(timeline.seconds),
        )
    grouped = sum(len(place.row.lanes) for place in placed if len(place.row.lanes) > 1)
    if grouped:
        yield Text(
            "{count} processes share rows with other processes of the same role. A shared row is solid where all of its"
            " processes are busy, and paler where only some are.",
            grouped,
        )
    if merged_bars:
        yield Text(
            "{count} bars shorter than {time} are merged with their neighbours.",
            count=f"{merged_bars:,}",
            time=seconds(frame.shortest),
        )
    if names := sum(place.row.joined for place in placed):
        yield Text(
            "Short spans with {count} different names are drawn under a single name: {name}.",
            count=f"{names:,}",
            name=OTHERS,
        )
    if omitted := sum(lane.left_out for lane in timeline.lanes):
        yield Text("{count} short spans are not drawn.", f"{omitted:,}")


def _script_data(timeline: RunTimeline, frame: Frame) -> object:
    """Return the JSON data for the page's script: steps, segments of the critical path, and texts.

    Positions are in ticks. ``path`` leaves out segments below ``frame.shortest`` seconds. It has three numbers for each
    other one: distance from the end of the one before, length, and index of its text in ``names``.
    """
    names: dict[str, int] = {}
    path, at = list[int](), 0
    for step in timeline.steps:
        for segment in sorted(step.critical_path, key=lambda place: place.start):
            start, end = frame.ticks(segment.start), frame.ticks(segment.end)
            if segment.end - segment.start >= frame.shortest:
                path += [start - at, end - start, names.setdefault(_segment_text(segment), len(names))]
                at = end
    steps = [
        [step.step, frame.ticks(step.start), frame.ticks(step.end), step_head(step), step_cause(step)]
        for step in timeline.steps
    ]
    runs = Text(
        "{total} iterations ({decodes} decode-only), up to {requests} requests per iteration",
        total="{0}",
        decodes="{1}",
        requests="{2}",
    )
    return {
        "start": frame.start,
        "seconds": frame.seconds,
        "ticks": TICKS,
        "steps": steps,
        "names": list(names),
        "path": path,
        "words": {"awaited": Text("process that the step waited for"), "runs": runs},
    }


def _segment_text(segment: PathSegment) -> str:
    process = label(segment.role, segment.replica, segment.rank)
    return doing(process, segment.what or segment.kind, segment.phase)
