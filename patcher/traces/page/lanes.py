"""The lanes of a step: the host and the streams of the device below each other, which the script draws closer.

The bars lie in a drawing of their own that is as wide as the step, in ticks: at any scale they keep their length, and
a thin outline shows those that are too short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from patcher.messages import Text
from patcher.page import zoomable
from patcher.page.markup import Content, Markup, faint, section, tag
from patcher.traces.model import CALL, COMMUNICATION, COMPUTE, COPY, KINDS, LAUNCH, MARK, Lanes, RankProfile, Span
from patcher.traces.page import svg
from patcher.traces.page.gaps import idle_frames
from patcher.traces.page.limits import PageLimits
from patcher.traces.page.svg import Scale, ticks
from patcher.traces.words import cut, duration, tick

TICKS = 100_000
"""Ticks of the whole picture, the smallest interval drawn."""

LANE = 16
"""The height of a row, in pixels."""

LEGEND = {
    MARK: Text("step mark on the host"), CALL: Text("long calls on the host"), LAUNCH: Text("launches"),
    COMPUTE: Text("computing"), COMMUNICATION: Text("communicating"), COPY: Text("copying"),
}  # fmt: skip
"""Kind of a span → what its colour means, in the order of the rows."""

_DRAWN = {"median": Text("Median step"), "typical": Text("Typical step"), "slowest": Text("Slowest step")}
_BAR = 12
_AXIS = 20
_LABEL = 15  # characters of the name of a row
_STREAMS = 16
_HINT = Text(
    "Zoom with the keys + and \N{MINUS SIGN}, two fingers, or Ctrl and the mouse wheel (after a click, the wheel"
    " alone). Move by dragging or with the arrow keys; the key 0 shows everything."
)


class LaneRow(NamedTuple):
    """A row of a picture: its label, and its bars, with coordinates from the top of the picture."""

    label: str
    bars: Sequence[Content]


def device_lanes(profile: RankProfile, limits: PageLimits) -> Content:
    """Draw the rows of host and streams over time, in the median step and in the slowest; None if none are recorded.

    ``limits`` bounds the number of bars of a step. Idle places of the device are framed.
    """
    if not profile.lanes:
        return None
    figures = []
    for at, lanes in enumerate(profile.lanes):
        name = _DRAWN.get(lanes.why, lanes.why) if len(profile.units) > 1 else Text("Step")
        across = Scale(0, lanes.device_ns or 1, 0, TICKS)
        rows = _rows(lanes, across, limits)
        marked = idle_frames(profile, lanes, across, LANE * len(rows))
        drawn = picture(
            rows, lanes.device_ns, Text("Host and streams in step {number}", lanes.number), marked, hint=not at
        )
        figures.append(
            tag(
                "figure",
                tag(
                    "figcaption",
                    Text("{step}, #{number}: {time}", step=name, number=lanes.number, time=duration(lanes.device_ns)),
                ),
                drawn,
            )
        )
    drawn_rows = [row for lanes in profile.lanes for kind in (lanes.host, lanes.streams) for row in kind.values()]
    spans = [span for row in drawn_rows for span in row]
    paler = faint(Text("Pale colours: marks, launches and kernels that belong to other steps."))
    return section(
        Text("Host and device over time"), legend(spans), figures, not all(span.of_step for span in spans) and paler
    )


def legend(spans: Iterable[Span]) -> Markup:
    """Return the legend of the colours of ``spans``: an entry for each kind of work among them."""
    kinds = {_kind(span) for span in spans}
    items = [tag("li", svg.icon(svg.swatch(kind)), what) for kind, what in LEGEND.items() if kind in kinds]
    return tag("ul", items, class_="legend")


def picture(rows: Sequence[LaneRow], ns: int, label: str, under: Iterable[Markup] = (), *, hint: bool = True) -> Markup:
    """Draw labelled ``rows`` of bars on one scale of ``ns`` nanoseconds, with buttons to zoom.

    ``under`` has shapes that lie under the bars. ``label`` describes the picture for screen readers. If ``hint``, a
    sentence says how to zoom.
    """
    height = LANE * len(rows) + _AXIS
    names = [
        tag("text", cut(row.label, _LABEL), tag("title", cut(row.label)), x=0, y=at * LANE + 11)
        for at, row in enumerate(rows)
    ]
    lines = svg.path([f"M0 {at * LANE + LANE - 1}H{TICKS}" for at in range(len(rows))], "axis")
    labels = [
        tag("text", tick(at), x=f"{100 * at / (ns or 1):.2f}%", y=height - 6, text_anchor="middle" if at else None)
        for at in ticks(ns) if at < 0.97 * ns or not at
    ]  # fmt: skip
    over = (tag("g", labels, class_="times"), tag("g", class_="labels"))
    bars = (lines, under, [row.bars for row in rows])
    drawn = zoomable(names, bars, over, (TICKS, height), label=label, whole=Text("all"), hint=hint and _HINT)
    return tag("div", drawn, class_="lanes", data_ns=ns)


def strokes(spans: Iterable[tuple[float, float]], top: int, height: int, kind: str, title: str = "") -> Content:
    """Draw bars of one CSS class ``kind`` as a single path with the tooltip ``title``; nothing without bars.

    ``spans`` are (begin, end) in ticks, ascending; ``top`` and ``height`` are in pixels.
    """
    drawn = [svg.box(begin, top, max(end - begin, 1), height) for begin, end in spans]
    return drawn and tag("path", title and tag("title", title), d="".join(drawn), class_=kind)


def merge_spans(spans: Iterable[tuple[float, float]], near: float) -> list[tuple[int, int]]:
    """Merge spans at most ``near`` ticks apart, rounded and clipped to the range from 0 to ``TICKS``.

    A span is (begin, end) in ticks; ``spans`` are in ascending order.
    """
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        first, last = round(min(max(begin, 0), TICKS)), round(min(max(end, 0), TICKS))
        if joined and first <= joined[-1][1] + near:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def _kind(span: Span) -> str:
    return span.kind if span.kind in LEGEND else COMPUTE


def _rows(lanes: Lanes, across: Scale, limits: PageLimits) -> list[LaneRow]:
    """Return the rows of a picture, in the order of ``lanes``: those of the host, then the 16 streams with most work.

    ``across`` maps ns to ticks. Only the longest spans, as many as ``limits`` allows, get a shape of their own; short
    neighbours are merged.
    """
    busiest = sorted(lanes.streams, key=lambda name: -sum(span.ns for span in lanes.streams[name]))[:_STREAMS]
    rows = [*lanes.host.items(), *((name, spans) for name, spans in lanes.streams.items() if name in busiest)]
    longest = sorted((span.ns for _, spans in rows for span in spans), reverse=True)
    shortest = longest[: limits.spans][-1] if longest else 0
    near = TICKS / (10 * limits.spans)
    return [
        LaneRow(name, list(_shapes_of_row(spans, across, at * LANE, shortest, near)))
        for at, (name, spans) in enumerate(rows)
    ]


def _shapes_of_row(spans: Iterable[Span], across: Scale, y: int, shortest: int, near: float) -> Iterable[Content]:
    """Yield the shapes of one row at height ``y``.

    Spans of at least ``shortest`` ns get a shape with a tooltip each. The shorter ones, and launches, become one path
    for each kind, in which those at most ``near`` ticks apart are merged.
    """
    small: dict[str, list[tuple[float, float]]] = {}
    for span in spans:
        ends = (across(span.begin_ns), across(span.begin_ns + span.ns))
        kind = f"{_kind(span)}{'' if span.of_step else ' others'}"
        if span.ns >= shortest and span.kind != LAUNCH:
            ((begin, end),) = merge_spans([ends], 0)
            values = {"name": cut(span.name), "time": duration(span.ns), "begin": duration(span.begin_ns)}
            title = Text("{name}\n{time}, begins at {begin}", **values)
            if span.count > 1 and span.kind in KINDS:
                title = Text("{name}\n{time}, begins at {begin}, {count} tasks", **values, count=span.count)
            elif span.count > 1:
                title = Text("{name}\n{time}, begins at {begin}, {count} events", **values, count=span.count)
            yield svg.shape("rect", title=title, x=begin, y=y, width=max(end - begin, 1), height=_BAR, class_=kind)
        else:
            small.setdefault(kind, []).append(ends)
    for kind, drawn in small.items():
        yield strokes(merge_spans(drawn, near), y, _BAR, kind)
