"""The choice of the iterations to record, from the timeline alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from patcher.diagnosis.composition import nonnegative
from patcher.diagnosis.iterations import Floats, Iterations

WINDOWS, LENGTH = 5, 5
"""Number of windows, and of iterations in each: every class above 5 % of a rollout was within 0.7 points."""


def choose_windows(
    rollout: Iterations, windows: int = WINDOWS, length: int = LENGTH, first: int = 0
) -> list[tuple[int, int]]:
    """Return the half-open ranges of iterations of a rollout from which its composition is known best, in order.

    Greedy I-optimal design: each next window is the one that most lowers the mean variance of the predictions of all
    iterations, which weigh by their seconds. Windows do not touch, because opening one disturbs the next iteration.
    None begins before iteration ``first``.
    """
    count = len(rollout)
    if count - first <= length:
        return [(first, count)] if count > first else []
    scaled = _scaled(rollout)
    importance = (scaled * rollout.seconds[:, None]).T @ scaled / rollout.seconds.sum()
    starts = range(first, count - length + 1, max(1, length // 2))
    gains = {start: scaled[start : start + length].T @ scaled[start : start + length] for start in starts}
    information = 1e-3 * np.eye(scaled.shape[1])
    chosen: list[int] = []
    for _ in range(windows):
        free = [start for start in starts if all(abs(start - taken) > length for taken in chosen)]
        if not free:
            break
        best = min(free, key=lambda start: _mean_variance(information + gains[start], importance))
        chosen.append(best)
        information = information + gains[best]
    return [(start, start + length) for start in sorted(chosen)]


def _mean_variance(information: Floats, importance: Floats) -> float:
    return float(np.trace(np.linalg.solve(information, importance)))


def _scaled(rollout: Iterations) -> Floats:
    """Return the features over the usual time of each iteration, each column with a root mean square of 1."""
    features = rollout.features
    usual = features @ nonnegative(features, rollout.seconds, 1 / np.maximum(rollout.seconds, 1e-6))
    scaled = features / np.maximum(usual, 0.3 * np.percentile(rollout.seconds, 1))[:, None]
    sizes = np.sqrt((scaled**2).mean(axis=0))
    sizes[sizes == 0] = 1.0
    columns: Floats = scaled / sizes
    return columns


def as_option(windows: Sequence[tuple[int, int]]) -> str:
    """Return half-open ranges as a window is typed: ``5:10,40:45``."""
    return ",".join(f"{first}:{end}" for first, end in windows)
