"""The reasons of stretches in which no task runs, as tables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from patcher.traces.analysis.idle import idle_parts
from patcher.traces.trace_columns import UNKNOWN

PARTS: dict[str, tuple[int, Mapping[int, int], tuple[int, int, int, int, int]]] = {
    "no launch is known": (UNKNOWN, {}, (0, 0, 0, 0, 100)),
    "launched before": (50, {}, (0, 0, 0, 100, 0)),
    "launched at the begin": (100, {}, (0, 100, 0, 0, 0)),
    "launched within": (130, {}, (30, 70, 0, 0, 0)),
    "launched at the end": (200, {}, (100, 0, 0, 0, 0)),
    "launched after the end": (250, {}, (100, 0, 0, 0, 0)),
    "a long call within": (130, {130: 180}, (30, 20, 50, 0, 0)),
    "a long call that outlasts it": (130, {130: 280}, (30, 0, 70, 0, 0)),
    "a long call from before": (50, {50: 140}, (0, 0, 40, 60, 0)),
    "a long call from before that has ended": (50, {50: 90}, (0, 0, 0, 100, 0)),
    "a long call of another launch": (130, {120: 180}, (30, 70, 0, 0, 0)),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_launch_divides_a_stretch_without_a_task(name: str) -> None:
    launched, blocked, parts = PARTS[name]
    assert idle_parts(100, 200, launched, blocked) == parts
