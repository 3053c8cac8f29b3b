"""The page of a comparison: how much changed, where that comes from, and a profile of each side."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages import AND, Text, joined, steps_text
from patcher.page.markup import Content, alert, faint, tag
from patcher.page.table import table_section
from patcher.traces import tables
from patcher.traces.model import Comparison
from patcher.traces.page.drawings import waterfall
from patcher.traces.page.limits import PageLimits, tiled
from patcher.traces.page.profiles import origin, profile_section
from patcher.traces.words import baseline_words, duration, percent, sign, signed

_BEFORE, _AFTER = Text("before"), Text("after")


def content(comparison: Comparison, limits: PageLimits) -> tuple[str, Content]:
    """Return the title and the body of the page of a comparison; ``limits`` bounds the rows of its tables.

    At most two profiles of each side are shown in detail.
    """
    sides = {_BEFORE: comparison.before, _AFTER: comparison.after}
    body = (
        tag(
            "header",
            tag("h1", "rlpatch compare"),
            [
                faint(Text("{side}: {origin}", side=name, origin=origin(", ".join(profile.sources), profile)))
                for name, profile in sides.items()
            ],
        ),
        alert(
            Text("The two sides were compared only because of --force. They are not comparable, for these reasons:"),
            comparison.refused,
        ),
        tag("p", _verdict(comparison), class_="verdict"),
        tag("p", baseline_words(comparison.baseline.folder, comparison.before.medians_ns))
        if comparison.baseline
        else None,
        [
            tag("p", Text("The two sides of the comparison differ: {difference}.", difference))
            for difference in comparison.differs
        ],
        [tag("p", note) for note in comparison.notes],
        tiled(_tiles(comparison)),
        waterfall(comparison),
        [table_section(table, limits.rows) for _, table in [*tables.of_comparison(comparison)][1:]],
        [
            profile_section(profile, limits, opened=False, side=side)
            for side, profiles in zip(sides, comparison.reports, strict=True)
            for profile in profiles[:2]
        ],
    )
    return "rlpatch compare", body


def _tiles(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield (value, caption) of the tiles on the step time of both sides."""
    first, second = comparison.median_ns
    median = Text("median step (host time)") if comparison.clock == "host" else Text("median step")
    yield (
        duration(first),
        Text("before: {median}, {steps}", median=median, steps=steps_text(len(comparison.before.units_ns))),
    )
    yield (
        duration(second),
        Text("after: {median}, {steps}", median=median, steps=steps_text(len(comparison.after.units_ns))),
    )
    if comparison.change:
        low, estimate, high = comparison.change
        yield signed(estimate), Text("change of the median step time")
        yield Text("{low} to {high}", low=signed(low), high=signed(high)), Text("95 % interval of the change")
        if first:
            yield f"{sign(estimate)}{percent(abs(estimate) / first)}", Text("relative change of the median step time")
        if equal := comparison.equal_load:
            low, estimate, high = equal.change
            about = Text(
                "change at equal load ({load}), by a linear fit that explains {share} of the variation between steps",
                load=joined(AND, equal.by),
                share=percent(equal.fit, 0),
            )
            yield Text("{change} ({low} to {high})", change=signed(estimate), low=signed(low), high=signed(high)), about


def _verdict(comparison: Comparison) -> str:
    """Return the verdict in words: by how much a step changed, and whether that is certain, or why nothing is known."""
    if not comparison.change:
        return Text("Nothing can be compared: one side has fewer than two steps.")
    _, estimate, _ = comparison.change
    change = Text("{change} per step", signed(estimate))
    return Text("{change}: {verdict}", change=change, verdict=comparison.verdict)
