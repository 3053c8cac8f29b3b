"""A change at equal load: what a made law says, with noise that is known."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest

from patcher.traces.analysis.loads import Z95, Z98, at_equal_load, fit_change, spread_of_captures, student_half_width
from patcher.traces.model import RecordedUnit


def side(loads: list[tuple[int | None, int | None, int | None]]) -> list[RecordedUnit]:
    """Steps that held these requests, tokens and contexts."""
    return [
        RecordedUnit(number=at, host_ns=0, kernels=1, requests=requests, tokens=tokens, context=context)
        for at, (requests, tokens, context) in enumerate(loads)
    ]


def law(units: list[RecordedUnit], more: int, noise: Random | None = None) -> list[int]:
    """5 ms, 20 µs for each request, 0.1 µs for each token of context, and what a side takes ``more``."""
    times = [5_000_000 + 20_000 * (one.requests or 0) + 100 * (one.context or 0) + more for one in units]
    return [time + noise.randrange(-50_000, 50_000) if noise else time for time in times]


def drawn(seed: int, count: int, most: int) -> list[RecordedUnit]:
    draw = Random(seed)
    requests = [draw.randrange(8, most) for _ in range(count)]
    return side([(number, number, number * draw.randrange(900, 2000)) for number in requests])


def test_a_change_is_found_beneath_another_load() -> None:
    before, after = drawn(1, 30, 64), drawn(2, 20, 256)
    found = at_equal_load([before, after], [*law(before, 0), *law(after, 300_000)])
    assert found is not None
    assert found.change == pytest.approx((300_000, 300_000, 300_000), abs=1)
    assert (round(found.fit, 6), found.by) == (1, ("requests", "context")), "each request has one token"


def test_the_interval_holds_the_change_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        before, after, noise = drawn(2 * seed, 12, 64), drawn(2 * seed + 1, 12, 64), Random(seed)
        found = at_equal_load([before, after], [*law(before, 0, noise), *law(after, 40_000, noise)])
        assert found is not None
        assert found.change[0] <= found.change[1] <= found.change[2]
        held += found.change[0] <= 40_000 <= found.change[2]
    assert 52 <= held < 60  # 57 are expected


@pytest.mark.parametrize(
    ("free", "exact", "z"), [(8, 2.306, Z95), (15, 2.1314, Z95), (30, 2.0423, Z95), (10, 2.7638, Z98), (20, 2.528, Z98)]
)
def test_half_widths_are_those_of_student(free: int, exact: float, z: float) -> None:
    """By the tables of its distribution, of which the formula keeps the first terms."""
    assert student_half_width(free, z) == pytest.approx(exact, rel=0.005)


def test_captures_of_a_side_that_differ_widen_the_interval() -> None:
    sides = [drawn(1, 24, 64), drawn(2, 24, 64)]
    times = [
        time + 200_000 * (at // 12 % 2) for at, time in enumerate(chain.from_iterable(law(units, 0) for units in sides))
    ]
    wide, narrow = (at_equal_load(sides, times, sizes) for sizes in ([[12, 12]] * 2, [[24]] * 2))
    assert wide is not None
    assert narrow is not None
    reach = wide.change[1] - wide.change[0]
    assert reach == pytest.approx(6.9646 * 100_000 * 2**0.5, rel=0.1)  # Student's t of two degrees of freedom
    assert reach > 5 * (narrow.change[1] - narrow.change[0])


NONE: dict[str, list[list[RecordedUnit]]] = {
    "no load is known": [side([(None, None, None)] * 9), side([(None, None, None)] * 9)],
    "one step does not say it": [side([(n, n, n * n) for n in range(9)]), side([(1, 1, 1)] * 8 + [(None, None, None)])],
    "it never differs": [side([(8, 8, 900)] * 9), side([(8, 8, 900)] * 9)],
    "it differs with the side alone": [side([(8, 8, 900)] * 9), side([(64, 64, 900)] * 9)],
    "nearly with the side alone": [side([(8 + n % 2, 8, 900) for n in range(9)]), side([(99 - n % 2, 8, 900) for n in range(9)])],
    "few steps": [side([(n, n, n * n) for n in range(4)]), side([(n, n, n * n) for n in range(4)])],
    "a side without steps": [side([(n, n, n * n) for n in range(20)]), []],
    "no side has steps": [[], []],
}  # fmt: skip


@pytest.mark.parametrize("sides", NONE.values(), ids=NONE)
def test_nothing_is_claimed_where_the_load_cannot_be_told_from_the_side(sides: list[list[RecordedUnit]]) -> None:
    assert at_equal_load(sides, [time for one in sides for time in law(one, 0)]) is None


SPREADS: dict[str, tuple[list[float], list[float], float]] = {
    "one capture each": ([1], [2], 0), "three in all": ([1], [2, 3], 0), "none on a side": ([], [1, 2, 3, 4], 0),
    "four": ([0, 2], [5, 7], 6.964557 * 2**0.5), "one and three": ([9], [5, 7, 9], 6.964557 * (4 * 4 / 3) ** 0.5),
    "they are alike": ([1, 1], [2, 2], 0), "five": ([0, 2], [5, 7, 9], 4.540703 * (10 / 3 * 5 / 6) ** 0.5),
    "six": ([0, 2, 4], [5, 7, 9], 3.746947 * (16 / 4 * 2 / 3) ** 0.5),
    "seven": ([0, 2, 4], [5, 7, 9, 9], student_half_width(5, Z98) * ((8 + 11) / 5 * 7 / 12) ** 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", SPREADS)
def test_captures_that_differ_tell_what_chance_makes(name: str) -> None:
    first, second, reach = SPREADS[name]
    assert spread_of_captures(first, second) == pytest.approx(reach, rel=1e-9)


def test_a_fit_has_change_error_freedom_and_share() -> None:
    """By hand: 10 and 1 for each load, 5 after, and a residual of +1, -1, -1, +1 on each side."""
    load = [0.0, 1, 2, 3, 0, 1, 2, 3]
    off = [1, -1, -1, 1] * 2
    after = [False] * 4 + [True] * 4
    values = [10 + number + 5 * late + more for number, late, more in zip(load, after, off, strict=True)]
    fit = fit_change({"load": load, "unknown": [None, *load[1:]], "same": [3.0] * 8}, after, values)
    assert fit is not None
    assert fit.change == pytest.approx(5)
    assert (fit.free, fit.by) == (5, ("load",))
    assert fit.error == pytest.approx((8 / 5 / 2) ** 0.5)
    assert fit.share == pytest.approx(1 - 8 / (8 + 10 + 50))
    assert fit.unexplained == pytest.approx(off)
