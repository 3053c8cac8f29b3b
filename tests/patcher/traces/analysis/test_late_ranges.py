"""The range in which the host is late: over half of the idle time, and less of the host's."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from patcher.traces import analysis, formats
from patcher.traces.model import HostRange
from tests.patcher.traces.recorded import MS, Range, Run, Task

US = 1000
SLOW = 40 * US
STEP, OPTIMIZER = "loop.py(3): train", "adamw.py(61): step"


def launches(begin: int, end: int, every: int) -> tuple[Task, ...]:
    """Kernels of 10 µs, each launched 5 µs before it begins, one in ``every`` ns."""
    return tuple(Task(at + 5 * US, at + 15 * US, launch=at) for at in range(begin, end - 15 * US + 1, every))


def late(tmp_path: Path, tasks: tuple[Task, ...], *functions: Range, annotations: tuple[Range, ...] = ()) -> object:
    run = Run(tasks, (Range("ProfilerStep#1", 0, 10 * MS),), functions=functions, annotations=annotations)
    (trace,) = formats.read(run.torch(tmp_path / "a.json"))
    return analysis.attributed(trace).profile.late_range


BUSY = Task(5 * US, 6 * MS, launch=0)
WHOLE = Range(STEP, 0, 10 * MS)


def test_the_range_with_most_idle_time_is_the_innermost_one_that_tells(tmp_path: Path) -> None:
    """Of 4 ms with a kernel in each 40 µs, three quarters are idle; one function around them lasts a little longer."""
    found = late(
        tmp_path, (BUSY, *launches(6 * MS, 10 * MS, SLOW)), WHOLE, Range("loop.py(9): update", 5900 * US, 10 * MS),
        Range(OPTIMIZER, 6 * MS, 10 * MS), Range("adamw.py(80): half", 8 * MS, 10 * MS),
    )  # fmt: skip
    assert isinstance(found, HostRange)
    assert (found.name, found.ns) == (OPTIMIZER, 4 * MS)
    assert found.idle_ns == pytest.approx(3 * MS, rel=0.02)


def test_it_may_be_of_a_library(tmp_path: Path) -> None:
    name = "torch/optim/adamw.py(61): step"
    found = late(tmp_path, (BUSY, *launches(6 * MS, 10 * MS, SLOW)), Range(name, 6 * MS, 10 * MS))
    assert isinstance(found, HostRange)
    assert found.name == name


@pytest.mark.parametrize(("begin", "told"), [(7900, True), (8100, False)])
def test_it_has_over_half_of_the_idle_time(tmp_path: Path, begin: int, told: bool) -> None:
    found = late(tmp_path, (BUSY, *launches(6 * MS, 10 * MS, SLOW)), Range(OPTIMIZER, begin * US, 10 * MS))
    assert (found is not None) == told


@pytest.mark.parametrize(
    ("begin", "launched", "told"), [(4100, 4150, True), (3900, 3950, False), (3900, 0, True), (0, 0, False)]
)
def test_its_share_of_the_host_or_of_the_work_is_smaller(tmp_path: Path, begin: int, launched: int, told: bool) -> None:
    """It has all the idle time, less or more than 60 % of the step, and launches the long kernel or does not."""
    busy = Task((launched + 5) * US, 6 * MS, launch=launched * US)
    found = late(tmp_path, (busy, *launches(6 * MS, 10 * MS, SLOW)), Range(OPTIMIZER, begin * US, 10 * MS))
    assert (found is not None) == told


@pytest.mark.parametrize(("last", "told"), [(8600, True), (8720, False)])
def test_little_host_bound_time_has_no_range(tmp_path: Path, last: int, told: bool) -> None:
    """Over or under a tenth of the step is idle."""
    busy = Task(5 * US, (last - 5) * US, launch=0)
    found = late(tmp_path, (busy, *launches(last * US, 10 * MS, SLOW)), Range(OPTIMIZER, last * US, 10 * MS))
    assert (found is not None) == told


@pytest.mark.parametrize(("steps", "told"), [(2, True), (3, False)])
def test_idle_time_in_one_of_several_steps_has_no_range(tmp_path: Path, steps: int, told: bool) -> None:
    more = tuple(
        Task(number * 10 * MS + 5 * US, number * 10 * MS + 9 * MS, launch=number * 10 * MS)
        for number in range(1, steps)
    )
    marks = tuple(Range(f"ProfilerStep#{number}", number * 10 * MS, (number + 1) * 10 * MS) for number in range(steps))
    tasks = (BUSY, *launches(6 * MS, 10 * MS, SLOW), *more)
    run = Run(tasks, marks, functions=(Range(OPTIMIZER, 6 * MS, 10 * MS),))
    (trace,) = formats.read(run.torch(tmp_path / "a.json"))
    assert (analysis.attributed(trace).profile.late_range is not None) == told


def test_recursion_counts_once_and_the_optimizer_of_torch_counts_too(tmp_path: Path) -> None:
    tasks = (BUSY, *launches(6 * MS, 10 * MS, SLOW))
    found = late(tmp_path, tasks, Range(OPTIMIZER, 6 * MS, 10 * MS), Range(OPTIMIZER, 7 * MS, 10 * MS))
    assert isinstance(found, HostRange)
    assert (found.name, found.ns) == (OPTIMIZER, 4 * MS)
    name = "Optimizer.step#AdamW.step"
    found = late(tmp_path, tasks, annotations=(Range(name, 6 * MS, 10 * MS),))
    assert isinstance(found, HostRange)
    assert found.name == name


@pytest.mark.parametrize(("late_at", "named"), [(5, True), (6, False)])
def test_it_is_named_in_the_headline_unless_computing_takes_over_twice_as_long(
    tmp_path: Path, late_at: int, named: bool
) -> None:
    """Three quarters of the time from ``late_at`` ms on are idle: 3.75 ms beside 6.25 ms, or 3 ms beside 7 ms."""
    tasks = (Task(5 * US, late_at * MS, launch=0), *launches(late_at * MS, 10 * MS, SLOW))
    run = Run(tasks, (Range("ProfilerStep#1", 0, 10 * MS),), functions=(Range(OPTIMIZER, late_at * MS, 10 * MS),))
    (trace,) = formats.read(run.torch(tmp_path / "a.json"))
    report = analysis.reported([analysis.attributed(trace).profile])
    (finding,) = (finding for finding in report.findings if finding.id == "dispatch")
    assert finding.title.endswith(f"mostly while the host was in {OPTIMIZER}")
    assert (report.verdict.title == finding.title) == named
    assert (finding.saving_ns or 0) == pytest.approx((10 - late_at) * 0.75 * MS, rel=0.02)
    assert "use CUDA graphs" in finding.advice


@pytest.mark.parametrize(("launch", "busy", "between"), [(0, 1, 8), (0, 5, 5), (1, 5, 5)])
def test_idle_time_between_marks_is_of_no_step(tmp_path: Path, launch: int, busy: int, between: int) -> None:
    """The marks last 2 ms of 10 or 30, and the device works from ``launch`` to ``busy`` ms after their begin."""
    begins = (0, 10 * MS, 20 * MS, 50 * MS)
    starts = tuple(begin + launch * MS for begin in begins)
    tasks = tuple(Task(at + 5 * US, begin + busy * MS, launch=at) for begin, at in zip(begins, starts, strict=True))
    marks = tuple(Range(f"execute_context_0(0)_generation_{begin}(1)", begin, begin + 2 * MS) for begin in begins)
    around = tuple(
        Range(name, begin + 2 * MS + at * 10 * US, following)
        for begin, following in pairwise(begins)
        for at, name in enumerate(("poll.py(1): pop", "torch/a.py(2): poll"))
    )
    (trace,) = formats.read(Run(tasks, marks, functions=(Range(STEP, 0, 60 * MS), *around)).torch(tmp_path / "a.json"))
    profile = analysis.attributed(trace).profile
    assert [*profile.idle_between.values()] == [pytest.approx((between + more) * MS, rel=0.02) for more in (0, 0, 20)]
    assert profile.range_between is not None
    assert profile.range_between.name == "poll.py(1): pop"
