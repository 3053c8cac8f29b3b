"""The tables of a comparison of two runs, with the numbers that the terminal, the page and CSV files show: seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from patcher.messages import Text
from patcher.table import COUNT, LABEL, Column, Shown, Table, Unit
from patcher.timeline.lengths import brief
from patcher.timeline.run_comparison import (
    BESIDE,
    LONGER,
    PARTS,
    SHORTER,
    UNCLEAR,
    UNKNOWN,
    CauseChange,
    RunComparison,
    SecondsChange,
)

CSV, TERMINAL = Shown.CSV, Shown.TERMINAL
SECONDS = Unit(brief, missing="?")
CHANGE = Unit(lambda seconds: f"{'-' if seconds <= -5e-4 else '+'}{brief(abs(seconds))}", missing="?")
_NAMES: dict[str, Text] = {"step": Text("step"), **PARTS, **BESIDE}


def of_comparison(comparison: RunComparison) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield ({}, table) for the three tables of a comparison: the form that CSV files take, without added columns."""
    for table in (parts(comparison), beside(comparison), causes(comparison)):
        yield {}, table


def parts(comparison: RunComparison) -> Table:
    """Return the table of the mean step and the parts of its critical path, which sum to it."""
    about = Text(
        "Means over the steps, in seconds. The parts are those of the critical path and add up to the step. A part is"
        " called longer or shorter if the confidence interval of its change does not contain 0. With 95 %"
        " probability, all intervals contain the true changes. “Equal tokens” is the change at the same number of"
        " tokens, from a linear fit. “Raw only”: the measured change is clear, but the change at the same number of"
        " tokens is not."
    )
    return _changes("run_parts", Text("Where the change comes from"), (comparison.step, *comparison.parts), about)


def beside(comparison: RunComparison) -> Table:
    """Return the table of tail, imbalance and idle roles, which are no part of the sum."""
    about = Text(
        "These times overlap with the parts in the table above, so the sum of that table does not include them."
    )
    return _changes("run_beside", Text("Long tail, imbalance and idle time"), comparison.beside, about)


def change_verdict(change: SecondsChange) -> str:
    """Return the verdict on a change for people: "longer", "shorter", "no clear change" or "unknown".

    If the verdict at equal token counts is known and differs, it replaces the raw one, and is marked so. But if it is
    "no clear change", the raw one is returned, marked "raw only".
    """
    raw, equal = change.changed, change.changed_at_equal_tokens
    if equal in (UNKNOWN, raw):
        return raw
    if equal == UNCLEAR:
        return Text("{change}, raw only", raw)
    return Text("{change} at equal token counts", equal)


def _changes(name: str, title: str, rows: Sequence[SecondsChange], about: str) -> Table:
    """Return a table of changes between two runs, in seconds: raw, at equal tokens, and with 95 % intervals."""
    columns = (
        Column("part", shown_in=CSV),
        Column("", Text("part"), LABEL, TERMINAL),
        Column("before_seconds", Text("before"), SECONDS, TERMINAL),
        Column("after_seconds", Text("after"), SECONDS, TERMINAL),
        Column("change_seconds", Text("change"), CHANGE, TERMINAL, bar=True),
        Column("low_seconds", Text("change in time: lower bound"), CHANGE),
        Column("high_seconds", Text("change in time: upper bound"), CHANGE),
        Column("equal_tokens_seconds", Text("equal tokens"), CHANGE, TERMINAL),
        Column("equal_tokens_low_seconds", Text("change at equal token counts: lower bound"), CHANGE),
        Column("equal_tokens_high_seconds", Text("change at equal token counts: upper bound"), CHANGE),
        Column("", Text("verdict"), LABEL, TERMINAL),
        Column("changed", shown_in=CSV),
        Column("changed_at_equal_tokens", shown_in=CSV),
    )

    def row(change: SecondsChange) -> tuple[object, ...]:
        raw, equal = change.raw, change.equal_tokens
        return (
            change.name, _NAMES.get(change.name, change.name), change.before_seconds, change.after_seconds,
            change.change_seconds, raw and raw.low, raw and raw.high, equal and equal.change, equal and equal.low,
            equal and equal.high, change_verdict(change), change.changed, change.changed_at_equal_tokens,
        )  # fmt: skip

    hues = ["slower" if change.change_seconds > 0 else "faster" for change in rows]
    return Table(name, title, columns, [*map(row, rows)], about, hues)


def cause_verdict(row: CauseChange) -> str:
    """Return the verdict for people on how often a cause made steps long, such as "more often" or "may be chance"."""
    words: dict[str, Text] = {LONGER: Text("more often"), SHORTER: Text("less often"), UNCLEAR: Text("may be chance")}
    return words.get(row.changed, row.changed)


def causes(comparison: RunComparison) -> Table:
    """Return the table of causes that limited steps on either side: their steps, excess in seconds, and verdict."""
    columns = (
        Column("cause", Text("cause of long steps")),
        Column("before_steps", Text("before: steps"), COUNT),
        Column("after_steps", Text("after: steps"), COUNT),
        Column("before_seconds", Text("before: excess seconds"), SECONDS),
        Column("after_seconds", Text("after: excess seconds"), SECONDS),
        Column("changed", Text("verdict")),
    )
    rows = [
        (row.label, row.before_steps, row.after_steps, row.before_seconds, row.after_seconds, cause_verdict(row))
        for row in comparison.causes
    ]
    about = Text(
        "For each cause: how many steps it made longer, and how many additional seconds it took in all these steps"
        " together. “May be chance”: the two sides do not differ significantly in how many steps the cause made longer"
        " (Fisher's exact test, corrected for the number of causes)."
    )
    return Table("run_causes", Text("Causes that appeared or disappeared"), columns, rows, about)
