"""Ranges and functions with much of the time of all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from patcher.messages import COMMA, Text, joined
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.measures import MOST_NAMED, is_function, totals
from patcher.traces.words import host_name, percent

_NEARLY_WHOLE = 0.95
"""Share of all steps below which a range or function is a part of them that is worth a headline."""

NOT_WHOLE = 0.99
"""Share of a step below which a range is not around all of it."""


def longest_ranges(steps: Sequence[model.HostStep], whole: int) -> str:
    """Return a sentence on the longest ranges, as shares of ``whole`` ns, the time of all steps; "" without any."""
    ranges = large_ranges(steps, whole)
    if not ranges:
        return ""
    return Text("Longest ranges, as shares of the whole time: {ranges}.", names_with_shares(ranges, whole))


def large_ranges(steps: Sequence[model.HostStep], whole: int) -> list[tuple[str, int]]:
    """Return up to three ranges with 10 % of ``whole`` ns, the time of all steps, and their ns, longest first.

    Ranges around whole steps do not count.
    """
    times = totals(step.ranges for step in steps)
    return [(name, ns) for name, ns in times.most_common() if NOTABLE * whole <= ns < NOT_WHOLE * whole][:MOST_NAMED]


def names_with_shares(times: Iterable[tuple[str, int]], whole: int) -> str:
    """Return names with their times in words, as shares of ``whole``; both are in ns."""
    return joined(
        COMMA, (Text("{name} ({share})", name=host_name(name), share=percent(ns / whole, 0)) for name, ns in times)
    )


def range_with_half(steps: Sequence[model.HostStep], whole: int) -> tuple[int, str]:
    """Return the ns and name of the innermost range or function with half of ``whole`` ns; (0, "") without one.

    Those around nearly all of the time say nothing.
    """
    times = sum((Counter(step.ranges) | Counter(step.functions) for step in steps), Counter[str]())
    half = [
        (ns, name) for name, ns in times.items() if whole <= 2 * ns < 2 * _NEARLY_WHOLE * whole and is_function(name)
    ]
    return min(half, default=(0, ""))


def times_in(steps: Sequence[model.HostStep], name: str) -> list[int]:
    """Return for how many ns each step is in a range or function."""
    return [step.ranges.get(name, step.functions.get(name, 0)) for step in steps]
