"""Ranks beside each other: how far each time is from the median of its unit, and a unit of each on one scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from patcher.traces.model import Lanes, RankProfile, RecordedUnit, Span
from patcher.traces.page import ranks
from patcher.traces.page.lanes import LANE, TICKS
from patcher.traces.page.limits import PAGE_LIMITS

MS = 1_000_000
SHADED = re.compile(r'<rect [^>]*y="(\d+)"[^>]*class="([^"]*)"><title>([^<]*)<')


def profile(rank: int, computing: Sequence[int], *, communicating: Sequence[int] = (), first: int = 30) -> RankProfile:
    """A rank whose units compute and communicate for so many ms."""
    waits = communicating or [0] * len(computing)
    units = tuple(
        RecordedUnit(number=first + at, host_ns=computed * MS, kernels=9, compute_ns=computed * MS, communication_ns=waited * MS)
        for at, (computed, waited) in enumerate(zip(computing, waits, strict=True))
    )  # fmt: skip
    return RankProfile(f"/data/{rank}", "torch", rank, "device", units)


def maps(profiles: Sequence[RankProfile]) -> list[list[tuple[str, str]]]:
    """Of each map the title and the class of its cells."""
    text = str(ranks.heat_map(profiles, PAGE_LIMITS[0]) or "")
    return [[(title, kind) for _, kind, title in SHADED.findall(one)] for one in text.split("<figure>")[1:]]


def test_a_cell_says_how_far_a_time_is_from_the_median_of_its_unit() -> None:
    (found,) = maps([profile(rank, times) for rank, times in enumerate(([100, 50, 80], [100, 60, 82], [140, 50, 80]))])
    assert found == [
        ("rank 0, step #30: 100.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"), ("rank 0, step #31: 50.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"),
        ("rank 0, step #32: 80.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"),
        ("rank 1, step #30: 100.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"), ("rank 1, step #31: 60.00 ms, +20.0 %", "more s3"),
        ("rank 1, step #32: 82.00 ms, +2.5 %", "more s1"),
        ("rank 2, step #30: 140.00 ms, +40.0 %", "more s4"), ("rank 2, step #31: 50.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"),
        ("rank 2, step #32: 80.00 ms, \N{PLUS-MINUS SIGN}0.0 %", "s0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind"),
    [(0.0, "s0"), (0.009, "s0"), (-0.01, "less s1"), (0.03, "more s2"), (-0.1, "less s3"), (0.31, "more s4")],
)
def test_the_colour_of_a_deviation(change: float, kind: str) -> None:
    assert ranks.shade(change) == kind


def test_where_ranks_wait_for_each_other_what_they_compute_is_compared_too() -> None:
    slow = profile(2, [90, 90, 90], communicating=[10, 10, 10])
    times, computing = maps([*(profile(rank, [60] * 3, communicating=[40] * 3) for rank in range(2)), slow])
    assert {kind for _, kind in times} == {"s0"}
    assert [title for title, kind in computing if kind == "more s4"] == [
        f"rank 2, step #{number}: 90.00 ms, +50.0 %" for number in (30, 31, 32)
    ]


def test_where_nothing_ran_on_a_device_the_time_on_the_host_is_compared() -> None:
    idle = [
        replace(one, units=tuple(replace(unit, compute_ns=0) for unit in one.units))
        for one in (profile(rank, [10, 20, 30 + 30 * (rank == 2)]) for rank in range(3))
    ]
    (found,) = maps(idle)
    assert found[-1] == ("rank 2, step #32: 60.00 ms, +100.0 %", "more s4")


@pytest.mark.parametrize(("count", "units"), [(2, 9), (9, 2), (1, 1)])
def test_of_a_few_there_is_no_map(count: int, units: int) -> None:
    assert maps([profile(rank, [10] * units) for rank in range(count)]) == []


def test_a_rank_need_not_have_every_unit() -> None:
    found = maps([profile(rank, [10, 10, 10], first=30 + rank) for rank in range(3)])
    assert len(found[0]) == 9


def test_a_column_of_several_units_shows_the_one_that_differs_most() -> None:
    many = [profile(rank, [10] * 100) for rank in range(64)]
    many[5] = profile(5, [10] * 50 + [14] + [10] * 49)
    (found,) = maps(many)
    assert len(found) <= 1200
    assert [title for title, kind in found if kind != "s0"] == ["rank 5, step #80: 14.00 ms, +40.0 %"]
    assert "a column covers 6 steps" in str(ranks.heat_map(many, PAGE_LIMITS[0]))


def test_of_too_many_ranks_the_slowest_are_drawn() -> None:
    many = [profile(rank, [10 + rank] * 3) for rank in range(70)]
    text = str(ranks.heat_map(many, PAGE_LIMITS[0]))
    assert "Only the 64 slowest ranks are drawn; 6 more are left out." in text
    assert "rank 5, " not in text
    assert "rank 6, " in text


def test_a_unit_of_each_rank_is_drawn_on_the_scale_of_the_longest() -> None:
    spans = {"7": (Span(0, 30 * MS, "compute", "a"),), "8": (Span(10 * MS, 10 * MS, "communication", "b"),)}
    drawn = [
        replace(profile(rank, [10] * 3), lanes=(Lanes(30 + rank, "median", 30 * MS, {}), Lanes(31, "slowest", ns, spans)))
        for rank, ns in enumerate((50 * MS, 100 * MS))
    ]  # fmt: skip
    drawn[1] = replace(drawn[1], lanes=drawn[1].lanes[1:])
    text = str(ranks.ranks_below_each_other(drawn, PAGE_LIMITS[0]))
    assert re.findall(r">(rank \d+ #\d+)<title>", text) == ["rank 0 #31", "rank 1 #31"]
    each = TICKS // 100
    assert re.findall(r'd="([^"]*)" class="(?:compute|communication)"><title>([^<]*)', text) == [
        (f"M{begin * each} {row * LANE + below}h{wide * each}v6h-{wide * each}z", f"rank {row}, step #31: {ns}.00 ms")
        for row, ns in enumerate((50, 100))
        for begin, below, wide in ((0, 0, 30), (10, 6, 10))
    ]


def test_one_rank_has_none_below_it() -> None:
    lanes = (Lanes(30, "median", 30 * MS, {"7": (Span(0, MS, "compute", "a"),)}),)
    alone = replace(profile(0, [10] * 3), lanes=lanes)
    assert ranks.ranks_below_each_other([alone, profile(1, [10])], PAGE_LIMITS[0]) is None
