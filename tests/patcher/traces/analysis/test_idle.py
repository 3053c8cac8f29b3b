"""The reasons of stretches in which no task runs, as tables."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import pytest

from patcher.traces.analysis.idle import idle_parts, idle_stretches
from patcher.traces.analysis.segments import Segment, Split, _device_begin
from patcher.traces.marks import Mark
from patcher.traces.model import LEAD_IN
from patcher.traces.rank_trace import RankTrace
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


@pytest.mark.parametrize(("after", "part"), [(1_000_000, 1), (1_000_001, 3)])
def test_a_kernel_that_starts_long_after_its_launch_waits_for_something(after: int, part: int) -> None:
    assert [at for at, ns in enumerate(idle_parts(0, after, 0, {})) if ns] == [part]


STRETCHES: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int, int]], list[tuple[int, int, int, str]]]] = {
    "before the first kernel": ([(30, 40)], [(10, 30, 40)], [(10, 30, 0, LEAD_IN)]),
    "no time before it": ([(30, 40)], [(30, 30, 40)], []),
    "between two": ([(30, 40), (55, 60)], [(30, 30, 60)], [(40, 55, 0, "free_unknown_ns")]),
    "in the shade of another": ([(30, 60), (35, 40), (70, 80)], [(30, 30, 80)], [(60, 70, 0, "free_unknown_ns")]),
    "before a unit without time": ([(30, 40), (45, 60)], [(30, 30, 40), (40, 40, 40), (45, 45, 60)], []),
    "up to the next unit": ([(30, 40), (60, 70)], [(30, 30, 60), (60, 60, 70)], [(40, 60, 0, "free_unknown_ns")]),
    "of a unit that was not chosen": ([(30, 40), (60, 70), (80, 90)], [(30, 30, 40), (60, 60, 90)], []),
    "behind the last unit": ([(30, 40), (90, 99)], [(30, 30, 40)], []),
    "work of before": ([(5, 20), (30, 40)], [(10, 30, 40)], [(20, 30, 0, LEAD_IN)]),
}


@pytest.mark.parametrize("name", STRETCHES)
def test_stretches_without_a_task_belong_to_a_unit(name: str) -> None:
    """Segments are (leads, starts, ends); the first one alone is chosen."""
    tasks, segments, expected = STRETCHES[name]
    trace = RankTrace("a", "torch")
    for begin, end in tasks:
        trace.add_task(begin, end, "compute", "k", "stream 7", 0)
    trace.tasks.launched = array("q", [UNKNOWN] * len(tasks))
    made = [Segment(0, 99, None, leads=leads, starts=starts, ends=ends) for leads, starts, ends in segments]
    cuts = Split("", made, array("i", [0] * len(tasks)), range(len(tasks)))
    found = [*idle_stretches(trace, cuts, {0})]
    assert [(gap.begin, gap.end, gap.segment, gap.part) for gap in found] == expected
    assert all(gap.ns == gap.end - gap.begin for gap in found)


LEADS: dict[str, tuple[tuple[int, int] | None, list[tuple[int, int, int]], int]] = {
    "a mark before the first kernel": ((10, 90), [(30, 40, 0)], 10), "a mark behind it": ((35, 90), [(30, 40, 0)], 30),
    "no mark": (None, [(30, 40, 0)], 30), "a host that ran ahead": ((1, 9), [(30, 40, 0)], 30),
    "it ends with the first task": ((1, 30), [(30, 40, 0)], 30), "a copy before": ((1, 9), [(20, 25, 0), (30, 40, 0)], 20),
    "work of before": ((10, 90), [(5, 22, 9), (30, 40, 0)], 22), "work of before that goes on": ((10, 90), [(5, 99, 9), (30, 40, 0)], 30),
    "work of before that has ended": ((10, 90), [(1, 5, 9), (30, 40, 0)], 10),
    "other work that begins with it": ((10, 90), [(30, 35, 9), (30, 40, 0)], 10),
}  # fmt: skip


@pytest.mark.parametrize("name", LEADS)
def test_the_first_unit_leads_in_from_its_mark_or_first_task(name: str) -> None:
    """Tasks are (begin, end, segment); the first kernel of the busiest stream begins at 30."""
    mark, tasks, leads = LEADS[name]
    trace = RankTrace("a", "torch")
    for begin, end, _ in tasks:
        trace.add_task(begin, end, "compute", "k", "stream 7", 0)
    begin, end = mark or (10, 90)
    segment = Segment(begin, end, Mark("ProfilerStep#", "x", *mark, 0) if mark else None, starts=30, ends=40)
    assert _device_begin(trace, segment, 0, [owner for *_, owner in tasks], range(len(tasks))) == leads
