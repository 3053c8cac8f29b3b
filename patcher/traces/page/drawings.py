"""The drawings: the bars of the steps, steps against their load, and a waterfall."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import Text, joined, sentences
from patcher.page.markup import Content, Markup, section, tag
from patcher.traces.model import PARTS, Comparison, RankProfile, RecordedUnit
from patcher.traces.page import svg
from patcher.traces.page.limits import PageLimits
from patcher.traces.page.svg import WIDTH, Scale
from patcher.traces.words import cut, duration, percent, signed, tick

FITTED = 7
"""Steps from which on a line through their times says something."""

_LEFT = 62  # of the drawing, for the labels of its axis
_TOP = 12


def unit_bars(profile: RankProfile, limits: PageLimits) -> Content:
    """Draw a bar for each step, divided into its parts, with a line at its time on the host; None for under two steps.

    If there are more steps than ``limits`` has bars, a bar is the mean of several steps. Without work on a device, only
    the lines are drawn.
    """
    units = profile.units
    if len(units) < 2:
        return None
    each = math.ceil(len(units) / limits.bars)
    groups = [units[at : at + each] for at in range(0, len(units), each)]
    about = Text(
        "Each bar begins at the first kernel of its step and ends at the first kernel of the next step; the last bar"
        " ends with the last kernel. The coloured parts of a bar add up to its length."
    )
    if not profile.total_ns:
        about = Text(
            "No device events were found in the trace, so the drawing shows only the time on the host, as a line."
        )
    if each > 1:
        about = Text(
            "There are too many steps to draw each: a bar is the mean of {each} steps. {about}", each=each, about=about
        )
    legend = [tag("li", svg.icon(svg.swatch(part)), PARTS[part]) for part in PARTS if profile.sum_ns(part)]
    legend.append(tag("li", svg.icon(svg.path([svg.stroke(0, 5, 10)], "host")), Text("time on the host")))
    figure = tag("figure", _stacked_bars(groups, profile.median_ns), tag("figcaption", about))
    return section(Text("Time of each step"), tag("ul", legend, class_="legend"), figure)


def _stacked_bars(groups: Sequence[Sequence[RecordedUnit]], median: int) -> Markup:
    """Draw a bar of mean parts for each group of steps, a line at its mean host time, and a rule at ``median`` (ns).

    A bar is labelled with the number of its first step, with many bars only every nth.
    """
    bottom = 226
    means = [{part: sum(getattr(unit, part) for unit in group) / len(group) for part in PARTS} for group in groups]
    hosts = [sum(unit.host_ns for unit in group) / len(group) for group in groups]
    up = Scale(0, max([sum(mean.values()) for mean in means] + hosts) or 1, bottom, _TOP)
    slot = min((WIDTH - _LEFT) / len(groups), 150.0)
    wide = max(slot * 0.8, slot - 6)
    boxes: dict[str, list[str]] = {part: [] for part in PARTS}
    marks, titles, labels = [], [], []
    every = math.ceil(len(groups) / 24)
    for at, (group, mean, host) in enumerate(zip(groups, means, hosts, strict=True)):
        x, y = _LEFT + at * slot + (slot - wide) / 2, float(bottom)
        for part, value in mean.items():
            if value:
                y -= up.length(value)
                boxes[part].append(svg.box(x, y, wide, up.length(value)))
        marks.append(svg.stroke(x, up(host), wide))
        title = _bar_tooltip(group, mean, host)
        titles.append(svg.shape("rect", title=title, x=x, y=8.0, width=wide, height=bottom - 8.0, class_="hover"))
        if at % every == 0:
            labels.append(svg.shape("text", group[0].number, x=x + wide / 2, y=bottom + 15, text_anchor="middle"))
    content = (
        _axis(up),
        [svg.path(drawn, part) for part, drawn in boxes.items() if drawn],
        svg.path(marks, "host"), svg.rule(_LEFT, up(median), "median"), labels, titles,
    )  # fmt: skip
    return svg.drawing(content, 250, Text("Breakdown of {count} steps, one bar each", len(groups)))


def _bar_tooltip(group: Sequence[RecordedUnit], mean: Mapping[str, float], host: float) -> str:
    """Return the tooltip of a bar: numbers of its steps, their mean time, its parts, and the mean time on the host."""
    first, last = group[0].number, group[-1].number
    name = f"#{first}" if len(group) == 1 else Text("#{first} to #{last}", first=first, last=last)
    parts = (Text("{part} {time}", part=PARTS[part], time=duration(value)) for part, value in mean.items() if value)
    head = Text("{steps}: {time}", steps=name, time=duration(sum(mean.values())))
    return joined("\n", (head, *parts, Text("host time: {host}", duration(host))))


def _axis(up: Scale) -> Iterator[Content]:
    for value in svg.ticks(up.high):
        yield svg.rule(_LEFT, up(value), "axis")
        yield svg.shape("text", tick(value), x=_LEFT - 6, y=up(value) + 4, text_anchor="end")


def load_charts(profile: RankProfile) -> Content:
    """Draw the time of each step against its requests, context and tokens, one chart each; None without any.

    A load has a chart if it is known, differs between steps, and is no copy of another one. The time is that on the
    device, or on the host if the profile has none on a device.
    """
    drawn, before = [], []
    on_device = bool(profile.total_ns)  # once: it is a sum over all units
    for name, about in (
        ("requests", Text("requests")),
        ("context", Text("context tokens")),
        ("tokens", Text("scheduled tokens")),
    ):
        units = [unit for unit in profile.units if getattr(unit, name) is not None]
        values = [getattr(unit, name) for unit in units]
        if len(set(values)) > 1 and values not in before:  # each request that decodes has one token
            before.append(values)
            times = [unit.device_ns if on_device else unit.host_ns for unit in units]
            points = list(zip(values, times, (unit.number for unit in units), strict=True))
            caption = (
                Text("Step time by {load}", about) if on_device else Text("Step time on the host by {load}", about)
            )
            if fit := _fit(values, times):
                explained = Text(
                    "by a linear fit, the time changes by {change} per unit of the horizontal axis; the fit"
                    " explains {share} of the variation",
                    change=signed(fit.slope),
                    share=percent(fit.explained, 0),
                )
                caption = Text("{caption}: {explained}", caption=caption, explained=explained)
            drawn.append(tag("figure", tag("figcaption", caption), _scatter(points, about, fit)))
    return section(Text("Step time and workload"), drawn) if drawn else None


class _Fit(NamedTuple):
    """A line of least squares, in ns, and the share of the variation that it explains, 0 to 1."""

    slope: float
    start: float
    explained: float


def _fit(values: Sequence[int], times: Sequence[int]) -> _Fit | None:
    """Fit ``times`` (ns) by ``values``, which must differ; None if a line says nothing.

    That is so for fewer than seven values (`FITTED`), or equal times.
    """
    if len(values) < FITTED or len(set(times)) < 2:
        return None
    return _Fit(*statistics.linear_regression(values, times), statistics.correlation(values, times) ** 2)


def _scatter(points: Sequence[tuple[int, int, int]], about: str, fit: _Fit | None) -> Markup:
    """Draw ``points`` (value, time in ns, step number; at least one) as dots, with the line of their ``fit``, if any.

    Of more than 600 points, only every nth is drawn; the line ends where the drawing does. ``about`` names the value,
    such as requests.
    """
    bottom = 160
    values = [value for value, _, _ in points]
    low, high = min(values), max(values)
    up = Scale(0, max(time for _, time, _ in points) or 1, bottom, _TOP)
    across = Scale(low, high, _LEFT + 15, WIDTH - 15)
    dots = [
        svg.shape(
            "circle",
            title=Text(
                "step #{number}: {value:,} {load}, {time}", number=number, value=value, load=about, time=duration(time)
            ),
            r=3.5,
            class_="dot",
            cx=across(value),
            cy=up(time),
        )
        for value, time, number in points[:: math.ceil(len(points) / 600)]
    ]
    ends = [
        svg.shape("text", f"{value:,}", x=across(value), y=bottom + 16, text_anchor="middle") for value in (low, high)
    ]
    line = None
    if fit:
        first, last = (up(min(max(fit.start + fit.slope * value, up.low), up.high)) for value in (low, high))
        line = svg.shape("line", class_="fit", x1=across(low), y1=first, x2=across(high), y2=last)
    return svg.drawing((_axis(up), line, dots, ends), bottom + 22, Text("Step time by {load}", about))


def waterfall(comparison: Comparison) -> Content:
    """Draw how the parts of the median step changed, as a waterfall from before to after; None without parts."""
    parts = [part for part in comparison.parts if part.before_ns or part.after_ns]
    if not parts:
        return None
    first, second = comparison.median_ns
    ends = [*itertools.accumulate((part.change_ns for part in parts), initial=first)]
    bars: list[tuple[str, float, float, str]] = [
        (Text("before"), 0, first, "total"),
        (Text("after"), 0, second, "total"),
    ]
    bars[1:1] = [
        (PARTS.get(part.name, part.name), begin, end, "slower" if end > begin else "faster")
        for part, (begin, end) in zip(parts, itertools.pairwise(ends), strict=True)
    ]
    low, high = min(*ends, second), max(*ends, second, 1)
    # Beside the whole unit a part that changed by a percent would not be seen: then the axis begins above 0.
    low = low - (high - low) // 4 if low * 2 > high else min(0, low)
    margin, height = 260, 22
    across = Scale(low, max(high, low + 1), margin, WIDTH - 90)  # two profiles can be alike to the nanosecond
    drawn: list[Content] = []
    for row, (name, start, end, kind) in enumerate(bars):
        begin = max(start, low)
        x, wide, y = across(min(begin, end)), max(across.length(abs(end - begin)), 0.8), row * height
        label = duration(end) if kind == "total" else signed(end - start)
        drawn.append(svg.shape("text", cut(name, 60), x=margin - 8, y=y + 15, text_anchor="end", class_="strong"))
        drawn.append(svg.shape("rect", x=x, y=y + 3, width=wide, height=height - 6, class_=kind))
        drawn.append(svg.shape("text", label, x=x + wide + 6, y=y + 15))
    about = Text(
        "Breakdown of the change in step time from “before” to “after”; the bars add up to the total difference."
    )
    if low > 0:
        about = sentences(about, Text("The axis begins at {time}, not at 0.", duration(low)))
    figure = svg.drawing(drawn, len(bars) * height + 4, Text("Waterfall chart: which parts of the step time changed"))
    return section(Text("Where the difference comes from"), tag("figure", figure, tag("figcaption", about)))
