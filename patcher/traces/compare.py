"""Two captures side by side, or several a side: what changed, how sure that is, and where it comes from."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.traces import facts
from patcher.traces.model import FORMS, PARTS, Capture, Change, Check, Comparison, Kernel, Module, Part, Side, Unit
from patcher.traces.sources import stage_of

RESAMPLES = 2000
"""Of the bootstrap; fewer where a side has more units than a thousand, for then each is more certain."""

ALIKE = 0.05
"""A kernel that is called, or takes, less than this share more or less is not said to have changed."""

LOADED = 0.10
"""Units that hold more than this share more are said not to do the same work."""


def compared(before: Sequence[Capture], after: Sequence[Capture], *, force: bool = False) -> Comparison:
    """The difference of the median unit, with its interval, in parts and in kernels and modules.

    Where the sides cannot be compared, the reasons are there and nothing else, unless ``force`` is given.
    """
    clock = "device" if any(capture.total_ns for capture in (*before, *after)) else "host"
    sides = _side(before, clock), _side(after, clock)
    usual = _median_unit(before), _median_unit(after)
    refused = tuple(_reasons(before, after))
    median = tuple(_time(unit, clock) if unit else 0 for unit in usual)
    assert len(median) == 2  # noqa: S101
    reports = tuple(before), tuple(after)
    if refused and not force:
        return Comparison(*sides, median, None, refused=refused, clock=clock, reports=reports)
    first, second = usual
    parts: tuple[Part, ...] = ()
    if first is not None and second is not None:
        parts = tuple(Part(name, first.parts[name], second.parts[name]) for name in PARTS)
    return Comparison(
        *sides, median, _change(before, after, clock), parts,
        kernels=tuple(_changes([one.kernels for one in before], [one.kernels for one in after], sides)),
        modules=tuple(_changes([one.modules for one in before], [one.modules for one in after], sides)),
        refused=refused, notes=tuple(_notes(before, after)), clock=clock, reports=reports,
    )  # fmt: skip


def _time(unit: Unit, clock: str) -> int:
    return unit.device_ns if clock == "device" else unit.host_ns


def _side(captures: Sequence[Capture], clock: str) -> Side:
    def of(name: str) -> str:
        return ", ".join(dict.fromkeys(getattr(capture, name) for capture in captures))

    times = tuple(_time(unit, clock) for capture in captures for unit in capture.units)
    return Side(tuple(capture.source for capture in captures), of("form"), of("device"), times)


def _median_unit(captures: Sequence[Capture]) -> Unit | None:
    units = tuple(unit for capture in captures for unit in capture.units)
    return Capture("", "", None, "", units).median_unit


# ---------------------------------------------------------------- whether


def _reasons(before: Sequence[Capture], after: Sequence[Capture]) -> Iterator[str]:
    """Why the sides cannot be compared."""
    for side, captures in (("before", before), ("after", after)):
        for capture in captures:
            yield from (f"{side}: {check.evidence}" for check in capture.failed if _carries_none(check))
    stages = [{stage_of(one.source, one.facts) for one in side} - {""} for side in (before, after)]
    if all(stages) and stages[0] != stages[1]:
        yield f"other stage: {_joined(stages[0])} before, {_joined(stages[1])} after"
    marks = [{one.marks for one in side} for side in (before, after)]
    if marks[0] != marks[1]:
        names = [_joined({mark.rstrip("#_[") or "nothing" for mark in side}) for side in marks]
        yield f"other units: marked by {names[0]} before, by {names[1]} after"
        return
    windows = [{_window(one) for one in side} for side in (before, after)]
    if windows[0] != windows[1] and "" not in windows[0] | windows[1]:
        yield f"other window: {_joined(windows[0])} before, {_joined(windows[1])} after"


def _carries_none(check: Check) -> bool:
    """Whether data that fails a check carries no verdict, so that there is nothing to compare."""
    return {"communication", "dispatch"} <= set(check.withdraws)


def _window(capture: Capture) -> str:
    """The window of a capture: as its facts say, else the numbers of its units; "" where these mean nothing."""
    if said := facts.window(capture.facts or {}):
        return said
    numbers = [unit.number for unit in capture.units]
    if not numbers or capture.marks not in ("ProfilerStep#", "mark"):
        return ""
    return f"{min(numbers)}:{max(numbers) + 1}"


def _notes(before: Sequence[Capture], after: Sequence[Capture]) -> Iterator[str]:
    """What the reader has to know of the numbers."""
    few = [name for name, side in (("before", before), ("after", after)) if sum(len(one.units) for one in side) < 2]
    if few:
        yield f"{' and '.join(few).capitalize()} there is one unit: a difference of two units has no interval."
    if min(map(_samples, (before, after))) == 1:
        yield (
            "One capture a side is one sample: two windows of one run differ by up to 15 % in public data."
            " Compare several a side before you believe a small difference."
        )
    forms = {capture.form.partition("-")[0] for capture in (*before, *after)}
    if len(forms) > 1:
        told = " and ".join(sorted({FORMS[capture.form].partition(",")[0] for capture in (*before, *after)}))
        yield f"The sides come from {told}: their kernels have other names, so compare parts, not kernels."
    yield from _loads(before, after)
    for side, captures in (("Before", before), ("After", after)):
        for capture in captures:
            uncounted = {unit.number: unit.uncounted for unit in capture.units if unit.uncounted}
            if uncounted:
                yield f"{side}, {capture.label or capture.source}: {facts.lying_between(uncounted)}."
            others = (check for check in capture.failed if not _carries_none(check))
            yield from (f"{side}, {capture.label or capture.source}: {check.evidence}." for check in others)


def _loads(before: Sequence[Capture], after: Sequence[Capture]) -> Iterator[str]:
    """That the units of one side held more than those of the other, where marks or facts tell: they do other work."""
    told = []
    for name in facts.HELD:
        sides = [[getattr(unit, name) for one in side for unit in one.units] for side in (before, after)]
        known = [[value for value in values if value is not None] for values in sides]
        if all(known):
            first, second = (statistics.median_low(values) for values in known)
            if abs(second - first) > LOADED * max(first, second):
                told.append(f"{name} {first:,} before, {second:,} after")
    if told:
        yield f"The median units did not hold the same: {'; '.join(told)}."


def _samples(captures: Sequence[Capture]) -> int:
    """How many windows a side has: the ranks of one window are one sample."""
    return max(Counter(capture.rank for capture in captures).values(), default=0)


# ---------------------------------------------------------------- how much


def _change(before: Sequence[Capture], after: Sequence[Capture], clock: str) -> tuple[int, int, int] | None:
    """The difference of the medians between the ends of its 95 % interval; None with fewer than two units a side.

    A bootstrap with a fixed seed: it draws captures, then units of these, so that the captures of a side that
    differ among themselves widen the interval.
    """
    sides = [
        [[_time(unit, clock) for unit in capture.units] for capture in side if capture.units]
        for side in (before, after)
    ]
    counts = [sum(map(len, side)) for side in sides]
    if min(counts) < 2:
        return None
    estimate = _median([time for times in sides[1] for time in times]) - _median(
        [t for times in sides[0] for t in times]
    )
    draw = random.Random(0)  # noqa: S311  (no secret: the same data gives the same interval)
    times = sorted(
        _median(_drawn(sides[1], draw)) - _median(_drawn(sides[0], draw))
        for _ in range(max(200, min(RESAMPLES, 2_000_000 // sum(counts))))
    )
    low, high = times[int(len(times) * 0.025)], times[-int(len(times) * 0.025) - 1]
    return min(low, estimate), estimate, max(high, estimate)


def _drawn(side: Sequence[Sequence[int]], draw: random.Random) -> list[int]:
    captures = draw.choices(side, k=len(side)) if len(side) > 1 else side
    return [time for times in captures for time in draw.choices(times, k=len(times))]


def _median(times: list[int]) -> int:
    """The lower median: the time of a real unit."""
    return sorted(times)[(len(times) - 1) // 2]


# ---------------------------------------------------------------- where from


class _Sum(NamedTuple):
    calls: int = 0
    ns: int = 0


def _changes(
    before: Sequence[Sequence[Kernel | Module]], after: Sequence[Sequence[Kernel | Module]], sides: tuple[Side, Side]
) -> Iterator[Change]:
    """What each name takes of a unit on both sides; what changed most comes first."""
    units = [max(len(side.units_ns), 1) for side in sides]
    first, second = _sums(before), _sums(after)
    rows = []
    for name, kind in {**first, **second}:
        one, other = first.get((name, kind), _Sum()), second.get((name, kind), _Sum())
        calls = round(one.calls / units[0], 3), round(other.calls / units[1], 3)
        state = _state((name, kind) in first, (name, kind) in second, *calls, one, other)
        rows.append(Change(name, kind, state, *calls, one.ns // units[0], other.ns // units[1]))
    yield from sorted(rows, key=lambda row: (-abs(row.change_ns), row.name, row.kind))


def _sums(captures: Sequence[Sequence[Kernel | Module]]) -> dict[tuple[str, str], _Sum]:
    found: dict[tuple[str, str], _Sum] = {}
    for rows in captures:
        for row in rows:
            key = row.name, row.kind if isinstance(row, Kernel) else "module"
            known = found.get(key, _Sum())
            found[key] = _Sum(known.calls + row.calls, known.ns + row.ns)
    return found


def _state(was: bool, is_there: bool, calls: float, now: float, one: _Sum, other: _Sum) -> str:
    if not was or not is_there:
        return "new" if is_there else "gone"
    if abs(now - calls) > ALIKE * calls:
        return "more often" if now > calls else "less often"
    each, then = one.ns / max(one.calls, 1), other.ns / max(other.calls, 1)
    if abs(then - each) > ALIKE * each:
        return "slower" if then > each else "faster"
    return "alike"


def _joined(names: set[str]) -> str:
    return ", ".join(sorted(names))
