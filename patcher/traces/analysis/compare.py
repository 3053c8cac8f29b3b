"""Two profiles side by side, or several a side: what changed, how sure that is, and where it comes from."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.traces import model
from patcher.traces.analysis.checks import mark_name
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import uncounted_between

RESAMPLES = 2000
"""Of the bootstrap; fewer where a side has more units than a thousand, for then each is more certain."""

ALIKE = 0.05
"""A kernel with less than this share more or less calls, or time, counts as alike."""

LOADED = 0.10
"""Units with more than this share more requests, say, do not do the same work."""

Profiles = Sequence[model.RankProfile]


def compared(before: Profiles, after: Profiles, *, force: bool = False) -> model.Comparison:
    """The difference of the median unit, with its interval, in parts and in kernels and modules.

    Where the sides cannot be compared, the reasons are there and nothing else, unless ``force`` is True.
    """
    clock = "device" if any(profile.total_ns for profile in (*before, *after)) else "host"
    sides = _side(before, clock), _side(after, clock)
    first, second = (
        model.median_unit([unit for profile in side for unit in profile.units]) for side in (before, after)
    )
    median = (_time(first, clock) if first else 0, _time(second, clock) if second else 0)
    refused, reports = tuple(_reasons(before, after)), (tuple(before), tuple(after))
    if refused and not force:
        return model.Comparison(*sides, median, None, refused=refused, clock=clock, reports=reports)
    return model.Comparison(
        *sides, median, _change(before, after, clock), tuple(_parts(first, second)),
        kernels=tuple(_changes([one.kernels for one in before], [one.kernels for one in after], sides)),
        modules=tuple(_changes([one.modules for one in before], [one.modules for one in after], sides)),
        refused=refused, notes=tuple(_notes(before, after)), clock=clock, reports=reports,
    )  # fmt: skip


def _parts(before: model.RecordedUnit | None, after: model.RecordedUnit | None) -> Iterator[model.PartChange]:
    if before and after:
        yield from (model.PartChange(name, getattr(before, name), getattr(after, name)) for name in model.PARTS)


def _time(unit: model.RecordedUnit, clock: str) -> int:
    return unit.device_ns if clock == "device" else unit.host_ns


def _side(profiles: Profiles, clock: str) -> model.Side:
    def of(name: str) -> str:
        return ", ".join(dict.fromkeys(getattr(profile, name) for profile in profiles))

    times = tuple(_time(unit, clock) for profile in profiles for unit in profile.units)
    return model.Side(tuple(profile.source for profile in profiles), of("form"), of("device"), times)


# ---------------------------------------------------------------- whether


def _reasons(before: Profiles, after: Profiles) -> Iterator[str]:
    """Why the sides cannot be compared."""
    for side, profiles in (("before", before), ("after", after)):
        failed = (check for profile in profiles for check in profile.failed)
        yield from (f"{side}: {check.evidence}" for check in failed if _carries_none(check))
    stages = [{one.stage for one in side} - {""} for side in (before, after)]
    if all(stages) and stages[0] != stages[1]:
        yield f"other stage: {_joined(stages[0])} before, {_joined(stages[1])} after"
    yield from _other_units(before, after)


def _other_units(before: Profiles, after: Profiles) -> Iterator[str]:
    marks = [{mark_name(one.marks) or "nothing" for one in side} for side in (before, after)]
    windows = [{_window(one) for one in side} for side in (before, after)]
    if marks[0] != marks[1]:
        yield f"other units: marked by {_joined(marks[0])} before, by {_joined(marks[1])} after"
    elif windows[0] != windows[1] and "" not in windows[0] | windows[1]:
        yield f"other window: {_joined(windows[0])} before, {_joined(windows[1])} after"


def _carries_none(check: model.Check) -> bool:
    """Whether data that fails a check carries no verdict, so that there is nothing to compare."""
    return {"communication", "dispatch"} <= set(check.withdraws)


def _window(profile: model.RankProfile) -> str:
    """The window in the metadata of a profile, else the numbers of its units; "" where these mean nothing."""
    if profile.metadata and profile.metadata.window:
        return profile.metadata.window.text
    numbers = [unit.number for unit in profile.units]
    if not numbers or profile.marks not in ("ProfilerStep#", "mark"):
        return ""
    return f"{min(numbers)}:{max(numbers) + 1}"


def _notes(before: Profiles, after: Profiles) -> Iterator[str]:
    """What the reader has to know of the numbers."""
    few = [name for name, side in (("before", before), ("after", after)) if sum(len(one.units) for one in side) < 2]
    if few:
        yield f"{' and '.join(few).capitalize()} there is one unit: a difference of two units has no interval."
    if min(map(_samples, (before, after))) == 1:
        yield (
            "One capture a side is one sample: two windows of one run differ by up to 15 % in public data."
            " Compare several a side before you believe a small difference."
        )
    profilers = sorted({model.PROFILERS[profile.form] for profile in (*before, *after)})
    if len(profilers) > 1:
        names = " and ".join(profilers)
        yield f"The sides come from {names}: their kernels have other names, so compare parts, not kernels."
    yield from _loads(before, after)
    for side, profiles in (("Before", before), ("After", after)):
        for profile in profiles:
            whose = f"{side}, {profile.label or profile.source}"
            if profile.uncounted:
                yield f"{whose}: {uncounted_between(profile.uncounted)}."
            yield from (f"{whose}: {check.evidence}." for check in profile.failed if not _carries_none(check))


def _loads(before: Profiles, after: Profiles) -> Iterator[str]:
    """That the units of one side hold more than those of the other, by marks or metadata: they do other work."""
    differing = []
    for name in CONTENTS:
        sides = [[getattr(unit, name) for one in side for unit in one.units] for side in (before, after)]
        known = [[value for value in values if value is not None] for values in sides]
        if all(known):
            first, second = map(model.lower_median, known)
            if abs(second - first) > LOADED * max(first, second):
                differing.append(f"{name} {first:,} before, {second:,} after")
    if differing:
        yield f"The median units did not hold the same: {'; '.join(differing)}."


def _samples(profiles: Profiles) -> int:
    """How many windows a side has: the ranks of one window are one sample."""
    return max(Counter(profile.rank for profile in profiles).values(), default=0)


# ---------------------------------------------------------------- how much


def _change(before: Profiles, after: Profiles, clock: str) -> tuple[int, int, int] | None:
    """The difference of the medians between the ends of its 95 % interval; None with fewer than two units a side.

    A bootstrap with a fixed seed: it draws profiles, then units of these, so that the profiles of a side that
    differ among themselves widen the interval.
    """
    first, second = (
        [[_time(unit, clock) for unit in profile.units] for profile in side if profile.units]
        for side in (before, after)
    )
    counts = [sum(map(len, side)) for side in (first, second)]
    if min(counts) < 2:
        return None
    estimate = _median(second) - _median(first)
    draw = random.Random(0)  # noqa: S311  (no secret: the same data gives the same interval)
    times = sorted(
        _median(_drawn(second, draw)) - _median(_drawn(first, draw))
        for _ in range(max(200, min(RESAMPLES, 2_000_000 // sum(counts))))
    )
    low, high = times[int(len(times) * 0.025)], times[-int(len(times) * 0.025) - 1]
    return min(low, estimate), estimate, max(high, estimate)


def _drawn(side: Sequence[Sequence[int]], draw: random.Random) -> list[list[int]]:
    profiles = draw.choices(side, k=len(side)) if len(side) > 1 else side
    return [draw.choices(times, k=len(times)) for times in profiles]


def _median(side: Sequence[Sequence[int]]) -> int:
    """The lower median over all profiles of a side: the time of a real unit."""
    return model.lower_median([time for times in side for time in times])


# ---------------------------------------------------------------- where from


class _Sum(NamedTuple):
    calls: int = 0
    ns: int = 0


def _changes(
    before: Sequence[Sequence[model.Kernel | model.Module]],
    after: Sequence[Sequence[model.Kernel | model.Module]],
    sides: tuple[model.Side, model.Side],
) -> Iterator[model.TimeChange]:
    """The calls and the time of each name per unit on both sides; what changed most comes first."""
    units = [max(side.units, 1) for side in sides]
    first, second = _sums(before), _sums(after)
    rows = []
    for name, kind in {**first, **second}:
        one, other = first.get((name, kind), _Sum()), second.get((name, kind), _Sum())
        calls, now = round(one.calls / units[0], 3), round(other.calls / units[1], 3)
        state = _state(calls, now, one, other) if (name, kind) in first and (name, kind) in second else ""
        state = state or ("new" if (name, kind) in second else "gone")
        rows.append(model.TimeChange(name, one.ns // units[0], other.ns // units[1], kind, state, calls, now))
    yield from sorted(rows, key=lambda row: (-abs(row.change_ns), row.name, row.kind))


def _sums(profiles: Sequence[Sequence[model.Kernel | model.Module]]) -> dict[tuple[str, str], _Sum]:
    found: dict[tuple[str, str], _Sum] = {}
    for rows in profiles:
        for row in rows:
            key = row.name, row.kind if isinstance(row, model.Kernel) else "module"
            known = found.get(key, _Sum())
            found[key] = _Sum(known.calls + row.calls, known.ns + row.ns)
    return found


def _state(calls: float, now: float, one: _Sum, other: _Sum) -> str:
    """How a name that both sides have changed."""
    if abs(now - calls) > ALIKE * calls:
        return "more often" if now > calls else "less often"
    each, then = one.ns / max(one.calls, 1), other.ns / max(other.calls, 1)
    if abs(then - each) > ALIKE * each:
        return "slower" if then > each else "faster"
    return "alike"


def _joined(names: set[str]) -> str:
    return ", ".join(sorted(names))
