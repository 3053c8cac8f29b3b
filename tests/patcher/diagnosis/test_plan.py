"""The iterations that are chosen to be recorded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fixtures.rollouts import Request, SimulatedEngine, requests
from patcher.diagnosis.iterations import Iterations, concatenated, iterations
from patcher.diagnosis.plan import as_option, choose_windows


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
    assert len(windows) == 5
    assert all(end - first == 5 for first, end in windows)
    assert all(end < following for (_, end), (following, _) in pairwise(windows))
    assert windows[0][0] >= 1
    assert windows[-1][1] <= len(of)
    chosen = np.concatenate([np.arange(first, end) for first, end in windows])
    assert of.prefill[chosen].max() > 0.5 * of.prefill.max()
    assert of.requests[chosen].min() <= 0.2 * of.requests.max()


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 0), (3, 1), (6, 1), (8, 1), (14, 2)])
def test_a_short_rollout_has_fewer_windows(count: int, most: int) -> None:
    of = rollout([Request(20, 14)] * 3)
    windows = choose_windows(of.chosen(np.arange(len(of)) < count), first=1)
    assert bool(most) <= len(windows) <= most
    assert all(1 <= first < end <= count for first, end in windows)


def test_windows_are_typed_as_an_option() -> None:
    assert as_option([(1, 6), (40, 45)]) == "1:6,40:45"


def test_rollouts_begin_where_the_timeline_says_also_with_cached_prefixes() -> None:
    ones, numbers = np.ones(6), np.array([3, 3, 4, 4, 4, 5])
    assert [*iterations(np.arange(6.0), ones, ones, ones, 100 * ones, numbers, numbers).rollout] == [0, 0, 1, 1, 1, 2]
    assert [*iterations(np.arange(6.0), ones, ones, ones, 100 * ones, 0 * numbers, numbers).rollout] == [0] * 6


def test_rollouts_begin_where_all_requests_are_new_and_are_counted_on_from_engine_to_engine() -> None:
    first, second = rollout(requests(1, 5)), rollout(requests(2, 5))
    assert set(first.rollout) == {0}
    both = concatenated([first, second])
    assert [int((both.rollout == number).sum()) for number in (0, 1)] == [len(first), len(second)]
    assert len(concatenated([])) == 0
