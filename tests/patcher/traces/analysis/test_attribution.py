"""Attribution of tasks and nanoseconds to units, against an oracle that counts them one by one."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patcher.traces import analysis, folders, formats, trace_columns
from patcher.traces.analysis import attribution, hosts
from patcher.traces.analysis.hosts import _phases_of_operators, host_around
from patcher.traces.analysis.nested import NestedRanges, host_thread
from patcher.traces.model import KINDS, LEAD_IN, PARTS, RankProfile, RecordedUnit
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, HostCalls, RangeColumns
from tests.matrix import examples
from tests.patcher.traces.recorded import MARKS, MS, START, Range, Run, Task, free_ns, steps, timeline

WRITERS = ("torch", "gzip", "text", "db", "nsys")


def written(run: Run, form: str, place: Path) -> Path:
    """Where ``run`` lies, as the profiler of ``form`` would have written it."""
    if form in ("torch", "gzip"):
        return run.torch(place / f"host_1.{form}.pt.trace.json{'.gz' if form == 'gzip' else ''}")
    write: Callable[[Path], Path] = getattr(run, form)
    return write(place / ("a.sqlite" if form == "nsys" else f"{form}_ascend_pt"))


FOLDERS = {"torch": "1.pt.trace.json", "text": "1_ascend_pt", "db": "1_ascend_pt", "nsys": "1.sqlite"}
"""What writes a run → how its file or folder is called."""


def profile(path: Path, only: tuple[int, int] | None = None) -> RankProfile:
    (read,) = formats.read(path)
    return analysis.attributed(read, only).profile


def capture(run: Run, form: str, place: Path, only: tuple[int, int] | None = None) -> RankProfile:
    (path,) = folders.traces_to_read(written(run, form, place))
    return profile(path, only)


def units(run: Run) -> tuple[RecordedUnit, ...]:
    return analysis.attributed(timeline(run)).profile.units


# ---------------------------------------------------------------- each nanosecond, one by one


def counted(run: Run) -> list[dict[str, int]]:
    """The parts of each unit, by looking at every nanosecond: slow, and as the words of the documentation say it."""
    owners = [
        next((n for n, mark in enumerate(run.marks) if mark.begin <= (task.asked or 0) < _end(run, n)), None)
        for task in run.tasks
    ]
    busy: dict[int, int] = {}
    for task, owner in zip(run.tasks, owners, strict=True):
        if task.kind == "compute" and owner is not None:
            busy[task.stream] = busy.get(task.stream, 0) + task.end - task.begin
    busiest = max(busy, key=lambda stream: (busy[stream], -_order(run, stream)), default=None)
    firsts: list[int | None] = []
    for number in range(len(run.marks)):
        own = [task for task, owner in zip(run.tasks, owners, strict=True) if owner == number]
        ranked = [
            [task.begin for task in own if task.kind == "compute" and task.stream == busiest],
            *([task.begin for task in own if task.kind == kind] for kind in KINDS),
        ]
        firsts.append(next((min(begins) for begins in ranked if begins), None))
    found: list[dict[str, int]] = []
    reached = 0
    for number, first in enumerate(firsts):
        parts = dict.fromkeys(PARTS, 0)
        if first is not None:
            begin = reached = max(first, reached)
            following = next((other for other in firsts[number + 1 :] if other is not None), None)
            last = max(task.end for task, owner in zip(run.tasks, owners, strict=True) if owner == number)
            for now in range(begin, max(begin, last if following is None else following)):
                parts[_part(run, now)] += 1
        lead_in = 0
        if first is not None and not any(one is not None for one in firsts[:number]):
            lead_in = _lead_in(run, owners, number, begin)
        found.append({**parts, LEAD_IN: lead_in})
    return found


def _lead_in(run: Run, owners: list[int | None], number: int, begin: int) -> int:
    """What lies before the first kernel of the first unit: looked for from there, back to what ran before."""
    mark, early = run.marks[number], [pair for pair in zip(run.tasks, owners, strict=True) if pair[0].begin < begin]
    first = min((task.begin for task, owner in early if owner == number), default=begin)
    leads = min(first, mark.begin) if mark.end > first else first
    others = [task for task, owner in early if owner != number]
    while leads < begin and any(task.end > leads for task in others):
        leads += 1
    return begin - leads


def _end(run: Run, number: int) -> int:
    return run.marks[number + 1].begin if number + 1 < len(run.marks) else run.marks[number].end


def _order(run: Run, stream: int) -> int:
    return list(dict.fromkeys(task.stream for task in run.tasks)).index(stream)


def _part(run: Run, now: int) -> str:
    kinds = {task.kind for task in run.tasks if task.begin <= now < task.end}
    if "compute" in kinds:
        return "overlap_ns" if "communication" in kinds else "compute_ns"
    if "communication" in kinds:
        return "communication_ns"
    if "copy" in kinds:
        return "copy_ns"
    following = min((task for task in run.tasks if task.begin > now), key=lambda task: task.begin, default=None)
    if following is None or following.launch is None:
        return "free_unknown_ns"
    if now < following.launch:
        return "free_host_late_ns"
    busy_at_launch = max((task.end for task in run.tasks if task.begin <= now), default=-1) > following.launch
    return "free_waiting_ns" if busy_at_launch else "free_latency_ns"


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A few marks, and tasks of all kinds on a few streams that may lie anywhere, before their launch, too."""
    edges = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=5)))
    marks = tuple(Range(f"ProfilerStep#{n}", *pair) for n, pair in enumerate(itertools.pairwise(edges)))
    begins = draw(st.lists(st.integers(0, 120), unique=True, max_size=10))
    tasks = []
    for begin in begins:
        launch = draw(st.integers(0, 70))
        ask = draw(st.none() | st.integers(0, launch))
        length = draw(st.integers(0, 20))
        tasks.append(
            Task(begin, begin + length, draw(st.sampled_from(KINDS)), "k", draw(st.integers(1, 3)), launch, ask)
        )
    return Run(tuple(tasks), marks)


@given(runs())
def test_the_parts_are_what_a_count_of_each_nanosecond_gives(run: Run) -> None:
    if not any(task.asked is not None for task in run.tasks):
        return
    found = units(run)
    expected = counted(run)
    assert len(expected) - len(found) in (0, 1)
    assert not any(part for unit in expected[len(found) :] for part in unit.values())  # it was stopped at once
    assert [with_lead_in(unit) for unit in found] == expected[: len(found)]
    assert [unit.device_ns for unit in found] == [sum(unit.parts.values()) for unit in found]


@settings(max_examples=examples(50))
@given(runs())
def test_the_gaps_add_up_to_what_is_free(run: Run) -> None:
    found = analysis.attributed(timeline(run)).profile
    free = sum(free_ns(unit) for unit in found.units)
    assert sum(gap.ns for gap in found.gaps if gap.part != "lead_in_ns") == free
    assert sum(gap.ns for gap in found.gaps if gap.part == "lead_in_ns") <= found.sum_ns("lead_in_ns")


@settings(max_examples=examples(50))
@given(runs())
def test_what_is_drawn_lies_within_its_unit(run: Run) -> None:
    found = analysis.attributed(timeline(run)).profile
    for lanes in found.lanes:
        for spans in (*lanes.streams.values(), *lanes.host.values()):
            assert all(0 <= span.begin_ns <= span.begin_ns + span.ns <= lanes.device_ns for span in spans)


@settings(max_examples=examples(50))
@given(runs())
def test_no_task_belongs_to_two_units_and_none_is_lost(run: Run) -> None:
    found = analysis.attributed(timeline(run)).profile
    within = [task for task in run.tasks if run.marks[0].begin <= (task.asked or 0) < run.marks[-1].end]
    assert sum(unit.kernels for unit in found.units) == len(within)
    assert sum(kernel.calls for kernel in found.kernels) == len(within)
    assert sum(kernel.ns for kernel in found.kernels) == sum(task.end - task.begin for task in within)


# ---------------------------------------------------------------- every profiler, one answer


@pytest.mark.parametrize("form", WRITERS)
def test_a_run_is_the_same_whoever_recorded_it(tmp_path: Path, form: str) -> None:
    run = steps(4, late={31: 3 * MS})
    found = capture(run, form, tmp_path)
    assert [unit.parts for unit in found.units] == [unit.parts for unit in units(run)]
    assert [unit.number for unit in found.units] == [30, 31, 32, 33]
    assert [unit.kernels for unit in found.units] == [10] * 4
    assert [unit.host_ns for unit in found.units] == [10 * MS, 13 * MS, 10 * MS, 10 * MS]
    assert {kernel.name: kernel.calls for kernel in found.kernels} == {f"kernel{n}": 4 for n in range(10)}
    assert found.rank == 0
    assert found.form == {"gzip": "torch", "text": "ascend-text", "db": "ascend-db"}.get(form, form)


@pytest.mark.parametrize("form", WRITERS)
def test_only_the_units_that_were_asked_for_are_counted(tmp_path: Path, form: str) -> None:
    found = capture(steps(4), form, tmp_path, only=(31, 33))
    assert [unit.number for unit in found.units] == [31, 32]
    assert sum(kernel.calls for kernel in found.kernels) == 20
    assert found.units == capture(steps(4), form, tmp_path / "again").units[1:3]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("delay", [MS, 3 * MS, 7 * MS + 123])
def test_a_host_that_stops_is_what_the_device_waits_for(tmp_path: Path, form: str, delay: int) -> None:
    found = capture(steps(5, late={32: delay}), form, tmp_path).units[2]
    # Five kernels of 0.5 ms were launched 0.1 ms apart, so the device had 2 ms of work left when the host stopped.
    gaps = 2 if delay > 2 * MS else 1
    assert found.parts == {
        **dict.fromkeys(PARTS, 0),
        "compute_ns": 5 * MS,
        "free_host_late_ns": 5 * MS + delay - gaps * MS // 100,
        "free_latency_ns": gaps * MS // 100,
    }


def parts(**known: int) -> dict[str, int]:
    return {**dict.fromkeys((*PARTS, LEAD_IN), 0), **{f"{name}_ns": ns for name, ns in known.items()}}


def with_lead_in(unit: RecordedUnit) -> dict[str, int]:
    return {**unit.parts, LEAD_IN: unit.lead_in_ns}


KNOWN: dict[str, tuple[tuple[Task, ...], list[dict[str, int]]]] = {
    "one behind the other": (
        (Task(10, 30, launch=1), Task(30, 60, launch=2), Task(110, 130, launch=101)),
        [parts(compute=50, free_host_late=41, free_latency=9, lead_in=10), parts(compute=20)],
    ),
    "launched, not started": (
        (Task(10, 30, launch=1), Task(90, 95, launch=2), Task(110, 130, launch=101)),
        [parts(compute=25, free_waiting=60, free_latency=9, free_host_late=6, lead_in=10), parts(compute=20)],
    ),
    "communication half hidden": (
        (Task(10, 30, launch=1), Task(20, 40, "communication", stream=9, launch=2), Task(40, 50, launch=3)),
        [parts(compute=20, overlap=10, communication=10, lead_in=10), parts()],
    ),
    "a copy beside everything else": (
        (
            Task(10, 60, "copy", stream=3, launch=1),
            Task(10, 20, launch=1),
            Task(30, 40, "communication", stream=9, launch=2),
        ),
        [parts(compute=10, communication=10, copy=30, lead_in=10), parts()],
    ),
    "the second step is late on the device": (  # its kernel began while the first one's still ran
        (Task(10, 210, launch=1), Task(220, 230, launch=101)),
        [parts(compute=200, free_waiting=10, lead_in=10), parts(compute=10)],
    ),
    "no link says who launched the last kernel": (
        (Task(10, 30, launch=1), Task(50, 60, launch=None), Task(110, 130, launch=101)),
        [parts(compute=30, free_unknown=20, free_host_late=41, free_latency=9, lead_in=10), parts(compute=20)],
    ),
    "a kernel before its launch": (
        (Task(10, 30, launch=1), Task(50, 60, launch=55), Task(110, 130, launch=101)),
        [parts(compute=30, free_host_late=20 + 41, free_latency=9, lead_in=10), parts(compute=20)],
    ),
    "what runs before the first step is of none": (
        (Task(2, 8, launch=None), Task(10, 30, launch=1), Task(110, 130, launch=101)),
        [parts(compute=20, free_host_late=71, free_latency=9, lead_in=2), parts(compute=20)],
    ),
    "a copy before the first kernel": (
        (Task(4, 90, "copy", stream=3, launch=1), Task(95, 98, launch=2), Task(110, 130, launch=101)),
        [parts(compute=3, free_host_late=3, free_latency=9, lead_in=95), parts(compute=20)],
    ),
    "a copy that began before the mark, by the clock of the device": (
        (Task(-4, 5, "copy", stream=3, launch=1), Task(10, 30, launch=2)),
        [parts(compute=20, lead_in=14), parts()],
    ),
    "a device that was busy until the host had left the step": (
        (Task(120, 125, "copy", stream=3, launch=1), Task(130, 140, launch=2), Task(150, 160, launch=101)),
        [parts(compute=10, free_waiting=10, lead_in=10), parts(compute=10)],
    ),
}


@pytest.mark.parametrize(("tasks", "answer"), KNOWN.values(), ids=KNOWN)
def test_a_known_schedule_has_known_parts(tasks: tuple[Task, ...], answer: list[dict[str, int]]) -> None:
    assert [with_lead_in(unit) for unit in units(Run(tasks, MARKS))] == answer


def test_a_kernel_belongs_to_the_unit_that_launched_it_however_late_it_runs() -> None:
    tasks = tuple(Task(500 + 10 * n, 510 + 10 * n, launch=n * 10) for n in range(20))  # the host ran far ahead
    found = units(Run(tasks, MARKS))
    assert [unit.kernels for unit in found] == [10, 10]
    assert [with_lead_in(unit) for unit in found] == [parts(compute=100), parts(compute=100)]


def test_all_kernels_of_a_graph_belong_to_the_call_that_replayed_it(tmp_path: Path) -> None:
    run = Run((*(Task(10 + n, 11 + n, launch=5) for n in range(8)), Task(120, 130, launch=105)), MARKS)
    events = run.events()
    for event in events:
        correlation = event.get("args", {}).get("correlation", 0)
        if event["cat"] == "kernel" and correlation < 9:
            event["args"]["correlation"] = 1
    launches = [event for event in events if event["cat"] != "cuda_runtime" or event["args"]["correlation"] in (1, 9)]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(launches).replace('"<', "").replace('>"', ""))
    found = profile(path)
    assert [unit.kernels for unit in found.units] == [8, 1]


def test_the_operator_decides_the_unit_and_the_launch_the_delay() -> None:
    """With the task queue, CANN launches on another thread, in the next step perhaps."""
    tasks = (Task(150, 160, launch=120, ask=90), Task(170, 180, launch=165, ask=110))
    found = units(Run(tasks, MARKS))
    assert [unit.kernels for unit in found] == [1, 1]
    assert with_lead_in(found[0]) == parts(compute=10, free_host_late=5, free_latency=5)


def test_iterations_that_do_not_count_belong_to_no_unit() -> None:
    marks = (*MARKS, Range("rlpatch:uncounted", 50, 100))
    tasks = (Task(10, 20, launch=1), Task(60, 90, launch=55), Task(110, 130, launch=101))
    found = units(Run(tasks, marks))
    assert [(unit.number, unit.kernels, unit.host_ns) for unit in found] == [(1, 1, 50), (2, 1, 100)]
    assert with_lead_in(found[0]) == parts(compute=10, free_host_late=35, free_latency=5, lead_in=10)


# ---------------------------------------------------------------- who marks units

NAMES: dict[str, tuple[list[str], list[tuple[int, int | None, int | None, int | None]]]] = {
    "torch's own": (["ProfilerStep#7", "ProfilerStep#8"], [(7, None, None, None), (8, None, None, None)]),
    "vLLM": (["execute_context_2(600)_generation_30(31)"], [(0, 32, 631, None)]),
    "vLLM before": (["execute_new_1_cached_31"], [(0, 32, None, None)]),
    "vLLM with contexts": (
        ["execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"],
        [(0, 46, 8192, 42919)],
    ),
    "SGLang": (["step[DECODE bs=64]", "step[EXTEND bs=2 toks=14721]"], [(0, 64, 64, None), (1, 2, 14721, None)]),
    "SGLang with contexts": (["step[DECODE bs=128 g_sq=128 g_sk=32768]"], [(0, 128, 128, 32768)]),
    "our marks": (["decode 30", "decode 31"], [(30, None, None, None), (31, None, None, None)]),
    "our marks of training": (["micro-batch 0", "micro-batch 1"], [(0, None, None, None), (1, None, None, None)]),
}


@pytest.mark.parametrize(("names", "known"), NAMES.values(), ids=NAMES)
def test_marks_of_every_engine_are_units(names: list[str], known: list[tuple[int | None, ...]]) -> None:
    marks = tuple(Range(name, at * 100, at * 100 + 100) for at, name in enumerate(names))
    tasks = tuple(Task(at * 100 + 10, at * 100 + 20, launch=at * 100 + 1) for at in range(len(names)))
    found = units(Run(tasks, marks))
    assert [(unit.number, unit.requests, unit.tokens, unit.context) for unit in found] == known


def test_a_step_knows_what_the_engine_says_within_it() -> None:
    marks = (
        *MARKS,
        Range("execute_context_0(0)_generation_30(30)", 5, 90),
        Range("execute_context_1(9)_generation_29(29)", 105, 190),
    )
    found = units(Run((Task(10, 20, launch=1), Task(110, 120, launch=101)), marks))
    assert [(unit.number, unit.requests, unit.tokens) for unit in found] == [(1, 30, 30), (2, 30, 38)]


def test_one_step_around_many_iterations_is_not_the_unit() -> None:
    marks = (Range("ProfilerStep#0", 0, 300), *(Range("step[DECODE bs=4]", n * 100, n * 100 + 90) for n in range(3)))
    found = units(Run(tuple(Task(n * 100 + 10, n * 100 + 20, launch=n * 100 + 1) for n in range(3)), marks))
    assert [(unit.number, unit.requests, unit.kernels) for unit in found] == [(0, 4, 1), (1, 4, 1), (2, 4, 1)]


def test_without_any_launch_the_host_decides_by_the_begin_on_the_device() -> None:
    """The second unit ends with 200."""
    tasks = tuple(Task(begin, begin + 5) for begin in (10, 99, 100, 199, 200, 250))
    assert [(unit.number, unit.kernels) for unit in units(Run(tasks, MARKS))] == [(1, 2), (2, 2)]


def test_the_whole_trace_begins_where_the_first_kernel_was_asked_for() -> None:
    run = Run((Task(50, 60, launch=40), Task(70, 80, launch=45)), (), (Range("aten::mm", 42, 44),))
    (unit,) = units(run)
    assert (unit.kernels, unit.host_ns) == (2, 40)


def test_without_marks_the_only_unit_has_every_task_also_those_without_a_launch() -> None:
    (found,) = units(Run((Task(5, 8), Task(10, 20, launch=1), Task(90, 95)), (), (Range("aten::mm", 0, 5),)))
    assert (found.kernels, found.device_ns) == (3, 90)


def test_without_marks_the_whole_trace_is_one_unit() -> None:
    (found,) = units(Run((Task(10, 20, launch=1), Task(30, 40, launch=2)), (), (Range("aten::mm", 0, 5),)))
    assert (found.number, found.kernels, found.device_ns, found.lead_in_ns) == (0, 2, 30, 10)


# ---------------------------------------------------------------- what the device did


def test_kernels_are_summed_and_compared_with_their_launches() -> None:
    """Begun 10,001 ns before the launch is early; 20 µs after it is no longer prompt; a copy and a send are no kernels."""
    us = 1_000
    tasks = (
        Task(100 * us, 130 * us, name="gemm", launch=99 * us), Task(200 * us, 210 * us, name="gemm", launch=180 * us + 1),
        Task(250 * us, 290 * us, name="norm", launch=230 * us), Task(300 * us, 305 * us, name="norm", launch=310 * us + 1),
        Task(310 * us, 320 * us, name="act", launch=320 * us), Task(330 * us, 400 * us, "copy", "Memcpy", launch=329 * us),
        Task(410 * us, 440 * us, "communication", "gemm", launch=405 * us), Task(450 * us, 460 * us, name="gemm"),
        Task(1_200 * us, 1_900 * us, name="other", launch=1_100 * us), Task(1_950 * us, 1_960 * us, launch=1_500 * us),
    )  # fmt: skip
    marks = (Range("ProfilerStep#4", 0, 500 * us), Range("ProfilerStep#5", 1_000 * us, 1_500 * us))
    made = timeline(Run(tasks, marks))
    found = analysis.attributed(made, (4, 5))
    assert [(one.name, one.kind, one.calls, one.ns // us, one.longest_ns // us) for one in found.profile.kernels] == [
        ("Memcpy", "copy", 1, 70, 70), ("gemm", "compute", 3, 50, 30), ("norm", "compute", 2, 45, 40),
        ("gemm", "communication", 1, 30, 30), ("act", "compute", 1, 10, 10),
    ]  # fmt: skip
    assert found.launches == (8, 7, 1, 10_001)
    assert found.profile.prompt_share == 4 / 5
    assert [(one.number, one.begin_ns, one.host_ns, one.kernels, one.lead_in_ns) for one in found.profile.units] == [
        (4, 0, 500 * us, 8, 100 * us)
    ]  # fmt: skip
    whole = analysis.attributed(made)
    assert (whole.launches, whole.profile.prompt_share) == ((9, 8, 1, 10_001), 4 / 6)


@pytest.mark.parametrize(
    ("replays", "form", "share"),
    [
        ((1, 1, 2, 3), "torch", 0.5),
        ((1, 1, 1, 1), "nsys", 1.0),
        ((1, 2, 3, 4), "torch", 0.0),
        ((1, 1, 2, 3), "ascend-db", None),
    ],
)
def test_the_share_of_kernels_in_graphs_is_of_those_with_a_launch_in_common(
    replays: tuple[int, ...], form: str, share: float | None
) -> None:
    made = timeline(Run((*(Task(at, at + 1, launch=at) for at in range(10, 60, 10)), Task(90, 95)), MARKS))
    made.form = form
    for at, key in enumerate((*replays, 9, 9)):
        made.tasks.key[at] = key
    made.tasks.launched[4] = UNKNOWN
    found = analysis.attributed(made).profile
    assert found.graph_share == share
    assert found.graph_shares.get(found.units[0].number) == share


# ---------------------------------------------------------------- what the host did


def host(run: Run) -> RankProfile:
    return analysis.attributed(timeline(run)).profile


def test_kernels_are_summed_by_the_operators_that_launched_them() -> None:
    operators = (Range("aten::linear", 0, 50), Range("aten::mm", 10, 30), Range("aten::bmm", 32, 40))
    tasks = (*(Task(60 + at, 61 + at, launch=at) for at in (15, 35, 36, 48)), Task(170, 180, launch=55))
    launched = host(Run(tasks, MARKS, operators)).kernel_operators
    assert {operator: ns for (_, operator, _), ns in launched.items()} == {
        "aten::mm": 1, "aten::bmm": 2, "aten::linear": 1
    }  # fmt: skip
    assert {(kernel, shapes) for kernel, _, shapes in launched} == {("MatMul", "")}


def test_an_operator_has_what_it_launched_itself_and_its_own_time() -> None:
    operators = (Range("outer", 0, 50), Range("inner", 10, 30), Range("inner", 40, 45), Range("outer", 150, 160))
    tasks = (Task(60, 70, launch=15), Task(70, 75, launch=35), Task(80, 82, launch=48), Task(170, 180, launch=155))
    found = {row.name: row for row in host(Run(tasks, MARKS, operators)).operators}
    assert {name: (row.calls, row.kernels, row.ns, row.host_ns) for name, row in found.items()} == {
        "outer": (2, 3, 5 + 2 + 10, 30 - 5 + 10),
        "inner": (2, 1, 10, 25),
    }


@pytest.mark.parametrize(("end", "outer", "inner"), [(80, 60 - 40, 60), (60, 60 - 40, 40), (50, 60 - 30, 30)])
def test_an_operator_that_outlasts_the_one_around_it_takes_no_more_than_that_has(
    end: int, outer: int, inner: int
) -> None:
    operators = (Range("outer", 0, 60), Range("inner", 20, end))
    found = {row.name: row.host_ns for row in host(Run((Task(90, 95, launch=25),), MARKS, operators)).operators}
    assert found == {"outer": outer, "inner": inner}


@pytest.mark.parametrize(("begins", "calls"), [([-50], 1), ([-50, 20], 2), ([-50, -30], 1)])
def test_an_operator_that_began_before_the_units_is_one_call_if_they_have_its_kernels(
    begins: list[int], calls: int
) -> None:
    operators = tuple(Range("a", begin, begin + 60) for begin in begins)
    tasks = (Task(60, 70, launch=5), Task(70, 80, launch=6))
    (row,) = host(Run(tasks, MARKS, operators)).operators
    assert (row.calls, row.kernels) == (calls, 2)


@pytest.mark.parametrize("classes", [True, False])
def test_steps_have_classes_of_work_only_if_these_are_asked_for(classes: bool) -> None:
    made = timeline(Run((Task(10, 20, launch=1),), MARKS))
    units = analysis.attributed(made, classes=classes).profile.units
    assert [bool(one.classes) for one in units if one.kernels] == [classes]


def test_operators_that_come_in_any_order_are_nested_by_their_times() -> None:
    operators = (Range("inner", 10, 30), Range("outer", 0, 50), Range("first", 0, 60))
    found = {row.name: row.host_ns for row in host(Run((Task(60, 70, launch=15),), MARKS, operators)).operators}
    assert found == {"inner": 20, "outer": 30, "first": 10}


@pytest.mark.parametrize("stretch", [1, 2, 5, 1000])
@pytest.mark.parametrize("far", [0, 1, 50])
def test_ranges_are_sorted_however_far_from_their_place(
    monkeypatch: pytest.MonkeyPatch, stretch: int, far: int
) -> None:
    monkeypatch.setattr(trace_columns, "STRETCH", stretch)
    rows = [(n // 3, n // 3 + n % 3, n) for n in range(60)]
    ranges = RangeColumns()
    for row in sorted(rows, key=lambda row: row[0] + (row[2] * 7 % (far + 1))):
        ranges.add(*row)
    ranges.sort()
    assert [*zip(ranges.begin, ranges.end, strict=True)] == sorted(
        ((b, e) for b, e, _ in rows), key=lambda row: (row[0], -row[1])
    )
    assert sorted(ranges.name) == list(range(60))


@pytest.mark.parametrize("stretch", [1, 2, 5, 1000])
@pytest.mark.parametrize("streams", [1, 2, 7])
def test_tasks_are_in_the_order_of_their_begin_and_those_of_a_stream_stay_in_theirs(
    monkeypatch: pytest.MonkeyPatch, stretch: int, streams: int
) -> None:
    monkeypatch.setattr(trace_columns, "STRETCH", stretch)
    found = RankTrace("a run", "torch")
    begins = [at * 37 % 50 // 2 for at in range(100)]
    for at, begin in enumerate(begins):
        found.tasks.add(begin, begin + 1, "compute", 0, at % streams)
    ordered = list(found.tasks.in_order())
    assert [begins[at] for at in ordered] == sorted(begins)
    for stream in range(streams):
        own = [at for at in ordered if at % streams == stream]
        assert own == sorted(own, key=begins.__getitem__)


TRAINING = (
    Range("aten::mm", 1, 9),
    Range("autograd::engine::evaluate_function: MmBackward0", 20, 40, thread=2, forward=1),
    Range("autograd::engine::evaluate_function: AddBackward0", 50, 60),
    Range("Optimizer.step#AdamW.step", 70, 90),
)


@pytest.mark.parametrize(
    ("wanted", "calls", "found"),
    [
        ([5, 7], [(7, 1), (5, 2)], [(0, 2), (1, 1)]),
        ([5], [(5, 30), (5, 10), (7, 1), (5, 20)], [(0, 10)]),  # the earliest
        ([7], [(5, 3), (5, 2), (7, 1)], [(0, 1)]),
        ([4, 6, 9, UNKNOWN], [(5, 1), (UNKNOWN, 2), (7, 3)], []),
        ([5], [], []),
        ([], [(5, 1)], []),
    ],
)
def test_the_earliest_call_of_each_key(
    wanted: list[int], calls: list[tuple[int, int]], found: list[tuple[int, int]]
) -> None:
    known = HostCalls()
    for key, time in calls:
        known.add(key, time, -time)
    assert list(known.earliest(array("q", wanted))) == [(at, time, -time) for at, time in found]


def test_calls_are_found_wherever_the_one_before_was() -> None:
    calls = HostCalls()
    for key in range(0, 100, 2):
        calls.add(key, key + 1000, 0)
    keys = [*range(-1, 100, 3), *(at * 41 % 100 for at in range(100))]
    times = {place: time for place, time, _ in calls.earliest(array("q", keys))}
    assert times == {place: key + 1000 for place, key in enumerate(keys) if key >= 0 and key % 2 == 0}


def test_training_has_phases_by_thread_and_operator(tmp_path: Path) -> None:
    tasks = (Task(100, 110, launch=5), Task(110, 130, launch=55), Task(130, 160, launch=75))
    (unit, _) = host(Run(tasks, MARKS, TRAINING)).units
    assert unit.phases == {"forward": 10, "backward": 20, "optimizer": 30}
    assert host(Run(tasks, MARKS, TRAINING[:1])).units[0].phases == {}
    alone = Task(160, 167, launch=95)  # no operator is around its launch: nobody knows that it is forward
    assert host(Run((*tasks, alone), MARKS, TRAINING)).units[0].phases["unknown"] == 7


def test_modules_hold_what_was_launched_within_them(tmp_path: Path) -> None:
    calls = (
        Range("LlamaModel", 0, 90),
        Range("LlamaDecoderLayer", 5, 30),
        Range("LlamaDecoderLayer", 40, 80),
        Range("MLP", 50, 60),
    )
    tasks = (Task(95, 97, launch=10), Task(97, 100, launch=55), Task(101, 105, launch=85), Task(120, 125, launch=105))
    run = Run(tasks, MARKS, annotations=calls)
    found = profile(run.torch(tmp_path / "modules.json"))
    assert {row.name: (row.calls, row.kernels, row.ns, row.host_ns) for row in found.modules} == {
        "LlamaModel": (1, 3, 9, 90),
        "LlamaDecoderLayer": (2, 2, 5, 65),
        "MLP": (1, 1, 3, 10),
    }


@pytest.mark.parametrize("form", FOLDERS)
def test_phases_of_a_weight_sync_are_told_with_what_they_launched(form: str, tmp_path: Path) -> None:
    phases = (
        Range("rlpatch:bucket", 0, 90_000),
        Range("rlpatch:gather", 5_000, 30_000),
        Range("rlpatch:gather", 40_000, 80_000),
        Range("rlpatch:uncounted", 91_000, 92_000),  # is none
    )
    tasks = (Task(95_000, 97_000, launch=10_000), Task(97_000, 99_000, launch=85_000))
    marks = (Range("ProfilerStep#0", 0, 100_000),)
    (path,) = folders.traces_to_read(getattr(Run(tasks, marks, annotations=phases), form)(tmp_path / FOLDERS[form]))
    found = profile(path)
    assert {row.name: (row.calls, row.kernels, row.ns, row.host_ns) for row in found.modules} == {
        "bucket": (1, 2, 4_000, 90_000),
        "gather": (2, 1, 2_000, 65_000),
    }
    assert not found.operators


def test_what_torch_itself_says_of_modules_and_of_training(tmp_path: Path) -> None:
    tasks = (Task(100, 110, launch=5), Task(110, 130), Task(130, 160, launch=75))
    run = Run(tasks, MARKS, (Range("aten::mm", 2, 8), Range("autograd", 50, 60, 2, 1)))
    more: tuple[tuple[str, str, int, int, int, dict[str, int]], ...] = (
        ("python_function", "nn.Module: MLP_0", 1, 20, 1, {}),
        ("python_function", "torch/nn/modules/module.py(1): forward", 1, 20, 1, {}),
        ("user_annotation", "Optimizer.step#AdamW.step", 70, 80, 1, {}),
        ("user_annotation", "a range of others", 1, 99, 1, {}),
        ("cuda_runtime", "cudaLaunchKernel", 55, 56, 2, {"correlation": 2}),
        ("cuda_runtime", "cudaLaunchKernel", 1, 2, 1, {}),
        ("cuda_runtime", "cudaEventQuery", 1, 2, 1, {"correlation": 2}),
    )
    rows = [
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": {thread}, "args": {json.dumps(args)},'
        f' "ts": {START // 1000}.{begin:03}, "dur": {(end - begin) / 1000}}}'
        for cat, name, begin, end, thread, args in more
    ]
    path = run.torch(tmp_path / "training.json")
    path.write_text(path.read_text().replace('"traceEvents": [', f'"traceEvents": [{", ".join(rows)}, '))
    found = profile(path)
    assert found.units[0].phases == {"forward": 10, "backward": 20, "optimizer": 30}
    assert [(row.name, row.calls, row.kernels) for row in found.modules] == [("MLP", 1, 1)]


def test_collectives_are_numbered_in_their_unit_and_group(tmp_path: Path) -> None:
    tasks = (
        Task(10, 20, launch=1), Task(20, 50, "communication", "AllReduce", 9, 2), Task(50, 70, "communication", "AllReduce", 9, 3),
        Task(110, 120, launch=101), Task(120, 160, "communication", "AllReduce", 9, 102),
    )  # fmt: skip
    for form in WRITERS:
        found = capture(Run(tasks, MARKS), form, tmp_path).collectives
        group = "" if form == "nsys" else "586"  # a kernel of NCCL does not tell it
        assert [(one.unit, one.index, one.group, one.ns) for one in found] == [
            (1, 0, group, 30),
            (1, 1, group, 20),
            (2, 0, group, 40),
        ]


@pytest.mark.parametrize("device", ["NVIDIA H100", "CPU"])
def test_a_trace_without_kernels_has_units_and_operators(tmp_path: Path, device: str) -> None:
    """It is of a CPU only where torch saw no device: else the kernels are missing."""
    run = Run((), MARKS, (Range("aten::mm", 5, 50), Range("aten::mm", 105, 150)))
    path = run.torch(tmp_path / "cpu.json")
    if device == "CPU":
        path.write_text(path.read_text().replace('[{"id": 0, "name": "NVIDIA H100"}]', "[]"))
    found = profile(path)
    assert (found.device, found.on_host) == (device, device == "CPU")
    assert [(unit.device_ns, unit.host_ns) for unit in found.units] == [(0, 100), (0, 100)]
    assert [(row.name, row.calls, row.host_ns) for row in found.operators] == [("aten::mm", 2, 90)]


KERNELS: dict[str, tuple[list[tuple[int, int, int, int]], list[tuple[str, int, int, int]], attribution.Launches, float | None]] = {
    "nothing": ([], [], attribution.Launches(), None),
    "one kernel": ([(0, 100, 150, 90)], [("compute", 1, 50, 50)], attribution.Launches(1, 1), 1.0),
    "another segment's": ([(7, 100, 150, 90)], [], attribution.Launches(), None),
    "without a launch": ([(0, 100, 150, UNKNOWN)], [("compute", 1, 50, 50)], attribution.Launches(1), None),
    "the longest of two": ([(0, 100, 150, 90), (1, 200, 230, 190)], [("compute", 2, 80, 50)], attribution.Launches(2, 2), 1.0),
    "as early as normal": ([(0, 100, 150, 10_100)], [("compute", 1, 50, 50)], attribution.Launches(1, 1), 1.0),
    "early": ([(0, 100, 150, 10_101)], [("compute", 1, 50, 50)], attribution.Launches(1, 1, 1, 10_001), 1.0),
    "late": ([(0, 20_100, 20_150, 100)], [("compute", 1, 50, 50)], attribution.Launches(1, 1), 0.0),
    "just not late": ([(0, 20_099, 20_149, 100), (0, 30_000, 30_010, 5)], [("compute", 2, 60, 50)], attribution.Launches(2, 2), 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_the_chosen_segments_are_summed_and_held_against_their_launches(name: str) -> None:
    tasks, sums, launches, prompt = KERNELS[name]
    trace = RankTrace("a", "torch")
    for _, begin, end, _ in tasks:
        trace.add_task(begin, end, "compute", "k", "stream 7", 0)
    trace.tasks.launched = array("q", [launched for *_, launched in tasks])
    kernels, counts, share = attribution._sum_kernels(trace, [segment for segment, *_ in tasks], {0, 1})
    assert [(kernel.kind, kernel.calls, kernel.ns, kernel.longest_ns) for kernel in kernels] == sums
    assert (counts, share) == (launches, prompt)


STEPS: dict[str, tuple[tuple[int, int, int], dict[str, int]]] = {
    "idle": ((0, 0, 0), {"free_host_late": 100}), "computing": ((250, 0, 0), {"compute": 100}), "it ends within": ((140, 0, 0), {"compute": 40, "free_host_late": 60}),
    "communication": ((0, 150, 0), {"communication": 50, "free_host_late": 50}),
    "both, computing is longer": ((180, 130, 0), {"overlap": 30, "compute": 50, "free_host_late": 20}),
    "both, communication is longer": ((130, 180, 0), {"overlap": 30, "communication": 50, "free_host_late": 20}),
    "both to the end": ((300, 300, 0), {"overlap": 100}), "a copy": ((0, 0, 170), {"copy": 70, "free_host_late": 30}),
    "a copy behind computing": ((130, 0, 170), {"compute": 30, "copy": 40, "free_host_late": 30}),
    "a copy that computing hides": ((170, 0, 130), {"compute": 70, "free_host_late": 30}), "a copy to the end": ((0, 0, 300), {"copy": 100}),
    "all three": ((120, 150, 190), {"overlap": 20, "communication": 30, "copy": 40, "free_host_late": 10}),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_what_still_runs_divides_the_time_to_the_next_task(name: str) -> None:
    reach, expected = STEPS[name]
    sums = [0] * len(PARTS)
    attribution._add_stretch(sums, 100, 200, reach, 200, {})
    assert {part.removesuffix("_ns"): ns for part, ns in zip(PARTS, sums, strict=True) if ns} == expected


def test_rows_of_the_host_are_added_up_by_name_and_those_never_called_are_left_out() -> None:
    sums = {0: [1, 2, 30, 4], 1: [0, 0, 0, -9], 2: [2, 1, 5, 6], 3: [1, 1, 35, 1], 4: [1, 0, 0, 7], 5: [1, 0, 0, 9]}
    rows = hosts._call_sums(sums, ["a", "gone", "a", "b", "c", "d"])
    assert [(row.name, row.calls, row.kernels, row.ns, row.host_ns) for row in rows] == [
        ("a", 3, 3, 35, 10), ("b", 1, 1, 35, 1), ("d", 1, 0, 0, 9), ("c", 1, 0, 0, 7)
    ]  # fmt: skip
    joined = {2: (1, 4, 10, 0), 9: (0, 3, 7, 0)}
    table = {2: [2, 1, 5, 6], 9: [0, 0, 0, 0]}
    hosts._add_joined(table, joined)
    assert table == {2: [3, 5, 15, 6], 9: [1, 3, 7, 0]}


@pytest.mark.parametrize(
    ("sums", "named"),
    [
        ((1, 2, 3, 4), {"forward": 1, "backward": 2, "optimizer": 3, "unknown": 4}), ((1, 0, 0, 0), {"forward": 1, "backward": 0, "optimizer": 0}),
    ],
)  # fmt: skip
def test_the_unknown_phase_is_named_only_if_something_is_in_it(sums: tuple[int, ...], named: dict[str, int]) -> None:
    assert hosts._named_phases(sums) == named


def test_an_operator_has_the_latest_phase_of_those_around_it() -> None:
    """Names 1 and 2 are of the backward pass and of the optimizer; name 0 is of none."""
    columns = RangeColumns()
    for begin, end, name in (
        (0, 100, 0),
        (10, 90, 1),
        (20, 80, 0),
        (30, 70, 2),
        (40, 60, 1),
        (100, 120, 2),
        (130, 140, 0),
    ):
        columns.add(begin, end, name)
    operators = NestedRanges(columns)
    phases = {1: 1, 2: 2}
    assert [*_phases_of_operators(operators, phases, 0)] == [0, 1, 1, 2, 2, 2, 0]
    assert [*_phases_of_operators(operators, phases, 1)] == [1, 1, 1, 2, 2, 2, 1]
    assert [*_phases_of_operators(operators, {}, 1)] == []


def test_around_a_moment_are_the_outermost_operator_of_a_library_and_the_innermost_module() -> None:
    trace = RankTrace("a", "torch")
    threads = [trace.thread(1, at) for at in range(2)]
    rows = {
        threads[0]: [("aten::to", 0, 50), ("aten::copy_", 10, 40), ("_C::norm", 20, 30)],
        threads[1]: [("ProfilerStep", 0, 90), ("aten::mm", 10, 40)],
    }
    for thread, operators in rows.items():
        for name, begin, end in operators:
            trace.operators[thread].add(begin, end, trace.names[name])
    for name, begin, end in (("Model", 0, 99), ("Layer", 10, 35)):
        trace.modules[threads[0]].add(begin, end, trace.names[name])
    moments = [
        (threads[0], 36),
        (threads[0], 25),
        (threads[1], 15),
        (threads[0], 5),
        (UNKNOWN, 15),
        (threads[1], 90),
        (threads[0], 99),
    ]
    around = host_around(trace, [host_thread(trace, thread) for thread in threads], moments)
    texts = trace.names.texts
    assert [tuple("" if number == UNKNOWN else texts[number] for number in one) for one in around] == [
        ("aten::to", "Model"), ("_C::norm", "Layer"), ("aten::mm", ""), ("aten::to", "Model"), ("", ""), ("", ""), ("", ""),
    ]  # fmt: skip
