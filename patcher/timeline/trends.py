"""The trend of a run: steps that become longer or shorter, which part of them does, and what grows with it."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import sqrt

from patcher.messages import Text
from patcher.timeline.causes import StepTimes, expected_and_spread
from patcher.timeline.model import Driver, Part, TrainingStep, Trend, doing, label
from patcher.timeline.shares import seconds

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


def trend(steps: Sequence[TrainingStep], paths: Sequence[StepTimes]) -> Trend | None:
    """Return how the length of the steps changes from their first to their last third; None if it hardly does.

    The change must be beyond chance and above 10 %. The first step is left out, and with fewer than twelve others the
    result is None. Excesses of single steps, and phases that most steps lack, do not count. ``paths`` has the sums of
    each step's critical path.
    """
    steps, paths = steps[1:], paths[1:]
    third = len(steps) // 3
    lengths = [_regular(step) for step in steps]
    if len(steps) < FEWEST:
        return None
    before, after = _median_of_thirds(lengths)
    _, spread = expected_and_spread([*enumerate(lengths)])
    error = ERRORS * MEDIAN_ERROR * sqrt(2 / third) * spread
    change = after - before
    if abs(change) <= max(error, SHARE * before):
        return None
    return Trend(
        (steps[0].step, steps[third - 1].step), (steps[-third].step, steps[-1].step), round(before, 6), round(after, 6),
        _changed_activities(paths, change), tuple(_related_quantities(paths, lengths)),
    )  # fmt: skip


def _regular(step: TrainingStep) -> float:
    """Return the seconds of a step without the excess of its causes and without phases that most steps lack."""
    causes = sum(cause.excess_seconds for cause in (step.limited_by, *step.also) if cause)
    return step.seconds - causes - sum(phase.seconds for phase in step.beside)


def _median_of_thirds(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the first and of the last third of ``values``."""
    third = len(values) // 3
    return statistics.median(values[:third]), statistics.median(values[-third:])


def _changed_activities(paths: Sequence[StepTimes], change: float) -> tuple[Part, ...]:
    """Return up to three activities, with the seconds that they changed from the first to the last third of the steps.

    ``change`` is that of the steps' length in seconds. Each activity changed in the same direction, by at least a tenth
    of it; the largest comes first. ``paths`` has the sums of each step's critical path.
    """
    parts = []
    for key in {key for path in paths for key in path.us}:
        before, after = _median_of_thirds([path.us.get(key, 0) for path in paths])
        if (after - before) / 1e6 / change >= SHARE:
            parts.append(Part(doing(label(key.role, None, None), key.what, key.phase), seconds(after - before)))
    return tuple(sorted(parts, key=lambda part: -abs(part.seconds))[:PARTS])


def _related_quantities(paths: Sequence[StepTimes], lengths: Sequence[float]) -> list[Driver]:
    """Return which of tokens, decode steps and ms per decode step change together with the length of the steps.

    ``lengths`` are in seconds, ``paths`` has the sums of each step's critical path. The medians of a quantity must
    differ by over 10 % between the first and the last third, and its rank correlation with the lengths must be 0.5 at
    least.
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
