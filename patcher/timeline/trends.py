"""The trend of a run: steps that become longer or shorter, which part of them does, and what grows with it."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import sqrt

from patcher.messages import Text
from patcher.timeline.causes import Spent, usual
from patcher.timeline.model import Driver, Part, TrainingStep, Trend, doing, label
from patcher.timeline.shares import seconds

FEWEST = 12
"""Steps, below which a trend is not told from chance."""

SHARE = 0.1
"""Share of the first steps' length by which the last ones must differ, and of the change that a part must have."""

ERRORS = 3
"""Multiple of the standard error of a difference of two medians that is no chance."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for values that are normally distributed."""

CORRELATED = 0.5
"""Rank correlation with the length of the steps from which on a quantity is said to grow with it."""

PARTS = 3


def trend(steps: Sequence[TrainingStep], paths: Sequence[Spent]) -> Trend | None:
    """Return how the first and the last third of the steps differ; None if that may be chance, or is below 10 %.

    The first step is left out, and at least twelve others are needed. What made single steps longer, and phases that
    most steps lack, do not count. ``paths`` has the sums of each step's critical path.
    """
    steps, paths = steps[1:], paths[1:]
    third = len(steps) // 3
    lengths = [_regular(step) for step in steps]
    if len(steps) < FEWEST:
        return None
    before, after = _ends(lengths)
    _, spread = usual([*enumerate(lengths)])
    error = ERRORS * MEDIAN_ERROR * sqrt(2 / third) * spread
    change = after - before
    if abs(change) <= max(error, SHARE * before):
        return None
    return Trend(
        (steps[0].step, steps[third - 1].step), (steps[-third].step, steps[-1].step), round(before, 6), round(after, 6),
        _parts(paths, change), tuple(_drivers(paths, lengths)),
    )  # fmt: skip


def _regular(step: TrainingStep) -> float:
    """Return the seconds of a step without the excess of its causes and without phases that most steps lack."""
    causes = sum(cause.excess_seconds for cause in (step.limited_by, *step.also) if cause)
    return step.seconds - causes - sum(phase.seconds for phase in step.beside)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the first and of the last third of ``values``."""
    third = len(values) // 3
    return statistics.median(values[:third]), statistics.median(values[-third:])


def _parts(paths: Sequence[Spent], change: float) -> tuple[Part, ...]:
    """Return up to three activities that make a tenth or more of a ``change`` of the steps (seconds), largest first.

    Each has its own change in seconds, from the first to the last third of ``paths``.
    """
    parts = []
    for key in {key for path in paths for key in path.us}:
        before, after = _ends([path.us.get(key, 0) for path in paths])
        if (after - before) / 1e6 / change >= SHARE:
            parts.append(Part(doing(label(key.role, None, None), key.what, key.phase), seconds(after - before)))
    return tuple(sorted(parts, key=lambda part: -abs(part.seconds))[:PARTS])


def _drivers(paths: Sequence[Spent], lengths: Sequence[float]) -> list[Driver]:
    """Return which of tokens, decode steps and ms per decode step change with the ``lengths`` of the steps (seconds).

    Their medians over ``paths`` must differ by over 10 % between the first and the last third, and their rank
    correlation with the lengths must be 0.5 at least.
    """
    quantities: dict[Text, Callable[[Spent], float]] = {
        Text("generated tokens"): lambda path: path.amounts.tokens,
        Text("number of decode steps"): lambda path: path.amounts.decode_steps,
        Text("milliseconds per decode step"): _decode_ms,
    }
    drivers = []
    for name, quantity in quantities.items():
        values = [quantity(path) for path in paths]
        before, after = _ends(values)
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


def _decode_ms(path: Spent) -> float:
    """Return the milliseconds of a decode step on the critical path; 0 without one."""
    us = sum(us for key, us in path.us.items() if (key.role, key.what) == ("engine", "decode"))
    return us / 1e3 / path.amounts.decode_steps if path.amounts.decode_steps else 0.0
