"""Slow steps beside other findings, and causes of idle time at several places: what becomes the headline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from patcher.commands.reports.first_screen import _slow_steps_line, first_screen
from patcher.traces import analysis
from patcher.traces.analysis import diagnoses
from patcher.traces.analysis.checks import DEVICE, EVERY
from patcher.traces.model import (
    TITLES,
    Check,
    Collective,
    CopyLaunch,
    Diagnosis,
    FreeGap,
    HostRange,
    Kernel,
    RankProfile,
    RecordedUnit,
    SlowSteps,
    TraceReport,
    Verdict,
)
from patcher.traces.places import host_cause, main_place
from patcher.traces.words import in_ms
from tests.patcher.traces.recorded import MS, Range, Run, Task, steps, timeline


def report(late: Mapping[int, int]) -> TraceReport:
    """Return the report on six steps of which some launch their sixth kernel so many ms late.

    Each step is host-bound for 5 ms, for the host takes 10 ms and its kernels 5 ms.
    """
    trace = timeline(steps(6, late={number: ms * MS for number, ms in late.items()}))
    return analysis.reported([analysis.checked(trace, analysis.attributed(trace))])


STALLS: dict[str, tuple[Mapping[int, int], str, str]] = {
    "none": ({}, "dispatch", ""),
    "a short one": ({32: 20}, "dispatch", "also: step 32 takes 20.00 ms longer than the median step"),
    "a long one": ({32: 90}, "outlier", "One step takes much longer"),
    "three": ({31: 60, 33: 60, 35: 60}, "outlier", "3 of 6 steps take much longer"),
    "the first": ({30: 90}, "outlier", "The first recorded step takes much longer"),
}


@pytest.mark.parametrize(("late", "first", "title"), STALLS.values(), ids=STALLS)
def test_slow_steps_are_the_verdict_if_they_have_most_of_the_idle_time(
    late: Mapping[int, int], first: str, title: str
) -> None:
    made = report(late)
    savings = {finding.id: finding.saving_ns or 0 for finding in made.findings if not finding.same_as}
    assert made.findings[0].id == first
    if first == "outlier":  # the savings are of different times
        assert made.findings[0].title.startswith(
            f"{title} than the others: most of the additional time is in this part of the step"
        )
        assert sum(savings.values()) <= sum(late.values()) * MS // 6 + 6 * MS
    screen = " ".join(first_screen(made))
    assert "averaged over all steps" not in screen
    assert ("also: " in screen) == (first == "dispatch" and bool(late))
    assert title in screen
    assert ("times as long as the median step" in screen) == (first == "outlier")


@pytest.mark.parametrize(
    ("slow", "ranks", "words"),
    [
        (SlowSteps((7,), 5 * MS, ""), 1, "step 7 takes 5.00 ms longer than the median step"),
        (SlowSteps((7,), 5 * MS, "why"), 1, "step 7 takes 5.00 ms longer than the median step: why"),
        (
            SlowSteps((7,), 5 * MS, "why", 8), 1,
            "step 8 takes 5.00 ms longer than the median step: why",
        ),
        (SlowSteps((7, 9), 5 * MS, ""), 1, "steps 7, 9 take up to 5.00 ms longer than the median step"),
        (
            SlowSteps((7, 9), 5 * MS, "why"), 2,
            "rank 1: steps 7, 9 take up to 5.00 ms longer than the median step; in the slowest step, why",
        ),
        (None, 2, "One step takes much longer than the others; averaged over all steps, the cost is 1.00 ms per step"),
    ],
)  # fmt: skip
def test_slow_steps_beside_the_verdict_are_numbered(slow: SlowSteps | None, ranks: int, words: str) -> None:
    profiles = tuple(RankProfile(f"{rank}", "torch", rank, "H100", (), label=f"rank {rank}") for rank in range(ranks))
    leading = Diagnosis("compute", "note", "", None, "exact")
    outlier = Diagnosis("outlier", "warning", "", MS, "exact", source=profiles[-1].source, slow_steps=slow)
    made = TraceReport(profiles, (leading, outlier), Verdict(""))
    assert _slow_steps_line(made, leading, profiles[0]) == f"also: {words}"


@pytest.mark.parametrize(
    ("longer", "others", "cause"),
    [(80, 0, "; SendRecv takes 80.00 ms longer"), (40, 30, ""), (41, 30, "; SendRecv takes 41.00 ms longer")],
)
def test_the_collective_that_makes_a_step_slow_is_named(longer: int, others: int, cause: str) -> None:
    """Step 3 has 80 ms more of exposed communication, in a collective and in others beside it."""
    units = tuple(
        RecordedUnit(number=at, host_ns=MS, kernels=1, compute_ns=60 * MS, communication_ns=(85 if at == 3 else 5) * MS)
        for at in range(6)
    )
    collectives = tuple(
        Collective("tp", 0, name, (5 + more if at == 3 else 5) * MS, unit=at)
        for at in range(6) for name, more in (("SendRecv", longer), ("AllReduce", others))
    )  # fmt: skip
    profile = RankProfile("a", "torch", 0, "H100", units, collectives=collectives)
    (slow,) = (each.slow_steps for each in analysis.reported([profile]).findings if each.id == "outlier")
    assert slow is not None
    part = "most of the additional time is in this part of the step: exposed communication"
    assert slow == SlowSteps((3,), 80 * MS, f"{part}{cause}")


@pytest.mark.parametrize(("longest", "first"), [(5, "communication"), (300, "outlier")])
def test_a_collective_that_hangs_in_one_step_is_a_slow_step(longest: int, first: str) -> None:
    units = tuple(
        RecordedUnit(
            number=at, host_ns=10 * MS, kernels=1, compute_ns=9 * MS, communication_ns=(longest if at == 3 else 5) * MS
        )
        for at in range(6)
    )
    (finding, *_) = analysis.reported([RankProfile("a", "torch", 0, "H100", units, world=8)]).findings
    assert finding.id == first
    assert ("of this step" in finding.advice) == (first == "outlier")


@pytest.mark.parametrize(
    ("count", "advice"),
    [
        (3, "check whether this step needs its additional collectives (3 instead of 2)"),
        (2, "find out which rank is the last"),
    ],
)
def test_a_slow_step_that_communicates_more_often_is_told_so(count: int, advice: str) -> None:
    units = tuple(
        RecordedUnit(
            number=at, host_ns=10 * MS, kernels=1, compute_ns=9 * MS, communication_ns=(300 if at == 3 else 5) * MS
        )
        for at in range(6)
    )
    collectives = tuple(
        Collective("", at, "recv", MS * (9 if unit == 3 else 1), unit=unit)
        for unit in range(6)
        for at in range(count if unit == 3 else 2)
    ) + tuple(Collective("", at, "send", MS, unit=3) for at in range(2))
    profile = RankProfile("a", "torch", 0, "H100", units, world=8, collectives=collectives)
    found = {each.id: each for each in analysis.reported([profile]).findings}
    assert found["outlier"].advice.startswith(advice)


@pytest.mark.parametrize(
    ("kernels", "single", "cause"),
    [
        (16, True, "the kernel a takes most of the additional time"),
        (16, False, "most of the additional time is in this part of the step: computing"),
    ],
)
def test_one_kernel_is_the_cause_of_a_slow_step_with_more_of_them(kernels: int, single: bool, cause: str) -> None:
    """It computes twice as long, with 60 % more kernels; the additional time is in one kernel, or in two."""
    units = tuple(
        RecordedUnit(number=at, host_ns=MS, kernels=kernels if at == 3 else 10, compute_ns=(200 if at == 3 else 100) * MS)
        for at in range(6)
    )  # fmt: skip
    usual = {"a": 50 * MS, "b": 50 * MS}
    slow = {"a": 150 * MS, "b": 50 * MS} if single else {"a": 90 * MS, "b": 100 * MS, "c": 10 * MS}
    sums = {at: slow if at == 3 else usual for at in range(6)}
    profile = RankProfile("a", "torch", 0, "H100", units, kernels_of_steps=sums)
    ((steps, evidence),) = (
        (each.slow_steps, each.evidence) for each in analysis.reported([profile]).findings if each.id == "outlier"
    )
    assert steps is not None
    assert steps.cause == cause
    assert "The slow step launched 16 kernels, the median step 10." in evidence


@pytest.mark.parametrize(
    ("grows", "saving", "severity"), [(20, 72, "problem"), (5, 18, "problem"), (3, None, ""), (0, 4, "note")]
)
def test_all_steps_beyond_the_fastest_third_count_for_a_trend(grows: int, saving: int | None, severity: str) -> None:
    """Ten steps grow by up to 20 ms each; the last one lasts 140 ms if none grows."""
    times = [100 + grows * at for at in range(9)] + [100 + 9 * grows if grows else 140]
    units = tuple(
        RecordedUnit(number=at, host_ns=ms * MS, kernels=1, compute_ns=ms * MS) for at, ms in enumerate(times)
    )
    findings = analysis.reported([RankProfile("a", "torch", 0, "H100", units)]).findings
    found = [((each.saving_ns or 0) // MS, each.severity) for each in findings if each.id == "outlier"]
    assert found == ([] if saving is None else [(saving, severity)])


@pytest.mark.parametrize(
    ("times", "title"),
    [
        (
            [4, 8, 12, 16, 20, 24],
            "The step time keeps growing, from 4.00 ms in the first third to 20.00 ms in the last third",
        ),
        (
            [24, 20, 16, 12, 8, 4],
            "The step time keeps falling, from 24.00 ms in the first third to 8.00 ms in the last third",
        ),
        ([4, 8, 24, 4, 20, 4], "2 of 6 steps take much longer than the others"),
    ],
)
@pytest.mark.parametrize("part", ["compute_ns", "free_waiting_ns"])
def test_steps_with_a_trend_are_no_single_slow_steps(times: list[int], title: str, part: str) -> None:
    units = [RecordedUnit(number=at, host_ns=MS, kernels=1, **{part: ms * MS}) for at, ms in enumerate(times)]  # type: ignore[arg-type]
    findings = analysis.reported([RankProfile("a", "torch", 0, "H100", tuple(units))]).findings
    (finding,) = (found for found in findings if found.id == "outlier")
    advice = "grows or shrinks" if title.startswith("The step time") else "what is special"
    assert finding.title.partition(":")[0] == title
    assert ("compare the longest kernels" if part == "compute_ns" else advice) in finding.advice


@pytest.mark.parametrize(
    ("name", "usual", "title"),
    [
        ("attention", "attention", "the kernel attention takes most of the additional time"),
        ("attention", "", "the kernel attention takes most of the additional time"),
        ("", "", "all large kernels take 2.00 times as long, and their number is the same"),
    ],
    ids=["a kernel of all steps", "a kernel of this step", "all kernels"],
)  # fmt: skip
def test_the_kernel_with_most_of_the_additional_time_is_named(name: str, usual: str, title: str) -> None:
    """Six steps of 40 ms without idle time, one of which is 36 ms longer in its third kernel, or in all kernels."""
    tasks, marks, free = [], [], 0
    for number in range(6):
        marks.append(Range(f"ProfilerStep#{number}", free, free + 40 * MS))
        for index in range(10):
            label = (name if number == 3 else usual) if index == 2 else ""
            takes = 4 * MS + (number == 3) * (36 * MS * (index == 2) if name else 4 * MS)
            tasks.append(Task(free, free + takes, name=label or f"kernel{index}", launch=marks[-1].begin + index))
            free += takes
        marks[-1] = replace(marks[-1], end=free)
    trace = timeline(Run(tuple(tasks), tuple(marks)))
    made = analysis.reported([analysis.checked(trace, analysis.attributed(trace))])
    (finding,) = (found for found in made.findings if found.id == "outlier")
    assert finding.title.endswith(title)
    times = {
        "attention": "attention takes 40.00 ms in this step, but 4.00 ms",
        "": "takes 40.00 ms in this step, but less than 2.00 ms",
    }
    assert (times[usual] in finding.evidence) == bool(name)


@pytest.mark.parametrize(
    ("slow", "kernels", "shapes", "cause", "advice"),
    [
        ({"mm": 30, "norm": 15}, 9, (7, 7), "all large kernels take 1.50 times as long", "clock frequency and power limit, then look"),
        ({"mm": 30, "norm": 15}, 9, (7, 8), "all large kernels take 1.50 times as long", "whether the inputs of this step are larger"),
        ({"mm": 30, "norm": 15}, 9, (), "all large kernels take 1.50 times as long", "cannot rule out larger inputs"),
        ({"mm": 29, "norm": 14}, 9, (7, 7), "all large kernels take 1.43 times as long", "clock frequency and power limit, then look"),
        ({"mm": 32, "norm": 13}, 9, (7, 7), "the kernel mm takes most of the additional time", "compare the inputs of mm"),
        ({"mm": 30, "norm": 15}, 10, (7, 7), "the kernel mm takes most of the additional time", "compare the inputs of mm"),
        ({"mm": 30, "norm": 15, "sum": 2.3}, 9, (7, 7), "all large kernels take", "clock frequency and power limit, then look"),
        ({"mm": 30, "sum": 15}, 9, (7, 7), "the kernel sum takes most of the additional time", "compare the inputs of sum"),
    ],
    ids=["all", "other shapes", "no shapes", "nearly alike", "one kernel", "more kernels", "a kernel large in one step", "another kernel"],
)  # fmt: skip
def test_a_step_whose_kernels_are_all_longer_is_told_so(
    slow: dict[str, float], kernels: int, shapes: tuple[int, ...], cause: str, advice: str
) -> None:
    """Step 3 computes for 45 ms instead of 30 ms; in the others, the two kernels take 20 and 10 ms."""
    units = tuple(
        RecordedUnit(number=at, host_ns=MS, kernels=kernels if at == 3 else 9, compute_ns=(45 if at == 3 else 30) * MS)
        for at in range(6)
    )
    times = {at: slow if at == 3 else {"mm": 20, "norm": 10} for at in range(6)}
    profile = RankProfile(
        "a", "torch", 0, "H100", units,
        kernels_of_steps={at: {name: round(ms * MS) for name, ms in row.items()} for at, row in times.items()},
        inputs_of_steps={at: shapes[at == 3] for at in range(6) if shapes},
    )  # fmt: skip
    (finding,) = (found for found in analysis.reported([profile]).findings if found.id == "outlier")
    assert cause in finding.title
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("slow", "shapes", "equal"),
    [
        (("mm", "add"), ("mm", "add", "wide"), {0, 1, 2, 3, 4}), (("add", "mm"), ("mm", "add", "wide"), {0, 1, 2, 3, 4}),
        (("mm", "wide"), ("mm", "add", "wide"), {0, 1, 2, 4}), (("mm", "add", "add"), ("mm", "add", "wide"), {0, 1, 2, 4}),
        (("mm", "add", "sum"), ("mm", "add", "wide"), {0, 1, 2, 3, 4}), (("mm", "add"), (), set()),
    ],
    ids=["equal", "another order", "another shape", "one more", "one more without shapes", "no shapes"],
)  # fmt: skip
def test_steps_with_equal_operators_and_shapes_are_known(
    slow: tuple[str, ...], shapes: tuple[str, ...], equal: set[int]
) -> None:
    """Step 3 of five takes 80 ms instead of 40 ms; ``shapes`` are the operators whose shapes were recorded."""
    begins = [0, 40, 80, 120, 200, 240]
    marks = tuple(Range(f"ProfilerStep#{at}", begins[at] * MS, begins[at + 1] * MS) for at in range(5))
    tasks = tuple(Task(mark.begin, mark.end, launch=mark.begin) for mark in marks)
    operators = tuple(
        Range(name, marks[step].begin + index * MS, marks[step].begin + (index + 1) * MS)
        for step in range(5)
        for index, name in enumerate(slow if step == 3 else ("mm", "add"))
    )
    trace = timeline(Run(tasks, marks, operators))
    trace.shapes.update({trace.names[name]: (f"[[{len(name)}]]", "") for name in shapes})
    inputs = analysis.attributed(trace).profile.inputs_of_steps
    assert {step for step, checksum in inputs.items() if checksum == inputs[0]} == equal


@pytest.mark.parametrize(("begin", "named"), [(10, True), (9, False)])
def test_a_gap_up_to_the_next_step_names_that_step(begin: int, named: bool) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=1, compute_ns=10 * MS) for at in range(6)]
    units[3] = replace(units[3], free_host_late_ns=90 * MS)
    long = replace(gap(90 * MS), unit=3, begin_ns=begin * MS)
    made = RankProfile("a", "torch", 0, "H100", tuple(units), gaps=(long,))
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert ("ends at the first kernel of step 4" in finding.evidence) == named


@pytest.mark.parametrize(
    ("on_host", "title", "slow_on_host"),
    [
        ((100, 10, 10, 10, 10, 10), "The first recorded step", ""),
        ((100, 100, 10, 10, 10, 10), "The first recorded step", ""),
        ((10, 100, 10, 10, 10, 10), "One step", "Step 1 took 100.00 ms on the host"),
        ((10, 10, 10, 10, 10, 10), "The first recorded step", ""),  # the marks do not last as long as the steps
        ((54, 100, 10, 10, 10, 10), "One step", "Step 1 took 100.00 ms on the host"),
        ((55, 100, 10, 10, 10, 10), "The first recorded step", ""),
        ((10, 54, 10, 10, 10, 10), "The first recorded step", ""),
        ((10, 55, 10, 10, 10, 10), "One step", "Step 1 took 55.00 ms on the host"),
        ((25, 25, 25, 25, 25, 25), "", ""),
        ((25, 25, 25, 28, 25, 25), "The first recorded step", ""),
    ],
)
def test_the_host_tells_which_step_is_delayed(on_host: tuple[int, ...], title: str, slow_on_host: str) -> None:
    """A delay before the first kernel of a step counts for the step before it on the device."""
    units = [RecordedUnit(number=at, host_ns=ms * MS, kernels=1, compute_ns=10 * MS) for at, ms in enumerate(on_host)]
    units[0] = replace(units[0], free_host_late_ns=90 * MS)
    report = analysis.reported([RankProfile("a", "torch", 0, "H100", tuple(units))])
    outliers = [finding for finding in report.findings if finding.id == "outlier"]
    assert [finding.title.partition(" takes")[0] for finding in outliers] == [title] * bool(title)
    assert all((" on the host" in finding.evidence) == bool(slow_on_host) for finding in outliers)
    assert all(slow_on_host in finding.evidence for finding in outliers)


@pytest.mark.parametrize(
    ("call", "covered", "cause", "advice"),
    [
        ("save", 46, "is spent in save", "look at what the host does in save"),
        ("save", 45, "in this part of the step: host-bound", "look at what the host does in save"),
        ("", 46, "in this part of the step: host-bound", "check what is special"),
    ],
)
def test_what_holds_the_host_in_a_slow_step_is_named_and_advised_on(
    call: str, covered: int, cause: str, advice: str
) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=1, compute_ns=10 * MS) for at in range(6)]
    units[3] = replace(units[3], free_host_late_ns=90 * MS)
    long = replace(gap(90 * MS, call, covered=covered * MS), unit=3)
    made = RankProfile("a", "torch", 0, "H100", tuple(units), gaps=(long,))
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert cause in finding.title
    assert advice in finding.advice
    screen = " ".join(" ".join(first_screen(analysis.reported([made]))).split())
    assert "a fix saves at most 90.00 ms of 150.00 ms in all 6 " in screen
    assert "Saves at most" not in screen
    growing = tuple(replace(unit, free_host_late_ns=at * 9 * MS) for at, unit in enumerate(units))
    made = replace(made, units=growing, gaps=(replace(long, unit=5),))
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert "grows or shrinks" in finding.advice


@pytest.mark.parametrize(
    ("call", "fields", "told"),
    [
        ("model.py(7): forward", {}, True), ("model.py(7): forward", {"unrecorded": False}, False),
        ("model.py(7): forward", {"units": 3}, False), ("built-in function sum", {}, False), ("queue.py(9): wait", {}, False),
        ("cudaLaunchKernel", {}, False),
    ],
)  # fmt: skip
def test_a_step_in_which_the_host_records_nothing_was_stopped(call: str, fields: dict[str, Any], told: bool) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=1, compute_ns=10 * MS) for at in range(6)]
    units[3] = replace(units[3], free_host_late_ns=90 * MS)
    place = replace(gap(90 * MS, call), unit=3, module="RMSNorm", **({"unrecorded": True, "units": 2} | fields))
    short = replace(place, ns=MS, call_ns=MS, unit_ns=MS, longest_ns=MS)
    made = RankProfile("a", "torch", 0, "H100", tuple(units), gaps=(place, short), has_stacks=True)
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert ("recorded nothing for up to 90.00 ms within RMSNorm" in finding.title) == told
    assert ("garbage collection (compare" in finding.advice) == told
    (finding,) = (
        found for found in analysis.reported([replace(made, has_stacks=None)]).findings if found.id == "outlier"
    )
    assert f"spent in {call}" in finding.title


@pytest.mark.parametrize(
    ("late", "between", "usual", "share", "severity"),
    [
        (90, 46, 0, "30.7 %", "warning"),
        (90, 47, 1, "34.7 %", "warning"),
        (90, 45, 0, "", ""),
        (90, 46, 1, "", ""),
        (4, 3, 0, "4.7 %", "note"),
    ],
)
def test_idle_time_between_steps_makes_no_step_slow(
    late: int, between: int, usual: int, share: str, severity: str
) -> None:
    told = bool(share)
    units = [RecordedUnit(number=at, host_ns=9 * MS, kernels=1, compute_ns=10 * MS) for at in range(6)]
    units[3] = replace(units[3], free_host_late_ns=late * MS)
    idle = {**dict.fromkeys(range(6), usual * MS), 3: between * MS}
    polls = HostRange("poll.py(1): pop", 40 * MS, 40 * MS)
    made = RankProfile("a", "torch", 0, "H100", tuple(units), idle_between=idle, range_between=polls if told else None)
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert (f"The device is idle between steps for {share} of the time" in finding.title) == told
    if told:
        assert finding.severity == severity
        assert finding.parts == {"free_host_late_ns": (between + 5 * usual) * MS // 6}
    assert (finding.slow_steps is None) == told
    assert finding.title.endswith(polls.name) == ("between steps" in finding.advice) == told
    assert finding.saving_ns == (40 if told else late) * MS // 6


@pytest.mark.parametrize(
    ("usual", "slow", "part", "told"),
    [
        (1.0, 0.0, "free_host_late_ns", "graphs launch 0 % of its kernels, but 100 % of those of the median step"),
        (0.5, 0.25, "free_latency_ns", "graphs launch 25 % of its kernels, but 50 % of those of the median step"),
        (1.0, 0.6, "free_host_late_ns", ""), (0.4, 0.0, "free_host_late_ns", ""), (1.0, 0.0, "compute_ns", ""),
    ],
    ids=["none", "half as many", "most", "few in others", "computing"],
)  # fmt: skip
def test_a_slow_step_without_the_graphs_of_the_others_is_told_so(
    usual: float, slow: float, part: str, told: str
) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=9, compute_ns=10 * MS) for at in range(6)]
    slow_parts: Any = {part: 90 * MS}
    units[3] = replace(units[3], **slow_parts)
    shares = dict.fromkeys(range(6), usual) | {3: slow}
    made = RankProfile("a", "torch", 0, "H100", tuple(units), graph_shares=shares)
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert ("graphs launch" in finding.title, "replays no graph" in finding.advice) == (bool(told), bool(told))
    assert told in finding.title


@pytest.mark.parametrize(
    ("operator", "named"), [("compile (dynamo_timed)", True), ("aten::linear", False), ("c10d::broadcast_", True)]
)
def test_an_operator_of_torch_is_not_what_makes_one_step_longer(operator: str, named: bool) -> None:
    """The finding on all steps has the same advice as that on the slow one; both are told."""
    units = [
        RecordedUnit(
            number=at, host_ns=MS, kernels=1, compute_ns=10 * MS, free_host_late_ns=(90 if at == 3 else 30) * MS
        )
        for at in range(6)
    ]
    place = replace(gap(240 * MS, operator=operator), unit=3, units=6, unit_ns=90 * MS, longest_ns=90 * MS)
    report = analysis.reported([RankProfile("a", "torch", 0, "H100", tuple(units), gaps=(place,))])
    (slow,) = (found for found in report.findings if found.id == "outlier")
    assert (operator in slow.title) == (slow.advice == report.findings[0].advice) == named
    assert "also: step 3 takes 60.00 ms longer" in " ".join(first_screen(report))


def gap(ns: int, call: str = "", operator: str = "", covered: int | None = None) -> FreeGap:
    """Return a gap of so many ns at a place of its own, within the operator if it has no call."""
    return FreeGap(
        before="", after=f"kernel {ns}", stream="7", part="free_host_late_ns", kind="place", graph="", call=call,
        returned_from="", operator=operator, module="", within=bool(operator) and not call,
        call_ns=ns if covered is None else covered, ns=ns, count=1, units=1, unit=0, unit_ns=ns, longest_ns=ns, begin_ns=0,
        at_ns=0, spots={},
    )  # fmt: skip


CAUSES: dict[str, tuple[list[FreeGap], str]] = {
    "one call at several places": ([gap(30, "wait", "aten::mm"), gap(25, "wait", "aten::sum")], "wait"),
    "one operator": ([gap(30, operator="aten::item"), gap(25, operator="aten::item")], "aten::item"),
    "half of the time": ([gap(30, "wait"), gap(20, "wait")], ""),
    "several calls": ([gap(30, "wait"), gap(25, "read"), gap(24, "write")], ""),
    "a call that covers less": ([gap(30, "wait", covered=25), gap(30, "wait", covered=25)], ""),
    "an operator that only launches": ([gap(90)], ""),
}


@pytest.mark.parametrize(("gaps", "name"), CAUSES.values(), ids=CAUSES)
def test_what_keeps_the_host_at_several_places_is_the_cause(gaps: list[FreeGap], name: str) -> None:
    """All steps are idle for 100 ns."""
    unit = RecordedUnit(number=0, host_ns=200, kernels=1, free_host_late_ns=100)
    profile = RankProfile("a", "torch", 0, "H100", (unit,), gaps=tuple(gaps))
    cause = host_cause(profile, ("free_host_late_ns",))
    assert (cause.name if cause else "") == name
    if cause:
        assert cause.gap is not None
        assert (cause.ns, cause.gap.ns) == (55, 30)


@pytest.mark.parametrize(
    ("call", "around", "name"),
    [
        ("built-in method tolist", 81, "f.py(3): lists"), ("built-in method tolist", 80, "built-in method tolist"),
        ("a.py(7): load", 81, "f.py(3): lists"), ("a.py(7): wait", 81, "a.py(7): wait"), ("cudaMalloc", 81, "cudaMalloc"),
    ],
)  # fmt: skip
def test_a_range_that_covers_clearly_more_than_a_function_in_it_is_named(call: str, around: int, name: str) -> None:
    unit = RecordedUnit(number=0, host_ns=200, kernels=1, free_host_late_ns=100)
    late = HostRange("f.py(3): lists", around, around)
    place = replace(gap(90, call, covered=60), caller="f.py(3): lists")
    profile = RankProfile("a", "torch", 0, "H100", (unit,), gaps=(place,), late_range=late)
    (found,) = (finding for finding in analysis.reported([profile]).findings if finding.id == "dispatch")
    assert (found.culprit, found.saving_ns) == (name, 60 if name == call else around)
    assert name in found.title
    assert (name in found.advice) == (name != "cudaMalloc")
    assert ("(within " in f"{found.title} {found.advice}") == (name == call)


@pytest.mark.parametrize(
    ("parts", "more", "latency", "named"),
    [
        (("free_host_late_ns",), {}, 0, True), (("free_blocked_ns",), {}, 0, False),
        (("free_host_late_ns",), {"part": "free_waiting_ns"}, 0, True), (("free_host_late_ns",), {"call": "f.py(7): g"}, 0, True),
        (("free_host_late_ns", "free_latency_ns"), {}, 19, True), (("free_host_late_ns", "free_latency_ns"), {}, 20, False),
    ],
)  # fmt: skip
def test_a_range_is_named_for_host_bound_time_if_it_has_over_half_of_the_idle_time(
    parts: tuple[str, ...], more: dict[str, Any], latency: int, named: bool
) -> None:
    times: dict[str, Any] = {parts[0]: 100, "free_latency_ns": latency}
    unit = RecordedUnit(number=0, host_ns=200, kernels=1, **times)
    late = HostRange("f.py(3): lists", 60, 60)
    place = replace(gap(90, "a.py(7): load", covered=40), part=parts[0])
    places = (place, replace(place, ns=9, call_ns=9, **more)) if more else (place,)
    profile = RankProfile("a", "torch", 0, "H100", (unit,), gaps=places, late_range=late)
    assert (main_place(profile, parts) is None) == named


def short_gaps(ns: int, returned_from: str, count: int) -> FreeGap:
    """Return the sum of many short gaps."""
    return replace(gap(ns), kind="several", after="", stream="", count=count, returned_from=returned_from)


DRAINED: dict[str, tuple[list[FreeGap], str]] = {
    "a synchronising call": ([short_gaps(51, "cudaStreamSynchronize", 2)], "cudaStreamSynchronize"),
    "a copy that waits": ([short_gaps(51, "hipMemcpyWithStream", 2)], "hipMemcpyWithStream"),
    "half of the time": ([short_gaps(50, "cudaStreamSynchronize", 2)], ""),
    "one gap": ([short_gaps(51, "cudaStreamSynchronize", 1)], ""),
    "a copy that does not wait": ([short_gaps(51, "cudaMemcpyAsync", 2)], ""),
    "a stream that waits": ([short_gaps(51, "cudaStreamWaitEvent", 2)], ""),
    "no call": ([short_gaps(51, "", 2)], ""),
    "a place": ([gap(51, "f.py(7): f")], ""),
}


@pytest.mark.parametrize(("gaps", "call"), DRAINED.values(), ids=DRAINED)
def test_a_call_that_lets_the_device_run_empty_is_named_before_computing(gaps: list[FreeGap], call: str) -> None:
    """The step computes for 300 ns, and is idle for 100."""
    unit = RecordedUnit(number=0, host_ns=400, kernels=1, free_host_late_ns=100, compute_ns=300)
    report = analysis.reported([RankProfile("a", "torch", 0, "H100", (unit,), gaps=tuple(gaps))])
    assert ("mostly after the host had waited for the device in" in report.verdict.title) == bool(call)
    (found,) = (finding for finding in report.findings if finding.id == "dispatch")
    assert (call in found.title, call in found.evidence, ".item()" in found.advice) == (True, True, bool(call))


@pytest.mark.parametrize(
    ("kernels", "shown"),
    [
        ([("slow", "compute", 40), ("copy", "copy", 5)], True), ([("slow", "compute", 19)], False),
        ([("slow", "copy", 40)], False), ([], False),
    ],
)  # fmt: skip
def test_a_long_kernel_is_named_beside_a_smaller_finding(kernels: list[tuple[str, str, int]], shown: bool) -> None:
    unit = RecordedUnit(number=0, host_ns=100 * MS, kernels=1, free_host_late_ns=20 * MS, compute_ns=80 * MS)
    sums = tuple(Kernel(name, kind, 2, 2 * ms * MS) for name, kind, ms in kernels)
    made = analysis.reported([RankProfile("a", "torch", 0, "H100", (unit, unit), kernels=sums)])
    screen = " ".join(" ".join(first_screen(made)).split())
    assert ("longest kernel: slow, 40.00 ms (40 %)" in screen) == shown


@pytest.mark.parametrize(
    ("on_host", "device", "steady"),
    [((100, 110, 100), 341, True), ((100, 111, 100), 311, False), ((100, 110, 100), 342, False), ((100, 110, 100), 279, True), ((100, 110, 100), 278, False)],
    ids=str,
)  # fmt: skip
def test_steps_are_steady_within_a_tenth(on_host: tuple[int, ...], device: int, steady: bool) -> None:
    units = [RecordedUnit(number=at, host_ns=ns, kernels=1, compute_ns=90) for at, ns in enumerate(on_host)]
    units[0] = replace(units[0], lead_in_ns=device - 270)
    assert diagnoses._is_steady_on_host(units) == steady


@pytest.mark.parametrize(
    ("slow", "following", "delayed"), [(109, 110, 3), (110, 110, None), (109, 109, None), (100, 120, 3)]
)
def test_a_step_is_delayed_by_the_next_one_that_takes_half_of_the_excess_longer(
    slow: int, following: int, delayed: int | None
) -> None:
    """The slow step takes 20 ns longer on the device."""
    units = [RecordedUnit(number=at, host_ns=100, kernels=1, compute_ns=100) for at in range(6)]
    units[2] = replace(units[2], host_ns=slow, copy_ns=20)
    units[3] = replace(units[3], host_ns=following)
    found = diagnoses._delayed_step(RankProfile("a", "torch", 0, "H100", tuple(units)), units[2], units[0])
    assert (found and found.number) == delayed


@pytest.mark.parametrize(
    ("tokens", "drafts", "requests", "decode"),
    [(8, 0, 8, True), (9, 0, 8, False), (9, 1, 8, True), (0, 0, 0, False), (None, 0, 8, False)],
)
def test_steps_decode_with_a_token_for_each_request(
    tokens: int | None, drafts: int, requests: int, decode: bool
) -> None:
    unit = RecordedUnit(number=0, host_ns=1, kernels=1, tokens=tokens, drafts=drafts, requests=requests)
    prefill = replace(unit, tokens=999, requests=1)
    assert diagnoses._decode_steps([unit, unit, unit, prefill]) == [unit] * 3 * decode
    assert not diagnoses._decode_steps([unit, unit, prefill])
    assert not diagnoses._decode_steps([unit, unit, unit])


@pytest.mark.parametrize(("ns", "told"), [(51, True), (50, False)])
def test_over_half_of_the_additional_time_is_that_of_one_kernel_collective_or_gap(ns: int, told: bool) -> None:
    """The slow step takes 100 ns longer in a part."""
    usual = RecordedUnit(number=0, host_ns=1, kernels=1, compute_ns=1000, free_unknown_ns=1)
    slow = replace(usual, number=1, compute_ns=1100)
    made = RankProfile("a", "torch", 0, "H100", (usual, slow), kernels_of_steps={0: {"k": 200}, 1: {"k": 200 + ns}})
    longer = diagnoses._longer_kernel(made, slow, usual)
    assert (longer and longer.ns) == (ns if told else None)
    for number in (0, 1):
        partly = replace(made, kernels_of_steps={number: {"k": 200}})
        assert diagnoses._longer_kernel(partly, slow, usual) is None
        assert diagnoses._equally_longer(partly, slow, usual) is None
    sums = [Collective("", 0, "c", at * ns + 7, unit=at) for at in (0, 1)]
    sums += [Collective("", 1, "z", 9 * at + 7, unit=at) for at in (0, 1)]
    named = diagnoses._longer_collective(replace(made, collectives=tuple(sums)), slow, usual, 100)
    assert named == (f"c takes {in_ms(ns)} longer" if told else "")
    barriers = tuple(replace(each, kind="allreduce", bytes=1) for each in sums)
    named = diagnoses._longer_collective(replace(made, collectives=barriers), slow, usual, 100)
    assert named == (f"allreduce of 1 B takes {in_ms(ns)} longer" if told else "")
    place = replace(gap(ns), part="free_unknown_ns", unit=1, unit_ns=ns)
    idle = replace(usual, number=1, free_unknown_ns=101)
    assert (diagnoses._longer_gap(replace(made, gaps=(place,)), idle, usual) == place) == told


@pytest.mark.parametrize(("known", "told"), [((0, 1), False), ((0,), True), ((1,), True)])
def test_larger_inputs_are_ruled_out_only_with_the_shapes_of_both_steps(known: tuple[int, ...], told: bool) -> None:
    usual, slow = (RecordedUnit(number=at, host_ns=1, kernels=1) for at in (0, 1))
    inputs = dict.fromkeys(known, 7)
    made = RankProfile("a", "torch", 0, "H100", (usual, slow), inputs_of_steps=inputs)
    assert ("has no shapes" in diagnoses._advice_on_all_kernels(made, slow, usual)) == told


@pytest.mark.parametrize("order", [1, -1])
def test_a_verdict_without_findings_names_the_largest_of_those_that_were_withdrawn(order: int) -> None:
    small, large = (Diagnosis("copy", "warning", "", ns, "", headline=f"saves {ns}") for ns in (1, 2))
    assert diagnoses._title_without_finding([small, large][::order]).endswith(": saves 2")


@pytest.mark.parametrize(
    ("similar", "total", "title"),
    [((2,), 3, ""), ((2,), 4, ""), ((2, 3), 3, "2 of 3 decode steps"), ((2, 3), 4, "2 of 4 steps"), ((0,), 4, "The first recorded step")],
)  # fmt: skip
def test_a_headline_counts_slow_steps_from_two_on(similar: tuple[int, ...], total: int, title: str) -> None:
    units = [RecordedUnit(number=at, host_ns=1, kernels=1, compute_ns=1) for at in range(4)]
    made = RankProfile("a", "torch", 0, "H100", tuple(units))
    found = diagnoses._slow_steps_headline(made, total, similar, units[similar[0]], units[1], "")
    assert found.partition(" take")[0] == title


@pytest.mark.parametrize(
    ("slow", "usual", "named"),
    [
        (("save", 90), None, True), (("save", 90), ("save", 49), True), (("save", 90), ("save", 50), False),
        (("save", 90), ("load", 50), True), (("save", 40), None, False), (None, ("save", 50), False),
    ],
)  # fmt: skip
def test_the_copies_of_a_slow_step_are_those_that_others_lack(
    slow: tuple[str, int] | None, usual: tuple[str, int] | None, named: bool
) -> None:
    steps = [RecordedUnit(number=at, host_ns=1, kernels=1, copy_ns=ns) for at, ns in enumerate((130, 50))]
    launches = {at: CopyLaunch(*row, "Memcpy DtoH") for at, row in enumerate((slow, usual)) if row}
    made = RankProfile("a", "torch", 0, "H100", tuple(steps), copy_launches=launches)
    assert (diagnoses._launch_of_copies(made, *steps) is not None) == named


@pytest.mark.parametrize(
    ("part", "call", "named"),
    [
        ("free_host_late_ns", "save", "save"),
        ("free_blocked_ns", "save", "save"),
        ("free_latency_ns", "save", ""),
        ("free_host_late_ns", "", ""),
    ],
)
def test_only_a_gap_in_which_the_host_is_late_is_held_by_it(part: str, call: str, named: str) -> None:
    assert diagnoses._host_held(replace(gap(9, call), part=part)) == named


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, True), ({"ns": 70 * MS}, False), ({"ns": 86 * MS, "call_ns": 86 * MS}, True),
        ({"ns": 90 * MS, "call_ns": 90 * MS}, False), ({"unit": 1}, False), ({"part": "free_host_late_ns"}, False),
    ],
)  # fmt: skip
def test_a_call_that_blocks_at_several_places_makes_a_step_slow(fields: dict[str, Any], named: bool) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=1, compute_ns=10 * MS) for at in range(5)]
    units[0] = replace(units[0], free_blocked_ns=90 * MS)
    place = replace(gap(30 * MS, "Module Loading", covered=30 * MS), part="free_blocked_ns", unit=0, unit_ns=30 * MS)
    places = [replace(place, after=kernel, **fields) for kernel in "abc"]
    made = RankProfile("a", "torch", 0, "H100", tuple(units), gaps=tuple(places))
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert ("spent in Module Loading" in finding.title) == named
    assert ("loads a kernel's code" in finding.advice) == named


@pytest.mark.parametrize(
    ("calls", "named"),
    [("Add Mm Mul", "aclnn…GetWorkspaceSize"), ("Mm Mm Mm", "aclnnMmGetWorkspaceSize"), ("Add", "")],
)
def test_calls_for_several_operators_make_a_step_slow(calls: str, named: str) -> None:
    units = [RecordedUnit(number=at, host_ns=10 * MS, kernels=1, compute_ns=10 * MS) for at in range(5)]
    units[0] = replace(units[0], free_host_late_ns=90 * MS)
    names = [f"aclnn{call}GetWorkspaceSize" for call in calls.split()]
    places = [
        replace(gap(30 * MS, name, covered=30 * MS), part="free_host_late_ns", unit=0, unit_ns=30 * MS)
        for name in names
    ]
    made = RankProfile("a", "ascend-db", 0, "NPU", tuple(units), gaps=tuple(places))
    (finding,) = (found for found in analysis.reported([made]).findings if found.id == "outlier")
    assert finding.title.partition("spent in ")[2] == named
    assert ("ACLNN_CACHE_LIMIT" in finding.advice) == bool(named)


def test_a_check_that_withdraws_every_verdict_says_so() -> None:
    every = tuple(name for name in EVERY if name in TITLES)
    made = RankProfile("a", "torch", 0, "H100", ())
    for withdraws, title in ((DEVICE, "No verdict: the data is not sufficient"), (DEVICE[1:], "Nothing stands out")):
        failed = replace(made, checks=(Check("a", False, "b", withdraws),))
        assert diagnoses._verdict([failed], [], [], {}).title == title
    assert diagnoses._withdrawal(Check("a", False, "b", EVERY)).endswith("withdraws: all)")
    assert diagnoses._withdrawal(Check("a", False, "b", every[1:])).endswith(f"withdraws: {', '.join(every[1:])})")


@pytest.mark.parametrize(("ns", "named"), [(51, True), (50, False)])
def test_a_kernel_is_the_cause_with_over_half_of_all_additional_time(ns: int, named: bool) -> None:
    """The step computes for 80 ns longer, and takes 100 ns longer."""
    usual = RecordedUnit(number=0, host_ns=1, kernels=1, compute_ns=1000)
    slow = replace(usual, number=1, kernels=2, compute_ns=1080, copy_ns=20)
    made = RankProfile("a", "torch", 0, "H100", (usual, slow), kernels_of_steps={0: {"k": 200}, 1: {"k": 200 + ns}})
    evidence, cause = diagnoses._why_slower(made, slow, usual)
    assert evidence.startswith("80 % of")
    assert ("the kernel k takes most" in cause) == named
    less = replace(usual, copy_ns=50), replace(slow, copy_ns=0)
    assert diagnoses._why_slower(made, less[1], less[0])[0].startswith("100 % of")


@pytest.mark.parametrize(
    ("shares", "told"), [({0: 0.5}, "graphs launch 0 % of its kernels, but 50 %"), ({1: 0.5}, ""), ({}, "")]
)
def test_a_step_without_a_share_of_graphs_has_none(shares: Mapping[int, float], told: str) -> None:
    usual, slow = (RecordedUnit(number=at, host_ns=1, kernels=1) for at in (0, 1))
    made = RankProfile("a", "torch", 0, "H100", (usual, slow), graph_shares=shares)
    found = diagnoses._without_graphs(made, slow, usual)
    assert found.startswith(told)
    assert bool(found) == bool(told)
