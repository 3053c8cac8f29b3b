"""The steps of a trace: which marks are one, and what an engine's marks tell of them."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from patcher.traces.analysis import segments
from patcher.traces.marks import NUMBERED, UNCOUNTED, WANTED, Mark
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

STEP = Mark("ProfilerStep#", "step", 10, 20, 7)


@pytest.mark.parametrize(
    ("marks", "family", "begins"),
    [
        ([], "", []), ([(1, NUMBERED, 0, 9), (1, NUMBERED, 9, 20)], NUMBERED, [0, 9]), ([(1, NUMBERED, 0, 20), (1, "mark", 3, 9)], NUMBERED, [0]),
        ([(1, NUMBERED, 0, 20), (1, "mark", 0, 9), (1, "mark", 9, 20)], "mark", [0, 9]),
        ([(1, NUMBERED, 0, 20), (1, "step[", 0, 9), (1, "mark", 0, 5), (1, "mark", 5, 9)], "mark", [0, 5]),
        ([(1, "mark", 4, 9), (1, "mark", 1, 4), (2, "mark", 2, 3)], "mark", [1, 4]),
        ([(1, WANTED, 0, 9), (1, WANTED, 2, 5), (1, NUMBERED, 0, 4), (1, NUMBERED, 4, 9)], WANTED, [0]),
        ([(1, "mark", 0, 9), (1, "mark", 2, 5)], "mark", [0, 2]),
    ],
)  # fmt: skip
def test_the_steps_are_the_marks_of_the_first_family_unless_that_is_one_around_several(
    marks: list[tuple[int, str, int, int]], family: str, begins: list[int]
) -> None:
    uncounted = Mark(UNCOUNTED, "x", 50, 60)
    trace: Any = Some(
        marks=[(9, uncounted), *((thread, Mark(key, "x", begin, end)) for thread, key, begin, end in marks)]
    )
    chosen, steps, others = segments.step_marks(trace)
    assert (chosen, [mark.begin for mark in steps]) == (family, begins)
    assert others == [uncounted]


@pytest.mark.parametrize(
    ("begins", "requests"),
    [([], None), ([10], 0), ([19], 0), ([9], None), ([20], None), ([10, 19], None), ([9, 15, 20], 1)],
)
def test_a_step_has_the_contents_of_the_only_engines_mark_that_begins_in_it(
    begins: list[int], requests: int | None
) -> None:
    engine = [Mark("execute", "x", begin, 99, None, {"requests": at}) for at, begin in enumerate(begins)]
    (mark,) = segments._with_numbers([STEP], engine)
    assert (mark.number, mark.contents.get("requests")) == (7, requests)


def test_steps_without_a_number_are_counted() -> None:
    marks = [STEP._replace(number=None), STEP, STEP._replace(number=None)]
    assert [mark.number for mark in segments._with_numbers(marks, [])] == [0, 7, 2]


@pytest.mark.parametrize(
    ("ranges", "outermost"),
    [([(0, 9), (2, 5), (8, 9), (9, 12)], [(0, 9), (9, 12)]), ([(0, 0), (0, 3)], [(0, 0), (0, 3)]), ([], [])],
)
def test_marks_within_another_one_are_no_steps(ranges: list[tuple[int, int]], outermost: list[tuple[int, int]]) -> None:
    marks = [Mark("x", "x", *ends) for ends in ranges]
    assert [(mark.begin, mark.end) for mark in segments._outermost(marks)] == outermost


BUSIEST: dict[str, tuple[list[tuple[str, int, str, int]], str]] = {
    "the longest in sum": ([("a", 9, "compute", 0), ("b", 5, "compute", 0), ("b", 5, "compute", 1)], "b"),
    "a longer copy": ([("a", 9, "compute", 0), ("b", 10, "copy", 0)], "a"),
    "longer communication": ([("a", 9, "compute", 0), ("b", 10, "communication", 0)], "a"),
    "longer, but of no step": ([("a", 9, "compute", 0), ("b", 10, "compute", UNKNOWN)], "a"),
    "equal ones": ([("a", 9, "compute", 0), ("b", 9, "compute", 0)], "a"),
    "nothing computes": ([("a", 9, "copy", 0)], ""),
}  # fmt: skip


@pytest.mark.parametrize(("tasks", "stream"), BUSIEST.values(), ids=BUSIEST)
def test_the_busiest_stream_computes_longest_within_the_steps(
    tasks: list[tuple[str, int, str, int]], stream: str
) -> None:
    trace = RankTrace("a", "torch")
    for name, ns, kind, _ in tasks:
        trace.add_task(0, ns, kind, "k", name, None)
    busiest = segments._busiest_stream(trace, [segment for *_, segment in tasks])
    assert busiest == (trace.names[stream] if stream else UNKNOWN)
