"""The check of recorded iterations against the timeline, load by load."""

from __future__ import annotations

import numpy as np
import pytest

from patcher.diagnosis.iterations import iterations
from patcher.diagnosis.loads import LoadCheck, by_load, check_loads, excess, median_ratio, total_errors

REQUESTS = np.tile([2.0, 16.0], 50)
CONTEXTS = np.repeat([200.0, 1_600.0], 50)
"""Few and many requests, each with short and long contexts."""


@pytest.mark.parametrize(("apart", "known"), [(False, False), (True, True)])
def test_features_that_were_recorded_together_alone_are_not_known(apart: bool, known: bool) -> None:
    seconds = 0.001 * REQUESTS + 1e-5 * CONTEXTS
    decodes = iterations(np.cumsum(seconds) - seconds, seconds, REQUESTS, REQUESTS, CONTEXTS)
    few_and_short, many_and_long, few_and_long = 0, 99, 98
    recorded = decodes.features[[few_and_short, many_and_long] * 5 + [few_and_long] * apart]
    checks = check_loads(total_errors(seconds, decodes), decodes, recorded)
    assert all(abs(load_check.of_whole) < 0.01 for load_check in checks)
    assert all(load_check.unlike == 0 for load_check in checks)  # each feature alone is as recorded
    assert all(load_check.supported for load_check in checks) == known


@pytest.mark.parametrize(
    ("of_whole", "unlike", "unknown", "supported"),
    [
        (0.04, 0.0, 0.2, True),
        (-0.06, 0.0, 0.2, False),
        (0.03, 0.3, 0.2, False),
        (0.01, 0.3, 0.2, True),
        (0, 0, 9, False),
        (0.05, 0.2, 4, True),
        (0.021, 0.201, 4, False),
    ],
)
def test_a_load_is_supported_by_its_error_and_by_what_is_known(
    of_whole: float, unlike: float, unknown: float, supported: bool
) -> None:
    assert LoadCheck("full", of_whole, of_whole, unlike, unknown).supported == supported


@pytest.mark.parametrize(("unlike", "unknown", "known"), [(0.2, 4, True), (0.201, 0, False), (0, 4.1, False)])
def test_a_load_is_known_if_most_of_it_and_each_of_its_costs_was_recorded(
    unlike: float, unknown: float, known: bool
) -> None:
    assert LoadCheck("full", 0, 0, unlike, unknown).is_known == known


@pytest.mark.parametrize(
    ("requests", "loads"),
    [
        ([30, 21, 20, 4, 3, 1], {"prefill": [0], "full": [1], "middle": [2, 3], "tail": [4, 5]}),
        ([30, 1, 2, 10], {"prefill": [0], "middle": [3], "tail": [1, 2]}),
        ([9, 7, 1, 2], {"prefill": [0], "full": [1], "middle": [3], "tail": [2]}),
        ([1, 1], {"prefill": [0], "full": [1]}),
        ([], {}),
    ],
)
def test_a_load_is_a_range_of_requests_without_prompts(requests: list[float], loads: dict[str, list[int]]) -> None:
    count = np.array(requests, dtype=float)
    tokens = count + (np.arange(len(count)) == 0)
    masks = by_load(iterations(count, count, count, tokens, 9 * count))
    assert {load: np.flatnonzero(mask).tolist() for load, mask in masks.items()} == loads


def test_only_what_takes_several_times_as_long_as_predicted_has_waited() -> None:
    assert excess(np.array([3, 2.9, 6]), np.ones(3), 3).tolist() == [0, 0, 5]


@pytest.mark.parametrize(("predicted", "ratio"), [([1, 0, 1], 3), ([0, 0, 0], 1), ([4, 3, 1], 3)])
def test_a_profiler_slows_iterations_down_by_the_median_ratio(predicted: list[float], ratio: float) -> None:
    assert median_ratio(np.array([2.0, 9, 4]), np.array(predicted)) == ratio


def test_iterations_beyond_a_quarter_of_what_was_recorded_are_unlike() -> None:
    """12.6 requests are over 1.25 times, and 7.9 below 0.8 times the 10 that were recorded."""
    requests, each = np.array([10, 12.5, 12.6, 8, 7.9]), np.ones(5)
    rollout = iterations(np.arange(5.0), each, requests, requests, 100 * each)
    full, middle = check_loads({"full": 0.3, "middle": -0.2}, rollout, rollout.features[:1])
    assert (full.load, full.relative, full.of_whole, full.unlike) == pytest.approx(("full", 0.1, 0.06, 0.2))
    assert (middle.load, middle.relative, middle.of_whole, middle.unlike) == pytest.approx(("middle", -0.1, -0.04, 0.2))
    assert total_errors(2 * requests, rollout) == pytest.approx({"full": 175.5 / 51 - 3, "middle": 79.5 / 51 - 2})
