"""The classes of a whole rollout, from a few iterations that were recorded with a profiler.

For each class c the time of an iteration with features x is B_c · x with B_c ≥ 0, fitted to the recorded iterations.
The timeline knows how long every iteration took, so the fit then gives way to these seconds as far as their division
among the classes allows. Only the shares come from it: the seconds that they share are those of the timeline, so the
classes always add up to what was measured.

A profiler slows down the host, but no kernel. On a device the classes of kernels therefore keep their fitted seconds,
and the time in which the device waits for the host is what these leave of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.iterations import Floats

LEAST_HALF_WIDTH = 0.01
"""Smallest half-width of an interval: two rollouts of the same requests differ by as much."""

ONE_WINDOW_HALF_WIDTH = 0.02
"""Smallest half-width where there is one window alone, so nothing tells how much windows differ."""

RESAMPLES = 40
"""Fits to resampled residuals, from which an interval is estimated."""

TIMELINE_WEIGHT = 0.2
"""Weight of the timeline's seconds in the fit, where the recorded iterations have 1: with it five windows of random
rollouts were 1.3 points off at most on average, and 1.6 without it (both without the square root of requests).
"""

MOST_ITERATIONS = 2_000
"""Iterations of the timeline that take part in the fit, evenly spaced."""

_ROUNDS = 3
_OUTLIER = 2.0
"""Residual, in standard deviations, from which on an iteration weighs less."""


@dataclass(frozen=True)
class RecordedIterations:
    """Iterations recorded with a profiler: features, seconds of each class, and the number of each one's window.

    ``features`` has the shape (iterations, features), ``class_seconds`` (iterations, classes). ``stretched`` is a mask
    of the classes that a profiler makes longer: on a device those in which it waits for the host, else all.
    """

    features: Floats
    class_seconds: Floats
    window_numbers: NDArray[np.int64]
    stretched: NDArray[np.bool_]

    def chosen(self, selection: NDArray[np.bool_]) -> RecordedIterations:
        """Return the iterations where ``selection`` is True."""
        return replace(
            self, features=self.features[selection], class_seconds=self.class_seconds[selection],
            window_numbers=self.window_numbers[selection],
        )  # fmt: skip


@dataclass(frozen=True)
class Composition:
    """Shares of the classes in each iteration, and in all of them.

    ``by_iteration`` has the shape (iterations, classes), with rows that add up to 1. ``shares`` and their
    ``half_widths`` (of 95 % intervals) have one value for each class.
    """

    by_iteration: Floats
    shares: Floats
    half_widths: Floats


def estimate_composition(recorded: RecordedIterations, features: Floats, seconds: Floats) -> Composition:
    """Estimate the share of each class of work in a rollout's time and in each iteration, with 95 % intervals.

    A class of work is a family of kernels, such as attention, or a kind of idle time. ``features``, of shape
    (iterations, features), and ``seconds`` are those of all iterations in the timeline. The model is fitted to the
    ``recorded`` iterations first, then also to the timeline's.
    """
    recorded_alone = fit(recorded)
    coefficients = fit_to_timeline(recorded, recorded_alone, features, seconds)
    by_iteration = shares_without_profiler(features @ coefficients, seconds, recorded.stretched)
    half_widths = _half_widths(recorded, recorded_alone, features, seconds)
    return Composition(by_iteration, weighted(by_iteration, seconds), half_widths)


def fit(recorded: RecordedIterations) -> Floats:
    """Fit coefficients ≥ 0, of shape (features, classes), so that features times coefficients are each class's seconds.

    A class of work is a family of kernels or a kind of idle time. Errors count in relation to an iteration's length.
    Iterations whose total is far from the prediction weigh less (Huber), because they waited for something else.
    """
    totals = recorded.class_seconds.sum(axis=1)
    weights = 1 / np.maximum(totals, 1e-9)
    for _ in range(_ROUNDS):
        coefficients = nonnegative(recorded.features, recorded.class_seconds, weights)
        predicted = np.maximum(recorded.features @ coefficients.sum(axis=1), 1e-9)
        weights = huber_weights(totals / predicted - 1) / predicted
    return coefficients


def fit_seconds(features: Floats, seconds: Floats) -> Floats:
    """Fit coefficients ≥ 0 so that ``features``, of shape (iterations, features), times these are the ``seconds``."""
    no_window, one_class = np.zeros(len(seconds), dtype=np.int64), np.ones(1, dtype=bool)
    coefficients: Floats = fit(RecordedIterations(features, seconds[:, None], no_window, one_class))[:, 0]
    return coefficients


def fit_to_timeline(recorded: RecordedIterations, coefficients: Floats, features: Floats, seconds: Floats) -> Floats:
    """Refine ``coefficients``, of shape (features, classes), fitted to ``recorded``, by the timeline's iterations.

    They still predict seconds under a profiler, since only the proportions of the timeline's seconds count.
    ``features`` and ``seconds`` are the timeline's, of which at most 2,000 iterations are used. The timeline has no
    classes: in each of three rounds, its seconds are divided among them as the coefficients so far predict.
    Coefficients that predict no time for any iteration come back as they are. So do those of iterations recorded on a
    device, since the timeline's seconds do not tell how long it was busy.
    """
    if not recorded.stretched.all():
        return coefficients
    evenly_spaced = slice(None, None, max(1, len(features) // MOST_ITERATIONS))
    features, seconds = features[evenly_spaced], seconds[evenly_spaced]
    predicted = features @ coefficients.sum(axis=1)
    usable = predicted > 0
    if not usable.any():
        return coefficients
    features, predicted = features[usable], predicted[usable]
    seconds = seconds[usable] / np.median(seconds[usable] / predicted)  # as if it was recorded, too
    weight = np.sqrt(TIMELINE_WEIGHT * len(recorded.features) / len(features))
    weights = np.concatenate([1 / np.maximum(recorded.class_seconds.sum(axis=1), 1e-9), weight / predicted])
    weights[len(recorded.features) :] *= huber_weights(seconds / predicted - 1)
    all_features = np.concatenate([recorded.features, features])
    for _ in range(_ROUNDS):
        divided = shares_without_profiler(features @ coefficients, seconds, recorded.stretched) * seconds[:, None]
        coefficients = nonnegative(all_features, np.concatenate([recorded.class_seconds, divided]), weights)
    return coefficients


def predict_from_other_windows(recorded: RecordedIterations) -> Floats:
    """Predict the seconds of each class of work in each recorded iteration, by a fit to the other windows alone.

    A window is a range of iterations that were recorded together. The result has the shape (iterations, classes). A
    single window is predicted from itself.
    """
    predicted = recorded.features @ fit(recorded)
    windows = np.unique(recorded.window_numbers)
    for window in windows if len(windows) > 1 else ():
        in_window = recorded.window_numbers == window
        predicted[in_window] = recorded.features[in_window] @ fit(recorded.chosen(~in_window))
    return predicted


def nonnegative(features: Floats, values: Floats, weights: Floats) -> Floats:
    """Return coefficients ≥ 0, of shape (features, columns), from a weighted least-squares fit of each column.

    ``features`` has the shape (samples, features), ``values`` (samples, columns). A row's error is multiplied by its
    weight. A slight ridge penalty makes the solution unique. All subsets of features are solved at once, and the best
    solution without a negative coefficient is taken.
    """
    weighted_features = features * weights[:, None]
    sizes = np.sqrt((weighted_features**2).sum(axis=0))
    sizes[sizes == 0] = 1.0
    weighted_features = weighted_features / sizes
    count = len(sizes)
    # A little towards zero: features that move together in few iterations would else have no single answer.
    gram = weighted_features.T @ weighted_features + 1e-6 * np.eye(count)
    moments = weighted_features.T @ (values * weights[:, None])
    positive = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1 == 1
    both = positive[:, :, None] & positive[:, None, :]
    solutions = np.linalg.solve(np.where(both, gram, np.eye(count)), np.where(positive[:, :, None], moments, 0.0))
    explained = (solutions * moments).sum(axis=1)  # by which the sum of squares is smaller than without any feature
    explained[(solutions < 0).any(axis=1)] = -np.inf
    best: Floats = solutions[explained.argmax(axis=0), :, np.arange(values.shape[1])].T / sizes[:, None]
    return best


def huber_weights(relative_residuals: Floats) -> Floats:
    """Return a weight for each residual: 1 within two robust standard deviations, less the farther it is beyond.

    The standard deviation counts as 0.01 at least.
    """
    deviation = max(1.4826 * float(np.median(np.abs(relative_residuals))), 0.01)
    weights: Floats = np.minimum(1.0, _OUTLIER * deviation / np.maximum(np.abs(relative_residuals), 1e-12))
    return weights


def shares_without_profiler(class_seconds: Floats, seconds: Floats, stretched: NDArray[np.bool_]) -> Floats:
    """Return the share of each class in iterations or micro-batches that take ``seconds`` without a profiler.

    ``class_seconds``, of shape (iterations, classes), are those under the profiler. The ``stretched`` classes, which
    the profiler makes longer, get what the others leave of the seconds, at least 0. The shares of each iteration add up
    to 1, or are all 0 if all classes are.
    """
    unstretched_seconds = np.where(stretched, 0.0, class_seconds)
    stretched_seconds = np.where(stretched, class_seconds, 0.0)
    remaining = np.maximum(seconds - unstretched_seconds.sum(axis=1), 0.0)
    factors = remaining / np.maximum(stretched_seconds.sum(axis=1), 1e-12)
    divided = unstretched_seconds + stretched_seconds * factors[:, None]
    shares: Floats = divided / np.maximum(divided.sum(axis=1, keepdims=True), 1e-12)
    return shares


def weighted(by_iteration: Floats, seconds: Floats) -> Floats:
    """Return the mean share of each class over iterations that take ``seconds``."""
    shares: Floats = (by_iteration * seconds[:, None]).sum(axis=0) / max(float(seconds.sum()), 1e-12)
    return shares


def _half_widths(recorded: RecordedIterations, coefficients: Floats, features: Floats, seconds: Floats) -> Floats:
    """Return the half-width of the 95 % interval of each class's share of the timeline's iterations.

    A class of work is a family of kernels or a kind of idle time. The half-width comes from 40 fits to resampled
    residuals, and from fits without each window in turn. It is at least 0.01, or 0.02 with a single window.
    ``coefficients`` are those of the fit to ``recorded`` alone; ``features`` and ``seconds`` are the timeline's.
    """

    def shares_by(sample: RecordedIterations) -> Floats:
        """Return each class's share of the time, by a model fitted to ``sample`` alone."""
        coefficients = fit_to_timeline(sample, fit(sample), features, seconds)
        return weighted(shares_without_profiler(features @ coefficients, seconds, recorded.stretched), seconds)

    generator = np.random.default_rng(0)
    fitted = recorded.features @ coefficients
    totals = np.maximum(fitted.sum(axis=1, keepdims=True), 1e-12)
    residuals = (recorded.class_seconds - fitted) / totals
    resampled = []
    for _ in range(RESAMPLES):
        drawn = residuals[generator.integers(0, len(residuals), len(residuals))]
        resampled.append(shares_by(replace(recorded, class_seconds=np.maximum(fitted + drawn * totals, 0))))
    variance = np.var(resampled, axis=0)
    windows = np.unique(recorded.window_numbers)
    if len(windows) == 1:
        return np.asarray(np.maximum(2 * np.sqrt(variance), ONE_WINDOW_HALF_WIDTH))
    without_one = np.stack([shares_by(recorded.chosen(recorded.window_numbers != window)) for window in windows])
    deviations = without_one - without_one.mean(axis=0)
    variance = variance + (len(windows) - 1) / len(windows) * (deviations**2).sum(axis=0)
    return np.asarray(np.maximum(2 * np.sqrt(variance), LEAST_HALF_WIDTH))
