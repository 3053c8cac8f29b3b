"""The picture of a run: its rows drawn as one SVG that is readable as it stands, and that the script draws closer.

Each path holds the bars of one name in one row, as horizontal strokes in ticks of the run: nothing else is needed to
draw them at any scale, so they are the script's data too. What else it needs stands beside them as JSON.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from patcher.page.markup import Content, Markup, data_block, faint, tag
from patcher.timeline.model import ROLES, PathSegment, RunTimeline, TrainingStep
from patcher.timeline.page.rows import OTHERS, Interval, Row, merged, rows
from patcher.timeline.page.texts import Say, cause, seconds, who
from patcher.timeline.shares import highest_and_last

TICKS = 4_000_000
"""Of the whole run: a tick is the least that is drawn, and 32 bits of a browser's numbers still keep them apart."""

_HEAD = 36
_CURVE = 44
_AXIS = 20
_MARKS = 12
_LABELLED = 0.04  # of the run: bars that long have their name without the script, too
_CROWDED = 120  # lines from one row to another, or steps: beyond, they hide what they explain
_NAMED = 12  # steps whose heads have room for words then


class Frame(NamedTuple):
    """What is drawn, from ``start`` on and so many ``seconds``, in ticks; bars below ``shortest`` join neighbours."""

    start: float
    seconds: float
    shortest: float

    @property
    def end(self) -> float:
        """Where it ends."""
        return self.start + self.seconds

    def ticks(self, at: float) -> int:
        """The place of a time."""
        return round(min(max((at - self.start) / self.seconds, 0.0), 1.0) * TICKS)

    def percent(self, at: float) -> str:
        """The place of a time, as a share of the width."""
        return f"{self.ticks(at) / TICKS * 100:.3f}%"

    def within(self, intervals: Iterable[Interval]) -> list[Interval]:
        """Those of which a part is drawn."""
        return [one for one in intervals if one.end > self.start and one.start < self.end]


def frame_of(found: RunTimeline, parts: int) -> Frame:
    """The frame of the steps with a little around them: a start of minutes would leave no room for them.

    What follows the last step is drawn where it can be the step that still goes on. ``parts`` is how many bars fit.
    """
    start, end = 0.0, found.seconds
    if found.steps:
        whole = found.steps[-1].end - found.steps[0].start
        longest = max(step.seconds for step in found.steps)
        start = max(found.steps[0].start - 0.02 * whole, 0.0)
        behind = found.seconds - found.steps[-1].end
        end = found.seconds if behind < 2 * longest else found.steps[-1].end + 0.02 * whole
    return Frame(start, max(end - start, 1e-6), max(end - start, 1e-6) / parts)


class Placed(NamedTuple):
    """A row and where it begins, in pixels."""

    row: Row
    top: int
    label: str


def picture(found: RunTimeline, say: Say, parts: int) -> Content:
    """The picture with its controls and legend, in which ``parts`` bars fit beside each other; None without a lane."""
    frame = frame_of(found, parts)
    placed, curve, height = _places(found, say, max(parts // 100, 1))
    if not placed:
        return None
    counted = [0]  # bars that were joined to others
    drawn = list(itertools.chain.from_iterable(_row(one, frame, counted, say) for one in placed))
    around = (_marks(found, frame, say), _requests(found, frame, curve, say), _ways(found, placed, frame, say))
    names = [tag("text", one.label, tag("title", one.label), x=0, y=one.top + 12) for one in placed]
    names.append(tag("text", say("requests"), x=0, y=curve + 14))
    most = max((count for _, count in found.requests), default=0)
    names.append(tag("text", say("most", count=most), x=0, y=curve + 28, class_="less"))
    if found.windows or found.recorded:
        names.append(tag("text", say("marks"), x=0, y=_HEAD + 9))
    over = (_heads(found, frame, height, say), _axis(frame, height), tag("g", _labels(placed, frame), class_="labels"))
    flat = {"preserveAspectRatio": "none", "height": height}
    hatch = tag("pattern", tag("path", d=f"M0 1H{TICKS}", class_="hatch"), id="hatch", width=TICKS, height=4,
                patternUnits="userSpaceOnUse")  # fmt: skip
    return tag(
        "div",
        _controls(found, say),
        tag(
            "div",
            tag("svg", names, class_="names", height=height),
            tag(
                "div",
                tag("svg", tag("defs", hatch), around[0], around[1], drawn, around[2], class_="bars",
                    viewBox=f"0 0 {TICKS} {height}", **flat),
                tag("svg", over, class_="over", height=height),
                class_="plot", tabindex=0, role="group", aria_label=say("picture"),
            ),
            class_="view",
        ),
        tag("p", say("hint"), class_="about faint", hidden=True),
        _legend(placed, found, say),
        map(faint, _aggregated(placed, found, frame, counted[0], say)),
        data_block("run", _data(found, frame, say)),
        class_="picture",
    )  # fmt: skip


def _places(found: RunTimeline, say: Say, names: int) -> tuple[list[Placed], int, int]:
    """The rows with their places, the place of the curve (below the last engine or server), and the height of all."""
    y = _HEAD + 6 + _MARKS * bool(found.windows or found.recorded)
    made = rows(found, names)
    below = max((at for at, row in enumerate(made) if row.role in ("engine", "server", "agent", "reward")), default=-1)
    placed, curve = [], y
    for at, row in enumerate(made):
        placed.append(Placed(row, y, _label(row, made, found, say)))
        y += row.height
        if at == max(below, 0):
            curve, y = y, y + _CURVE + 6
    return placed, curve, y + _AXIS


def _label(row: Row, made: Sequence[Row], found: RunTimeline, say: Say) -> str:
    """The name of a row, as short as it can be and still be no other's."""
    if len(row.lanes) > 1:
        return say("grouped", role=say(f"role {row.role}"), count=len(row.lanes))
    lane = found.lanes[row.lanes[0]]
    others = [found.lanes[at] for other in made if other.role == row.role for at in other.lanes]
    alone = (
        lane.rank is not None and sum(one.replica == lane.replica for one in others) == 1 and lane.replica is not None
    )
    label = who(say, lane.role, lane.replica, None if alone else lane.rank)
    same = len([one for one in others if (one.replica, one.rank) == (lane.replica, lane.rank)]) > 1
    return say("number_n", who=label, number=lane.number) if same else label


def _row(placed: Placed, frame: Frame, counted: list[int], say: Say) -> Iterator[Markup]:
    """The bars of a row, paler ones below; ``counted`` grows by those that were joined to others."""
    for bars in sorted(placed.row.bars, key=lambda one: not one.pale):
        within = frame.within(bars.intervals)
        intervals = merged(within, frame.shortest)
        counted[0] += len(within) - len(intervals)
        classes = ["b", f"k-{bars.hue}", *["pale"] * bars.pale, *["odd"] * bars.odd]
        name = say(bars.name) if bars.name in ("iterations", "decodes", OTHERS) else bars.name
        yield _strokes(
            intervals, frame, placed.top + bars.top, bars.height, f"{name} \N{MIDDLE DOT} {placed.label}", classes
        )


def _strokes(
    intervals: Sequence[Interval], frame: Frame, top: float, height: int, title: str, classes: Iterable[str]
) -> Markup:
    """Bars as one path: a move to the first one, then lengths and the gaps between them; nothing without bars."""
    intervals = frame.within(intervals)
    if not intervals:
        return Markup()
    pieces, at = [], 0
    for number, one in enumerate(intervals):
        start, end = frame.ticks(one.start), frame.ticks(one.end)
        start, end = max(start, at), max(end, start + 1, at + 1)
        pieces.append(f"m{start - at} 0h{end - start}" if number else f"M{start} {top + height / 2:g}h{end - start}")
        at = end
    notes = ",".join(" ".join(map(str, one.notes)) for one in intervals if one.notes)
    return tag(
        "path", tag("title", title), d="".join(pieces), class_=" ".join(classes), stroke_width=height,
        data_notes=notes or None,
    )  # fmt: skip


def _marks(found: RunTimeline, frame: Frame, say: Say) -> Iterator[Markup]:
    """Windows that were recorded, and, as outlines, those that are worth recording."""
    for one in found.recorded:
        ends = [Interval(one.start, one.end)]
        yield _strokes(ends, frame, _HEAD + 2, 8, f"{one.title} \N{MIDDLE DOT} {say('recorded')}", ("b", "mark"))
    for window in found.windows:
        if window.start is not None and window.end is not None:
            ends = [Interval(window.start, window.end)]
            title = f"{window_name(say, window.what)} \N{MIDDLE DOT} {say('windows')}"
            yield _strokes(ends, frame, _HEAD + 4, 4, title, ("b", "mark", "proposed"))


def window_name(say: Say, what: str) -> str:
    """A proposed window by its name: the tail of a rollout is a window and a part of a step."""
    key = "window tail" if what == "tail" else what
    return say(key) if key in ("window tail", "typical decode", "slowest decode", "slow micro-batch") else what


def _requests(found: RunTimeline, frame: Frame, top: int, say: Say) -> Iterator[Markup]:
    """The curve of the requests that are alive, with the tails of the steps shaded."""
    tails = [Interval(step.tail.start, step.tail.end) for step in found.steps if step.tail]
    most = max((count for _, count in found.requests), default=0)
    base = top + _CURVE

    def height(count: int) -> int:
        return round(base - count / most * (_CURVE - 4))

    if most:
        level = next((count for at, count in reversed(found.requests) if at <= frame.start), 0)
        pieces = [f"M0 {base}V{height(level)}"]
        shown = [point for point in found.requests if frame.start < point[0] < frame.end]
        for at, count in _thinned(shown, max(frame.shortest, frame.seconds / 20_000)):
            pieces += [f"H{frame.ticks(at)}V{height(count)}"] if count != level else []
            level = count
        pieces.append(f"H{TICKS}V{base}")
        yield tag("path", tag("title", say("alive", count=most)), d="".join(pieces), class_="curve")
    if tails:
        yield _strokes(sorted(tails), frame, top, _CURVE, say("tail"), ("b", "tail"))


def _thinned(points: Iterable[tuple[float, int]], shortest: float) -> Iterator[tuple[float, int]]:
    """Points of a curve, of those too close to each other the highest and the last one."""
    for _, group in itertools.groupby(points, key=lambda one: int(one[0] / shortest)):
        yield from highest_and_last(list(group))


def _ways(found: RunTimeline, placed: Sequence[Placed], frame: Frame, say: Say) -> Iterator[Markup]:
    """The critical path: a line below the bars of whoever was waited for, and dots from there to the next one."""
    lines: dict[tuple[int, bool], list[Interval]] = {}
    links = []
    for step in found.steps:
        before: list[int] = []
        for segment in sorted(step.critical_path, key=lambda one: one.start):
            bottoms = _bottoms(segment, placed)
            for y in bottoms:
                lines.setdefault((y, segment.kind == "gap"), []).append(Interval(segment.start, segment.end))
            if before and not set(before) & set(bottoms):
                one, other = min(itertools.product(before, bottoms), key=lambda pair: abs(pair[0] - pair[1]))
                links.append(f"M{frame.ticks(segment.start)} {one}V{other}")
            before = bottoms
    if links:
        yield tag("path", d="".join(links), class_="links crowded" if len(links) > _CROWDED else "links")
    for (y, gap), intervals in sorted(lines.items()):
        title = say("gap" if gap else "path")
        yield _strokes(merged(intervals, frame.shortest), frame, y - 2, 3, title, ("b", "gap" if gap else "way"))


def _bottoms(segment: PathSegment, placed: Sequence[Placed]) -> list[int]:
    """Below which rows a segment is drawn: that of its lane, else all of its role, else the driver's or the first."""
    bottoms = {at: one.top + one.row.height - 3 for one in placed for at in one.row.lanes}
    if segment.lane is not None and segment.lane in bottoms:
        return [bottoms[segment.lane]]
    same = sorted({one.top + one.row.height - 3 for one in placed if one.row.role == segment.role})
    return same or [placed[0].top + placed[0].row.height - 3]


def _heads(found: RunTimeline, frame: Frame, height: int, say: Say) -> Iterator[Markup]:
    """The bounds of the steps with their number and length, and beside them what limited each."""
    every = math.ceil(len(found.steps) / 16)
    for at, step in enumerate(found.steps):
        words = len(found.steps) <= _NAMED
        head = step_head(step, say) if words else "" if at % every else step.step
        wide = frame.ticks(step.end) - frame.ticks(step.start)
        yield tag(
            "svg",
            tag("path", d=f"M.5 0V{height - _AXIS}", class_="bound"),
            tag("text", head, x=4, y=12, class_="strong"),
            tag("text", words and step_cause(step, say), x=4, y=25),
            tag("rect", y=_HEAD - 6, width="100%", height=4, class_=f"v-{step.verdict.replace(' ', '-')}"),
            id=f"step-{step.step}", x=frame.percent(step.start), width=f"{wide / TICKS * 100:.3f}%", height=height,
            class_="head",
        )  # fmt: skip


def step_head(step: TrainingStep, say: Say) -> str:
    """``step 14 · 7.6 s``."""
    return f"{say('step_n', step=step.step)} \N{MIDDLE DOT} {seconds(step.seconds)}"


def step_cause(step: TrainingStep, say: Say) -> str:
    """What limited a step, or that nothing stands out, in a few words."""
    if step.verdict == "limited" and step.limited_by:
        return say("excess", seconds=seconds(step.limited_by.excess_seconds), cause=cause(say, step.limited_by))
    return say({"typical": "typical", "several": "several"}.get(step.verdict, "not_known"))


def _axis(frame: Frame, height: int) -> Markup:
    """Round times, six or so."""
    step = 10 ** math.floor(math.log10(frame.seconds / 3))
    step = next((step * more for more in (1, 2, 5, 10) if frame.seconds / (step * more) <= 7), step * 10)
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


def _labels(placed: Sequence[Placed], frame: Frame) -> Iterator[Markup]:
    """The names of long bars, each cut at the end of its bar; the script writes those that there is room for."""
    for one in placed:
        paler = {(bars.top, bars.name) for bars in one.row.bars if bars.pale}
        for bars in one.row.bars:
            shown = bars.height > 10 and bars.hue not in ("iterations", "decodes") and bars.name != OTHERS
            shown = shown and (bars.pale or (bars.top, bars.name) not in paler)
            for interval in frame.within(bars.intervals) if shown else ():
                wide = interval.end - interval.start
                if wide > _LABELLED * frame.seconds:
                    text = tag("text", bars.name, x=4, y=bars.height - 4)
                    size = {"width": f"{wide / frame.seconds * 100:.3f}%", "height": bars.height}
                    yield tag("svg", text, x=frame.percent(interval.start), y=one.top + bars.top, **size)


def _controls(found: RunTimeline, say: Say) -> Markup:
    """Buttons and the choice of a step, for the script: it shows them."""
    steps = [tag("option", step_head(step, say), value=step.step) for step in found.steps]
    choice = tag("select", tag("option", say("whole"), value=""), steps, aria_label=say("step"))
    signs = {
        "earlier": "\N{LEFTWARDS ARROW}",
        "later": "\N{RIGHTWARDS ARROW}",
        "farther": "\N{MINUS SIGN}",
        "closer": "+",
    }
    buttons = [
        tag("button", sign, type="button", data_do=name, title=say(name), aria_label=say(name))
        for name, sign in signs.items()
    ]
    whole = tag("button", say("whole"), type="button", data_do="whole")
    return tag("div", choice, buttons, whole, class_="controls", hidden=True)


def _legend(placed: Sequence[Placed], found: RunTimeline, say: Say) -> Markup:
    """What the lines and the shades mean; bars have their names."""

    def shown(key: str, class_: str, height: int = 3) -> Markup:
        line = tag("path", d="M0 5h20", class_=class_, stroke_width=height)
        return tag("li", tag("svg", line, viewBox="0 0 20 10", aria_hidden="true"), say(key))

    pale = any(bars.pale for one in placed for bars in one.row.bars)
    tail = any(step.tail for step in found.steps)
    gap = any(segment.kind == "gap" for step in found.steps for segment in step.critical_path)
    iterating = {bars.hue for one in placed for bars in one.row.bars} & {"iterations", "decodes"}
    return tag(
        "ul",
        shown("path", "b way"),
        gap and shown("gap", "b gap"),
        tail and shown("tail_legend", "b tail", 10),
        [shown(key, f"b k-{key}", 10) for key in sorted(iterating)],
        pale and shown("paler", "b k-gen pale", 10),
        class_="legend",
    )


def _aggregated(placed: Sequence[Placed], found: RunTimeline, frame: Frame, joined: int, say: Say) -> Iterator[str]:
    """What is not drawn one by one."""
    if frame.seconds < 0.97 * found.seconds:
        ends = {"start": seconds(frame.start), "end": seconds(frame.end)}
        yield say("cut", seconds=seconds(found.seconds), **ends)
    grouped = sum(len(one.row.lanes) for one in placed if len(one.row.lanes) > 1)
    if grouped:
        yield say("grouped_about", count=grouped)
    if joined:
        yield say("merged", count=f"{joined:,}", seconds=seconds(frame.shortest))
    if names := sum(one.row.joined for one in placed):
        yield say("names_joined", count=f"{names:,}", name=say(OTHERS))
    if left := sum(lane.left_out for lane in found.lanes):
        yield say("left_out", count=f"{left:,}")


def _data(found: RunTimeline, frame: Frame, say: Say) -> object:
    """What the script needs beside the paths: steps, the segments of the critical path, and a few words."""
    names: dict[str, int] = {}
    path, at = list[int](), 0
    for step in found.steps:
        for segment in sorted(step.critical_path, key=lambda one: one.start):
            start, end = frame.ticks(segment.start), frame.ticks(segment.end)
            if segment.end - segment.start >= frame.shortest:
                path += [start - at, end - start, names.setdefault(_segment(segment, say), len(names))]
                at = end
    steps = [
        [step.step, frame.ticks(step.start), frame.ticks(step.end), step_head(step, say), step_cause(step, say)]
        for step in found.steps
    ]
    words = {key: say(key) for key in ("awaited",)} | {"runs": say("runs", all="{0}", decodes="{1}", requests="{2}")}
    return {
        "start": frame.start,
        "seconds": frame.seconds,
        "ticks": TICKS,
        "steps": steps,
        "names": list(names),
        "path": path,
        "words": words,
    }


def _segment(segment: PathSegment, say: Say) -> str:
    whose = who(say, segment.role if segment.role in ROLES else "other", segment.replica, segment.rank)
    text = say("cause_on", what=segment.what or segment.kind, who=whose)
    return say("in_phase", cause=text, phase=segment.phase) if segment.phase not in ("", segment.what, "step") else text
