"""The steps of a trace: which marks are one, and what an engine's marks tell of them."""

from __future__ import annotations

from array import array
from types import SimpleNamespace as Some
from typing import Any

import pytest

from patcher.traces.analysis import segments
from patcher.traces.marks import NAMED, NUMBERED, UNCOUNTED, WANTED, Mark
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN
from tests.patcher.traces.recorded import Range, Run, Task, timeline

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


def numbered(*rows: tuple[str, int, int, int | None]) -> list[Mark]:
    """Return marks of a program's own ranges: name, begin, end and number."""
    return [Mark(NAMED, name, begin, end, number) for name, begin, end, number in rows]


@pytest.mark.parametrize(
    ("marks", "steps"),
    [
        ([("step 1", 0, 5, 1), ("step 2", 6, 9, 2)], [1, 2]), ([("step 1", 0, 5, 1)], []), ([("step 2", 0, 5, 2), ("step 1", 6, 9, 1)], []),
        ([("step 1", 0, 5, 1), ("step 1", 6, 9, 1)], []), ([("step 1", 0, 2, 1), ("step 2", 8, 11, 2)], []), ([("step 1", 0, 2, 1), ("step 2", 7, 10, 2)], [1, 2]),
        ([("step 1", 0, 9, 1), ("batch 7", 2, 4, 7), ("batch 8", 4, 6, 8), ("step 2", 9, 20, 2)], [1, 2]),
        ([("step 1", 0, 2, 1), ("batch 7", 2, 6, 7), ("step 2", 6, 8, 2), ("batch 8", 8, 12, 8)], [7, 8]), ([("step 1", 0, 4, 1), ("step 2", 4, 6, 2), ("step 2", 6, 9, 2)], []),
    ],
)  # fmt: skip
def test_numbered_ranges_are_steps_if_they_rise_and_cover_half_of_the_time(
    marks: list[tuple[str, int, int, int | None]], steps: list[int | None]
) -> None:
    assert [mark.number for mark in segments._numbered_steps(numbered(*marks))] == steps


@pytest.mark.parametrize(
    ("marks", "uncounted"),
    [
        ([(0, 10, 1), (16, 20, 3)], [(10, 16)]), ([(0, 10, 1), (15, 20, 3)], []), ([(0, 10, 1), (16, 20, 2)], []), ([(0, 10, 3), (16, 20, 1)], []),
        ([(0, 10, None), (16, 20, 3)], []), ([(0, 10, 1), (16, 20, None)], []), ([(0, 10, 1), (16, 20, 3), (26, 30, 9)], [(10, 16), (20, 26)]), ([], []),
    ],
)  # fmt: skip
def test_between_steps_whose_numbers_skip_one_a_long_stretch_does_not_count(
    marks: list[tuple[int, int, int | None]], uncounted: list[tuple[int, int]]
) -> None:
    found = segments._uncounted_between(numbered(*(("x", begin, end, number) for begin, end, number in marks)))
    assert [(mark.family, mark.begin, mark.end) for mark in found] == [(UNCOUNTED, *ends) for ends in uncounted]


def test_a_step_has_the_contents_of_marks_of_another_family_that_have_some() -> None:
    contents = {"requests": 3}
    marks = [
        (1, STEP._replace(contents={"requests": 9})), (1, STEP._replace(begin=20, end=30)),
        (1, Mark("execute_", "x", 11, 12, None, contents)), (1, Mark("mark", "x", 12, 13)),
    ]  # fmt: skip
    trace: Any = Some(marks=marks)
    family, steps, _ = segments.step_marks(trace)
    assert (family, [mark.contents for mark in steps]) == (STEP.family, [contents, {}])


@pytest.mark.parametrize(
    ("tasks", "operators", "mark"),
    [
        ([], [], None), ([(30, 40, UNKNOWN)], [], (30, 40)), ([(30, 40, 10)], [], (10, 40)), ([(30, 40, 50)], [], (30, 51)), ([(30, 40, UNKNOWN), (50, 60, 20)], [], (20, 60)),
        ([], [(5, 9), (1, 3)], (1, 9)), ([(30, 40, 10)], [(20, 90)], (10, 90)),
    ],
)  # fmt: skip
def test_the_whole_trace_reaches_over_all_that_it_has(
    tasks: list[tuple[int, int, int]], operators: list[tuple[int, int]], mark: tuple[int, int] | None
) -> None:
    trace = RankTrace("a", "torch")
    for begin, end, enqueued in tasks:
        trace.add_task(begin, end, "compute", "k", "stream 7", None)
        trace.tasks.enqueued[-1] = enqueued
    thread = trace.thread(1, 1)
    for begin, end in operators:
        trace.operators[thread].add(begin, end, 0)
    found = segments._mark_of_trace(trace)
    assert [(one.family, one.begin, one.end, one.number) for one in found] == ([("", *mark, 0)] if mark else [])


@pytest.mark.parametrize(
    ("last", "launches", "counted"),
    [(9, (1, 101), 2), (10, (1, 101), 3), (9, (1, 101, 204), 3), (9, (204,), 3), (9, (), 3)],
    ids=["stopped at once", "longer", "with a task", "only the last with a task", "no tasks"],
)
def test_a_last_step_that_is_stopped_at_once_does_not_count(last: int, launches: tuple[int, ...], counted: int) -> None:
    marks = tuple(Range(f"ProfilerStep#{at}", 100 * at, 100 * (at + 1)) for at in range(2))
    run = Run(
        tuple(Task(at + 1, at + 9, launch=at) for at in launches), (*marks, Range("ProfilerStep#2", 200, 200 + last))
    )
    steps = [segment.mark for segment in segments.split(timeline(run)).segments if segment.mark]
    assert [mark.number for mark in steps] == [0, 1, 2][:counted]


PLACED: dict[str, tuple[list[tuple[int, int, str, str, int]], list[tuple[int, ...]]]] = {
    "kernels of two steps": ([(10, 20, "a", "compute", 0), (30, 45, "a", "compute", 1)], [(10, 10, 30, 20, 1), (30, 30, 45, 45, 1)]),
    "a copy before the kernel": ([(5, 8, "a", "copy", 0), (10, 20, "a", "compute", 0)], [(5, 10, 20, 20, 2), (0, 0, 0, 0, 0)]),
    "another stream computes before": ([(5, 8, "b", "compute", 0), (10, 20, "a", "compute", 0)], [(5, 10, 20, 20, 2), (0, 0, 0, 0, 0)]),
    "nothing computes": ([(5, 8, "b", "copy", 0), (9, 12, "a", "communication", 0)], [(5, 9, 12, 12, 2), (0, 0, 0, 0, 0)]),
    "one of no step": ([(1, 99, "a", "compute", UNKNOWN), (10, 20, "a", "compute", 0)], [(10, 10, 20, 20, 1), (0, 0, 0, 0, 0)]),
    "a step that begins before the last": ([(10, 20, "a", "compute", 1), (30, 40, "a", "compute", 0)], [(30, 30, 30, 40, 1), (30, 30, 30, 20, 1)]),
    "a copy alone": ([(5, 8, "a", "copy", 0)], [(5, 5, 8, 8, 1), (0, 0, 0, 0, 0)]),
    "the end is of the last task": ([(10, 50, "b", "copy", 0), (20, 30, "a", "compute", 0)], [(10, 20, 50, 50, 2), (0, 0, 0, 0, 0)]),
}  # fmt: skip


@pytest.mark.parametrize(("tasks", "expected"), PLACED.values(), ids=PLACED)
def test_on_the_device_a_step_begins_with_its_first_kernel_and_ends_with_the_first_of_the_next(
    tasks: list[tuple[int, int, str, str, int]], expected: list[tuple[int, ...]]
) -> None:
    trace = RankTrace("a", "torch")
    for begin, end, stream, kind, _ in tasks:
        trace.add_task(begin, end, kind, f"{kind} {end - begin}", stream, None)
    made = [segments.Segment(at, at + 1, Mark("x", "x", at, at + 1)) for at in range(2)]
    segments._place_on_device(trace, made, [owner for *_, owner in tasks], range(len(tasks)))
    assert [(one.leads, one.starts, one.ends, one.last, one.tasks) for one in made] == expected


@pytest.mark.parametrize(
    ("linked", "owners"), [(False, [UNKNOWN, 0, 0, 2, UNKNOWN]), (True, [UNKNOWN, 0, 0, 0, 2, UNKNOWN])]
)
def test_a_task_without_a_launch_is_of_the_step_on_the_device_else_on_the_host(linked: bool, owners: list[int]) -> None:
    """The first step is from 20 to 40 on the device, the third from 40 to 50; the second has no task."""
    trace = RankTrace("a", "torch")
    times = (19, 20, 39, 45, 50) if not linked else (19, 20, 30, 39, 40, 50)
    for begin in (*times, *[25] * linked):
        trace.add_task(begin, begin + 1, "compute", "k", "stream 7", None)
    ends = [(20, 40), (0, 0), (40, 50)]
    made = [
        segments.Segment(begin, end, None, starts=starts, ends=ends_)
        for (begin, end), (starts, ends_) in zip([(20, 40), (40, 42), (42, 50)], ends, strict=True)
    ]
    owner = array("i", [9] * len(trace.tasks))
    segments._assign_unlinked(trace, made, owner, range(len(times)))
    assert owner.tolist() == [*owners, *[9] * linked]
