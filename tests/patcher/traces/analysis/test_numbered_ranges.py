"""Numbered ranges of a program as its steps, and steps whose mark is missing."""

from __future__ import annotations

import pytest

from patcher.traces.analysis.segments import split, step_marks
from tests.patcher.traces.recorded import MS, Range, Run, timeline


def ranges(name: str, numbers: list[int], length: int = 10 * MS) -> list[Range]:
    """Return one range a number, 10 ms apart."""
    return [Range(name.format(number), number * 10 * MS, number * 10 * MS + length) for number in numbers]


SERIES = {
    "record_function in a loop": (ranges("train_step {}", [0, 1, 2]), [0, 1, 2]),
    "an equals sign": (ranges("iteration={}", [4, 5]), [4, 5]),
    "an epoch before the step": (ranges("epoch 1 / Step #{}", [7, 8, 9]), [7, 8, 9]),
    "micro-batches within steps": (
        [*ranges("step_{}", [1, 2]), *(Range(f"micro_batch_{at % 2}", at * 5 * MS, at * 5 * MS + MS) for at in (2, 3, 4, 5))],
        [1, 2],
    ),
    "the profiler's own": ([*ranges("ProfilerStep#{}", [3, 4]), *ranges("train_step {}", [0, 1, 2])], [3, 4]),
    "a part of the steps": (ranges("optimizer_step_{}", [1, 2, 3], 2 * MS), []),
    "numbers that start again": (
        [Range(f"batch {at % 2}", at * 10 * MS, at * 10 * MS + 9 * MS) for at in range(4)], [],
    ),
    "a single one": (ranges("step 3", [3]), []),
    "layers": (ranges("layer_{}", [0, 1, 2]), []),
}  # fmt: skip


@pytest.mark.parametrize(("marks", "numbers"), SERIES.values(), ids=SERIES)
def test_numbered_ranges_are_steps_if_they_make_up_the_time(marks: list[Range], numbers: list[int]) -> None:
    _, steps, _ = step_marks(timeline(Run((), tuple(marks))))
    assert [mark.number for mark in steps] == numbers


@pytest.mark.parametrize(
    ("numbers", "ends"),
    [
        ([1, 2, 4, 5], {1: 20, 2: 30, 4: 50, 5: 60}),  # the mark of step 3 is missing
        ([1, 2, 3, 4], {1: 20, 2: 30, 3: 40, 4: 50}),
    ],
)
def test_a_step_ends_where_the_mark_of_the_next_one_is_missing(numbers: list[int], ends: dict[int, int]) -> None:
    cuts = split(timeline(Run((), tuple(ranges("ProfilerStep#{}", numbers)))))
    assert {segment.mark.number: segment.end // MS for segment in cuts.segments if segment.mark} == ends


def test_numbers_that_skip_without_a_pause_miss_no_step() -> None:
    """As where a program counts samples."""
    marks = tuple(Range(f"step {at * 8}", at * 10 * MS, at * 10 * MS + 8 * MS) for at in range(3))
    cuts = split(timeline(Run((), marks)))
    assert [segment.end // MS for segment in cuts.segments] == [10, 20, 28]
