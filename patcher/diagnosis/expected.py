"""The seconds that micro-batches are expected to take: as others of their size, or others of their number in a call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.composition import fit_seconds
from patcher.diagnosis.iterations import Floats

BETTER = 0.7
"""Numbers in the call count instead of sizes if their errors are below this share of those of the sizes."""

FEWEST_CALLS = 3
"""Micro-batches with the same number in their calls from which on their median counts for this number."""


def expected_seconds(
    seconds: Floats, sizes: Floats, numbers: NDArray[np.int64], among: NDArray[np.bool_]
) -> Floats | None:
    """Return the seconds that each micro-batch takes according to others of its size or of its number in the call.

    Only micro-batches where the mask ``among`` is True tell this, by their ``seconds`` above 0; all do if there are
    none. ``sizes`` are in tokens. ``numbers``, from 0 in each call, count instead if they explain the seconds much
    better, as where the last micro-batch of each call takes longer. The result is None if sizes are unknown (nan) and
    numbers explain nothing.
    """
    among = among & (seconds > 0)
    if not among.any():
        among = seconds > 0
    if not among.any():
        return None
    usual = np.full(len(seconds), float(np.median(seconds[among])))
    by_size = _by_size(seconds, sizes, among) if np.isfinite(sizes).all() else None
    by_number = _by_number(seconds, numbers, among, usual)
    errors = [_error(seconds[among], model[among]) for model in (by_number, usual if by_size is None else by_size)]
    return by_number if errors[0] < BETTER * errors[1] else by_size


def _by_size(seconds: Floats, sizes: Floats, among: NDArray[np.bool_]) -> Floats:
    """Return the seconds by a constant, the size and its square, none of them below 0; outliers weigh less (Huber)."""
    relative = sizes / max(float(sizes.max()), 1e-9)
    features = np.stack([np.ones(len(sizes)), relative, relative**2], axis=1)
    predicted: Floats = features @ fit_seconds(features[among], seconds[among])
    return np.maximum(predicted, 1e-9)


def _by_number(seconds: Floats, numbers: NDArray[np.int64], among: NDArray[np.bool_], usual: Floats) -> Floats:
    """Return the median seconds of the micro-batches with the same number, ``usual`` ones where too few have it."""
    expected = usual.copy()
    for number in np.unique(numbers):
        same = among & (numbers == number)
        if same.sum() >= FEWEST_CALLS:
            expected[numbers == number] = np.median(seconds[same])
    return expected


def _error(seconds: Floats, expected: Floats) -> float:
    """Return the root of the mean square of the relative errors, each of which counts as 1 at most."""
    return float(np.sqrt(np.mean(np.minimum(np.abs(seconds / expected - 1), 1.0) ** 2)))
