"""Features of iterations on one scale, to judge which windows to record and which loads the recorded ones support."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from patcher.diagnosis.composition import nonnegative
from patcher.diagnosis.iterations import Floats, Iterations

RIDGE = 1e-3
"""Ridge of the fit: keeps it solvable for features that no recorded iteration has."""


def scaling(rollout: Iterations) -> Callable[[Floats], Floats]:
    """Return a function that scales features, of shape (iterations, features), by what is usual in ``rollout``.

    It divides each row by the seconds that a fit to ``rollout`` predicts from it, at least by 0.3 times their first
    percentile. It also divides each column by its root mean square in ``rollout``.
    """
    features, least = rollout.features, 0.3 * np.percentile(rollout.seconds, 1)
    coefficients = nonnegative(features, rollout.seconds[:, None], 1 / np.maximum(rollout.seconds, 1e-6))[:, 0]

    def over_usual(features: Floats) -> Floats:
        """Return features divided by the predicted seconds of their iteration."""
        columns: Floats = features / np.maximum(features @ coefficients, least)[:, None]
        return columns

    sizes = np.sqrt((over_usual(features) ** 2).mean(axis=0))
    sizes[sizes == 0] = 1.0
    return lambda features: over_usual(features) / sizes
