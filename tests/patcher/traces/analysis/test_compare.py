"""Two captures side by side: known differences are found, and what cannot be compared is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import pytest

from patcher.messages.report import json_of
from patcher.messages.text import Text
from patcher.traces import analysis, model
from patcher.traces.analysis import compare, compared
from patcher.traces.model import PARTS, SCHEMA, CallSums, Check, Kernel, RankProfile, RecordedUnit
from patcher.traces.sidecar import metadata_from
from tests.patcher.traces.recorded import MS, steps, timeline


def capture(*times: int, first: int = 30, **more: Any) -> RankProfile:
    units = tuple(RecordedUnit(number=first + at, host_ns=ns, kernels=10, compute_ns=ns) for at, ns in enumerate(times))
    made = RankProfile("/traces/a_dp0_rank0_1", "torch", 0, "NVIDIA H100", units, marks="ProfilerStep#")
    return replace(made, **more)


def noisy(median: int, seed: int, count: int = 40) -> RankProfile:
    draw = Random(seed)
    return capture(*(median + draw.randrange(-median // 50, median // 50) for _ in range(count)))


def test_an_injected_delay_is_found_where_it_was_injected() -> None:
    before, after = (
        analysis.attributed(timeline(run)).profile
        for run in (steps(9), steps(9, late=dict.fromkeys(range(30, 39), 3 * MS)))
    )
    found = compared([before], [after])
    assert found.median_ns == (10 * MS, 13 * MS)
    assert found.change is not None
    assert found.change[1] == 3 * MS
    moved = {part.name: part.change_ns for part in found.parts if part.change_ns}
    assert moved == {"free_host_late_ns": 3 * MS - MS // 100, "free_latency_ns": MS // 100}
    assert {row.state for row in found.kernels} == {"alike"}


def test_the_waterfall_adds_up_to_the_difference() -> None:
    before, after = noisy(10 * MS, 1), noisy(12 * MS, 2)
    found = compared([before], [after])
    assert [part.name for part in found.parts] == list(PARTS)
    assert sum(part.change_ns for part in found.parts) == found.median_ns[1] - found.median_ns[0] == found.change[1]  # type: ignore[index]


def test_the_interval_holds_the_difference_as_often_as_it_says() -> None:
    held = sure = 0
    for seed in range(30):
        found = compared([noisy(10_000, 2 * seed)], [noisy(10_100, 2 * seed + 1)])
        assert found.change is not None
        low, estimate, high = found.change
        assert low <= estimate <= high
        held += low <= 100 <= high
        sure += low > 0
    assert held >= 26  # 28.5 of 30 are expected; fewer than 26 would come by chance twice in a hundred times
    assert sure > 15
    assert compared([noisy(10, 1)], [noisy(10, 2)]) == compared([noisy(10, 1)], [noisy(10, 2)])


def test_captures_of_a_side_that_differ_widen_the_interval() -> None:
    def width(*sides: list[RankProfile]) -> int:
        low, _, high = compared(*sides).change or (0, 0, 0)
        return high - low

    alike = [noisy(10_000, seed) for seed in range(4)]
    apart = [noisy(10_000 + 1000 * seed, seed) for seed in range(4)]
    assert width(apart, alike) > 4 * width(alike, alike)


def test_kernels_and_modules_are_compared_per_unit() -> None:
    def side(calls: int, ns: int, *others: Kernel, units: int = 2) -> RankProfile:
        return capture(
            *[MS] * units,
            kernels=(Kernel("MatMul", "compute", calls, ns), *others),
            modules=(CallSums("MLP", calls, 1, ns, 1),),
        )

    before = side(20, 2000, Kernel("old", "copy", 2, 8), Kernel("same", "compute", 2, 100))
    after = side(80, 8000, Kernel("fresh", "compute", 4, 400), Kernel("same", "compute", 4, 100), units=4)
    found = compared([before], [after], force=True)
    rows = {row.name: (row.state, row.before_calls, row.after_calls, row.change_ns) for row in found.kernels}
    assert rows == {
        "MatMul": ("more often", 10, 20, 1000),
        "fresh": ("new", 0, 1, 100),
        "old": ("gone", 1, 0, -4),
        "same": ("faster", 1, 1, -25),
    }
    assert [(row.name, row.kind, row.state) for row in found.modules] == [("MLP", "module", "more often")]
    assert found.kernels[0].name == "MatMul"


BAD = Check("kernels", False, "30 of 32 steps launched no kernel", ("communication", "dispatch"))
REFUSED = {
    "another window": (capture(1, 2), capture(1, 2, first=100), "different recording windows: 30:32 before, 100:102 after"),
    "another window by the facts": (
        capture(1, 2, metadata=metadata_from({"window": "30:60"})), capture(1, 2, metadata=metadata_from({"window": "30:61"})), "different recording windows: 30:60 before, 30:61 after",
    ),
    "another one of several windows": (
        capture(1, 2, metadata=metadata_from({"window": "30:32,90:92", "units": [{"number": 31}]})),
        capture(1, 2, metadata=metadata_from({"window": "30:32,90:92", "units": [{"number": 90}]})), "different recording windows: 30:32 before, 90:92 after",
    ),
    "another condition": (
        capture(1, 2, metadata=metadata_from({"window": "0:2", "tail": 8})),
        capture(1, 2, metadata=metadata_from({"window": "0:2", "load": 256})),
        "different recording windows: 0:2 at tail 8 before, 0:2 at load 256 after",
    ),
    "another stage by the name": (
        capture(1, 2), capture(1, 2, source="/traces/a_update_policy_actor_step1_rank0_9"), "different stages: rollout before, update-policy after",
    ),
    "another stage by the facts": (
        capture(1, 2, metadata=metadata_from({"stage": "compute-log-prob"})), capture(1, 2, metadata=metadata_from({"stage": "update-policy"})),
        "different stages: compute-log-prob before, update-policy after",
    ),
    "other marks": (capture(1, 2), capture(1, 2, marks="step["), "different step marks: ProfilerStep before, step after"),
    "no marks": (capture(1, 2), capture(1, 2, marks=""), "different step marks: ProfilerStep before, none after"),
    "bad data": (capture(1, 2), capture(1, 2, checks=(BAD,)), "after: 30 of 32 steps launched no kernel"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    before: RankProfile, after: RankProfile, reason: str
) -> None:
    found = compared([before], [after])
    assert (found.refused, found.change, found.parts) == ((reason,), None, ())
    forced = compared([before], [after], force=True)
    assert forced.refused == (reason,)
    assert len(forced.parts) == len(PARTS)


def test_a_side_is_told_by_its_captures_and_units_without_numbers_are_no_window() -> None:
    npu = capture(5, form="ascend-db", device="Ascend910B", rank=3, source="/b", marks="step[", first=90)
    before = [capture(1, 2, marks="step["), npu, capture(3, marks="step[")]
    found = compared(before, [capture(4, marks="step["), capture(marks="step[")])
    assert (found.refused, found.median_ns) == ((), (2, 4))
    sides = [
        (side.sources, side.form, side.device, side.units_ns, side.captures) for side in (found.before, found.after)
    ]
    assert sides == [
        (("/traces/a_dp0_rank0_1", "/b", "/traces/a_dp0_rank0_1"), "torch, ascend-db", "NVIDIA H100, Ascend910B", (1, 2, 5, 3), 2),
        (("/traces/a_dp0_rank0_1",) * 2, "torch", "NVIDIA H100", (4,), 1),
    ]  # fmt: skip


def test_devices_releases_and_ranks_are_what_one_compares() -> None:
    npu = capture(1, 2, form="ascend-db", device="Ascend910B", rank=3, source="/other/b_dp0_rank3_7_1_ascend_pt")
    found = compared([capture(1, 2)], [npu])
    assert found.refused == ()
    assert any(
        "which name kernels differently: compare the breakdown, not single kernels." in note for note in found.notes
    )


@pytest.mark.parametrize(("sides", "one"), [((1, 1), True), ((1, 2), True), ((1, 3), False), ((2, 2), False)])
def test_one_capture_a_side_is_said_to_be_one_sample(sides: tuple[int, int], one: bool) -> None:
    before, after = ([noisy(10, seed) for seed in range(count)] for count in sides)
    assert any("may be chance" in note for note in compared(before, after).notes) == one


def test_the_ranks_of_one_window_are_one_sample() -> None:
    ranks = [replace(noisy(10, rank), rank=rank) for rank in range(4)]
    assert any("may be chance" in note for note in compared(ranks, ranks).notes)


@pytest.mark.parametrize(
    ("before", "after", "who"),
    [
        ([(5,)], [(7,)], "Before and After: "), ([(5, 6)], [(7,)], "After: "), ([(5,)], [(7, 8)], "Before: "),
        ([(5, 6)], [(7, 8)], ""), ([(5,)], [(7,)] * 3, ""), ([(5,), (6,)], [(7,)], "After: "),
    ],
)  # fmt: skip
def test_the_sides_with_a_single_step_are_named_unless_there_are_captures_enough(
    before: list[tuple[int, ...]], after: list[tuple[int, ...]], who: str
) -> None:
    found = compared(*([capture(*times) for times in side] for side in (before, after)), force=True)
    heads = [note.partition("only one step was recorded")[0] for note in found.notes if "only one step" in note]
    assert heads == ([who] if who else [])
    assert (found.change is None) == bool(who)


def test_a_bootstrap_draws_captures_then_steps_within_each() -> None:
    def drawn(side: list[list[int]]) -> set[tuple[int, ...]]:
        draw = Random(0)
        return {tuple(sorted(chain.from_iterable(compare._drawn(side, draw)))) for _ in range(99)}

    assert drawn([[1], [9]]) == {(1, 1), (1, 9), (9, 9)}
    assert drawn([[1, 9]]) == {(1, 1), (1, 9), (9, 9)}
    assert drawn([[1, 1], [9]]) == {(1, 1, 1, 1), (1, 1, 9), (9, 9)}


def test_models_are_told_by_kernels_that_compute_or_by_the_host_if_nothing_does() -> None:
    rows = (Kernel("mm", "compute", 1, 10), Kernel("all_reduce", "communication", 1, 30), Kernel("mm", "compute", 1, 5))
    assert compare._times_by_name([capture(1, kernels=rows)], "kernels") == {"mm": 15}
    for ns, times in ((10, {"A": 20}), (0, {"A": 14, "B": 7})):
        modules = (CallSums("A", 1, 1, ns, 7), CallSums("B", 1, 1, 0, 7))
        assert (
            compare._times_by_name([capture(1, modules=modules), capture(1, modules=modules[:1])], "modules") == times
        )


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((5,), (7,), "not enough data"),
        ((5,) * 40, (7,), "not enough data"),
        ((5, 5, 5), (7, 7, 7), "not enough data"),
        ((5, 5, 5, 5), (7, 7, 7, 7), "slower in these two captures"),
        ((5, 5, 5, 5), (3, 3, 3, 3), "faster in these two captures"),
        ((5, 5, 6, 6), (5, 6, 5, 6), "no clear difference"),
    ],
)
def test_few_steps_are_no_verdict(before: tuple[int, ...], after: tuple[int, ...], verdict: str) -> None:
    assert compared([capture(*before)], [capture(*after)], force=True).verdict == verdict


def test_the_ranks_of_a_step_are_one_sample() -> None:
    """The step takes as long as its slowest rank; further captures of a rank are further windows."""
    before = [capture(5, 9, rank=0), capture(8, 4, rank=1)]
    found = compared(before, [capture(7, 7, rank=rank) for rank in range(8)])
    assert (found.before.units_ns, found.after.units_ns) == ((8, 9), (7, 7))
    assert found.verdict == "not enough data"
    assert sum(part.before_ns for part in found.parts) == found.median_ns[0] == 8
    again = compared([*before, capture(6, 6, rank=0), capture(7, 7, rank=1)], before)
    assert again.before.units_ns == (8, 9, 7, 7)
    unknown = compared([capture(5, rank=None), capture(6, rank=None, source="/b")], before, force=True)
    assert unknown.before.units_ns == (5, 6)


def test_settings_of_the_profiler_carry_no_verdict_where_they_differ() -> None:
    level0, level1 = (noisy(median, 1) for median in (10_000, 20_000))
    settings = {"level": "Level0", "CANN": "8.3", "shapes": "True"}
    level0 = replace(level0, settings=settings, world=2)
    level1 = replace(level1, settings={**settings, "level": "Level1", "CANN": "8.5", "stacks": "1"}, world=8, rank=3)
    found = compared([level0], [level1])
    assert found.verdict == "different profiler settings"
    assert found.differs == (
        "level: Level0 before, Level1 after", "stacks: off before, on after", "number of ranks: 2 before, 8 after",
        "rank: 0 before, 3 after", "CANN: 8.3 before, 8.5 after",
    )  # fmt: skip
    assert found.change is not None
    same = compared([level0, level0], [replace(level1, settings=settings)] * 2)
    assert (same.verdict, "level" in " ".join(same.differs)) == ("slower", False)


@pytest.mark.parametrize(
    ("form", "settings", "other", "verdict"),
    [
        ("torch", {}, {"stacks": "1"}, "different profiler settings"),  # torch writes with_stack only where it is set
        ("torch", {"stacks": "1"}, {"stacks": "True"}, "no clear difference"),
        ("torch", {"stacks": "False"}, {}, "no clear difference"),
        ("torch", {"CUDA": "12"}, {}, "no clear difference"),
        ("ascend-db", {"level": "Level1"}, {"level": "Level1", "stacks": "True"}, "different profiler settings"),
        ("ascend-db", {"CANN": "8.5"}, {"stacks": "True"}, "no clear difference"),  # its settings are unknown
    ],
)
def test_a_switch_that_a_side_lacks_is_off(
    form: str, settings: dict[str, str], other: dict[str, str], verdict: str
) -> None:
    sides = [[replace(noisy(10_000, 1), form=form, settings=of)] * 2 for of in (settings, other)]
    assert [compared(*order).verdict for order in (sides, sides[::-1])] == [verdict] * 2


def test_settings_are_compared_between_profilers_only_where_both_write_them() -> None:
    npu = replace(noisy(10_000, 1), form="ascend-db", device="Ascend910B", settings={"L2 cache": "True"})
    assert not any("L2" in difference for difference in compared([noisy(10_000, 1)], [npu]).differs)


def test_captures_of_one_program_are_called_different_in_one_comparison_of_twenty_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine slows whole captures: their medians differ by far more than their units do."""
    monkeypatch.setattr(compare, "RESAMPLES", 200)
    draw = Random(0)
    repeats = [noisy(round(10_000 * draw.lognormvariate(0, 0.2)), seed, 6) for seed in range(240)]
    verdicts = {
        count: [
            compared(repeats[at : at + count], repeats[at + count : at + 2 * count]).verdict
            for at in range(0, len(repeats) - 2 * count + 1, 2 * count)
        ]
        for count in (1, 2)
    }
    assert verdicts[2].count("no clear difference") >= 57  # of 60
    assert verdicts[1].count("no clear difference") < 40  # of 120: one capture a side tells nothing of the next
    assert not {"slower", "faster"} & {*verdicts[1]}


def test_several_captures_a_side_decide_where_they_agree() -> None:
    assert compared([noisy(10_000, 1), noisy(10_050, 2)], [noisy(13_000, 3), noisy(13_100, 4)]).verdict == "slower"
    three = [noisy(10_000, 1), noisy(10_050, 2), noisy(10_020, 5)]
    assert compared(three[:2], [noisy(13_000, 3)]).verdict == "slower in these captures"
    assert compared(three, [noisy(13_000, 3)]).verdict == "slower"


OPERATORS = tuple(CallSums(f"aten::{name}", 4, 4, 0, 1000) for name in "abcd")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({}, {"device": "NVIDIA H200"}, "undecided: different devices"),
        ({}, {"device": "GPU"}, "slower"),  # its trace does not name it
        ({"device": "GPU"}, {"device": "Ascend NPU", "form": "ascend-text"}, "undecided: different devices"),
        ({"kernels": "abcd"}, {"kernels": "efgd"}, "undecided: different models"),
        ({"kernels": "abcd"}, {"kernels": "abgd"}, "slower"),
        ({"kernels": "abcd", "modules": "mn"}, {"kernels": "efgh", "modules": "mn"}, "slower"),  # another release
        ({"kernels": "abcd", "modules": "mn"}, {"kernels": "abcd", "modules": "op"}, "undecided: different models"),
        ({"kernels": "abcd"}, {}, "slower"),  # the tables of a few units have no kernels
    ],
)
def test_other_devices_and_models_are_undecided(before: Any, after: Any, verdict: str) -> None:
    def side(median: int, kernels: str = "", modules: str = "", **more: Any) -> list[RankProfile]:
        rows = tuple(Kernel(name, "compute", 1, 10) for name in kernels)
        classes = tuple(CallSums(name, 1, 1, 10, 10) for name in modules)
        return [replace(noisy(median, seed), kernels=rows, modules=classes, **more) for seed in (1, 2)]

    found = compared(side(10_000, **before), side(20_000, **after))
    assert found.verdict == verdict
    assert len(found.differs) == (verdict != "slower"), "it says why"


def on_cpu(*times: int, **more: Any) -> RankProfile:
    units = tuple(RecordedUnit(number=30 + at, host_ns=ns, kernels=0) for at, ns in enumerate(times))
    idle = Check(
        "kernels", False, f"{len(times)} of {len(times)} steps launched no kernel", ("communication", "dispatch")
    )
    return replace(capture(), units=units, device="CPU", operators=OPERATORS, checks=(idle,), rank=None, **more)


def test_captures_without_a_device_are_compared_on_the_host() -> None:
    before, after = ([on_cpu(ns, ns, ns, ns, source=f"/{ns}/{at}") for at in range(2)] for ns in (10 * MS, 20 * MS))
    found = compared(before, after)
    assert (found.refused, found.clock, found.verdict, found.median_ns) == ((), "host", "slower", (10 * MS, 20 * MS))
    assert not any("kernel" in note for note in found.notes)
    slower = replace(OPERATORS[0], host_ns=9000)
    after = [
        replace(profile, operators=(slower, *OPERATORS[1:]), modules=(CallSums("MLP", 4, 0, 0, 4000),))
        for profile in after
    ]
    found = compared(before, after)
    assert next((row.name, row.kind, row.state, row.change_ns) for row in found.operators) == (
        slower.name, "operator", "slower", 2000
    )  # fmt: skip
    assert [(row.name, row.kind, row.after_ns) for row in found.modules] == [("MLP", "module", 1000)]
    assert compared([capture(1, 2, operators=OPERATORS)], [capture(1, 2)]).operators == ()
    unlike = [replace(profile, operators=(CallSums("other", 1, 1, 0, 9),)) for profile in after]
    assert compared(before, unlike).verdict == "undecided: different models"


@pytest.mark.parametrize(
    ("modules", "kernels", "operators", "unlike"),
    [
        ((), 33, 99, "kernels"), ((), 34, 0, ""), ((), None, 33, "operators"), ((), None, 34, ""), ((49,), 99, 99, "modules"), ((50,), 0, 0, ""),
        ((), None, None, ""),
    ],
)  # fmt: skip
def test_sides_ran_other_models_if_little_of_their_time_has_common_names(
    modules: tuple[int, ...], kernels: int | None, operators: int | None, unlike: str
) -> None:
    """The numbers are percents of the time with common names."""

    def side(other: str) -> list[RankProfile]:
        def sums(percent: int | None) -> tuple[CallSums, ...]:
            pairs = () if percent is None else (("common", percent), (other, 100 - percent))
            return tuple(CallSums(name, 1, 1, ns, ns) for name, ns in pairs)

        of_kernels = tuple(Kernel(row.name, "compute", 1, row.ns) for row in sums(kernels))
        return [capture(1, modules=sums(*modules or (None,)), kernels=of_kernels, operators=sums(operators))]

    found = [*compare._model_difference(side("before"), side("after"))]
    assert [unlike in text for text in found] == [True] * bool(unlike)


def test_a_capture_that_lacks_a_device_is_named_once() -> None:
    before = [on_cpu(10, 10, source="/a"), capture(10, 10, source="/b", rank=None)]
    found = compared(before, [capture(20, 20, rank=None, source=source) for source in "cd"])
    (reason,) = found.refused
    assert isinstance(reason, Text)
    assert [*reason.values.values()] == ["/a"]
    forced = compared([on_cpu(10, 10)], [capture(20, 20)], force=True)
    assert (forced.clock, forced.median_ns, forced.verdict) == ("host", (10, 20), "undecided: different devices")


def test_a_failed_check_of_several_captures_is_said_once() -> None:
    bad = [capture(1, 2, checks=(BAD,), source=source) for source in ("/a", "/b")]
    assert compared(bad, [capture(1, 2)]).refused == (f"before: {BAD.evidence}",)
    (reason,) = compared([*bad, capture(1, 2)], [capture(1, 2)]).refused
    assert reason == f"before, /a, /b: {BAD.evidence}"


def test_releases_and_devices_are_named() -> None:
    sides = [
        capture(1, 2, metadata=metadata_from({"target": "vllm", "release": release}), device=device)
        for release, device in (("0.11.0", "NVIDIA H100"), ("0.12.0", "NVIDIA H200"))
    ]
    assert [
        tuple(text.values.values()) for text in compared(sides[:1], sides[1:]).differs if isinstance(text, Text)
    ] == [
        ("device", "NVIDIA H100", "NVIDIA H200"),
        ("release", "vllm 0.11.0", "vllm 0.12.0"),
    ]


def test_the_json_of_a_comparison_is_what_is_promised() -> None:
    told = json_of(compared([capture(5, 6, kernels=(Kernel("k", "compute", 1, 1),))], [capture(7, 8)]))
    keys = ["schema", "before", "after", "median_ns", "change", "parts", "kernels", "modules", "refused", "clock"]
    assert list(told) == [*keys, "verdict", "differs", "equal_load", "operators", "baseline"]
    assert (told["verdict"], told["differs"], told["equal_load"]) == ("not enough data", [], None)
    assert told["clock"] == "device"
    assert told["schema"] == SCHEMA
    assert told["median_ns"] == [5, 7]
    assert [type(value) for value in told["change"]] == [int] * 3
    assert list(told["before"]) == ["sources", "form", "device", "units", "captures", "medians_ns"]
    assert list(told["parts"][0]) == ["name", "before_ns", "after_ns", "change_ns"]
    assert list(told["kernels"][0]) == [
        "name", "kind", "state", "before_calls", "after_calls", "before_ns", "after_ns", "change_ns"
    ]  # fmt: skip


def loaded(*held: dict[str, Any], **more: Any) -> RankProfile:
    made = capture(*[MS] * len(held), **more)
    units = tuple(replace(unit, **loads) for unit, loads in zip(made.units, held, strict=True))
    return replace(made, units=units)


def test_the_same_condition_is_the_same_window_wherever_it_lies() -> None:
    sides = [
        capture(1, 2, metadata=metadata_from({"window": "0:2", "tail": 8, "units": [{"number": at}]}))
        for at in (1999, 2063)
    ]
    assert compared(sides[:1], sides[1:]).refused == ()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"requests": 256}, {"requests": 8}, r"requests: 256\b.* 8\b"),
        (
            {"requests": 8, "context": 9000}, {"requests": 8, "context": 65_000},
            r"context: 9,000\b.* 65,000\b",
        ),
        ({"requests": 100}, {"requests": 95}, None),
        ({"requests": 100}, {}, None),
        ({}, {"uncounted": 2}, r"/traces/a_dp0_rank0_1: 2 .*#30\b"),
    ],
)  # fmt: skip
def test_units_that_held_something_else_are_said(
    before: dict[str, int], after: dict[str, int], said: str | None
) -> None:
    notes = compared([loaded(before, before)], [loaded(after, {})]).notes
    assert any(re.search(said or "hold|uncounted", note) for note in notes) == bool(said)


VERDICTS: list[tuple[tuple[int, int, int] | None, list[list[int]], bool, str]] = [
    (None, [[9], [9]], False, model.FEW), ((1, 2, 3), [[3], [3]], False, model.FEW), ((1, 2, 3), [[3], [4]], False, model.FEW),
    ((1, 2, 3), [[4], [4]], False, model.SLOWER_IN_TWO), ((-3, -2, -1), [[4], [4]], False, model.FASTER_IN_TWO),
    ((-1, 2, 3), [[9], [9]], False, model.ALIKE), ((0, 2, 3), [[9], [9]], False, model.ALIKE), ((-3, -2, 0), [[9], [9]], False, model.ALIKE),
    ((1, 2, 3), [[9, 9], [9]], False, model.SLOWER_IN_THESE), ((-3, -2, -1), [[9], [9, 9]], False, model.FASTER_IN_THESE),
    ((1, 2, 3), [[9, 9], [9, 9]], False, model.SLOWER), ((-3, -2, -1), [[9, 9, 9], [9]], False, model.FASTER),
    ((1, 2, 3), [[1, 1, 1], [1]], True, model.SLOWER), ((1, 2, 3), [[1, 1, 1], [1]], False, model.FEW),
    ((1, 2, 3), [[39], [1]], False, model.SLOWER_IN_TWO), ((1, 2, 3), [[38], [1]], False, model.FEW),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sizes", "by_run", "verdict"), VERDICTS)
def test_the_verdict_follows_from_the_interval_and_the_captures(
    change: tuple[int, int, int] | None, sizes: list[list[int]], by_run: bool, verdict: str
) -> None:
    assert compare._verdict(change, sizes, by_run=by_run) == verdict


@pytest.mark.parametrize(
    ("numbers", "state"),
    [
        ((100, 100, 10, 10), "alike"), ((100, 105, 10, 10), "alike"), ((100, 106, 10, 10), "more often"), ((100, 94, 10, 10), "less often"),
        ((100, 95, 10, 10), "alike"), ((100, 100, 100, 106), "slower"), ((100, 100, 100, 94), "faster"), ((100, 100, 100, 105), "alike"),
        ((100, 106, 100, 50), "more often"),
    ],
)  # fmt: skip
def test_a_kernel_is_alike_within_a_twentieth(numbers: tuple[float, float, float, float], state: str) -> None:
    assert compare._word_of_change(*numbers) == state


def test_rows_are_summed_by_name_and_kind_on_the_clock() -> None:
    kernels = (
        model.Kernel("a", "compute", 2, 30),
        model.Kernel("a", "copy", 1, 5),
        model.Kernel("a", "compute", 3, 40),
    )
    assert compare._sums_by_name(kernels, "kernel", on_host=False) == {("a", "compute"): (5, 70), ("a", "copy"): (1, 5)}
    modules = (model.CallSums("a", 2, 1, 30, 300), model.CallSums("a", 1, 1, 3, 30), model.CallSums("b", 1, 1, 3, 30))
    assert compare._sums_by_name(modules, "module", on_host=True) == {
        ("a", "module"): (3, 330),
        ("b", "module"): (1, 30),
    }
    assert compare._sums_by_name(modules, "module", on_host=False) == {
        ("a", "module"): (3, 33),
        ("b", "module"): (1, 3),
    }


CAPTURES: dict[str, tuple[list[tuple[str, int | None, str, list[tuple[int, int]]]], list[list[int]]]] = {
    "one capture": ([("a", 0, "", [(1, 5), (2, 7)])], [[5, 7]]),
    "two captures": ([("a", 0, "", [(1, 5)]), ("b", 0, "", [(1, 9)])], [[5], [9]]),
    "ranks of one capture": ([("a", 0, "", [(1, 5), (2, 7)]), ("b", 1, "", [(1, 9), (3, 1)])], [[9, 7, 1]]),
    "two captures of two ranks": (
        [("a", 0, "", [(1, 5)]), ("b", 1, "", [(1, 6)]), ("c", 0, "", [(1, 9)]), ("d", 1, "", [(1, 2)])], [[6], [9]],
    ),
    "without ranks": ([("a", None, "", [(1, 5)]), ("b", None, "", [(1, 9)])], [[5], [9]]),
    "runs of a baseline": (
        [("a", 0, "x", [(1, 5)]), ("b", 0, "x", [(1, 9)]), ("c", 0, "y", [(1, 2)])], [[5, 9], [2]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAPTURES)
def test_units_are_those_of_windows_and_of_ranks_the_slowest(name: str) -> None:
    rows, expected = CAPTURES[name]
    profiles = [
        RankProfile(
            source, "torch", rank, "H100", tuple(RecordedUnit(number=at, host_ns=ns, kernels=1, compute_ns=ns) for at, ns in units),
            baseline_run=run,
        )
        for source, rank, run, units in rows
    ]  # fmt: skip
    found = compare._steps_by_capture(profiles, lambda unit: unit.device_ns)
    assert [[unit.device_ns for unit in capture] for capture in found] == expected


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ((100, 100), (100, 100), []), ((100, 100), (110, 112), ["112"]), ((100, 100), (111, 111), []), ((100, 100), (112, 112), ["112", "112"]),
        ((112, 100), (100, 100), ["112"]), ((150, 100), (135, 100), []), ((100, None), (150, 150), ["150"]), ((100, 100), (None, 100), []),
    ],
)  # fmt: skip
def test_loads_that_differ_by_more_than_a_tenth_of_the_larger_are_told(
    first: tuple[int | None, int | None], second: tuple[int | None, int | None], differ: list[str]
) -> None:
    """Requests and tokens of the sides."""
    sides = [
        [RankProfile("a", "torch", 0, "H100", (RecordedUnit(number=0, host_ns=9, kernels=1, requests=requests, tokens=tokens),))]
        for requests, tokens in (first, second)
    ]  # fmt: skip
    told = [*compare._load_difference(*sides)]
    assert re.findall(r"\b1[15][0-9]\b", " ".join(told)) == differ
    assert len(told) == bool(differ)


@pytest.mark.parametrize(
    ("before", "after", "medians"), [((), (5,), (0, 5)), ((4, 6, 9), (), (6, 0)), ((), (), (0, 0)), ((4, 6), (7, 8, 9), (4, 8))]
)  # fmt: skip
def test_a_side_without_steps_has_a_median_of_nothing(
    before: tuple[int, ...], after: tuple[int, ...], medians: tuple[int, int]
) -> None:
    found = compared([capture(*before)], [capture(*after)], force=True)
    assert found.median_ns == medians
    assert bool(found.parts) == bool(before and after)


@pytest.mark.parametrize(
    ("marks", "numbers", "window"), [("mark", (7, 3, 5), "3:8"), ("ProfilerStep#", (4,), "4:5"), ("execute_", (3, 4), ""), ("mark", (), "")]
)  # fmt: skip
def test_a_window_without_metadata_is_the_range_of_its_numbers(
    marks: str, numbers: tuple[int, ...], window: str
) -> None:
    units = tuple(RecordedUnit(number=number, host_ns=1, kernels=1) for number in numbers)
    assert compare._window_text(capture(marks=marks, units=units)) == window


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [((1, 2), (2, 1), False), ((1,), (2,), True), ((None, 1), ("", 1), False), ((None,), (1,), False), ((1,), ("",), False), ((0,), (1,), True), ((1, 2), (1,), True)],
)  # fmt: skip
def test_values_differ_if_both_sides_have_some(
    first: tuple[object, ...], second: tuple[object, ...], said: bool
) -> None:
    found = [*compare._difference("x", first, second)]
    assert len(found) == said
    assert not found or found[0].startswith("x: ")


def test_rows_have_calls_and_time_per_step_on_both_sides() -> None:
    def side(*rows: tuple[str, int, int]) -> list[RankProfile]:
        return [capture(1, 1, kernels=tuple(Kernel(name, "compute", calls, ns) for name, calls, ns in rows))]

    before, after = (
        side(("a", 4, 80), ("gone", 2, 60), ("same", 2, 10)),
        [*side(("a", 4, 120), ("new", 3, 50)), *side(("same", 4, 20))],
    )
    rows = compare._changes_by_name(before, after, "kernels")
    assert [(row.name, row.state, row.before_calls, row.after_calls, row.before_ns, row.after_ns) for row in rows] == [
        ("gone", "gone", 1, 0, 30, 0), ("new", "new", 0, 0.75, 0, 12), ("a", "less often", 2, 1, 40, 30), ("same", "alike", 1, 1, 5, 5),
    ]  # fmt: skip
    assert compare._changes_by_name([capture()], side(("a", 4, 80)), "kernels")[0].after_calls == 2
    of_six_steps = [*side(("a", 1, 9)), *side() * 2]
    (rare,) = compare._changes_by_name(of_six_steps, of_six_steps, "kernels")
    assert (rare.before_calls, rare.after_calls) == (0.167, 0.167)


def test_three_runs_of_a_baseline_are_enough() -> None:
    before = [replace(capture(5), baseline_run=f"run {number}") for number in range(3)]
    assert compared(before, [capture(9)], force=True).verdict == "slower"
