"""Several ranks beside each other: a step of each on one scale, and a map of all their steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from patcher.messages import Text, sentences
from patcher.page.markup import Content, Markup, faint, section, tag
from patcher.traces.model import COMMUNICATION, COMPUTE, COPY, Lanes, RankProfile, RecordedUnit
from patcher.traces.page import svg
from patcher.traces.page.lanes import LANE, TICKS, LaneRow, legend, merge_spans, picture, strokes
from patcher.traces.page.limits import PageLimits
from patcher.traces.page.svg import WIDTH
from patcher.traces.words import cut, duration, percent, sign

MOST = 64
"""Ranks that are drawn."""

FEWEST = 3
"""Ranks and steps that a map has: of two none is the one that differs."""

STEPS = (0.01, 0.03, 0.1, 0.3)
"""Deviations from the median of a step at which the colour of a map changes."""

_LEFT = 84
_CELL = 14
_LABEL = 12  # characters of a name
_CELLS = 1200  # of a map
_BARS = 12_000  # of all ranks together


def ranks_below_each_other(profiles: Sequence[RankProfile], limits: PageLimits) -> Content:
    """Draw one step of each rank, a row for each, on one scale; None for fewer than two drawn ranks.

    It is the step that most ranks have lanes (recorded spans) of; a rank without it shows another one. Ranks without
    lanes are left out, and of many ranks all but the slowest. Each row starts at the begin of its step, because ranks
    need not have one clock.
    """
    drawn = [profile for profile in _chosen(profiles) if profile.lanes]
    if len(drawn) < 2:
        return None
    counts = Counter(lanes.number for profile in drawn for lanes in profile.lanes)
    number = max(counts, key=lambda profile: (counts[profile], profile))
    pairs = [
        (profile, next((lanes for lanes in profile.lanes if lanes.number == number), profile.lanes[0]))
        for profile in drawn
    ]
    longest = max(lanes.device_ns for _, lanes in pairs)
    near = TICKS / min(1.5 * limits.spans, _BARS / len(pairs))
    rows = [
        LaneRow(f"{_name(profile)} #{lanes.number}", list(_bars(profile, lanes, longest, at * LANE, near)))
        for at, (profile, lanes) in enumerate(pairs)
    ]
    about = Text(
        "Step #{number} of each rank. A rank without a drawing of #{number} shows its median step instead. Each row"
        " begins at the left edge, because the ranks' clocks may differ. In a row, computing is above, communication"
        " and copies are below.",
        number,
    )
    spans = [span for _, lanes in pairs for row in lanes.streams.values() for span in row]
    figure = tag("figure", picture(rows, longest, Text("One step of each rank, one rank per row")))
    return section(Text("One step of each rank"), legend(spans), figure, faint(about), _left_out(profiles))


def _bars(profile: RankProfile, lanes: Lanes, longest: int, top: int, near: float) -> Iterator[Content]:
    """Yield the bars of one rank in the step of ``lanes``, an element per kind of work, in a row below ``top`` pixels.

    ``longest`` is the length in ns that fills a row, equal for all ranks. Bars at most ``near`` ticks apart are merged.
    """
    each = TICKS / longest
    for kind, below in ((COMPUTE, 0), (COPY, 6), (COMMUNICATION, 6)):
        bars = sorted(
            (span.begin_ns * each, (span.begin_ns + span.ns) * each)
            for spans in lanes.streams.values() for span in spans if span.kind == kind
        )  # fmt: skip
        title = Text(
            "{rank}, step #{number}: {time}", rank=_name(profile), number=lanes.number, time=duration(lanes.device_ns)
        )
        yield strokes(merge_spans(bars, near), top + below, 6, kind, title)


Measure = tuple[str, str, Callable[[RecordedUnit], int]]
"""A time of steps that a map compares: its title, what it is, and how long it was in a step."""


def _measures(profiles: Sequence[RankProfile]) -> Iterator[Measure]:
    """Yield what each heat map shows of a step, as (title, explanation, function from a step to ns)."""
    if not any(profile.total_ns for profile in profiles):
        about = Text("Host time of each step, because no device events were found in the trace.")
        yield Text("Step time on the host"), about, lambda unit: unit.host_ns
        return
    yield Text("Step time"), Text("Device time of each step."), lambda unit: unit.device_ns
    if any(profile.sum_ns("communication_ns", "overlap_ns") for profile in profiles):
        about = Text("Computing time of each step, without the time of waiting for other ranks.")
        yield Text("Computing"), about, lambda unit: unit.compute_ns + unit.overlap_ns


def heat_map(profiles: Sequence[RankProfile], limits: PageLimits) -> Content:
    """Draw maps whose colours show how far the time of a rank's step is from the median of the ranks in that step.

    Each map is of one measure, such as computing time. If ``limits`` has too few columns, one has several steps, and
    shows the largest deviation. None for fewer than 3 ranks or 3 steps; of many ranks, only the slowest are drawn.
    """
    chosen = _chosen(profiles)
    numbers = sorted({unit.number for profile in chosen for unit in profile.units})
    if min(len(chosen), len(numbers)) < FEWEST:
        return None
    each = math.ceil(len(numbers) * len(chosen) / min(8 * limits.bars, _CELLS))
    columns = [numbers[at : at + each] for at in range(0, len(numbers), each)]
    figures = [
        tag(
            "figure",
            tag("figcaption", Text("{title}. {about}", title=measure[0], about=measure[1])),
            _heat_map_of(chosen, columns, measure),
        )
        for measure in _measures(chosen)
    ]
    about = Text(
        "One row per rank, one column per step. The colour shows how much longer or shorter the rank's time is than"
        " the median of all ranks in the same step; point at a cell for the numbers."
    )
    if each > 1:
        several = Text(
            "To fit the page, a column covers {count} steps and shows each rank's largest deviation from the median.",
            each,
        )
        about = sentences(about, several)
    return section(Text("Times by rank and step"), _heat_map_legend(), figures, faint(about), _left_out(profiles))


def _heat_map_of(profiles: Sequence[RankProfile], columns: Sequence[Sequence[int]], measure: Measure) -> Markup:
    """Draw the heat map of one measure: a row for each profile, a column for each group of step numbers."""
    title_of_all, _, time_of = measure
    wide = min((WIDTH - _LEFT) / len(columns), 60.0)
    times = [{unit.number: time_of(unit) for unit in profile.units} for profile in profiles]
    middles = {
        number: median([of_rank[number] for of_rank in times if number in of_rank])
        for numbers in columns for number in numbers
    }  # fmt: skip
    drawn: list[Content] = []
    for row, (profile, rank_times) in enumerate(zip(profiles, times, strict=True)):
        changes = {number: ns / middles[number] - 1 if middles[number] else 0.0 for number, ns in rank_times.items()}
        for at, numbers in enumerate(columns):
            there = (number for number in numbers if number in rank_times)
            number = max(there, key=lambda number: abs(changes[number]), default=None)
            if number is not None:
                change = changes[number]
                title = Text(
                    "{rank}, step #{number}: {time}, {change}",
                    rank=_name(profile),
                    number=number,
                    time=duration(rank_times[number]),
                    change=f"{sign(change)}{percent(abs(change))}",
                )
                drawn.append(svg.shape(
                    "rect", title=title, x=_LEFT + at * wide, y=row * _CELL, width=wide - min(1, wide / 5),
                    height=_CELL - 1, class_=shade(change),
                ))  # fmt: skip
    height = len(profiles) * _CELL
    names = [
        svg.shape("text", cut(_name(profile), _LABEL), x=_LEFT - 6, y=row * _CELL + 11, text_anchor="end")
        for row, profile in enumerate(profiles)
    ]
    every = math.ceil(len(columns) / 24)
    below = [
        svg.shape("text", numbers[0], x=_LEFT + (every * at + 0.5) * wide, y=height + 14, text_anchor="middle")
        for at, numbers in enumerate(columns[::every])
    ]
    label = Text(
        "{title} of {count} ranks: deviation from the median of all ranks in each step",
        title=title_of_all,
        count=len(profiles),
    )
    return tag("div", svg.drawing((drawn, names, below), height + 20, label), class_="heat")


def shade(change: float) -> str:
    """Return the CSS class of a relative difference: how large it is, and its sign."""
    step = sum(abs(change) >= limit for limit in STEPS)
    return f"{'more' if change > 0 else 'less'} s{step}" if step else "s0"


def _heat_map_legend() -> Markup:
    """Return the legend of the heat maps: by how many percent a time of each colour differs from the ranks' median."""
    steps = [(step + 1, percent(least, 0)) for step, least in enumerate(STEPS)]
    swatches = [
        *((f"less s{step}", f"\N{MINUS SIGN}{least}") for step, least in reversed(steps)),
        ("s0", Text("within ±{share} of the median", percent(STEPS[0], 0))),
        *((f"more s{step}", f"+{least}") for step, least in steps),
    ]
    items = [tag("li", svg.icon(svg.swatch(kind)), what) for kind, what in swatches]
    return tag("ul", items, class_="legend heat")


def _chosen(profiles: Sequence[RankProfile]) -> list[RankProfile]:
    """Return the profiles that are drawn, by rank; the slowest if there are more than `MOST`."""
    slowest = sorted(profiles, key=lambda profile: -profile.median_ns)[:MOST]
    return sorted(slowest, key=lambda profile: (profile.rank is None, profile.rank or 0, _name(profile)))


def _left_out(profiles: Sequence[RankProfile]) -> Content:
    hidden = len(profiles) - MOST
    return hidden > 0 and faint(
        Text("Only the {count} slowest ranks are drawn; {more} more are left out.", count=MOST, more=hidden)
    )


def _name(profile: RankProfile) -> str:
    return cut(profile.name or profile.source, 24)
