"""Ranges and functions with much of the time of all steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from patcher.messages import COMMA, Text, joined
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.measures import MOST_NAMED, is_function, totals
from patcher.traces.analysis.host_steps import LARGE
from patcher.traces.words import host_name, percent

_NEARLY_WHOLE = 0.95
"""Share of all steps below which a range or function is a part of them that is worth a headline."""

_ALIKE = 0.9
"""Share of the part before from which on a further part is as long."""

PASS = re.compile(r"(?<![a-z])(?:forward|backward)(?![a-z])", re.IGNORECASE)
"""Part of the name of a forward or backward pass, which every training step has."""

NOT_WHOLE = 0.99
"""Share of a step below which a range is not around all of it."""


def longest_ranges(steps: Sequence[model.HostStep], whole: int) -> str:
    """Return a sentence on up to three ranges with 10 % of ``whole`` ns, the time of all steps; "" without any.

    Ranges around whole steps do not count.
    """
    times = totals(step.ranges for step in steps).most_common()
    ranges = [(name, ns) for name, ns in times if NOTABLE * whole <= ns < NOT_WHOLE * whole][:MOST_NAMED]
    if not ranges:
        return ""
    return Text("Longest ranges, as shares of the whole time: {ranges}.", names_with_shares(ranges, whole))


def main_parts(steps: Sequence[model.HostStep], whole: int) -> dict[str, int]:
    """Return the range or function with half of ``whole`` ns, else up to three beside each other that have it, by name.

    A part as long as the last one counts, too. A pass comes with the other passes. The ns are those of all steps.
    """
    ns, name = range_with_half(steps, whole)
    parts = {name: ns} if name else {}
    times = sum((Counter(step.ranges) | Counter(step.functions) for step in steps), Counter[str]())
    for other, ns in times.most_common() if not name or PASS.search(name) else ():
        counts = PASS.search(other) if name else 2 * sum(parts.values()) < whole or ns >= _ALIKE * min(parts.values())
        inside = any(
            part in step.around.get(other, ()) or other in step.around.get(part, ()) for step in steps for part in parts
        )
        if counts and not inside and LARGE * whole <= ns < _NEARLY_WHOLE * whole and is_function(other):
            parts[other] = ns
    parts = dict([*parts.items()][:MOST_NAMED])
    return parts if 2 * sum(parts.values()) >= whole else {}


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
