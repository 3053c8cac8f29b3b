"""The trend of a run: steps that become longer or shorter, which part of them does, and what grows with it."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

from patcher.messages import Text
from patcher.timeline.causes import StepTimes, expected_and_spread
from patcher.timeline.model import Driver, Part, TrainingStep, Trend

FEWEST = 12
"""Fewest steps from which a trend can be told from chance."""

SHARE = 0.1
"""Share of the first steps' length by which the last ones must differ, and of the change that a part must have."""

ERRORS = 3
"""Standard errors by which two medians must differ to be no chance."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for values that are normally distributed."""

CORRELATED = 0.5
"""Rank correlation with the length of the steps from which on a quantity is said to grow with it."""

PARTS = 3

FEWEST_SIDE = 5
"""Fewest steps before and after a lasting change."""

AT_ONCE = 0.5
"""Share of the deviations from a line, and from one median, that two medians must leave to be a lasting change."""


def trend(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> Trend | None:
    """Return how the length of the steps changes from their first to their last third; None if it hardly does.

    The change must be beyond chance and above 10 %. Excesses of single steps, and phases that most steps lack, do not
    count. If a part of the steps changes at once and for good, the steps before and after that are compared instead.
    """
    steps, paths = steps[1:], paths[1:]
    third = len(steps) // 3
    lengths = [_regular(step) for step in steps]
    if len(steps) < FEWEST:
        return None
    if at_once := _lasting_change(steps, paths):
        return at_once
    before, after = _median_of_thirds(lengths)
    _, spread = expected_and_spread([*enumerate(lengths)])
    error = ERRORS * MEDIAN_ERROR * sqrt(2 / third) * spread
    if abs(after - before) <= max(error, SHARE * before):
        return None
    return _trend_between(steps, paths, lengths, third, third)


def _trend_between(
    steps: Sequence[TrainingStep], paths: Sequence[StepTimes], lengths: Sequence[float], first: int, last: int
) -> Trend:
    """Return the trend from the ``first`` to the ``last`` so many steps, with their ``lengths`` in seconds."""
    before, after = statistics.median(lengths[:first]), statistics.median(lengths[-last:])
    return Trend(
        (steps[0].step, steps[first - 1].step), (steps[-last].step, steps[-1].step), round(before, 6), round(after, 6),
        _changed_activities(paths[:first], paths[-last:], after - before),
        tuple(_related_quantities(paths, lengths)),
    )  # fmt: skip


def _lasting_change(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> Trend | None:
    """Return the trend of steps of which a part takes longer or shorter from one step on; None if none does.

    The part must change by 10 % of the steps before, and they must become longer or shorter by half of that.
    """
    lengths = [_without_rare_phases(step) for step in steps]
    changes = []
    for key in {key for path in paths for key in path.us}:
        values = [path.us.get(key, 0) / 1e6 for path in paths]
        at = _change_point(values)
        changes.append((statistics.median(values[at:]) - statistics.median(values[:at]), at, values))
    for change, at, values in sorted(changes, key=lambda candidate: -abs(candidate[0])):
        before, after = statistics.median(lengths[:at]), statistics.median(lengths[at:])
        if abs(change) <= SHARE * before:
            return None
        if (after - before) / change >= AT_ONCE and _is_at_once(values, at):
            return replace(_trend_between(steps, paths, lengths, at, len(steps) - at), since=steps[at].step)
    return None


def _change_point(values: Sequence[float]) -> int:
    """Return the index from which on ``values`` differ most clearly from those before."""
    before, after = _running_deviations(values), _running_deviations(values[::-1])[::-1]
    return min(range(1, len(values)), key=lambda at: before[at - 1] + after[at])


def _running_deviations(values: Sequence[float]) -> list[float]:
    """Return the sum of the absolute deviations from their median of the values up to each of ``values``."""
    ordered, sums = list[float](), list[float]()
    for value in values:
        insort(ordered, value)
        half = len(ordered) // 2
        sums.append(sum(ordered[-half:]) - sum(ordered[:half]) if half else 0.0)
    return sums


def _is_at_once(values: Sequence[float], at: int) -> bool:
    """Tell whether ``values`` change at index ``at``, rather than gradually, for some time, or by chance."""
    if min(at, len(values) - at) < FEWEST_SIDE:
        return False
    third = len(values) // 3
    before, after = _median_of_thirds(values)
    slope = (after - before) / (len(values) - third)
    line = _deviations([value - slope * index for index, value in enumerate(values)])
    return _deviations(values[:at]) + _deviations(values[at:]) <= AT_ONCE * min(line, _deviations(values))


def _deviations(values: Sequence[float]) -> float:
    """Return the sum of the absolute deviations of ``values`` from their median."""
    middle = statistics.median(values)
    return sum(abs(value - middle) for value in values)


def _regular(step: TrainingStep) -> float:
    """Return the seconds of a step without the excess of its causes and without phases that most steps lack."""
    causes = sum(cause.excess_seconds for cause in (step.limited_by, *step.also) if cause)
    return _without_rare_phases(step) - causes


def _without_rare_phases(step: TrainingStep) -> float:
    return step.seconds - sum(phase.seconds for phase in step.beside)


def _median_of_thirds(values: Sequence[float]) -> tuple[float, float]:
    third = len(values) // 3
    return statistics.median(values[:third]), statistics.median(values[-third:])


def _changed_activities(before: Sequence[StepTimes], after: Sequence[StepTimes], change: float) -> tuple[Part, ...]:
    """Return at most three activities that changed like ``change`` (in seconds), by at least a tenth of it."""
    parts = []
    for key in {key for path in (*before, *after) for key in path.us}:
        first, last = (statistics.median(path.us.get(key, 0) for path in paths) for paths in (before, after))
        if (last - first) / 1e6 / change >= SHARE:
            cause = key.as_cause(last - first)
            parts.append(Part(cause.label, cause.seconds))
    return tuple(sorted(parts, key=lambda part: -abs(part.seconds))[:PARTS])


def _related_quantities(paths: Sequence[StepTimes], lengths: Sequence[float]) -> list[Driver]:
    """Return which of tokens, decode steps and ms per decode step change together with the ``lengths`` of the steps.

    Their medians must differ by over 10 % between the first and the last third, and the rank correlation must be 0.5.
    """
    quantities: dict[Text, Callable[[StepTimes], float]] = {
        Text("generated tokens"): lambda path: path.amounts.tokens,
        Text("number of decode steps"): lambda path: path.amounts.decode_steps,
        Text("milliseconds per decode step"): _decode_ms,
    }
    drivers = []
    for name, quantity in quantities.items():
        values = [quantity(path) for path in paths]
        before, after = _median_of_thirds(values)
        if len({*values}) < 2 or abs(after - before) <= SHARE * before:
            continue
        correlation = statistics.correlation(_ranks(values), _ranks(lengths))
        if correlation >= CORRELATED:
            drivers.append(Driver(name, round(before, 3), round(after, 3), round(correlation, 2)))
    return drivers


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


def _decode_ms(path: StepTimes) -> float:
    """Return the milliseconds of a decode step on the critical path; 0 without one."""
    us = sum(us for key, us in path.us.items() if (key.role, key.what) == ("engine", "decode"))
    return us / 1e3 / path.amounts.decode_steps if path.amounts.decode_steps else 0.0
