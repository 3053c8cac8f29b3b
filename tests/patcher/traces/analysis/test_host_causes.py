"""Headlines of traces without a device: which operator, rank or step they name, and where the data ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from patcher.commands.reports.first_screen import first_screen
from patcher.traces import analysis
from patcher.traces.analysis import host_only
from patcher.traces.analysis.host_only import (
    idle_host,
    large_ranges,
    late_ranks,
    longest_operators,
    measures,
    small_operators,
    step_excess,
    wording,
)
from patcher.traces.analysis.host_steps import host_steps
from patcher.traces.analysis.nested import host_thread
from patcher.traces.analysis.segments import split
from patcher.traces.model import (
    CPU,
    CallSums,
    Diagnosis,
    HostPlace,
    HostStep,
    RankProfile,
    RecordedUnit,
    SlowSteps,
    TraceReport,
    Verdict,
)
from tests.patcher.traces.recorded import MS, Range, Run, timeline

GLOO = HostPlace("gloo:all_reduce")
UNKNOWN = HostPlace("", "", "aten::add_", "")
SORT, RANDOM, STACK = (HostPlace(f"built-in function {name}") for name in ("sort", "random", "stack"))


def step(number: int, operators: Mapping[str, int], places: Mapping[HostPlace, int], **fields: Any) -> HostStep:
    """Return a step with the ms of its operators and of its places without one, and shapes of inputs with one call each."""
    times = {name: ms * MS for name, ms in operators.items()}
    inputs = {name: dict.fromkeys(shapes, 1) for name, shapes in fields.pop("inputs", {}).items()}
    return HostStep(
        number=number, ns=sum(times.values()) + sum(places.values()) * MS, operators=times, calls=dict.fromkeys(times, 1),
        places={place: ms * MS for place, ms in places.items()}, inputs=inputs,
        **{"small_ns": 0, "compiling_ns": 0, **fields},
    )  # fmt: skip


def rank(steps: Sequence[HostStep], number: int = 0) -> RankProfile:
    operators = {name: sum(step.operators.get(name, 0) for step in steps) for name in steps[0].operators}
    return RankProfile(
        f"rank{number}", "torch", number, CPU,
        tuple(RecordedUnit(number=step.number, host_ns=step.ns, kernels=0) for step in steps),
        host_steps=tuple(steps), operators=tuple(CallSums(name, 1, 0, 0, ns) for name, ns in operators.items()),
    )  # fmt: skip


def headline(*profiles: RankProfile) -> Diagnosis:
    report: TraceReport = analysis.reported(profiles)
    return next(finding for finding in report.findings if finding.title == report.verdict.title)


def steps(operators: Mapping[str, int], places: Mapping[HostPlace, int]) -> list[HostStep]:
    return [step(number, operators, places) for number in range(4)]


STEADY: dict[str, tuple[Mapping[str, int], Mapping[HostPlace, int], str, int | None]] = {
    "one operator": ({"aten::_linalg_svd": 60, "aten::mm": 30}, {}, "67 % of the time is spent in aten::_linalg_svd", None),
    "several matmuls": ({"aten::mm": 40, "aten::addmm": 30, "aten::relu": 30}, {}, "70 % of the time is spent in matmuls", None),
    "copies": ({"aten::copy_": 60, "aten::mm": 40}, {}, "60 % of the time is spent in aten::copy_", None),
    "filled tensors": ({"aten::fill_": 49, "aten::zero_": 2, "aten::mm": 49}, {}, "operators per step take", None),
    "some copies": ({"aten::copy_": 40, "aten::mm": 35, "aten::relu": 25}, {}, "operators per step take", None),
    "torch's own backward": ({"AddmmBackward0": 60, "aten::mm": 40}, {}, "is spent in AddmmBackward0", None),
    "no operator alone": ({"aten::mm": 30, "aten::relu": 40, "aten::copy_": 30}, {}, "operators per step take", None),
    "three functions": (
        {"aten::mm": 30}, {SORT: 30, RANDOM: 25, STACK: 15},
        "the host runs no operator: in built-in function sort 30.00 ms, in built-in function random 25.00 ms", 70 * MS,
    ),
    "half of the time without operators": ({"aten::mm": 47}, {SORT: 48, RANDOM: 5}, "mostly in built-in function sort", 48 * MS),
    "a place with little more than half": (
        {"aten::mm": 30}, {SORT: 40, RANDOM: 10, STACK: 10, UNKNOWN: 10},
        "for 70 % of the time, the host runs no operator; 57 % of this is in built-in function sort", 40 * MS,
    ),
    "a collective": ({"aten::mm": 30}, {GLOO: 70}, "mostly during gloo:all_reduce", 70 * MS),
    "half are copies": ({"aten::copy_": 50, "aten::mm": 30, "aten::relu": 20}, {}, "50 % of the time is spent in aten::copy_", None),
    "a fifth elsewhere": ({"aten::mm": 40}, {SORT: 48, RANDOM: 12}, "in built-in function sort 48.00 ms, in built-in function random 12.00 ms", 60 * MS),
    "less elsewhere": ({"aten::mm": 40}, {SORT: 49, RANDOM: 11}, "mostly in built-in function sort", 49 * MS),
}  # fmt: skip


@pytest.mark.parametrize(("operators", "places", "title", "saving"), STEADY.values(), ids=STEADY)
def test_the_headline_names_what_takes_half_of_the_time(
    operators: Mapping[str, int], places: Mapping[HostPlace, int], title: str, saving: int | None
) -> None:
    first = headline(rank(steps(operators, places)))
    assert title in first.title
    assert first.saving_ns == saving
    assert ("avoid copies" in first.advice) == ("aten::copy_" in title)


MIXED = {"aten::mm": 25, "aten::relu": 35, "aten::copy_": 25, "aten::sort": 15}
PARTS: dict[str, tuple[Mapping[str, int], Mapping[str, list[int]], str]] = {
    "a range": (MIXED, {"relabel": [50] * 6}, "50 % of the time is spent in relabel; longest operators: aten::relu (35 %), aten::mm (25 %)"),
    "less than half": (MIXED, {"relabel": [49] * 6}, "operators per step take most of the time; the longest with those that it calls: aten::relu (35 %)"),
    "the inner range": (MIXED, {"update": [80] * 6, "relabel": [60] * 6}, "60 % of the time is spent in relabel; longest"),
    "a range around the step": (MIXED, {"step": [95] * 6}, "operators per step take most of the time; the longest with those that it calls: aten::relu (35 %)"),
    "a range that gets longer": (MIXED, {"relabel": [30, 35, 60, 65, 90, 95]}, "62 % of the time is spent in relabel, which gets longer: from 30.00 ms in the first third to 90.00 ms in the last"),
    "a range that gets shorter": (MIXED, {"relabel": [95, 90, 65, 60, 35, 30]}, "62 % of the time is spent in relabel, which gets shorter: from 90.00 ms"),
    "a range before an operator": ({"aten::sort": 60, "aten::mm": 40}, {"relabel": [70] * 6}, "70 % of the time is spent in relabel; 60 % in aten::sort"),
    "an operator in two ranges": ({"aten::mm": 60, "aten::sort": 40}, {"merge": [31] * 6, "unmerge": [29] * 6, "train": [24] * 6}, "60 % of the time is spent in merge (31 %), unmerge (29 %); 60 % in aten::mm"),
    "three equal ranges": (MIXED, {"a": [33] * 6, "b": [31] * 6, "c": [30] * 6}, "94 % of the time is spent in a (33 %), b (31 %), c (30 %); longest"),
    "a range in another one": (MIXED, {"a": [40] * 6, "a.inner": [35] * 6, "b": [30] * 6}, "70 % of the time is spent in a (40 %), b (30 %); longest"),
    "equal passes": ({"aten::mm": 42, "aten::mul": 19, "aten::addmm": 39}, {"fit_backward": [50] * 6, "forward": [40] * 6}, "nothing stands out: the steps mostly consist of fit_backward (50 %), forward (40 %); 81 % in matmuls"),
    "passes of another operator": ({"aten::mm": 41, "aten::sort": 20, "aten::relu": 39}, {"Backward": [50] * 6, "Forward": [40] * 6}, "90 % of the time is spent in Backward (50 %), Forward (40 %); longest operators: aten::mm (41 %), aten::relu (39 %)"),
    "a single pass": ({"aten::mm": 42, "aten::mul": 19, "aten::addmm": 39}, {"backward": [60] * 6}, "60 % of the time is spent in backward; 81 % in matmuls"),
    "ranges that are no passes": ({"aten::mm": 42, "aten::mul": 19, "aten::addmm": 39}, {"rollout": [40] * 6, "fit": [39] * 6}, "79 % of the time is spent in rollout (40 %), fit (39 %); 81 % in matmuls"),
    "functions of passes": ({"aten::mm": 42, "aten::mul": 19, "aten::addmm": 39}, {"f.py(1): backward": [50] * 6, "f.py(2): forward": [40] * 6}, "90 % of the time is spent in f.py(1): backward (50 %), f.py(2): forward (40 %); 81 % in matmuls"),
    "passes whose longest operator has less than a third": ({"aten::mm": 33, "aten::addmm": 31, "aten::mul": 18, "aten::relu": 18}, {"backward": [50] * 6, "forward": [40] * 6}, "90 % of the time is spent in backward (50 %), forward (40 %); 64 % in matmuls"),
    "passes whose longest operator is no matmul": ({"aten::relu": 38, "aten::mm": 33, "aten::addmm": 29}, {"backward": [50] * 6, "forward": [40] * 6}, "90 % of the time is spent in backward (50 %), forward (40 %); 62 % in matmuls"),
    "a pass beside a longer range": (MIXED, {"relabel": [50] * 6, "forward": [40] * 6}, "50 % of the time is spent in relabel; longest"),
    "a range beside a longer pass": (MIXED, {"backward": [50] * 6, "feedforward": [40] * 6}, "50 % of the time is spent in backward; longest"),
    "a short pass beside a longer one": (MIXED, {"backward": [60] * 6, "forward": [19] * 6}, "60 % of the time is spent in backward; longest"),
    "a pass of a library": (MIXED, {"backward": [60] * 6, "torch/nn/f.py(1): forward": [30] * 6}, "60 % of the time is spent in backward; longest"),
    "a pass in another one": (MIXED, {"forward": [80] * 6, "forward.inner": [50] * 6}, "50 % of the time is spent in forward.inner; longest"),
    "four ranges": (MIXED, {"a": [24] * 6, "b": [23] * 6, "c": [22] * 6, "d": [21] * 6}, "69 % of the time is spent in a (24 %), b (23 %), c (22 %); longest"),
    "a range before a family": ({"aten::mm": 40, "aten::bmm": 30, "aten::relu": 30}, {"relabel": [70] * 6}, "70 % of the time is spent in relabel; 70 % in matmuls and convolutions (mostly aten::mm)"),
    "a family with its longest operator": ({"aten::mm": 40, "aten::bmm": 30, "aten::relu": 30}, {}, "70 % of the time is spent in matmuls and convolutions (mostly aten::mm)"),
    "a family of equal operators": ({"aten::mm": 26, "aten::bmm": 26, "aten::addmm": 26, "aten::relu": 22}, {}, "78 % of the time is spent in matmuls and convolutions"),
    "two operators with little": ({"aten::mm": 20, "aten::relu": 20, "aten::copy_": 20, "aten::sort": 20, "aten::bmm": 20}, {}, "operators per step take most of the time; the longest with those that it calls: aten::mm (20 %)"),
    "one large operator": ({"aten::mm": 45, **{f"aten::f{at}": 5 for at in range(11)}}, {}, "operators per step take most of the time; the longest with those that it calls: aten::mm (45 %)"),
}  # fmt: skip


@pytest.mark.parametrize(("operators", "ranges", "title"), PARTS.values(), ids=PARTS)
def test_the_headline_names_the_range_or_the_operators_with_half_of_the_time(
    operators: Mapping[str, int], ranges: Mapping[str, list[int]], title: str
) -> None:
    around = {name: [name.removesuffix(".inner")] for name in ranges if name.endswith(".inner")}
    made = [
        step(at, operators, {}, ranges={name: times[at] * MS for name, times in ranges.items()}, around=around)
        for at in range(6)
    ]
    first = headline(rank(made))
    assert f"No device data; {title}" in first.title or first.title.endswith(title)
    for name, times in [*ranges.items()][:3]:
        assert (f"{name} ({round(sum(times) / 6)} %)" in first.evidence) == bool(times)


@pytest.mark.parametrize(
    ("operators", "calls", "range_", "more"),
    [
        ({"aten::relu": 46, "aten::mm": 44, "aten::sort": 10}, 999, "relabel", "; longest operators: aten::relu (46 %), aten::mm (44 %), aten::sort (10 %)"),
        ({"aten::relu": 46, "aten::mm": 45, "aten::sort": 9}, 1, "relabel", "; longest operators: aten::relu (46 %), aten::mm (45 %)"),
        ({"aten::relu": 32, "aten::mm": 28, "aten::copy_": 20, "aten::sort": 20}, 1, "relabel", "; longest operators: aten::relu (32 %), aten::mm (28 %), aten::copy_ (20 %)"),
        ({"aten::relu": 32, "aten::mm": 28, "aten::copy_": 20, "aten::sort": 20}, 999, "relabel", "; longest operators: aten::relu (32 %), aten::mm (28 %), aten::copy_ (20 %); 3,996 operators per step"),
        ({"Optimizer.step#SGD.step": 60, "aten::mm": 40}, 1, "Optimizer.step#SGD.step", ""),
    ],
    ids=["a tenth", "less", "a fourth one", "many operators", "an operator that is the range"],
)  # fmt: skip
def test_up_to_three_operators_are_named_beside_the_range_that_holds_the_time(
    operators: Mapping[str, int], calls: int, range_: str, more: str
) -> None:
    made = rank([step(at, operators, {}, ranges={range_: 60 * MS}) for at in range(6)])
    made = replace(made, operators=tuple(replace(each, calls=6 * calls) for each in made.operators))
    assert headline(made).title == f"No device data; 60 % of the time is spent in {range_}{more}"


@pytest.mark.parametrize(
    ("count", "longest", "said"),
    [
        (1000, 10, "1,000 operators per step take most of the time; the longest: aten::f0 (2 %)"),
        (999, 20, "999 operators per step take most of the time; the longest: aten::f0 (5 %)"),
    ],
)
def test_many_operators_without_a_long_one_are_counted(count: int, longest: int, said: str) -> None:
    names = [f"aten::f{at}" for at in range(11)]
    made = rank([step(at, dict.fromkeys(names, 10), {}) for at in range(4)])
    times = [longest, *[(100 - longest) / 10] * 10]
    calls = [CallSums(name, 4 * 90, 0, 0, round(ms * MS)) for name, ms in zip(names, times, strict=True)]
    calls[0] = replace(calls[0], calls=4 * (count - 900))
    composite = rank([step(at, {**dict.fromkeys(names, 10), "aten::f0": 30}, {}) for at in range(4)])
    title = headline(replace(composite, operators=tuple(calls))).title
    assert title.endswith("the longest with those that it calls: aten::f0 (23 %)")
    assert said in headline(replace(made, operators=tuple(calls))).title


@pytest.mark.parametrize(
    ("operators", "leads"),
    [
        ({"aten::mm": 40, "aten::relu": 19}, True),
        ({"aten::mm": 40, "aten::relu": 23}, False),
        ({"aten::mm": 60}, False),
    ],
)
def test_a_slow_step_leads_if_nothing_has_much_of_the_time(operators: dict[str, int], leads: bool) -> None:
    """Matrix products with less than half of it do not count; ``aten::histc`` runs in one step only."""
    others = {f"aten::f{at}": (100 - sum(operators.values())) / 5 for at in range(5)}
    usual = step(0, {**operators, **{name: round(ms) for name, ms in others.items()}}, {})
    made = [replace(usual, number=at) for at in range(9)]
    made[4] = step(4, {**{name: ns // MS for name, ns in usual.operators.items()}, "aten::histc": 80}, {})
    title = analysis.reported([rank(made)]).verdict.title
    assert title.startswith("One step takes much longer") == leads


@pytest.mark.parametrize(
    ("ranges", "names"),
    [
        ({"a": 98, "b": 30, "c": 20, "d": 12}, "a (98 %), b (30 %), c (20 %)"),
        ({"a": 99, "b": 10, "c": 9}, "b (10 %)"),
    ],
)
def test_up_to_three_long_ranges_are_evidence(ranges: Mapping[str, int], names: str) -> None:
    made = [step(at, {"aten::mm": 100}, {}, ranges={name: ms * MS for name, ms in ranges.items()}) for at in range(2)]
    sentence = large_ranges.longest_ranges(made, 200 * MS)
    assert sentence == f"Longest ranges, as shares of the whole time: {names}."


@pytest.mark.parametrize(
    ("longer", "paused", "count", "leads"),
    [(300, 0, 1, True), (299, 0, 1, False), (151, 149, 1, True), (150, 150, 1, False), (75, 0, 4, True)],
)  # fmt: skip
def test_a_slow_step_leads_if_what_is_long_may_be_so_because_of_it(
    longer: int, paused: int, count: int, leads: bool
) -> None:
    """By a quarter of all time, mostly in the operator with most of the time."""
    made = [step(at, {"aten::mm": 90, "aten::relu": 10}, {}, inputs={"aten::mm": {SMALL}}) for at in range(9)]
    for at in range(count):
        slow = step(at, {"aten::mm": 90 + longer, "aten::relu": 10}, {SORT: paused}, inputs={"aten::mm": {SMALL}})
        made[2 * at] = replace(slow, number=2 * at)
    title = analysis.reported([rank(made)]).verdict.title
    assert ("took longer: aten::mm" in title) == leads
    assert ("is spent in aten::mm" in title) != leads
    assert "took longer" not in analysis.reported([rank(made[:-1])]).verdict.title or count < 4


def test_an_operator_is_named_with_those_that_it_calls() -> None:
    """Its own time, and that of each operator within it, is less than half of the step."""
    for ms, title in ((20, "aten::svd (20 %)"), (19, "aten::svd (15 %)")):
        others = {f"aten::f{at}": 16 for at in range(5)}
        made = rank([step(at, {"aten::svd": ms, **others, "aten::g": 20 - ms}, {}) for at in range(4)])
        calls = (CallSums("aten::svd", 1, 0, 0, 4 * 15 * MS), CallSums("aten::f0", 1, 0, 0, 4 * 14 * MS))
        first = headline(replace(made, operators=calls))
        assert first.title.endswith(title)
        assert ("with those that it calls" in first.title) == (ms == 20)


@pytest.mark.parametrize(
    ("places", "title"),
    [
        ({1: SORT, 3: RANDOM}, "these gaps are at different places"), ({1: SORT, 3: SORT}, "2 of 4 steps take much longer than the others: most of"),
        ({1: SORT}, "One step takes much longer"),
    ],
)  # fmt: skip
def test_half_of_the_steps_are_no_exception_if_their_causes_differ(places: Mapping[int, HostPlace], title: str) -> None:
    made = [step(at, MIXED, {places[at]: 400} if at in places else {}) for at in range(4)]
    assert title in analysis.reported([rank(made)]).verdict.title
    made = [step(at, MIXED, {places[at]: 400} if at in places else {}) for at in range(5)]
    assert (
        "in the slowest step, most" in analysis.reported([rank(made)]).verdict.title or len(set(places.values())) == 1
    )


@pytest.mark.parametrize(
    ("places", "longer", "also"),
    [
        ({SORT: 45}, {}, "also: On average, a step takes "), ({SORT: 13}, {}, ""), ({}, {SORT: 155}, "also: steps 2, 5 take up to 155.00 ms longer"),
        ({}, {SORT: 40}, ""),
    ],
)  # fmt: skip
def test_a_fifth_of_a_step_beside_the_operators_is_on_the_first_screen(
    places: Mapping[HostPlace, int], longer: Mapping[HostPlace, int], also: str
) -> None:
    made = [step(at, {"aten::mm": 25, "aten::relu": 30}, longer if at in (2, 5) else places) for at in range(8)]
    screen = " ".join(line.strip() for line in first_screen(analysis.reported([rank(made)])))
    assert "operators per step take" in screen
    assert also in screen
    assert bool(also) == ("also: " in screen)


SLOW: dict[str, tuple[Mapping[int, Mapping[HostPlace, int]], int, str]] = {
    "one of eight": ({5: {UNKNOWN: 300}}, 0, "One step takes much longer than the others: most of the additional time is spent after the last operator (aten::add_)"),
    "the first": ({0: {SORT: 300}}, 0, "The first recorded step takes much longer than the others: most of"),
    "three of eight": ({1: {SORT: 300}, 3: {SORT: 300}, 5: {SORT: 300}}, 0, "3 of 8 steps take much longer"),
    "one, beside two that are a little longer": ({1: {SORT: 20}, 3: {SORT: 20}, 5: {SORT: 300}}, 0, "One step takes"),
    "torch.compile": ({5: {SORT: 300}}, 5, "One step takes much longer than the others: torch.compile compiles during this step"),
}  # fmt: skip


@pytest.mark.parametrize(("slow", "compiles", "title"), SLOW.values(), ids=SLOW)
def test_the_headline_says_which_steps_are_slow_and_why(
    slow: Mapping[int, Mapping[HostPlace, int]], compiles: int, title: str
) -> None:
    made = [
        step(number, {"aten::mm": 10}, slow.get(number, {}), compiling_ns=290 * MS if number == compiles != 0 else 0)
        for number in range(8)
    ]
    first = headline(rank(made))
    assert first.title.startswith(title)
    assert ("was not recorded" in first.title) == any(UNKNOWN in places for places in slow.values())


MATMULS, LARGE, SMALL = {"aten::mm": 10}, "[[2048, 256]]", "[[64, 256]]"
EXCESS: dict[str, tuple[HostStep, HostStep, str]] = {
    "inputs of 1.3 times the size": (step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {"[[130]]"}}), step(1, MATMULS, {}, inputs={"aten::mm": {"[[100]]"}}), "larger inputs"),
    "inputs that are hardly larger": (step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {"[[129]]"}}), step(1, MATMULS, {}, inputs={"aten::mm": {"[[100]]"}}), ""),
    "the largest of several inputs": (
        step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {"[[1]]", "[[130]]"}}), step(1, MATMULS, {}, inputs={"aten::mm": {"[[100]]", "[[2]]"}}), "larger inputs",
    ),
    "half is compiled": (step(0, {"aten::mm": 20}, {}, compiling_ns=5 * MS), step(1, MATMULS, {}), "torch.compile compiles"),
    "less is compiled": (step(0, {"aten::mm": 20}, {}, compiling_ns=4 * MS), step(1, MATMULS, {}), ""),
    "half is at one place": (step(0, {"aten::mm": 15}, {SORT: 5}), step(1, MATMULS, {}), "is spent in built-in function sort"),
    "less is at one place": (step(0, {"aten::mm": 16}, {SORT: 4}), step(1, MATMULS, {}), ""),
    "half is in one of more operators": (step(0, {"aten::mm": 10, "aten::sort": 5}, {SORT: 2, RANDOM: 2, STACK: 1}), step(1, MATMULS, {}), "is spent in aten::sort"),
    "less is in one of more operators": (step(0, {"aten::mm": 10, "aten::sort": 4}, {SORT: 2, RANDOM: 2, STACK: 2}), step(1, MATMULS, {}), ""),
    "half is in a range": (
        step(0, {"aten::mm": 12, "aten::relu": 10}, {}, ranges={"loop": 22 * MS, "validate": 6 * MS}),
        step(1, MATMULS, {}, ranges={"loop": 10 * MS}), "is spent in validate",
    ),
    "less is in a range": (
        step(0, {"aten::mm": 15, "aten::relu": 5}, {}, ranges={"loop": 20 * MS, "validate": 4 * MS}),
        step(1, MATMULS, {}, ranges={"loop": 10 * MS}), "is spent in aten::mm",
    ),
    "fewer operators": (step(0, {}, {SORT: 7, RANDOM: 7, STACK: 7, GLOO: 7}), step(1, MATMULS, {}), ""),
    "larger inputs": (step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {LARGE, "[[1]]"}}), step(1, MATMULS, {}, inputs={"aten::mm": {SMALL, "[[1]]"}}), "larger inputs"),
    "one shape more": (step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {LARGE, SMALL}}), step(1, MATMULS, {}, inputs={"aten::mm": {SMALL}}), "larger inputs"),
    "a range that takes half of each step": (
        step(0, {"aten::mm": 12, "aten::relu": 9}, {}, ranges={"validate": 11 * MS}),
        step(1, MATMULS, {}, ranges={"validate": 5 * MS}), "is spent in aten::relu",
    ),
    "a range that takes less of each step": (
        step(0, {"aten::mm": 12, "aten::relu": 9}, {}, ranges={"validate": 11 * MS}),
        step(1, MATMULS, {}, ranges={"validate": 5 * MS - 1}), "is spent in validate",
    ),
    "ranges around each other": (
        step(0, {"aten::mm": 12, "aten::relu": 9}, {}, ranges={"epoch": 10 * MS, "validate": 9 * MS}),
        step(1, MATMULS, {}), "is spent in validate",
    ),
    "hardly larger than the largest of several inputs": (
        step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {"[[129]]"}}), step(1, MATMULS, {}, inputs={"aten::mm": {"[[100]]", "[[2]]"}}), "",
    ),
    "one shape less": (step(0, {"aten::mm": 20}, {}, inputs={"aten::mm": {SMALL}}), step(1, MATMULS, {}, inputs={"aten::mm": {LARGE, SMALL}}), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCESS)
def test_a_cause_has_half_of_the_additional_time_of_a_step(name: str) -> None:
    slow, typical, cause = EXCESS[name]
    found = step_excess.excess(rank([slow, typical]), 0, 1)
    assert cause in found.cause
    assert cause or "same sizes" not in found.cause
    assert bool(cause) == bool(found.cause)


@pytest.mark.parametrize(("ms", "named"), [(10, True), (9, False)])
def test_a_tenth_of_the_additional_time_is_named(ms: int, named: bool) -> None:
    slow = step(0, {"aten::relu": ms, "aten::mm": 15 - ms}, {SORT: 45, RANDOM: 40})
    evidence = step_excess.excess(rank([slow, step(1, {}, {})]), 0, 1).evidence
    assert "in built-in function random 40.00 ms" in evidence
    assert ("aten::relu 10.00 ms" in evidence, "aten::" in evidence) == (named, named)


@pytest.mark.parametrize(
    ("calls", "running", "advised"), [(22, 10, True), (21, 10, False), (22, 9, False), (30, 20, True)]
)
def test_more_operators_that_take_half_of_the_additional_time_are_more_work(
    calls: int, running: int, advised: bool
) -> None:
    """The median step runs 20 operators; the slow one takes 20 ms longer."""
    rest = 20 - running
    slow = step(0, {"aten::mm": 10 + running}, {SORT: rest // 2, RANDOM: rest - rest // 2})
    made = [replace(slow, calls={"aten::mm": calls}), replace(step(1, MATMULS, {}), calls={"aten::mm": 20})]
    assert bool(step_excess.excess(rank(made), 0, 1).advice) == advised
    assert step_excess.does_more_work(rank(made), 0, 1) == advised
    assert not step_excess.does_more_work(rank(made), 0, 9)
    assert not step_excess.does_more_work(rank(made), 9, 1)


@pytest.mark.parametrize(
    ("ranges", "small", "name"),
    [
        ({"update": 70}, {"update": 31}, "update"), ({"update": 70}, {"update": 30}, ""), ({"loop": 99}, {"loop": 60}, ""),
        ({"loop": 98}, {"loop": 60}, "loop"),
        (
            {"loop": 100, "outer": 97, "update": 70, "load": 20},
            {"loop": 60, "outer": 50, "update": 40, "load": 9},
            "update",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_the_innermost_range_with_over_half_of_the_small_operators_is_named(
    ranges: dict[str, int], small: dict[str, int], name: str
) -> None:
    """The step takes 100 ns, its small operators 60 ns."""
    made = [replace(step(at, MATMULS, {}), ranges=ranges, small_ranges=small) for at in range(3)]
    assert small_operators._range_of_small_operators(made, 100, 60) == (name, ranges.get(name, 0))


@pytest.mark.parametrize(
    ("functions", "small", "name"),
    [
        ({"dump": 51}, {"dump": 31}, "dump"), ({"dump": 50}, {"dump": 31}, ""), ({"dump": 51}, {"dump": 30}, ""),
        ({"dump": 62}, {"dump": 31}, ""), ({"train": 99}, {"train": 60}, ""), ({"train": 98}, {"train": 60}, "train"),
        ({"train": 98, "dump": 70, "load": 60}, {"train": 60, "dump": 50, "load": 9}, "dump"),
        ({"<listcomp>": 60, "dump": 70}, {"<listcomp>": 50, "dump": 50}, "dump"),
        ({"<module>": 70}, {"<module>": 60}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_the_innermost_function_with_over_half_of_the_step_and_its_small_operators_is_named(
    functions: dict[str, int], small: dict[str, int], name: str
) -> None:
    """The step takes 100 ns, its small operators 60 ns."""
    times, small_times = ({f"a.py(1): {key}": ns for key, ns in part.items()} for part in (functions, small))
    made = [replace(step(at, MATMULS, {}), functions=times, small_functions=small_times) for at in range(3)]
    expected = (f"a.py(1): {name}", functions[name]) if name else ("", 0)
    assert small_operators._function_of_small_operators(made, 100, 60) == expected


@pytest.mark.parametrize(
    ("waits", "culprit"),
    [([49, 7], "rank 1"), ([49, 20, 52], "rank 1"), ([36, 44, 46, 41], ""), ([49, 34], ""), ([3, 1], ""), ([49], "")],
)
def test_the_rank_that_waits_least_in_collectives_keeps_the_others_waiting(waits: list[int], culprit: str) -> None:
    ranks = [rank(steps({"aten::mm": 10}, {GLOO: wait, UNKNOWN: 52 - wait}), at) for at, wait in enumerate(waits)]
    first = headline(*ranks, replace(ranks[0], host_steps=(), source="none", rank=9))
    assert (first.id == "slow-rank", first.culprit) == (bool(culprit), culprit)
    if culprit:
        assert first.title == f"Ranks wait for {culprit}"
        assert first.saving_ns == (49 - min(waits)) * MS


@pytest.mark.parametrize(
    ("places", "cause"),
    [({SORT: 42}, ", mostly while its host is in built-in function sort"), ({SORT: 21, UNKNOWN: 21}, ""), ({UNKNOWN: 42}, "")],
    ids=["a call", "two places", "not recorded"],
)  # fmt: skip
def test_the_place_that_keeps_the_last_rank_is_in_the_headline(places: Mapping[HostPlace, int], cause: str) -> None:
    slow = rank(steps({"aten::mm": 10}, {GLOO: 7, **places}), 1)
    assert headline(rank(steps({"aten::mm": 10}, {GLOO: 49})), slow).title == f"Ranks wait for rank 1{cause}"


@pytest.mark.parametrize(
    ("other", "named", "title"),
    [
        ({UNKNOWN: 300}, "rank1: ", "In step 5, the other ranks wait 301.00 ms for rank 1: most of the additional time is spent after"),
        ({SORT: 300}, "rank1: ", "In step 5, the other ranks wait 301.00 ms for rank 1: most of the additional time is spent in built-in"),
        ({SORT: 170, GLOO: 130}, "rank1: ", "In step 5, the other ranks wait 171.00 ms for rank 1: most of the additional time is spent in built-in"),
        ({SORT: 80, GLOO: 220}, "rank0: ", "One step takes much longer than the others: most of the additional time is spent during gloo"),
        ({GLOO: 300}, "rank0: ", "One step takes much longer"), ({}, "rank0: ", "One step takes much longer"),
    ],
)  # fmt: skip
def test_a_slow_step_is_that_of_the_rank_that_does_not_wait_in_it(
    other: Mapping[HostPlace, int], named: str, title: str
) -> None:
    ranks = [
        rank([step(at, {"aten::mm": 10}, places if at == 5 else {}) for at in range(8)], number)
        for number, places in enumerate(({GLOO: 301}, other))
    ]
    first = headline(*ranks)
    assert first.title.startswith(title)
    assert first.evidence.startswith(named)


@pytest.mark.parametrize(
    ("place", "numbers"),
    [(GLOO, (0, 0)), (HostPlace("gloo:recv"), (0, 1))],
    ids=["several runs in a folder", "stages of a pipeline"],
)
def test_a_rank_keeps_none_waiting_that_it_does_not_meet(place: HostPlace, numbers: tuple[int, int]) -> None:
    waits = zip((49, 7), numbers, strict=True)
    ranks = [rank(steps({"aten::mm": 10}, {place: wait, UNKNOWN: 52 - wait}), number) for wait, number in waits]
    assert late_ranks.diagnose_straggler(ranks) is None
    ranks = [rank(steps({"aten::mm": 10}, {GLOO: wait, UNKNOWN: 52 - wait}), wait) for wait in (49, 7)]
    assert late_ranks.diagnose_straggler(ranks)


@pytest.mark.parametrize(("computing", "named"), [(36, True), (35, False)])
def test_the_stage_that_computes_longest_is_the_one_that_the_others_wait_for(computing: int, named: bool) -> None:
    """By over half of the 50 ms that they wait longer."""
    recv = HostPlace("gloo:recv", "gloo:recv")
    ranks = [
        rank(steps({"aten::mm": ms, "c10d::send": 90 - ms - wait}, {recv: wait}), number)
        for number, (ms, wait) in enumerate(((10, 70), (computing, 10), (5, 60)))
    ]
    found = late_ranks.diagnose_straggler(ranks)
    title = f"Ranks wait for rank 1: its operators take {computing - 10}.00 ms longer per step"
    assert (found.title if found else "") == title * named
    if found:
        assert (found.saving_ns, found.source) == (50 * MS, "rank1")
        assert [each.id for each in analysis.reported(ranks).findings if each.severity == "problem"] == ["slow-rank"]
        assert "host-idle" not in {each.id for each in analysis.reported(ranks).findings}


def test_the_longer_one_of_two_stages_is_named() -> None:
    recv = HostPlace("gloo:recv", "gloo:recv")
    two = [rank(steps({"aten::mm": ms}, {recv: wait}), at) for at, (ms, wait) in enumerate(((10, 70), (41, 10)))]
    found = late_ranks.diagnose_straggler(two)
    assert found is not None
    assert found.culprit == "rank 1"


@pytest.mark.parametrize(
    ("works", "transfer", "other", "title"),
    [
        ((45, 55), 0, "aten::sort", "rank 0, rank 2 for 55 % of the time, mostly while rank 1, rank 3 is in train; rank 1, rank 3 for 45 %"),
        ((20, 80), 0, "aten::sort", "rank 0, rank 2 for 80 % of the time, mostly while rank 1, rank 3 is in train; rank 1, rank 3 for 20 %"),
        ((19, 81), 0, "aten::sort", ""), ((45, 55), 12, "aten::sort", "rank 0, rank 2 for 43 % of the time"), ((45, 55), 13, "aten::sort", ""),
        ((45, 55), 0, "aten::mm", ""),
    ],
    ids=["in turn", "a fifth", "less", "with transfer", "with more of it", "the same work"],
)  # fmt: skip
def test_two_groups_of_ranks_wait_in_turn(works: tuple[int, int], transfer: int, other: str, title: str) -> None:
    """Each waits in receives while the other one works, and sends for ``transfer`` ms; or waits in sends."""
    recv, ranges = HostPlace("gloo:recv", "gloo:recv"), ("generate", "train")
    ranks = [
        rank(
            [
                step(at, {name: works[kind]}, {recv: 100 - works[kind]}, ranges={ranges[kind]: works[kind] * MS},
                     collectives={"gloo:recv": [(100 - works[kind]) * MS], "gloo:send": [transfer * MS]})
                for at in range(2)
            ],
            number,
        )
        for number, (kind, name) in enumerate([(0, "aten::mm"), (1, other)] * 2)
    ]  # fmt: skip
    found = late_ranks._diagnose_alternating_groups(ranks)
    assert bool(found) == bool(title)
    if found:
        assert found.title.startswith(f"Ranks wait for each other in turn: {title}")
        assert found.saving_ns == (min(works) - transfer) * MS
        assert late_ranks.diagnose_straggler(ranks) == found
    swapped = []
    for each in ranks:
        times = dict(zip(("gloo:send", "gloo:recv"), each.host_steps[0].collectives.values(), strict=True))
        swapped.append(replace(each, host_steps=tuple(replace(one, collectives=times) for one in each.host_steps)))
    assert late_ranks._diagnose_alternating_groups(swapped) == found


@pytest.mark.parametrize(("ns", "frame"), [(50, "f"), (49, ""), (30, "")])
def test_a_frame_stands_for_its_places_if_it_has_enough_of_the_time(ns: int, frame: str) -> None:
    made = [step(0, {"aten::mm": 10}, {}, frames={"f": {SORT: ns - 15, STACK: 15}})]
    made = [replace(one, places={SORT: 20, RANDOM: 20}) for one in made]
    places, within = idle_host._places_or_frame(made, least=20, half=50)
    assert [place for place, _ in places] == ([HostPlace("f")] if frame else [SORT, RANDOM])
    assert bool(within) == bool(frame)
    assert idle_host._places_or_frame(made, least=21, half=20)[0] == [(HostPlace("f"), ns)]
    assert idle_host._places_or_frame(made, least=51, half=20) == ([], [])
    assert idle_host._places_or_frame(made, least=10, half=20) == ([(SORT, 20), (RANDOM, 20)], [])


def test_a_call_with_nearly_all_of_the_time_of_a_frame_is_named_with_the_range_around_most_of_it() -> None:
    read, execute, send = "built-in function read", "f.py(1): execute", HostPlace("send")
    waits = {HostPlace(read, "gen"): 60 * MS, HostPlace(read, "train"): 30 * MS}
    frames = {execute: {**waits, send: 20 * MS}, read: waits}
    ranges = {"gen": 60 * MS, "train": 30 * MS}
    places = {place: ns // MS for place, ns in waits.items()}
    made = [step(at, {"aten::mm": 10}, places, frames=frames, ranges=ranges) for at in range(4)]
    first = headline(rank(made))
    assert first.title.endswith(f"mostly in {read} (within {execute}); most of the time in gen (60 %)")
    assert (first.saving_ns, first.advice) == (90 * MS, wording.WAITS_IN_CALL)
    frames[execute][send] = 23 * MS
    assert headline(rank(made)).title.endswith(f"mostly in {execute}")


@pytest.mark.parametrize(("ms", "asked"), [(45, False), (44, True)])
def test_the_advice_is_on_a_part_of_a_range_if_that_has_half_of_its_time(ms: int, asked: bool) -> None:
    read = HostPlace("built-in function read")
    places = {read: ms, SORT: 23, RANDOM: 67 - ms}
    made = [step(at, {"aten::mm": 10}, places) for at in range(4)]
    made = [replace(one, frames={"reward": one.places}) for one in made]
    assert ("works or waits in reward" in headline(rank(made)).advice) == asked


COLLECTIVE = Range("gloo:all_reduce", 2 * MS, 9 * MS, thread=9)
FRAMES: list[tuple[tuple[Range, ...], HostPlace]] = [
    ((), GLOO),
    ((Range("built-in method wait", MS, 9 * MS),), GLOO),
    ((Range("loop.py(7): reward", MS, 9 * MS),), HostPlace("loop.py(7): reward")),
]


@pytest.mark.parametrize(("frames", "place"), FRAMES)
def test_a_collective_explains_a_stretch_in_which_the_host_only_waits(
    frames: tuple[Range, ...], place: HostPlace
) -> None:
    operators = (Range("c10d::allreduce_", 0, MS), Range("aten::add_", 9 * MS, 10 * MS))
    trace = timeline(Run((), (Range("ProfilerStep#1", 0, 10 * MS),), operators, functions=frames))
    for later in (0, 10 * MS):
        begin, end = COLLECTIVE.begin + later, COLLECTIVE.end + later
        trace.add_frame(COLLECTIVE.name, begin, end, trace.thread(1, COLLECTIVE.thread))
    threads = [host_thread(trace, thread) for thread in range(len(trace.operators))]
    (made,) = host_steps(trace, split(trace), [0], threads)
    assert made.places == {place: 8 * MS}
    assert made.collectives == {"gloo:all_reduce": [7 * MS]}


@pytest.mark.parametrize(
    ("begin", "end", "place"),
    [
        (2, 9.0, HostPlace("gloo:all_reduce", "sync")), (3, 9.0, HostPlace("sync")),
        (2, 8.6, HostPlace("gloo:all_reduce", "sync")), (2, 8.5, HostPlace("sync")),
    ],
)  # fmt: skip
def test_a_collective_explains_a_range_that_began_before_it(begin: int, end: float, place: HostPlace) -> None:
    operators = (Range("c10d::allreduce_", 0, MS), Range("aten::add_", 9 * MS, 10 * MS))
    trace = timeline(Run((), (Range("ProfilerStep#1", 0, 10 * MS),), operators))
    trace.add_frame(COLLECTIVE.name, COLLECTIVE.begin, round(end * MS), trace.thread(1, COLLECTIVE.thread))
    trace.add_frame("sync", begin * MS, 9 * MS, 0)
    (made,) = host_steps(trace, split(trace), [0], [host_thread(trace, 0)])
    assert place in made.places


TURNS: dict[str, tuple[list[list[int]], list[str], str]] = {
    "two of two": ([[5, 45], [45, 5], [5, 45], [45, 5]], ["a", "a"], "changes from step to step: the last one spends more time in a"),
    "for different causes": ([[5, 45], [45, 5], [5, 45], [45, 5]], ["a", "b"], "changes from step to step"),
    "one rank in three of four steps": ([[45, 5], [45, 5], [45, 5], [5, 45]], ["a", "a"], "Ranks wait for rank 1, mostly while its host is in a"),
    "one rank in two of three steps": ([[45, 5], [45, 5], [5, 45]], ["a", "a"], "changes from step to step: the last one spends more time in a"),
    "in half of the steps": ([[5, 45], [45, 5], [5, 5], [5, 5]], ["a", "a"], "the host runs no operator: in "),
}  # fmt: skip


@pytest.mark.parametrize(("waits", "calls", "title"), TURNS.values(), ids=TURNS)
def test_ranks_that_come_last_in_turn_are_no_stragglers(waits: list[list[int]], calls: list[str], title: str) -> None:
    """The host of a rank that does not wait for its share of the 50 ms is in its call; 30 ms are the same for all."""
    ranks = [
        rank([step(at, {"aten::mm": 10}, {GLOO: ms[number], HostPlace(call): 50 - ms[number], SORT: 30}) for at, ms in enumerate(waits)], number)
        for number, call in enumerate(calls)
    ]  # fmt: skip
    first = headline(*ranks)
    assert title in first.title
    assert first.title.endswith(title) or "runs no" in title
    assert (first.culprit == "rank 1") == ("rank 1" in title)
    assert "in step 3" not in first.evidence


@pytest.mark.parametrize(
    ("waits", "calls", "order", "title"),
    [
        ([[42, 5], [5, 23], [45, 5], [5, 23]], "ba", "20", "The other ranks wait for rank 1 in steps 0, 2, mostly while its host is in a"),
        ([[45, 5], [5, 23], [45, 5], [5, 23]], ["", ""], "02", "Ranks wait for each other: the straggler changes from step to step"),
        ([[45, 5], [5, 25], [45, 5], [5, 25]], "aa", "02", "Ranks wait for each other: the straggler changes from step to step: the last one spends more time in a"),
        ([[45, 5], [5, 22], [17, 5], [5, 22]], "aa", "0", "Ranks wait for each other: the straggler changes from step to step: the last one spends more time in a"),
    ],
    ids=["one rank", "for unknown causes", "two ranks", "one step"],
)  # fmt: skip
def test_the_rank_that_is_last_in_the_steps_with_much_waiting_is_named(
    waits: list[list[int]], calls: Sequence[str], order: str, title: str
) -> None:
    ranks = [
        rank([step(at, {"aten::mm": 10}, {GLOO: ms[number], HostPlace(calls[number]): 50 - ms[number]}) for at, ms in enumerate(waits)], number)
        for number in range(2)
    ]  # fmt: skip
    found = late_ranks.diagnose_straggler(ranks)
    assert found is not None
    assert (found.title, found.culprit) == (title, "rank 1" if "rank 1" in title else "")
    assert (found.source, "rank 1" in found.advice) == (("rank1", True) if found.culprit else ("", False))
    assert f"The others wait most for {', '.join(f'rank 1 in step {number}' for number in order)}" in found.evidence


@pytest.mark.parametrize(
    ("times", "exposed", "title"),
    [
        ([(20, 30), (30, 20)], 50, "Communication takes 50 % of the time on all ranks alike, mostly during gloo:all_reduce (within sync), 2 per step"),
        ([(20, 30), (30, 20)], 19, ""), ([(15, 45), (45, 15)], 50, ""), ([(16, 45), (45, 15)], 50, "Communication takes"),
        ([(20, 30), (30,)], 50, "Communication takes"), ([(15, 45), (45,)], 50, ""),
    ],
    ids=["more than waiting", "little of the time", "as much as waiting", "a little more", "one is not recorded", "one of a single rank"],
)  # fmt: skip
def test_collectives_that_take_all_ranks_long_are_told_as_communication(
    times: list[tuple[int, ...]], exposed: int, title: str
) -> None:
    place = HostPlace("gloo:all_reduce", "sync")
    ranks = [
        rank([step(at, {"aten::mm": 100 - exposed}, {place: exposed}, collectives={"gloo:all_reduce": [ms * MS for ms in of_rank]}) for at in range(4)], number)
        for number, of_rank in enumerate(times)
    ]  # fmt: skip
    found = late_ranks.diagnose_straggler(ranks)
    assert (found.title if found else "").startswith(title)
    assert bool(found) == bool(title)
    if found and len(times[1]) == 2:
        assert found.saving_ns == sum(map(min, *times)) * MS
        waiting = sum(map(sum, times)) / 2 - sum(map(min, *times))
        assert found.evidence.endswith(f"a rank waits for others for {waiting:.2f} ms per step.")
        assert headline(*ranks) == replace(found, severity="problem")


@pytest.mark.parametrize(("operator", "severity"), [(50, "warning"), (51, "note")])
def test_an_operator_that_takes_longer_than_communication_leads(operator: int, severity: str) -> None:
    ranks = [
        rank([step(at, {"aten::topk": operator}, {GLOO: 50}, collectives={"gloo:all_reduce": [50 * MS]}) for at in range(4)], number)
        for number in range(2)
    ]  # fmt: skip
    found = late_ranks.diagnose_straggler(ranks)
    assert found is not None
    assert found.severity == severity
    assert ("aten::topk" in headline(*ranks).title) == (severity == "note")


def test_an_idle_host_beside_communication_is_marked_as_its_cause() -> None:
    collectives = {"gloo:all_reduce": [50 * MS]}
    ranks = [
        rank([step(at, {"aten::mm": 50}, places, collectives=collectives) for at in range(4)], number)
        for number, places in enumerate(({GLOO: 50, SORT: 200}, {GLOO: 50}, {GLOO: 50}))
    ]
    found = {
        finding.id: finding.same_as for finding in analysis.reported(ranks).findings if finding.id != "host-operators"
    }
    assert found == {"communication": "", "host-idle": "communication"}
    communication = late_ranks.diagnose_straggler(ranks)
    assert communication is not None
    assert "mostly during gloo:all_reduce" in communication.title


@pytest.mark.parametrize(
    ("waits", "broadcasts", "title"),
    [
        ((12, 10), 11, "71 % of the time on all ranks alike, mostly during gloo:all_gather (within a), 2 per step"),
        ((11, 11), 12, "72 % of the time on all ranks alike, mostly during gloo:all_gather, 2 per step"),
        ((11, 11), 15, "75 % of the time on all ranks alike, mostly during gloo:all_gather, 2 per step; during gloo:broadcast, 1 per step"),
        ((0, 80), 0, "80 % of the time on all ranks alike, mostly during gloo:all_gather (within b), 2 per step"),
    ],
)  # fmt: skip
def test_the_share_of_communication_is_that_of_all_collectives(
    waits: tuple[int, int], broadcasts: int, title: str
) -> None:
    """Operators of autograd may run during collectives; others compute. Sends and receives are no collectives."""
    places = {HostPlace("gloo:all_gather", name): ms for name, ms in zip("ab", waits, strict=True)}
    times = {"gloo:all_gather": [30 * MS] * 2, "gloo:broadcast": [broadcasts * MS], "gloo:recv": [9 * MS]}
    node = {"autograd::engine::evaluate_function: AddBackward0": 100 - sum(waits)}
    ranks = [rank([step(at, node, places, collectives=times) for at in range(4)], number) for number in range(2)]
    found = late_ranks.diagnose_straggler(ranks)
    assert found is not None
    assert found.title == f"Communication takes {title}"
    assert f"what all have in common: {60 + broadcasts}.00 ms per step" in found.evidence
    ranks = [replace(each, operators=(CallSums("aten::mm", 4, 0, 0, 4 * 50 * MS),)) for each in ranks]
    found = late_ranks.diagnose_straggler(ranks)
    assert found is not None
    assert found.title.startswith(f"Communication takes {max(50, sum(waits))} % of the time")


def test_a_rank_is_late_in_one_step_if_that_is_most_of_the_time_in_collectives() -> None:
    for usual, title in (
        (1, "In step 5, the other ranks wait 61.00 ms for rank 1: most of the additional time is spent in rollout"),
        (8, ""),
    ):
        ranks = [
            rank(
                [step(at, {"aten::mm": 10, "c10d::broadcast_": usual}, places if at == 5 else {}) for at in range(8)],
                number,
            )
            for number, places in enumerate(({GLOO: 61}, {HostPlace("rollout"): 60}))
        ]
        found = late_ranks.diagnose_straggler(ranks)
        assert (found.title if found else "") == title


@pytest.mark.parametrize(
    ("name", "stacks", "asked"),
    [
        ("rewards", False, True), ("rewards", None, True), ("rewards", True, False), ("f.py(7): g", False, False), ("built-in function sort", False, False),
        ("Optimizer.step#SGD.step", False, False), ("Python GC", False, False), ("gloo:all_reduce", False, False),
    ],
)  # fmt: skip
def test_a_range_does_not_tell_what_python_does_in_it(name: str, stacks: bool | None, asked: bool) -> None:
    made = rank(steps({"aten::mm": 10}, {HostPlace(name): 90}))
    assert ("works or waits in" in headline(replace(made, has_stacks=stacks)).advice) == asked


@pytest.mark.parametrize(("first", "late"), [(0, False), (1, True)])
def test_a_rank_is_not_late_in_the_step_in_which_profilers_start(first: int, late: bool) -> None:
    ranks = [
        replace(
            rank([step(at, {"aten::mm": 10}, places if at == first else {}) for at in range(first, 8)], number),
            marks="ProfilerStep#",
        )
        for number, places in enumerate(({GLOO: 61}, {SORT: 60}))
    ]
    assert (late_ranks.diagnose_straggler(ranks) is not None) == late


@pytest.mark.parametrize(("longer", "late"), [(14, True), (15, False)])
def test_a_rank_is_late_in_one_step_if_no_other_one_is_slow(longer: int, late: bool) -> None:
    ranks = [
        rank(
            [step(at, {"aten::mm": 10}, places if at == 5 else {SORT: longer if at == 6 else 0}) for at in range(8)],
            number,
        )
        for number, places in enumerate(({GLOO: 61}, {SORT: 60}))
    ]
    assert (late_ranks.diagnose_straggler(ranks) is not None) == late


def test_operators_that_take_the_last_rank_longer_are_told_without_a_range() -> None:
    ranks = [
        rank(steps({"aten::mm": 50 - wait, "aten::relu": 10}, {GLOO: wait}), at) for at, wait in enumerate((40, 2))
    ]
    assert headline(*ranks).title == "Ranks wait for rank 1: its operators take 38.00 ms longer per step"
    ranks = [
        replace(
            each,
            host_steps=tuple(
                replace(step, ranges={"rollout": 50 * MS - step.places[GLOO]}) for step in each.host_steps
            ),
        )
        for each in ranks
    ]
    assert headline(*ranks).title == "Ranks wait for rank 1, mostly while its host is in rollout"


def test_a_range_in_which_all_ranks_are_names_the_one_that_does_not_wait_in_it() -> None:
    """The last rank works where the others wait for it, after it has waited for them in another collective."""
    gather, grading = HostPlace("gloo:gather", "reward"), HostPlace("reward")
    for work, gathering, advice in ((50, 10, "find out whether the host works"), (45, 50, "check what rank 0 does")):
        waiting = {HostPlace("gloo:all_reduce", "reward"): work}
        kinds: list[Mapping[HostPlace, int]] = [{grading: work, gather: gathering}, waiting, waiting]
        ranks = [
            rank(
                [step(at, {"aten::mm": 10}, places, ranges={"reward": sum(places.values()) * MS}) for at in range(4)],
                at,
            )
            for at, places in enumerate(kinds)
        ]
        ranks = [
            replace(each, host_steps=tuple(replace(one, frames={"reward": one.places}) for one in each.host_steps))
            for each in ranks
        ]
        found = late_ranks.diagnose_straggler(ranks)
        assert found is not None
        assert found.title == "Ranks wait for rank 0, mostly while its host is in reward"
        assert found.advice.startswith(advice)


@pytest.mark.parametrize(("ms", "named"), [(10, True), (9, False)])
def test_operators_that_take_the_last_rank_longer_together_are_named(ms: int, named: bool) -> None:
    """Each of two takes little of the 38 ms longer, and a collective's operator does not count."""
    times = {"aten::mm": 10, "aten::relu": 10, "c10d::allreduce_": 10}
    longer = {"aten::mm": 20, "aten::relu": 10 + ms, "c10d::allreduce_": 20}
    ranks = [rank(steps(times, {GLOO: 40})), rank(steps(longer, {GLOO: 2, UNKNOWN: 18 - ms}), 1)]
    title = "Ranks wait for rank 1"
    assert headline(*ranks).title == (
        f"{title}: its operators take {10 + ms}.00 ms longer per step" if named else title
    )


def test_a_rank_that_is_late_in_half_of_the_steps_is_no_straggler() -> None:
    waits, lengths = ((36, 29, 171, 83), (502, 57, 145, 76)), (540, 100, 220, 100)
    ranks = [
        rank([step(at, {"aten::mm": 1}, {GLOO: ns, SORT: lengths[at] - ns}) for at, ns in enumerate(times)], number)
        for number, times in enumerate(waits)
    ]
    assert late_ranks.diagnose_straggler(ranks) is None


def test_a_rank_that_spends_no_more_time_outside_of_collectives_is_not_late() -> None:
    """Others wait for something that is not recorded."""
    ranks = [
        rank([step(at, {"aten::mm": 40}, {GLOO: 45 if (at + number) % 2 else 5}) for at in range(4)], number)
        for number in range(2)
    ]
    assert late_ranks.diagnose_straggler(ranks) is None


def test_a_slow_step_for_an_unknown_reason_does_not_share_the_cause_of_another() -> None:
    parts = {HostPlace(f"f.py({at}): g"): 60 for at in range(5)}
    made = [step(at, MIXED, {1: {SORT: 400}, 3: parts}.get(at, {})) for at in range(6)]
    assert "in the slowest step, most of" in analysis.reported([rank(made)]).verdict.title


def test_a_call_that_takes_all_ranks_long_is_no_cause_of_waiting() -> None:
    ranks = [
        rank(steps({"aten::mm": 10}, {GLOO: wait, SORT: 60, RANDOM: 15 - wait}), at) for at, wait in enumerate((14, 1))
    ]
    assert "mostly in built-in function sort" in headline(*ranks).title
    (waiting,) = (finding for finding in analysis.reported(ranks).findings if finding.id == "slow-rank")
    assert waiting.title == "Ranks wait for rank 1, mostly while its host is in built-in function random"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (({"aten::mm": 30}, {SORT: 50}), "10.00 ms before, 50.00 ms after"),
        (({"aten::mm": 30}, {SORT: 5}), "10.00 ms before, 5.00 ms after"),
        (({"aten::mm": 60}, {SORT: 30}), ""),
        (({"aten::mm": 70}, {SORT: 1}), ""),
        (({"aten::mm": 30}, {SORT: 10}), ""),
    ],
)
def test_a_comparison_says_when_the_change_lies_outside_of_operators(
    after: tuple[Mapping[str, int], Mapping[HostPlace, int]], said: str
) -> None:
    sides = [[rank(steps(*side))] for side in (({"aten::mm": 30}, {SORT: 10}), after)]
    notes = " ".join(analysis.compared(*sides).notes)
    assert ("Time per step without an operator on the host" in notes) == bool(said)
    assert said in notes


@pytest.mark.parametrize(
    ("second", "ns", "parts", "is_frame"),
    [
        ("f.py(5): <listcomp>", 30, 2, True), ("built-in function random", 30, 2, True), ("f.py(5): part", 30, 2, False),
        ("f.py(5): <listcomp>", 19, 2, False), ("f.py(5): <listcomp>", 30, 1, False),
    ],
    ids=["a comprehension", "a library", "another function", "little", "elsewhere"],
)  # fmt: skip
def test_a_frame_stands_for_its_own_code_and_what_it_calls_of_libraries(
    second: str, ns: int, parts: int, is_frame: bool
) -> None:
    """The longest place has over half of the time without operators by itself."""
    places = {SORT: 60, HostPlace(second): ns}
    made = [step(0, {"aten::mm": 10}, places, frames={"f.py(4): build": dict([*places.items()][:parts])})]
    found, _ = idle_host._places_or_frame(made, least=1, half=50 * MS)
    assert ([place for place, _ in found] == [HostPlace("f.py(4): build")]) == is_frame
    assert is_frame or [place for place, _ in found] == list(places)


@pytest.mark.parametrize(
    ("longer", "ending"),
    [
        ({UNKNOWN: (10, 10, 30, 60)}, "70 % of this is after the last operator (aten::add_); what ran in this time was not recorded"),
        ({SORT: (10, 10, 30, 60)}, "70 % of this is in built-in function sort"),
        ({SORT: (10, 10, 30, 5), RANDOM: (20, 0, 20, 15)}, "these gaps are at different places in different steps"),
    ],
    ids=["not recorded", "a call", "two places"],
)  # fmt: skip
def test_a_place_with_over_half_of_the_idle_time_of_all_steps_is_named(
    longer: Mapping[HostPlace, tuple[int, ...]], ending: str
) -> None:
    """In a typical step, it has less than half: other places, each in one step only, have more."""
    made = [
        step(at, {"aten::mm": 5}, {place: times[at] for place, times in longer.items()} | {HostPlace(f"f.py({at}): g"): 12})
        for at in range(4)
    ]  # fmt: skip
    made[3] = replace(made[3], inputs={"aten::mm": {"[[1]]": 1}})
    (finding,) = (found for found in analysis.reported([rank(made)]).findings if found.id == "host-operators")
    assert finding.title.endswith(ending)


@pytest.mark.parametrize(
    ("verdict", "steps_are_known", "told"),
    [("host-operators", True, True), ("host-idle", True, True), ("host-operators", False, False), ("host-small", True, False)],
    ids=["a slow step", "beside idle time", "a trend", "another verdict"],
)  # fmt: skip
def test_a_slow_step_is_told_beside_a_verdict_with_the_same_advice(
    verdict: str, steps_are_known: bool, told: bool
) -> None:
    """Both can be advice on how to record what ran; with a trend, both are about it."""
    profile = rank(steps({"aten::mm": 20}, {UNKNOWN: 80}))
    leading = Diagnosis(verdict, "note", "e", None, "exact", "record frames", profile.source)
    slow = SlowSteps((2,), 90 * MS, "") if steps_are_known else None
    outlier = replace(leading, id="outlier", saving_ns=30 * MS, slow_steps=slow)
    report = TraceReport((profile,), (leading, outlier), Verdict(leading.title))
    assert any("also: " in line for line in first_screen(report)) == told


@pytest.mark.parametrize(("ms", "longer"), [(10, False), (11, True)])
def test_collectives_take_most_of_the_additional_time_from_over_half_on(ms: int, longer: bool) -> None:
    made = rank([step(0, MATMULS, {GLOO: 5 + ms, SORT: 20 - ms}), step(1, MATMULS, {GLOO: 5})])
    assert late_ranks.waits_longer(made, 0, 1) == longer
    assert not late_ranks.waits_longer(made, 0, 9)
    assert not late_ranks.waits_longer(made, 9, 1)


@pytest.mark.parametrize(("running", "alternate"), [(10, True), (9, False)])
def test_steps_alternate_where_operators_take_half_of_the_additional_time(running: int, alternate: bool) -> None:
    places: Mapping[HostPlace, int] = {SORT: 20 - running}
    kinds: Sequence[tuple[Mapping[str, int], Mapping[HostPlace, int]]] = (
        (MATMULS, {}),
        ({"aten::mm": 10, "aten::relu": running}, places),
    )
    made = [step(at, *kinds[at % 2]) for at in range(8)]
    assert bool(step_excess.alternation(rank(made), (1, 3, 5, 7), 0)) == alternate
    uneven = [step(at, *kinds[at in (1, 3, 6)]) for at in range(8)]
    assert not step_excess.alternation(rank(uneven), (1, 3, 6), 0)
    made[7] = replace(made[7], calls={"aten::mm": 9})
    assert not step_excess.alternation(rank(made), (1, 3, 5, 7), 0)


def test_operators_that_did_not_take_longer_explain_nothing() -> None:
    found = step_excess._excess_on_same_inputs(Counter({"a": 810, "b": 90}), 900)
    assert "took longer: a, b;" in found.cause
    assert not step_excess._excess_on_same_inputs(Counter({"a": 0}), 900).evidence


@pytest.mark.parametrize(("shapes", "weight"), [("[[2, 3], [3, 4]]", (3, 4)), ("[[2, 3]]", None), ("x", None)])
def test_the_second_input_of_a_linear_layer_is_its_weight(shapes: str, weight: tuple[int, ...] | None) -> None:
    assert step_excess._shape_of_weight(shapes) == weight


def test_a_sentence_names_three_parts_at_most() -> None:
    parts = Counter({"a": 40 * MS, "b": 30 * MS, "c": 20 * MS, "d": 10 * MS})
    assert step_excess._largest_parts(parts, 100 * MS).endswith(": a 40.00 ms, b 30.00 ms, c 20.00 ms.")


@pytest.mark.parametrize(
    ("ns", "named"),
    [
        (60, "the function a.py(1): f"),
        (59, "the range update"),
        (61, "the function a.py(1): f"),
        (0, "the function a.py(1): f"),
    ],
)
def test_small_operators_are_named_by_a_range_that_is_shorter_than_their_function(ns: int, named: str) -> None:
    made = HostStep(
        number=0, ns=100, operators={}, calls=dict.fromkeys(map(str, range(100)), 1), places={}, small_ns=60, compiling_ns=0,
        ranges={"update": ns}, small_ranges={"update": 50}, functions={"a.py(1): f": 60}, small_functions={"a.py(1): f": 50},
    )  # fmt: skip
    found = small_operators.diagnose_small_operators(rank([made]))
    assert found is not None
    assert f"passes in {named}" in found.evidence
    assert f"take 60 % of the time, mostly in {named}" in found.headline
    assert found.saving_ns == 60


@pytest.mark.parametrize(("ms", "operators", "mostly"), [(50, True, False), (48, False, False), (47, False, True)])
def test_half_of_the_time_decides_between_operators_and_places_without_one(
    ms: int, operators: bool, mostly: bool
) -> None:
    places = {HostPlace(f"f.py({at}): g"): 1 for at in range(26)}
    made = step(0, {"aten::mm": ms}, {SORT: 100 - ms - 26, **places})
    found = longest_operators.diagnose_longest_operators(rank([made]))
    assert (
        "The longest, as shares of the whole time: aten::mm (50 %)" in found.evidence,
        "of this is in" in found.headline,
    ) == (operators, mostly)
    nothing = longest_operators.diagnose_longest_operators(rank([step(0, {"aten::mm": 0}, {})]))
    assert "For 100 % of the time" in nothing.evidence
    assert "in many short periods" in nothing.headline


def test_a_frame_with_half_of_the_idle_time_is_the_cause() -> None:
    frames = {"f.py(1): f": {SORT: 25 * MS, RANDOM: 15 * MS}}
    made = step(0, {"aten::mm": 30}, {SORT: 25, RANDOM: 25, STACK: 20}, frames=frames)
    found = idle_host.diagnose_idle_host(rank([replace(made, ns=100 * MS)]))
    assert found is not None
    assert found.culprit == "f.py(1): f"


@pytest.mark.parametrize(("ns", "frame"), [(20, True), (19, False)])
def test_a_frame_counts_where_libraries_take_a_fifth_of_the_idle_time_in_it(ns: int, frame: bool) -> None:
    places = {SORT: 60, RANDOM: ns}
    made = replace(step(0, MATMULS, {}, frames={"f.py(1): f": places}), places=places)
    found, _ = idle_host._places_or_frame([made], least=10, half=50)
    assert found[0][0] == (HostPlace("f.py(1): f") if frame else SORT)


@pytest.mark.parametrize(("excess", "half"), [(2, True), (3, False)])
def test_a_nanosecond_that_the_median_step_does_not_have_may_be_half_of_the_additional_time(
    excess: int, half: bool
) -> None:
    usual = replace(step(1, {}, {}), ns=2, operators={"a": 2}, calls={"a": 1})
    slow = replace(usual, number=0, ns=2 + excess)
    more = rank([replace(slow, operators={"a": 2, "b": 1}, calls={"a": 1, "b": 1}), usual])
    assert step_excess.does_more_work(more, 0, 1) == half
    assert bool(step_excess.excess(more, 0, 1).cause) == half
    assert bool(step_excess.excess(rank([replace(slow, places={SORT: 1}), usual]), 0, 1).cause) == half
    assert bool(step_excess._excess_in_range(replace(slow, ranges={"validate": 1}), usual, None)) == half


NODE = "autograd::engine::evaluate_function: "


@pytest.mark.parametrize(
    ("nodes", "ns", "ending"),
    [
        ((42, 42), 50, "50 % of the time is spent in backward, which runs 21 times for each forward pass"),
        ((42, 21), 50, "50 % of the time is spent in backward"), ((2, 2), 50, "50 % of the time is spent in backward"),
        ((43, 43), 50, "50 % of the time is spent in backward"), ((42, 42), 49, "the longest with those that it calls: aten::x (50 %)"),
    ],
    ids=["both nodes", "nodes that disagree", "once", "no whole number", "less than half"],
)  # fmt: skip
def test_operators_of_autograd_are_one_part_of_the_steps(nodes: tuple[int, int], ns: int, ending: str) -> None:
    times = {**{f"{NODE}{name}Backward0": 10 for name in ("LogSoftmax", "Addmm")}, "aten::x": 20}
    calls = {**dict(zip(times, nodes, strict=False)), "aten::log_softmax": 2, "aten::addmm": 2}
    profile = rank([step(at, times, {}, backward_ns=ns * 40 * MS // 100) for at in range(4)])
    profile = replace(profile, operators=tuple(CallSums(name, count, 0, 0, MS) for name, count in calls.items()))
    first = headline(profile)
    assert first.title.endswith(ending)
    assert ("run backward less often" in first.advice) == ("21 times" in ending)


def test_the_time_between_two_operators_of_autograd_is_of_backward() -> None:
    spans = ((f"{NODE}A", 1, 2), (f"{NODE}B", 4, 6), ("aten::add", 7, 8), (f"{NODE}C", 9, 12))
    operators = tuple(Range(name, begin * MS, end * MS) for name, begin, end in spans)
    trace = timeline(Run((), (Range("ProfilerStep#1", 0, 10 * MS),), operators))
    (made,) = host_steps(trace, split(trace), [0], [host_thread(trace, 0)])
    assert made.backward_ns == 6 * MS


BACKWARD = "AddmmBackward0"
NOISY = [179, 351, 623, 932, 749, 712, 806, 1611, 1679]
GROWTHS: dict[str, tuple[list[int], list[int], Mapping[str, Any], str]] = {
    "calls": (NOISY, list(range(30, 127, 12)), {}, "keeps growing, from 371.00 ms in the first third to 1,631.00 ms in the last third: most of the additional time is spent in AddmmBackward0"),
    "fewer calls": (NOISY[::-1], list(range(126, 29, -12)), {}, "keeps falling, from 1,631.00 ms in the first third to 371.00 ms in the last third: most of the additional time is spent in AddmmBackward0"),
    "elements of inputs": (NOISY, [1] * 9, {"inputs": "[[{}, 8]]"}, "keeps growing, from 371.00 ms in the first third to 1,631.00 ms in the last third: larger inputs than in the median step"),
    "nothing that is recorded": (NOISY, [1] * 9, {}, "2 of 9 steps take much longer"),
    "fewer calls that take longer": (NOISY, list(range(126, 29, -12)), {}, "2 of 9 steps take much longer"),
    "calls with less than half of a trend": ([100] * 9, list(range(30, 127, 12)), {"other": sorted(NOISY)}, "last third: most of the additional time is spent in aten::mm"),
    "calls that take little of the change": ([100] * 9, list(range(30, 127, 12)), {"other": NOISY}, "2 of 9 steps take much longer"),
}  # fmt: skip


@pytest.mark.parametrize(("times", "calls", "more", "title"), GROWTHS.values(), ids=GROWTHS)
def test_steps_are_out_of_order_in_a_trend_if_their_work_has_it(
    times: list[int], calls: list[int], more: Mapping[str, Any], title: str
) -> None:
    made = [
        replace(
            step(
                at,
                {BACKWARD: times[at], "aten::mm": more.get("other", [20] * 9)[at]},
                {},
                inputs={BACKWARD: [more["inputs"].format(100 + 90 * at)]} if "inputs" in more else {},
            ),
            calls={BACKWARD: calls[at], "aten::mm": 1},
        )
        for at in range(9)
    ]
    (slow,) = (found for found in analysis.reported([rank(made)]).findings if found.id == "outlier")
    assert title in slow.title
    assert (slow.advice == wording.GROWS) == ("third: most" in title)
    if "keeps" in title:
        assert slow.saving_ns == sum(max(ms - 351, 0) for ms in times) * MS // 9
        assert "fastest third" in slow.certainty


@pytest.mark.parametrize(
    ("functions", "histc", "growth", "named"),
    [
        ({"f.py(9): stats": 10, "f.py(1): train": 50}, 10, 30, "f.py(9): stats, mostly in aten::histc"),
        ({"f.py(9): stats": 10}, 10, 14, "f.py(9): stats"), ({"f.py(9): stats": 10}, 10, 0, "aten::mul"),
        ({"f.py(9): <listcomp>": 10, "f.py(9): stats": 20}, 10, 30, "f.py(9): stats, mostly in aten::histc"),
        ({"f.py(1): train": 59}, 10, 30, "aten::histc"), ({"f.py(9): stats": 58}, 10, 30, "f.py(9): stats, mostly in aten::histc"),
    ],
    ids=["the inner function", "two operators", "another part", "a comprehension", "the whole step", "most of the step"],
)  # fmt: skip
def test_the_innermost_function_that_grows_is_named_with_its_operator(
    functions: Mapping[str, int], histc: int, growth: int, named: str
) -> None:
    """Each step takes 30 ms more than the step before; the first one 60 ms, as does all but the function."""
    made = [
        replace(
            step(
                at,
                {
                    "aten::histc": histc + growth * at,
                    "aten::std": min(30 - growth, 14) * at,
                    "aten::mul": max(16 - growth, 0) * at,
                    "aten::mm": 50,
                },
                {},
            ),
            calls={"aten::histc": 1 + at, "aten::mm": 1},
            functions={name: (ms + (min(growth * 3, 30) * at)) * MS for name, ms in functions.items()},
        )
        for at in range(6)
    ]
    (slow,) = (found for found in analysis.reported([rank(made)]).findings if found.id == "outlier")
    assert slow.title.endswith(f"most of the additional time is spent in {named}")


def test_a_place_without_operators_that_gets_longer_is_told_with_that() -> None:
    times = [91, 152, 263, 348, 354, 481, 586, 650]
    made = [step(at, {"aten::mm": 40}, {HostPlace("bonus"): ms}) for at, ms in enumerate(times)]
    first = headline(rank(made))
    assert first.title.endswith(
        "mostly in bonus, which gets longer: from 91.00 ms in the first third to 586.00 ms in the last"
    )
    assert first.advice.startswith(wording.GROWS)
    unknown = [step(at, {"aten::mm": 40}, {UNKNOWN: ms}) for at, ms in enumerate(times)]
    assert headline(rank(unknown)).title.endswith("what ran in this time was not recorded")
    waiting = headline(rank([step(at, {"aten::mm": 40}, {GLOO: ms}) for at, ms in enumerate(times)]))
    assert waiting.title.endswith("mostly during gloo:all_reduce")
    assert wording.GROWS not in waiting.advice


@pytest.mark.parametrize(
    ("marks", "count", "sentence"),
    [
        ("ProfilerStep#", 4, "On average, a step takes 200.00 ms, and no operator ran on the host for 150.00 ms of it (75 %). The main place: in built-in function sort, 110.00 ms on average."),
        ("", 1, "In the 100.00 ms of the trace, no operator ran on the host for 90.00 ms (90 %). The main place: in built-in function sort, 80.00 ms."),
    ],
)  # fmt: skip
def test_shares_without_operators_are_of_one_whole(marks: str, count: int, sentence: str) -> None:
    """The median step of the four has another share than all of them together."""
    lengths = [(10, 80, 10), (10, 100, 40), (150, 100, 40), (30, 160, 70)][:count]
    made = [step(at, {"aten::mm": ran}, {SORT: ms, RANDOM: more}) for at, (ran, ms, more) in enumerate(lengths)]
    first = headline(profile := replace(rank(made), marks=marks))
    assert first.evidence.startswith(sentence)
    assert f"for {sentence.partition('(')[2][:2]} % of the time" in first.title
    screen = " ".join(line.strip() for line in first_screen(analysis.reported([profile])))
    assert ("Saves at most 80.00 ms how" in screen.replace("  ", " ")) == (not marks)


@pytest.mark.parametrize(
    ("last", "title"),
    [(224, "; 50 % of this is in built-in function sort"), (225, ": in built-in function sort 60.00 ms")],
)
def test_a_place_with_less_than_half_of_all_idle_time_is_not_most_of_it(last: int, title: str) -> None:
    """It has half of this time in a typical step. In the last step, the host is idle at another place."""
    made = [
        *(step(at, {"aten::mm": 10}, {SORT: 60, RANDOM: 11, UNKNOWN: 14}) for at in range(5)),
        step(5, {"aten::mm": 10}, {SORT: 60, RANDOM: 11, HostPlace("rollout"): last}),
    ]
    assert f"the host runs no operator{title}" in headline(rank(made)).title


IMPORT = "<frozen importlib._bootstrap>(1165): _find_and_load"
INNER: list[tuple[list[str], HostPlace]] = [
    (["loop.py(7): reward", "unknown"], HostPlace("loop.py(7): reward")),
    (["unknown", "loop.py(7): reward"], HostPlace("loop.py(7): reward")),
    (["unknown"], HostPlace("", "", "aten::mm", "aten::add_")),
    (["loop.py(7): reward", IMPORT, "built-in function exec", "unknown"], HostPlace(IMPORT, "loop.py(7): reward")),
]


@pytest.mark.parametrize(("frames", "place"), INNER)
def test_a_frame_without_a_name_says_nothing(frames: list[str], place: HostPlace) -> None:
    operators = (Range("aten::mm", 0, MS), Range("aten::add_", 9 * MS, 10 * MS))
    trace = timeline(Run((), (Range("ProfilerStep#1", 0, 10 * MS),), operators))
    for depth, name in enumerate(frames):
        trace.add_frame(name, MS + depth, 9 * MS - depth, 0)
    (made,) = host_steps(trace, split(trace), [0], [host_thread(trace, 0)])
    assert made.places == {place: 8 * MS}


@pytest.mark.parametrize(("begin", "imports"), [(1.3, True), (1.2, False)])
def test_an_import_around_operators_is_the_program_itself(begin: float, imports: bool) -> None:
    """The host runs no operator for 7 ms; a tenth more may belong to the import."""
    operators = (Range("aten::mm", 0, 2 * MS), Range("aten::add_", 9 * MS, 10 * MS))
    trace = timeline(Run((), (Range("ProfilerStep#1", 0, 10 * MS),), operators))
    names = (IMPORT, "loop.py(7): reward", "built-in function sort")
    for name, first in zip(names, (begin, 2, 2.1), strict=True):
        trace.add_frame(name, round(first * MS), 9 * MS, 0)
    (made,) = host_steps(trace, split(trace), [0], [host_thread(trace, 0)])
    assert [place.inside for place in made.places] == [IMPORT if imports else "built-in function sort"]


def test_each_kind_of_collective_has_a_straggler_of_its_own() -> None:
    """Rank 0 computes before the broadcast, and waits itself in the shorter gather before it."""
    gather, broadcast = HostPlace("gloo:gather"), HostPlace("gloo:broadcast")
    slow = rank(steps({"aten::mm": 80}, {gather: 60, broadcast: 1}))
    others = [rank(steps({"aten::mm": 60}, {gather: 1, broadcast: 80}), number) for number in (1, 2)]
    found = host_only.diagnose_straggler([slow, *others])
    assert found is not None
    assert found.title == "Ranks wait for rank 0"
    assert "during gloo:broadcast for only 1.00 ms" in found.evidence


@pytest.mark.parametrize(
    ("longer", "more", "disturbed"),
    [("abca", {}, True), ("abaa", {}, False), ("ab", {}, False), ("abca", {"aten::add": 1}, False)],
    ids=["another one in each step", "mostly the same", "too few steps", "other work"],
)
def test_a_rank_is_disturbed_if_it_is_longer_at_another_operator_in_each_step(
    longer: str, more: Mapping[str, int], disturbed: bool
) -> None:
    usual = {"a": 10, "b": 10, "c": 10}
    ranks = [
        rank([step(at, usual, {GLOO: 41}) for at in range(len(longer))]),
        rank([step(at, {**usual, **more, name: 50 - len(more)}, {GLOO: 1}) for at, name in enumerate(longer)], 1),
    ]
    found = late_ranks.diagnose_straggler(ranks)
    assert found is not None
    assert ("another place in each step" in found.title) == found.advice.startswith("check whether rank 1") == disturbed
    assert "rank 1 runs no operator during gloo:all_reduce for only 1.00 ms" in found.evidence


@pytest.mark.parametrize(("ms", "named"), [(5, "1,000 operators"), (6, "is spent in a (38 %), b (25 %)")])
def test_long_operators_of_which_none_dominates_are_told_by_their_ranges(ms: int, named: str) -> None:
    ranges = {"a": 45 * MS, "b": 30 * MS, "c": 9 * MS}
    profile = rank([step(at, {f"aten::f{at}": ms for at in range(20)}, {}, ranges=ranges) for at in range(6)])
    profile = replace(profile, operators=tuple(replace(each, calls=6 * 50) for each in profile.operators))
    assert named in headline(profile).title


def test_a_place_has_the_time_of_what_its_frame_calls() -> None:
    ratio, get, elsewhere = (
        HostPlace(*names) for names in (("ratio", "penalty"), ("get", "penalty"), ("get", "train"))
    )
    places = {ratio: 5, get: 2, elsewhere: 1}
    made = replace(step(0, {}, {}), places=places, frames={"ratio": places})
    assert idle_host._idle_times([made], [ratio]).per_step(ratio) == 7
    assert idle_host._idle_times([made], [ratio, get]).per_step(ratio) == 5


def test_a_trace_without_marks_has_no_steps() -> None:
    many = replace(step(0, {f"aten::f{at}": 5 for at in range(20)}, {}), small_ns=90 * MS)
    profile = rank([many])
    profile = replace(profile, operators=tuple(replace(each, calls=100) for each in profile.operators))
    screen = " ".join(line.strip() for line in first_screen(analysis.reported([profile])))
    assert "on the host, 2,000 operators take most of the time" in screen
    assert "100.00 ms in total. The longest" in screen
    within = replace(profile, host_steps=(replace(many, ranges={"relabel": 60 * MS}),))
    assert headline(within).title.endswith("spent in relabel; 2,000 operators")
    assert "per step" not in screen
    frequent = replace(many, calls={"aten::f0": 6000})
    (small, _) = host_only.diagnoses(replace(profile, host_steps=(frequent,)))
    assert small.evidence.startswith("The trace of 100.00 ms has 6,000 operators. In total, ")
    assert not measures.is_whole_trace(replace(profile, marks="ProfilerStep#"))


ADVICE: dict[str, tuple[Mapping[str, int], Mapping[str, list[int]], int, str]] = {
    "a phase": (MIXED, {"relabel": [50] * 6}, 1, "start with relabel: run less often, or on smaller inputs"),
    "a phase of small operators": (MIXED, {"relabel": [50] * 6}, 999, "start with relabel: run less often, or use fewer"),
    "a phase that gets longer": (MIXED, {"relabel": [30, 35, 60, 65, 90, 95]}, 1, wording.GROWS),
    "an operator of sampling": ({"aten::sort": 60, "aten::mm": 40}, {}, 1, "call aten::sort less often"),
    "a matmul": ({"aten::mm": 60, "aten::sort": 40}, {}, 1, "try another precision or batch size; to see more"),
    "a data loader": (MIXED, {"enumerate(DataLoader)#_Iter": [50] * 6}, 1, wording.LOADS_DATA),
    "two passes": ({"aten::mm": 60, "aten::sort": 40}, {"backward": [50] * 6, "forward": [40] * 6}, 1, "try another precision or batch size; to see more"),
    "passes of small operators": ({f"aten::f{at}": 5 for at in range(20)}, {"backward": [50] * 6, "forward": [40] * 6}, 50, "use fewer and larger operators"),
    "many small operators": ({f"aten::f{at}": 5 for at in range(20)}, {}, 50, "use fewer and larger operators"),
    "few of them": ({f"aten::f{at}": 4 for at in range(20)}, {}, 49, "try another precision or batch size; to see more"),
    "many small operators with a long one": ({"aten::mm": 40, "aten::relu": 35, "aten::sort": 25}, {}, 999, "use fewer and larger operators"),
    "a backward operator": ({"ScaledDotProductFlashAttentionForCpuBackward0": 60, "aten::mm": 40}, {}, 1, "try another precision or batch size; to see more"),
    "many small matmuls": ({"aten::mm": 60, "aten::sort": 40}, {}, 999, "try another precision or batch size; to see more"),
    "passes of many operators with a long one": ({"aten::mm": 40, "aten::relu": 35, "aten::sort": 25}, {"backward": [50] * 6, "forward": [40] * 6}, 999, "try another precision or batch size; to see more"),
    "many long ones": ({f"aten::f{at}": 6 for at in range(20)}, {}, 50, "try another precision or batch size; to see more"),
}  # fmt: skip


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_is_on_what_the_headline_names(name: str) -> None:
    operators, ranges, calls, advice = ADVICE[name]
    made = [step(at, operators, {}, ranges={key: ms[at] * MS for key, ms in ranges.items()}) for at in range(6)]
    profile = rank(made)
    profile = replace(profile, operators=tuple(replace(each, calls=6 * calls) for each in profile.operators))
    first = headline(profile)
    assert first.advice.startswith(advice)
    assert ("OMP_NUM_THREADS" in first.advice) == (not ranges and not advice.startswith("use"))


def passes(**fields: Any) -> RankProfile:
    ranges = {"backward": 50 * MS, "forward": 40 * MS}
    return rank([step(at, {"aten::mm": 60, "aten::mul": 40}, {}, ranges=ranges, **fields) for at in range(5)])


@pytest.mark.parametrize(("ms", "stands_out"), [(30, False), (31, True)])
def test_something_stands_out_if_a_step_is_far_longer(ms: int, stands_out: bool) -> None:
    made = passes()
    longer = replace(made.host_steps[3], ns=(100 + ms) * MS)
    calls = tuple(replace(call, host_ns=call.host_ns // 4 * 3) for call in made.operators if call.name == "aten::mm")
    made = replace(made, operators=calls, host_steps=(*made.host_steps[:3], longer, made.host_steps[4]))
    (finding,) = host_only.diagnoses(made)
    assert ("nothing stands out" in finding.title) != stands_out


@pytest.mark.parametrize(
    ("stacks", "inputs", "missing"),
    [(False, {}, "stack"), (None, {}, "stack"), (True, {}, "shapes"), (True, {"aten::mm": {SMALL}}, "")],
)
def test_the_advice_on_passes_asks_for_stacks_and_shapes_that_are_missing(
    stacks: bool | None, inputs: Mapping[str, Any], missing: str
) -> None:
    (finding,) = host_only.diagnoses(replace(passes(inputs=dict(inputs)), has_stacks=stacks))
    assert finding.advice.endswith(f"--contents cpu,{missing}" if missing else "batch size")
