"""The page of a comparison: how much changed, where that comes from, and a profile of each side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patcher.page.markup import Content, alert, faint, tag
from patcher.traces.model import ALIKE, FEW, OTHER, Comparison, TimeChange
from patcher.traces.page.drawings import waterfall
from patcher.traces.page.profiles import described, origin
from patcher.traces.page.tables import Cell, PageLimits, table, tiled, timed
from patcher.traces.words import cut, duration, percent, sign, signed


def content(comparison: Comparison, limits: PageLimits) -> tuple[str, Content]:
    """The title and the body of the page of ``comparison``."""
    sides = {"before": comparison.before, "after": comparison.after}
    body = (
        tag(
            "header",
            tag("h1", "rlpatch compare"),
            [faint(f"{name}: {origin(', '.join(one.sources), one)}") for name, one in sides.items()],
        ),
        alert("These two cannot be compared as they are. What follows was forced:", comparison.refused),
        tag("p", _verdict(comparison), class_="verdict"),
        [tag("p", f"Not the same: {difference}.") for difference in comparison.differs],
        [tag("p", note) for note in comparison.notes],
        tiled(_tiles(comparison)),
        waterfall(comparison),
        _changes("Kernels", comparison.kernels, limits, "Per unit, by what each adds to the difference."),
        _changes("Modules and ranges", comparison.modules, limits, "Including everything called within one."),
        [
            described(one, limits, opened=False, side=side)
            for side, profiles in zip(sides, comparison.reports, strict=True)
            for one in profiles[:2]
        ],
    )
    return "rlpatch compare", body


def _tiles(comparison: Comparison) -> Iterator[tuple[str, str]]:
    first, second = comparison.median_ns
    clock = " on the host" if comparison.clock == "host" else ""
    yield duration(first), f"median unit{clock} before, of {len(comparison.before.units_ns)}"
    yield duration(second), f"median unit{clock} after, of {len(comparison.after.units_ns)}"
    if comparison.change:
        low, estimate, high = comparison.change
        yield signed(estimate), "change of the median unit"
        yield f"{signed(low)} to {signed(high)}", "95 % interval of the change"
        if first:
            yield f"{sign(estimate)}{percent(abs(estimate) / first)}", "of the unit before"
        if equal := comparison.equal_load:
            low, estimate, high = equal.change
            about = f"at equal {' and '.join(equal.by)}; that fits {percent(equal.fit, 0)}"
            yield f"{signed(estimate)} ({signed(low)} to {signed(high)})", about


def _verdict(comparison: Comparison) -> str:
    if not comparison.change:
        return "There is nothing to compare: a side has fewer than two steps."
    _, estimate, _ = comparison.change
    shown = f"{signed(estimate)} per unit"
    known = {
        FEW: f"Not enough data: {shown}", OTHER: f"The profiler recorded differently: {shown}",
        ALIKE: f"No certain difference: {shown}",
    }  # fmt: skip
    word = "Slower" if estimate > 0 else "Faster"
    return known.get(comparison.verdict, f"{word} by {duration(abs(estimate))} per unit")


def _changes(title: str, changes: Sequence[TimeChange], limits: PageLimits, about: str) -> Content:
    widest = max((abs(one.change_ns) for one in changes), default=1) or 1
    rows = []
    for one in changes:
        bar = (abs(one.change_ns) / widest, "slower" if one.change_ns > 0 else "faster")
        rows.append((
            cut(one.name), one.state, Cell(signed(one.change_ns), one.change_ns, bar),
            timed(one.before_ns), timed(one.after_ns),
            Cell(f"{one.before_calls:,.1f}", one.before_calls), Cell(f"{one.after_calls:,.1f}", one.after_calls),
            one.kind,
        ))  # fmt: skip
    heads = ("name", "what changed", "change", "before", "after", "calls before", "calls after", "kind")
    return table(title, heads, rows, limits, about)
