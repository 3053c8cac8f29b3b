"""Times that rise or fall throughout the steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.measures import elements, median
from patcher.traces.analysis.host_only.wording import GROWS, MORE_WORK
from patcher.traces.words import in_ms

_TREND_STEPS, _TREND = 5, 1.5
"""Steps from which on they can have a trend, and how many times as long the longer third of them takes at least."""

_NOISY = 0.25
"""Share of the pairs of steps that may be out of order if the work has a trend, too: 10 % if only the times have."""


def with_trend(headline: str, times: Sequence[int]) -> str:
    """Return the headline on a part of the steps, with the trend of its ``times`` (ns by step) if they have one."""
    change = trend(times)
    if change is None:
        return headline
    values = {"headline": headline, "first_time": in_ms(change[0]), "last_time": in_ms(change[1])}
    if change[0] > change[1]:
        return Text(
            "{headline}, which gets shorter: from {first_time} in the first third to {last_time} in the last", **values
        )
    return Text(
        "{headline}, which gets longer: from {first_time} in the first third to {last_time} in the last", **values
    )


def trend(times: Sequence[int], noise: float = NOTABLE, factor: float = _TREND) -> tuple[int, int] | None:
    """Return the median of the first and of the last third of ``times`` (ns by step) if they rise or fall throughout.

    Both have to differ by ``factor`` at least, and at most the share ``noise`` of pairs of steps may be out of order.
    At least a tenth of the change has to lie on each side of the middle third. No step may exceed the median step by
    over twice the change. None otherwise, and for under five steps.
    """
    if len(times) < _TREND_STEPS:
        return None
    third = len(times) // 3
    first, last = median(times[:third]), median(times[-third:])
    if first == last or max(first, last) < factor * min(first, last):
        return None
    middle = median(times[third:-third])
    at_once = min(abs(middle - first), abs(last - middle)) < NOTABLE * abs(last - first)
    stands_out = max(times) - median(times) > 2 * abs(last - first)
    if at_once or stands_out:
        return None
    pairs = [(before, after) for before, after in itertools.combinations(times, 2) if before != after]
    in_order = sum((before < after) == (first < last) for before, after in pairs)
    return (first, last) if in_order >= (1 - noise) * len(pairs) else None


def trend_of_steps(steps: Sequence[model.HostStep]) -> tuple[int, int] | None:
    """Return the trend of the steps' times. More of them may be out of order if the work has the same trend.

    The work is the calls of operators, or the elements of their inputs. Those operators of which it has this trend take
    at least half of the change. Other processes on the machine disturb the times, but not the work.
    """
    times = [step.ns for step in steps]
    change = trend(times)
    noisy = trend(times, _NOISY)
    if change or noisy is None:
        return change
    first, last = noisy
    third, explained = len(steps) // 3, 0
    for name in dict.fromkeys(name for step in steps for name in step.operators):
        calls = trend([step.calls.get(name, 0) for step in steps])
        inputs = (step.inputs.get(name, {}).items() for step in steps)
        sizes = trend([sum(count * elements(shapes) for shapes, count in of_step) for of_step in inputs])
        if any((begin < end) == (first < last) for begin, end in filter(None, (calls, sizes))):
            of_operator = [step.operators.get(name, 0) for step in steps]
            explained += median(of_operator[-third:]) - median(of_operator[:third])
    return noisy if explained / (last - first) >= 0.5 else None


def advice_on_trend(advice: str) -> str:
    """Return what to do about steps with a trend; ``advice`` is that on the slowest of them, "" if unknown."""
    return GROWS if advice in ("", MORE_WORK) else advice
