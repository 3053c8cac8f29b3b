"""Two captures side by side: known differences are found, and what cannot be compared is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from patcher.messages.report import json_of
from patcher.messages.text import Text
from patcher.traces import analysis
from patcher.traces.analysis import compared
from patcher.traces.model import PARTS, SCHEMA, CallSums, Check, Kernel, RankProfile, RecordedUnit
from patcher.traces.sidecar import parsed
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


BAD = Check("kernels", False, "30 of 32 units launched no kernel", ("communication", "dispatch"))
REFUSED = {
    "another window": (capture(1, 2), capture(1, 2, first=100), "other window: 30:32 before, 100:102 after"),
    "another window by the facts": (
        capture(1, 2, metadata=parsed({"window": "30:60"})), capture(1, 2, metadata=parsed({"window": "30:61"})), "other window: 30:60 before, 30:61 after",
    ),
    "another one of several windows": (
        capture(1, 2, metadata=parsed({"window": "30:32,90:92", "units": [{"number": 31}]})),
        capture(1, 2, metadata=parsed({"window": "30:32,90:92", "units": [{"number": 90}]})), "other window: 30:32 before, 90:92 after",
    ),
    "another condition": (
        capture(1, 2, metadata=parsed({"window": "0:2", "tail": 8})),
        capture(1, 2, metadata=parsed({"window": "0:2", "load": 256})),
        "other window: 0:2 at tail 8 before, 0:2 at load 256 after",
    ),
    "another stage by the name": (
        capture(1, 2), capture(1, 2, source="/traces/a_update_policy_actor_step1_rank0_9"), "other stage: rollout before, update-policy after",
    ),
    "another stage by the facts": (
        capture(1, 2, metadata=parsed({"stage": "compute-log-prob"})), capture(1, 2, metadata=parsed({"stage": "update-policy"})),
        "other stage: compute-log-prob before, update-policy after",
    ),
    "other marks": (capture(1, 2), capture(1, 2, marks="step["), "other units: marked by ProfilerStep before, by step after"),
    "no marks": (capture(1, 2), capture(1, 2, marks=""), "other units: marked by ProfilerStep before, by nothing after"),
    "bad data": (capture(1, 2), capture(1, 2, checks=(BAD,)), "after: 30 of 32 units launched no kernel"),
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


def test_devices_releases_and_ranks_are_what_one_compares() -> None:
    npu = capture(1, 2, form="ascend-db", device="Ascend910B", rank=3, source="/other/b_dp0_rank3_7_1_ascend_pt")
    found = compared([capture(1, 2)], [npu])
    assert found.refused == ()
    assert any("their kernels have other names" in note for note in found.notes)


@pytest.mark.parametrize(("sides", "one"), [((1, 1), True), ((1, 3), True), ((2, 2), False)])
def test_one_capture_a_side_is_said_to_be_one_sample(sides: tuple[int, int], one: bool) -> None:
    before, after = ([noisy(10, seed) for seed in range(count)] for count in sides)
    assert any("one sample" in note for note in compared(before, after).notes) == one


def test_the_ranks_of_one_window_are_one_sample() -> None:
    ranks = [replace(noisy(10, rank), rank=rank) for rank in range(4)]
    assert any("one sample" in note for note in compared(ranks, ranks).notes)


def test_two_single_units_have_no_interval() -> None:
    found = compared([capture(5)], [capture(7)])
    assert (found.median_ns, found.change) == ((5, 7), None)
    assert any("no interval" in note for note in found.notes)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((5,), (7,), "not enough data"),
        ((5,) * 40, (7,), "not enough data"),
        ((5, 5, 5), (7, 7, 7), "not enough data"),
        ((5, 5, 5, 5), (7, 7, 7, 7), "slower"),
        ((5, 5, 5, 5), (3, 3, 3, 3), "faster"),
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
    assert found.verdict == "recorded otherwise"
    assert found.differs == (
        "level Level0 before, Level1 after", "ranks of the run 2 before, 8 after", "rank 0 before, 3 after",
        "CANN 8.3 before, 8.5 after",
    )  # fmt: skip
    assert found.change is not None
    same = compared([level0], [replace(level1, settings=settings)])
    assert (same.verdict, "level" in " ".join(same.differs)) == ("slower", False)


def test_releases_and_devices_are_named() -> None:
    sides = [
        capture(1, 2, metadata=parsed({"target": "vllm", "release": release}), device=device)
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
    assert list(told) == [*keys, "verdict", "differs", "equal_load"]
    assert (told["verdict"], told["differs"], told["equal_load"]) == ("not enough data", [], None)
    assert told["clock"] == "device"
    assert told["schema"] == SCHEMA
    assert told["median_ns"] == [5, 7]
    assert [type(value) for value in told["change"]] == [int] * 3
    assert list(told["before"]) == ["sources", "form", "device", "units"]
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
        capture(1, 2, metadata=parsed({"window": "0:2", "tail": 8, "units": [{"number": at}]})) for at in (1999, 2063)
    ]
    assert compared(sides[:1], sides[1:]).refused == ()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"requests": 256}, {"requests": 8}, r"requests 256\b.* 8\b"),
        (
            {"requests": 8, "context": 9000}, {"requests": 8, "context": 65_000},
            r"context 9,000\b.* 65,000\b",
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
