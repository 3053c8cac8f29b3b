"""The fit of classes to features: no coefficient is negative, and outliers weigh less."""

from __future__ import annotations

import numpy as np
import pytest

from patcher.diagnosis.composition import (
    RecordedIterations,
    estimate_composition,
    fit,
    fit_to_timeline,
    huber_weights,
    nonnegative,
    predict_from_other_windows,
    shares_without_profiler,
    weighted,
)
from patcher.diagnosis.iterations import iterations
from patcher.diagnosis.plan import choose_windows


@pytest.mark.parametrize("seed", range(5))
def test_no_other_coefficients_fit_better(seed: int) -> None:
    generator = np.random.default_rng(seed)
    features = generator.random((25, 5))
    values = features @ generator.normal(size=(5, 4))
    weights = generator.random(25) + 0.1
    coefficients = nonnegative(features, values, weights)
    gradient = (features * weights[:, None]).T @ ((features @ coefficients - values) * weights[:, None])
    assert (coefficients >= 0).all()
    assert gradient[coefficients > 0] == pytest.approx(0, abs=1e-3)
    assert (gradient[coefficients == 0] > -1e-3).all()


EVERY = np.ones(2, dtype=bool)
"""Mask of two classes, both of which a profiler makes longer."""


def test_features_that_do_not_vary_or_are_zero_do_no_harm() -> None:
    features = np.stack([np.ones(6), np.zeros(6), np.full(6, 3.0), np.arange(6.0), np.arange(6.0)], axis=1)
    values = 2 + np.arange(6.0)[:, None]
    assert features @ nonnegative(features, values, np.ones(6)) == pytest.approx(values, abs=1e-3)


def test_an_iteration_that_waited_hardly_changes_the_fit() -> None:
    features = np.stack([np.ones(25), np.arange(25.0), np.zeros(25), np.zeros(25), np.zeros(25)], axis=1)
    seconds = np.stack([0.01 + 0.001 * np.arange(25), np.full(25, 0.005)], axis=1)
    window = np.repeat(np.arange(5), 5)
    undisturbed = fit(RecordedIterations(features, seconds, window, EVERY))
    waited = seconds.copy()
    waited[7, 1] = 1.0
    change = features @ fit(RecordedIterations(features, waited, window, EVERY)) - features @ undisturbed
    assert np.abs(change[:, 1]).max() < 0.01


def test_weights_fall_with_the_residual() -> None:
    weights = huber_weights(np.array([0.0, 0.01, -0.01, 0.5, 1.0]))
    assert weights[:3] == pytest.approx(1)
    assert weights[3:] == pytest.approx([2 * 0.014826 / 0.5, 2 * 0.014826])
    assert huber_weights(np.array([0, 0, 0.04])).tolist() == [1, 1, 0.5]


@pytest.mark.parametrize(
    ("class_seconds", "shares"), [([1, 2, 1], [3 / 15, 8 / 15, 4 / 15]), ([6, 2, 2], [1, 0, 0]), ([2, 0, 0], [1, 0, 0])]
)
def test_what_a_profiler_stretches_gets_what_kernels_leave(class_seconds: list[float], shares: list[float]) -> None:
    stretched = np.array([False, True, True])
    for scale in (1, 0.01):
        of = shares_without_profiler(scale * np.array([class_seconds], dtype=float), np.array([5.0 * scale]), stretched)
        assert of == pytest.approx(np.array([shares]))
    assert weighted(np.array([[1, 0], [0.25, 0.75]]), np.array([0.1, 0.3])) == pytest.approx([1.75 / 4, 2.25 / 4])


def recorded_in(windows: list[int], first: list[float]) -> RecordedIterations:
    """Iterations of a second each, of which the first of two classes takes these shares."""
    shares = np.array(first)
    return RecordedIterations(
        np.ones((len(first), 1)), np.stack([shares, 1 - shares], axis=1), np.array(windows), EVERY
    )


def test_each_window_is_predicted_from_the_others() -> None:
    predicted = predict_from_other_windows(recorded_in([0, 0, 1], [0.4, 0.4, 0.6]))
    assert predicted[:, 0] == pytest.approx([0.6, 0.6, 0.4], rel=1e-4)
    alone = predict_from_other_windows(recorded_in([0, 0], [0.4, 0.4]))
    assert alone == pytest.approx(np.array([[0.4, 0.6]] * 2), rel=1e-4)


@pytest.mark.parametrize(
    ("windows", "shares", "half_width"),
    [
        ([0, 0], [0.4, 0.4], 0.02),
        ([0, 1], [0.4, 0.4], 0.01),
        ([0, 1], [0.4, 0.6], 0.245),
        ([0, 0], [0.4, 0.6], 0.141),
        ([0, 1, 2], [0.4, 0.5, 0.6], 0.149),
    ],
    ids=str,
)
def test_an_interval_covers_the_noise_and_the_difference_of_windows(
    windows: list[int], shares: list[float], half_width: float
) -> None:
    composition = estimate_composition(recorded_in(windows, shares), np.ones((50, 1)), np.ones(50))
    assert composition.half_widths == pytest.approx([half_width] * 2, rel=0.15)
    assert composition.shares[0] == pytest.approx(sum(shares) / len(shares), rel=1e-3)


def test_the_timeline_tells_what_similar_iterations_leave_open() -> None:
    features = np.stack([np.ones(160), np.tile(np.arange(1.0, 17), 10), *np.zeros((3, 160))], axis=1)
    costs = np.array([[0.004, 0.001], [0.0, 0.001], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    seconds = (features @ costs).sum(axis=1)
    alike = np.flatnonzero(features[:, 1] >= 15)[:6]
    noise = 1 + 0.02 * np.random.default_rng(0).normal(size=(6, 2))
    recorded = RecordedIterations(features[alike], features[alike] @ costs * noise, np.arange(6), EVERY)
    alone = fit(recorded)
    fitted = fit_to_timeline(recorded, alone, features, seconds)
    errors = [np.abs((features @ coefficients).sum(axis=1) / seconds - 1).mean() for coefficients in (alone, fitted)]
    assert errors[0] > 2 * errors[1]
    assert fit_to_timeline(recorded, 0 * alone, features, seconds) == pytest.approx(0)


def test_a_class_whose_time_grows_less_than_its_requests_is_told_at_every_load() -> None:
    """As a matmul does on real engines: the recorded windows are those that are chosen by the timeline."""
    requests = np.repeat(np.arange(24.0, 0, -1), 12)
    class_seconds = np.stack([0.002 + 0.003 * np.sqrt(requests), 0.0005 * requests], axis=1)
    length = class_seconds.sum(axis=1)
    rollout = iterations(np.cumsum(length) - length, length, requests, requests, 200 * requests)
    windows = choose_windows(rollout, first=1)
    places = np.concatenate([np.arange(first, end) for first, end in windows])
    window = np.repeat(np.arange(len(windows)), [end - first for first, end in windows])
    recorded = RecordedIterations(rollout.features[places], class_seconds[places], window, EVERY)
    composition = estimate_composition(recorded, rollout.features, length)
    errors = composition.by_iteration - class_seconds / length[:, None]
    assert np.abs(errors).max() < 0.005
