"""The steps of a trace: which marks are one, and what an engine's marks tell of them."""

from __future__ import annotations

import pytest

from patcher.traces.analysis import segments
from patcher.traces.marks import Mark

STEP = Mark("ProfilerStep#", "step", 10, 20, 7)


@pytest.mark.parametrize(
    ("begins", "requests"),
    [([], None), ([10], 0), ([19], 0), ([9], None), ([20], None), ([10, 19], None), ([9, 15, 20], 1)],
)
def test_a_step_has_the_contents_of_the_only_engines_mark_that_begins_in_it(
    begins: list[int], requests: int | None
) -> None:
    engine = [Mark("execute", "x", begin, 99, None, {"requests": at}) for at, begin in enumerate(begins)]
    (mark,) = segments._completed([STEP], engine)
    assert (mark.number, mark.contents.get("requests")) == (7, requests)


def test_steps_without_a_number_are_counted() -> None:
    marks = [STEP._replace(number=None), STEP, STEP._replace(number=None)]
    assert [mark.number for mark in segments._completed(marks, [])] == [0, 7, 2]


@pytest.mark.parametrize(
    ("ranges", "outermost"),
    [([(0, 9), (2, 5), (8, 9), (9, 12)], [(0, 9), (9, 12)]), ([(0, 0), (0, 3)], [(0, 0), (0, 3)]), ([], [])],
)
def test_marks_within_another_one_are_no_steps(ranges: list[tuple[int, int]], outermost: list[tuple[int, int]]) -> None:
    marks = [Mark("x", "x", *ends) for ends in ranges]
    assert [(mark.begin, mark.end) for mark in segments._outermost(marks)] == outermost
