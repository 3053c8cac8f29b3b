"""The iterations that are chosen to be recorded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fixtures.rollouts import Request, SimulatedEngine, requests
from patcher.diagnosis.design import scaling
from patcher.diagnosis.iterations import Iterations, concatenated, iterations
from patcher.diagnosis.loads import by_load
from patcher.diagnosis.model import PlannedWindows
from patcher.diagnosis.plan import WINDOWS, _preferred_starts, choose_windows, load_condition


def rollout(of: list[Request], seed: int = 0) -> Iterations:
    simulation = SimulatedEngine(seed)
    simulation.run(of)
    start = np.array(simulation.begins[0], dtype=float) / 1e6
    length = np.array([sum(row.values()) for row in simulation.classes[0]], dtype=float) / 1e6
    columns = np.array(simulation.rollouts[0], dtype=float).T
    return iterations(start, length, *columns[:3])


@pytest.mark.parametrize("seed", range(6))
def test_windows_are_apart_in_order_and_hold_prompts_and_the_tail(seed: int) -> None:
    of = rollout(requests(seed), seed)
    windows = choose_windows(of, first=1)
    assert len(windows) == WINDOWS
    assert all(end - first == 5 for first, end in windows)
    assert all(end < following for (_, end), (following, _) in pairwise(windows))
    assert windows[0][0] >= 1
    assert windows[-1][1] < len(of)
    chosen = np.concatenate([np.arange(first, end) for first, end in windows])
    assert of.prefill[chosen].max() > 0.5 * of.prefill.max()
    assert of.requests[chosen].min() <= 0.2 * of.requests.max()


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 0), (3, 1), (6, 1), (8, 1), (14, 2)])
def test_a_short_rollout_has_fewer_windows(count: int, most: int) -> None:
    of = rollout([Request(20, 14)] * 3)
    windows = choose_windows(of.chosen(np.arange(len(of)) < count), first=1)
    assert bool(most) <= len(windows) <= most
    assert all(1 <= first < end <= count for first, end in windows)


def test_the_last_iteration_is_in_no_window_since_its_recording_may_last_until_the_next_rollout() -> None:
    of = rollout(requests(0))
    for count in range(40, 60):
        windows = choose_windows(of.chosen(np.arange(len(of)) < count), first=1)
        assert all(end < count for _, end in windows)


def test_windows_are_typed_as_an_option() -> None:
    assert PlannedWindows(((1, 6), (40, 45))).option == "1:6,40:45"
    assert PlannedWindows(((0, 5),), tail=2).conditions == ("--at-tail", "2")


@pytest.mark.parametrize("seed", range(3))
def test_windows_complement_what_is_recorded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = rollout(requests(seed), seed)
    first = choose_windows(of, first=1)
    taken = [number for start, end in first for number in range(start, end)]
    second = choose_windows(of, first=1, recorded=of.features[taken], taken=taken)
    assert len(second) == WINDOWS
    assert not any(start - 5 <= number < end + 5 for start, end in second for number in taken)
    all_prefills = [at for at, tokens in enumerate(of.prefill) if tokens > 300]
    monkeypatch.setattr("patcher.diagnosis.plan.WINDOWS", 1)
    third = choose_windows(of, first=1, recorded=of.features[all_prefills])
    assert not {*range(*third[0])} & {*all_prefills}  # what is known needs no window


@pytest.mark.parametrize(("load", "count"), [("prefill", 3), ("full", 5), ("middle", 4), ("tail", 4)])
def test_half_of_the_windows_lie_where_something_is_lacking(load: str, count: int) -> None:
    """Few windows hold mostly prefill, and full load is also where windows are chosen for everything."""
    of = rollout(requests(0))
    lacking = by_load(of)[load]
    windows = choose_windows(of, first=1, lacking=lacking)
    assert sum(2 * lacking[first:end].sum() >= 5 for first, end in windows) == count
    assert len(windows) == WINDOWS


def test_a_load_begins_behind_the_first_iteration_in_its_state() -> None:
    of = rollout(requests(0))
    counts = [int(count) for count in of.requests]
    least, _, origin = load_condition(of, "full")
    assert least == 11
    assert counts[origin - 1] >= 11 > max(counts[: origin - 1], default=0)
    for load, most in (("middle", 10), ("tail", 1)):
        assert load_condition(of, load).most == most
        origin = load_condition(of, load).origin
        assert counts[origin - 1] <= most < min(counts[origin - 3 : origin - 1])
    assert load_condition(of, "prefill") == (0, 0, 0)
    assert load_condition(of.chosen(of.requests == of.requests.max()), "tail") == (0, 0, 0)


def test_rollouts_begin_where_the_timeline_says_also_with_cached_prefixes() -> None:
    ones, numbers = np.ones(6), np.array([3, 3, 4, 4, 4, 5])
    assert [*iterations(np.arange(6.0), ones, ones, ones, 100 * ones, numbers, numbers).rollout] == [0, 0, 1, 1, 1, 2]
    assert [*iterations(np.arange(6.0), ones, ones, ones, 100 * ones, 0 * numbers, numbers).rollout] == [0] * 6


def test_rollouts_begin_where_all_requests_are_new_and_are_counted_on_from_engine_to_engine() -> None:
    first, second = rollout(requests(1, 5)), rollout(requests(2, 5))
    assert set(first.rollout) == {0}
    both = concatenated([first, second])
    assert [int((both.rollout == number).sum()) for number in (0, 1)] == [len(first), len(second)]


def test_an_iteration_lasts_until_the_next_one_of_its_rollout() -> None:
    start, ones = np.array([0, 3, 7, 20, 21.0]), np.ones(5)
    tokens, context = np.array([9, 1, 1, 8, 1.0]), np.array([9, 10, 11, 8, 9.0])
    of = iterations(start, 2 * ones, ones, tokens, context)
    assert of.rollout.tolist() == [0, 0, 0, 1, 1]
    assert of.seconds.tolist() == [3, 4, 2, 1, 2]
    assert of.prefill.tolist() == [8, 0, 0, 7, 0]
    assert of.features[0].tolist() == [1, 1, 8, 9, 72, 1]
    assert of.features_beside_device[:, 6].tolist() == [1, 0, 0, 1, 0]
    assert iterations(start[:1], ones[:1], ones[:1], tokens[:1], context[:1]).seconds.tolist() == [1]


def test_features_are_scaled_by_the_predicted_time_and_by_what_is_usual() -> None:
    of = rollout(requests(0))
    scaled = scaling(of)(of.features)
    assert np.sqrt((scaled**2).mean(axis=0)) == pytest.approx(1)
    assert scaled[7, 0] / scaled[-1, 0] == pytest.approx(of.seconds[-1] / of.seconds[7], rel=0.3)
    each = np.ones(10)
    alike = iterations(np.cumsum(0.01 * each), 0.01 * each, each, each, each)
    scale, usual = scaling(alike), alike.features[:1]
    assert scale(usual).tolist() == [pytest.approx([1, 1, 0, 1, 0, 1])]
    assert scale(0.1 * usual)[0, 0] == pytest.approx(1 / 3)  # divided by at least 0.3 times the usual seconds


@pytest.mark.parametrize(
    ("starts", "of_interest", "taken", "preferred"),
    [
        ([0, 5, 10], range(3, 8), [], [5]), ([0, 10], range(3, 8), [], [0, 10]), ([3, 4, 5, 6], range(3, 6), [], [3]),
        ([10, 11, 25, 26], range(40), [20], [10, 26]), ([11, 25], range(40), [20], [11, 25]), ([5, 9, 30], range(3, 12), [16], [5]),
    ],
)  # fmt: skip
def test_windows_begin_where_half_is_of_interest_and_away_from_recorded_ones(
    starts: list[int], of_interest: range, taken: list[int], preferred: list[int]
) -> None:
    mask = np.isin(np.arange(40), of_interest)
    assert list(_preferred_starts(starts, mask, taken)) == preferred
