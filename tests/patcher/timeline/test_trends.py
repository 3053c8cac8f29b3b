from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from patcher.timeline import trends
from patcher.timeline.causes import Activity, StepTimes
from patcher.timeline.model import Cause, Driver, Part, TrainingStep, Trend
from patcher.timeline.shares import Amounts
from patcher.timeline.trends import trend

DECODE, UPDATE = Activity("engine", "iteration", "decode", "gen"), Activity("trainer", "unit", "micro-batch", "update")


def made(count: int, grows: float = 0.1, noise: float = 0.0, tokens: bool = True) -> Trend | None:
    """Return the trend of steps whose decoding ``grows`` by so many seconds a step."""
    steps, paths = [], []
    for at in range(count):
        decode = 2 + grows * at + noise * (-1) ** at * (at % 5)
        us = {DECODE: round(decode * 1e6), UPDATE: 3_000_000}
        amounts = Amounts(round(100 * decode), round(1_000 * decode)) if tokens else Amounts(100, 1_000)
        paths.append(StepTimes(sum(us.values()), us, {}, {}, amounts=amounts))
        steps.append(TrainingStep(at + 1, 0, 0, 3 + decode, "typical", "", None, None, (), (), 0, None, 0, (), 0, ()))
    return trend(steps, paths)


def test_the_parts_that_grow_and_the_counts_that_grow_with_them_are_told() -> None:
    drivers = (Driver("generated tokens", 2550, 4550, 1.0), Driver("number of decode steps", 255, 455, 1.0))
    parts = (Part("engine: decode in gen", 2.000002),)
    assert made(31, 0.1000001) == Trend((2, 11), (22, 31), 5.550001, 7.550003, parts, drivers)


def test_steps_that_become_shorter_have_a_trend_too() -> None:
    found = made(31, -0.05)
    assert found is not None
    assert found.parts == (Part("engine: decode in gen", -1.0),)
    assert {driver.after < driver.before for driver in found.drivers} == {True}


def test_without_a_count_that_changes_each_decode_step_takes_longer() -> None:
    found = made(31, 0.10001, tokens=False)
    assert found is not None
    assert found.drivers == (Driver("milliseconds per decode step", 25.501, 45.503, 1.0),)


@pytest.mark.parametrize(
    ("count", "grows", "noise"), [(12, 0.1, 0), (31, 0.0, 0.2), (31, 0.02, 0), (31, 0.05, 1.0)],
    ids=["too few steps", "noise alone", "less than a tenth", "as much as the noise"],
)  # fmt: skip
def test_what_may_be_chance_is_no_trend(count: int, grows: float, noise: float) -> None:
    assert made(count, grows, noise) is None


@pytest.mark.parametrize(("noise", "said"), [(0.19, True), (0.21, False)])
def test_three_standard_errors_are_no_chance(noise: float, said: bool) -> None:
    """A change of a second: the error is 1.2533 times that of a mean, of a spread of 2.97 times the noise."""
    assert (made(31, 0.05, noise) is not None) == said


def test_thirteen_steps_are_enough() -> None:
    assert made(13, 0.2) is not None


def test_the_largest_three_parts_are_told() -> None:
    keys = [Activity("driver", "phase", str(number), "gen") for number in range(6)]
    steps, paths = [], []
    for at in range(31):
        us = {key: round(at * (1 + number) / 100 * 1e6) for number, key in enumerate(keys)}
        us[UPDATE] = 3_000_000 - at * 1_000
        paths.append(StepTimes(sum(us.values()), us, {}, {}))
        steps.append(
            TrainingStep(at, 0, 0, sum(us.values()) / 1e6, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())
        )
    found = trend(steps, paths)
    assert found is not None
    assert found.parts == tuple(Part(f"driver: {number} in gen", round(0.2 * (number + 1), 6)) for number in (5, 4, 3))
    assert found.drivers == ()


def test_single_slow_steps_and_phases_that_most_steps_lack_are_no_trend() -> None:
    cause = Cause("driver", None, None, "adv", "adv", 4, 3, "phase")
    usual = TrainingStep(1, 0, 0, 5, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())
    slow = [
        replace(usual, seconds=8, limited_by=cause),
        replace(usual, seconds=11, limited_by=cause, also=(cause,)),
        replace(usual, seconds=7, beside=(Part("testing", 2),)),
    ]
    path = StepTimes(5_000_000, {UPDATE: 5_000_000}, {}, {})
    steps = [*[usual] * 16, *slow * 5]
    assert trend(steps, [path] * len(steps)) is None
    assert trend([*[usual] * 16, *[replace(usual, seconds=8)] * 15], [path] * 31) is not None


def grown(counts: list[tuple[int, int]]) -> Trend:
    """Return the trend of steps from 5 to 8 s, with decode steps and tokens as given."""
    steps, paths = [], []
    small = Activity("driver", "phase", "adv", "adv")
    for at, (decode_steps, tokens) in enumerate(counts):
        us = {UPDATE: 5_000_000 + at * 100_000, small: 1_000_000 + at * 9_000, DECODE: 3_000_000 - at * 10_000}
        paths.append(StepTimes(sum(us.values()), us, {}, {}, amounts=Amounts(decode_steps, tokens)))
        seconds = sum(us.values()) / 1e6
        steps.append(TrainingStep(at, 0, 0, seconds, "typical", "", None, None, (), (), 0, None, 0, (), 0, ()))
    found = trend(steps, paths)
    assert found is not None
    return found


def test_parts_below_a_tenth_of_the_change_or_against_it_are_left_out() -> None:
    assert [part.name for part in grown([(0, 0)] * 31).parts] == ["trainer: micro-batch in update"]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([100 + at for at in range(31)], 0.99), ([100 + at // 10 for at in range(31)], None),
        ([100 + 40 * (at % 2) + at // 2 * (at > 25) for at in range(31)], None), ([100] * 31, None),
        ([100 + 50 * (at > 15) for at in range(31)], 0.86), ([0] * 15 + [9] * 16, 0.86),
        ([100] * 16 + [110] * 15, None), ([100] * 16 + [111] * 15, 0.86), ([0] * 31, None),
    ],
    ids=["grows", "by less than a tenth", "at random", "not at all", "at once", "from nothing", "by a tenth", "by more", "none"],
)  # fmt: skip
def test_a_count_is_told_that_changes_by_a_tenth_and_with_the_steps(tokens: list[int], said: float | None) -> None:
    drivers = {driver.name: driver.correlation for driver in grown([(0, count) for count in tokens]).drivers}
    assert drivers == ({} if said is None else {"generated tokens": pytest.approx(said, abs=0.02)})


@pytest.mark.parametrize("beside", [0, 3])
def test_phases_beside_are_taken_out_before_steps_are_compared(beside: float) -> None:
    usual = TrainingStep(1, 0, 0, 5, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())
    longer = replace(usual, seconds=8, beside=(Part("testing", beside),))
    path = StepTimes(5_000_000, {UPDATE: 5_000_000}, {}, {})
    assert (trend([*[usual] * 16, *[longer] * 15], [path] * 31) is None) == (beside == 3)


def changed(lost: Sequence[float], made_up: float = 0.0) -> Trend | None:
    """Return the trend of steps of 5 s and ``lost`` seconds, of which the decoding makes up for a share.

    The decoding varies.
    """
    lose = Activity("driver", "phase", "adv", "adv")
    steps, paths = [], []
    for at, more in enumerate(lost):
        us = {
            UPDATE: 3_000_000,
            DECODE: round((2 + 0.1 * (at * 7 % 5 - 2) - made_up * more) * 1e6),
            lose: round(more * 1e6),
        }
        seconds = sum(us.values()) / 1e6
        cause = Cause("driver", None, None, "adv", "adv", more, more, "phase") if more > 2 else None
        paths.append(StepTimes(sum(us.values()), us, {}, {}))
        steps.append(TrainingStep(at, 0, 0, seconds, "typical", "", cause, None, (), (), 0, None, 0, (), 0, ()))
    return trend(steps, paths)


@pytest.mark.parametrize(
    ("lost", "since"),
    [
        ([0.0] * 31 + [1.0] * 10, 31), ([0.0] * 11 + [1.0] * 30, 11), ([1.0] * 20 + [0.0] * 21, 20),
        ([0.0] * 36 + [3.0] * 5, 36), ([0.0] * 37 + [3.0] * 4, None), ([0.0] * 20 + [0.4] * 21, None),
        ([0.0] * 15 + [1.0] * 10 + [0.0] * 16, None), ([at / 20 for at in range(41)], None), ([0.0, 2.0, 4.0] * 14, None),
    ],
    ids=["late", "early", "shorter", "told as causes of steps", "too few steps", "little", "for some time", "gradually",
         "now and then"],
)  # fmt: skip
def test_a_lasting_change_is_told_with_its_first_step(lost: Sequence[float], since: int | None) -> None:
    found = changed(lost)
    assert (found and found.since) == since
    if found and since:
        assert (found.first, found.last) == ((1, since - 1), (since, len(lost) - 1))
        assert [part.name for part in found.parts] == ["driver: adv"]
        assert found.after_seconds - found.before_seconds == pytest.approx(lost[-1] - lost[0], abs=0.1)


@pytest.mark.parametrize(("made_up", "since"), [(0.4, 20), (0.6, None)])
def test_a_change_that_other_parts_make_up_for_is_not_told(made_up: float, since: int | None) -> None:
    found = changed([0.0] * 20 + [1.2] * 21, made_up)
    assert (found and found.since) == since


@pytest.mark.parametrize("values", [[3.0], [3, 1, 2], [5, 5, 1, 9], [-1, 4, 4, 0, 2.5, 7, -3], [*range(9, 0, -1)]])
def test_deviations_from_the_median_are_summed_value_by_value(values: list[float]) -> None:
    expected = [trends._deviations(values[: at + 1]) for at in range(len(values))]
    assert trends._running_deviations(values) == pytest.approx(expected)
