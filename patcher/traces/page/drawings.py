"""What is drawn: the bars of the units, the lanes of the device, units against their load, and a waterfall."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from patcher.traces.markup import Content, Markup, tag
from patcher.traces.model import KINDS, PARTS, Capture, Comparison, Lanes, Span, Unit
from patcher.traces.page.tables import Room
from patcher.traces.words import cut, duration, signed

_WIDTH, _LEFT = 1000, 62  # of a drawing, in its own units, and of the room for what its axis says
_LANE = 16


def unit_bars(capture: Capture, room: Room) -> Content:
    """A stacked bar for each unit, or for each few of them, with its time on the host."""
    units = capture.units
    if not units:
        return None
    each = math.ceil(len(units) / room.bars)
    groups = [units[at : at + each] for at in range(0, len(units), each)]
    about = (
        "A bar reaches from the first kernel that the unit launched to the first one of the next unit, the last one to "
    )
    about += "its last kernel. The parts add up to it."
    about = about if capture.total_ns else "Nothing ran on a device: the line is how long each was on the host."
    if each > 1:
        about = f"Each bar is the average of {each} units, which are too many to be drawn one by one. {about}"
    return tag(
        "section", tag("h2", "Each unit"), _legend(part for part in PARTS if any(getattr(u, part) for u in units)),
        tag("figure", _stack(groups, capture.median_ns), tag("figcaption", about)),
    )  # fmt: skip


def _legend(parts: Iterable[str]) -> Content:
    line = tag("svg", tag("path", d="M0 5h10", class_="host"), viewBox="0 0 10 10", aria_hidden="true")
    items = [tag("li", _swatch(part), PARTS[part]) for part in parts]
    return tag("ul", items, tag("li", line, "time on the host"), class_="legend")


def _swatch(part: str) -> Markup:
    return tag("svg", tag("rect", width=10, height=10, rx=2, class_=part), viewBox="0 0 10 10", aria_hidden="true")


def _stack(groups: Sequence[Sequence[Unit]], median: int) -> Markup:
    height, bottom = 250, 226
    means = [{part: sum(getattr(unit, part) for unit in group) / len(group) for part in PARTS} for group in groups]
    hosts = [sum(unit.host_ns for unit in group) / len(group) for group in groups]
    top = max([sum(mean.values()) for mean in means] + hosts) or 1
    scale = (bottom - 12) / top
    slot = min((_WIDTH - _LEFT) / len(groups), 150)
    wide = max(slot * 0.8, slot - 6)
    paths: dict[str, list[str]] = {part: [] for part in PARTS}
    marks, titles, labels = [], [], []
    every = math.ceil(len(groups) / 24)
    for at, (group, mean, host) in enumerate(zip(groups, means, hosts, strict=True)):
        x, y = _LEFT + at * slot + (slot - wide) / 2, float(bottom)
        for part, value in mean.items():
            if value:
                y -= value * scale
                paths[part].append(f"M{x:.1f} {y:.1f}h{wide:.1f}v{value * scale:.1f}h{-wide:.1f}z")
        marks.append(f"M{x:.1f} {bottom - host * scale:.1f}h{wide:.1f}")
        name = _units(group)
        titles.append(_hover(x, 8, wide, bottom - 8, f"{name}: {duration(sum(mean.values()))}", _parts(mean, host)))
        if at % every == 0:
            labels.append(tag("text", group[0].number, x=f"{x + wide / 2:.1f}", y=bottom + 15, text_anchor="middle"))
    line = bottom - median * scale
    return tag(
        "svg", _axis(top, scale, bottom),
        [tag("path", d="".join(drawn), class_=part) for part, drawn in paths.items() if drawn],
        tag("path", d="".join(marks), class_="host"),
        tag("path", d=f"M{_LEFT} {line:.1f}H{_WIDTH}", class_="median"), labels, titles,
        viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=f"The parts of {len(groups)} bars, one for each unit",
    )  # fmt: skip


def _units(group: Sequence[Unit]) -> str:
    first, last = group[0].number, group[-1].number
    return f"#{first}" if len(group) == 1 else f"#{first} to #{last}"


def _parts(mean: Mapping[str, float], host: float) -> list[str]:
    return [
        *(f"{PARTS[part]} {duration(value)}" for part, value in mean.items() if value),
        f"on the host {duration(host)}",
    ]


def _hover(x: float, y: float, width: float, height: float, first: str, lines: Sequence[str]) -> Markup:
    title = tag("title", "\n".join((first, *lines)))
    return tag("rect", title, x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{height:.1f}", class_="hover")


def _axis(top: float, scale: float, bottom: int) -> Content:
    """Lines of the scale of time, from 0 at ``bottom`` upwards."""
    return [
        (
            tag("path", d=f"M{_LEFT} {bottom - value * scale:.1f}H{_WIDTH}", class_="axis"),
            tag("text", duration(value, 0), x=_LEFT - 6, y=f"{bottom - value * scale + 4:.1f}", text_anchor="end"),
        )
        for value in _ticks(top)
    ]


def _ticks(top: float) -> list[float]:
    """Round numbers from 0 to ``top``, four or so."""
    step = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1.0
    step = next((step * more for more in (1, 2, 2.5, 5, 10) if step * more * 5 >= top), step * 10)
    return [step * at for at in range(int(top / step) + 1)]


def device_lanes(capture: Capture, room: Room) -> Content:
    """The streams of the device in the median unit, and in the slowest."""
    if not capture.lanes:
        return None
    drawn = []
    for lanes in capture.lanes:
        caption = f"The {lanes.why} unit, #{lanes.number}: {duration(lanes.device_ns)}"
        drawn.append(tag("figure", tag("figcaption", caption), _lane(lanes, room)))
    faint = any(not span.own for lanes in capture.lanes for spans in lanes.streams.values() for span in spans)
    about = faint and tag("p", "Paler: what another unit launched.", class_="faint")
    return tag("section", tag("h2", "On the device"), drawn, about)


def _lane(lanes: Lanes, room: Room) -> Markup:
    busy = sorted(lanes.streams.items(), key=lambda one: -sum(span.ns for span in one[1]))[:16]
    kept = {name for name, _ in busy}
    streams = [(name, spans) for name, spans in lanes.streams.items() if name in kept]
    scale = (_WIDTH - _LEFT) / (lanes.device_ns or 1)
    longest = sorted((span.ns for _, spans in streams for span in spans), reverse=True)
    named = longest[: room.spans][-1] if longest else 0
    content: list[Content] = []
    for row, (name, spans) in enumerate(streams):
        y = row * _LANE
        content.append(tag("text", cut(str(name), 10), x=_LEFT - 6, y=y + 12, text_anchor="end"))
        content.append(tag("path", d=f"M{_LEFT} {y + _LANE - 1.5}H{_WIDTH}", class_="axis"))
        content += _spans(spans, scale, y, named)
    y = len(streams) * _LANE
    content += [
        tag(
            "text",
            duration(value, 0),
            x=f"{_LEFT + value * scale:.1f}",
            y=y + 14,
            text_anchor="middle" if value else "start",
        )
        for value in _ticks(lanes.device_ns)
    ]
    return tag(
        "svg", content, viewBox=f"0 0 {_WIDTH} {y + 20}", role="img", aria_label=f"The streams in unit {lanes.number}"
    )


def _spans(spans: Iterable[Span], scale: float, y: float, named: int) -> Iterable[Markup]:
    """The spans of one stream: those that are long enough to point at with their names, the others in one path."""
    small: dict[str, list[str]] = {}
    for span in spans:
        begin, end = (min(max(_LEFT + at * scale, _LEFT), _WIDTH) for at in (span.begin_ns, span.begin_ns + span.ns))
        wide = max(end - begin, 0.6)
        kind = f"{span.kind if span.kind in KINDS else 'compute'}{'' if span.own else ' others'}"
        if span.ns >= named and wide > 1.5:
            count = f", {span.count} tasks" if span.count > 1 else ""
            title = tag("title", f"{cut(span.name)}\n{duration(span.ns)} at {duration(span.begin_ns)}{count}")
            yield tag("rect", title, x=f"{begin:.1f}", y=y, width=f"{wide:.1f}", height=_LANE - 4, class_=kind)
        else:
            small.setdefault(kind, []).append(f"M{begin:.1f} {y}h{wide:.1f}v{_LANE - 4}h{-wide:.1f}z")
    for kind, drawn in small.items():
        yield tag("path", d="".join(drawn), class_=kind)


def load_charts(capture: Capture) -> Content:
    """The time of a unit against what it held, where marks or facts tell."""
    drawn, before = [], []
    on_device = bool(capture.total_ns)  # asked once: it is a sum over all units
    clock = "" if on_device else " on the host"
    for name, about in (("requests", "requests"), ("context", "tokens of context"), ("tokens", "tokens scheduled")):
        points = [(getattr(unit, name), unit) for unit in capture.units if getattr(unit, name) is not None]
        values = [value for value, _ in points]
        if len(set(values)) > 1 and values not in before:  # each request that decodes is given one token
            before.append(values)
            times = [(value, unit.device_ns if on_device else unit.host_ns, unit.number) for value, unit in points]
            drawn.append(tag("figure", tag("figcaption", f"Unit time{clock} against {about}"), _scatter(times, about)))
    return tag("section", tag("h2", "What the units held"), drawn) if drawn else None


def _scatter(points: Sequence[tuple[int, int, int]], about: str) -> Markup:
    """Values across, times up; the number of its unit stands beside each."""
    bottom = 160
    top = max(time for _, time, _ in points) or 1
    low, high = min(value for value, _, _ in points), max(value for value, _, _ in points)
    scale, across = (bottom - 12) / top, (_WIDTH - _LEFT - 30) / (high - low)
    dots = [
        tag(
            "circle", tag("title", f"#{number}: {value:,} {about}, {duration(time)}"), r=3.5, class_="dot",
            cx=f"{_LEFT + 15 + (value - low) * across:.1f}", cy=f"{bottom - time * scale:.1f}",
        )
        for value, time, number in points[:: math.ceil(len(points) / 600)]
    ]  # fmt: skip
    ends = [
        tag("text", f"{value:,}", x=f"{_LEFT + 15 + (value - low) * across:.1f}", y=bottom + 16, text_anchor="middle")
        for value in (low, high)
    ]
    return tag(
        "svg", _axis(top, scale, bottom), dots, ends, viewBox=f"0 0 {_WIDTH} {bottom + 22}", role="img",
        aria_label=f"Unit time against {about}",
    )  # fmt: skip


def waterfall(comparison: Comparison) -> Content:
    """The parts of the median unit, from before to after."""
    parts = [part for part in comparison.parts if part.before_ns or part.after_ns]
    if not parts:
        return None
    first, second = comparison.median_ns
    levels, at = [], first
    for part in parts:
        levels.append((at, at + part.change_ns))
        at += part.change_ns
    bars = [("before", 0, first, "total")]
    for part, (start, end) in zip(parts, levels, strict=True):
        bars.append((PARTS.get(part.name, part.name), start, end, "slower" if end > start else "faster"))
    bars.append(("after", 0, second, "total"))
    values = [first, second, *(value for level in levels for value in level)]
    high = max(*values, 1)
    # Beside the whole unit a part that changed by a percent would not be seen: then the axis begins above 0.
    low = min(values) - (high - min(values)) // 4 if min(values) * 2 > high else min(0, *values)
    left, height = 260, 22
    scale = (_WIDTH - left - 90) / max(high - low, 1)  # two captures can be alike to the nanosecond
    drawn: list[Content] = []
    for row, (name, start, end, kind) in enumerate(bars):
        change, start = end - start, max(start, low)
        x, wide = left + (min(start, end) - low) * scale, max(abs(end - start) * scale, 0.8)
        y = row * height
        said = duration(end) if kind == "total" else signed(change)
        drawn.append(tag("text", cut(name, 60), x=left - 8, y=y + 15, text_anchor="end", class_="strong"))
        drawn.append(tag("rect", x=f"{x:.1f}", y=y + 3, width=f"{wide:.1f}", height=height - 6, class_=kind))
        drawn.append(tag("text", said, x=f"{x + wide + 6:.1f}", y=y + 15))
    view = f"0 0 {_WIDTH} {len(bars) * height + 4}"
    about = "The parts of the unit, from before to after; they add up to the difference."
    about += f" The axis begins at {duration(low)}." if low > 0 else ""
    return tag(
        "section", tag("h2", "Where the difference comes from"),
        tag("figure", tag("svg", drawn, viewBox=view, role="img", aria_label="Waterfall"), tag("figcaption", about)),
    )  # fmt: skip
