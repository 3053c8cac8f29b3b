"""The choice of the iterations to record, from the timeline alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis import loads
from patcher.diagnosis.design import RIDGE, scaling
from patcher.diagnosis.iterations import Floats, Iterations

WINDOWS, LENGTH = 6, 5
"""Number of windows, and of iterations in each: every class above 5 % was within 1.5 points in 14 real rollouts."""


def choose_windows(
    rollout: Iterations,
    windows: int = WINDOWS,
    length: int = LENGTH,
    first: int = 0,
    *,
    recorded: Floats | None = None,
    taken: Collection[int] = (),
    lacking: NDArray[np.bool_] | None = None,
) -> list[tuple[int, int]]:
    """Return the half-open ranges of iterations whose recording tells most of a rollout's composition, in order.

    There are at most ``windows`` ranges of ``length`` iterations, none before iteration ``first``. They do not touch,
    because opening one disturbs the next iteration. ``recorded`` has the features, of shape (iterations, features), of
    those recorded before. If possible, half of the windows lie where the mask ``lacking`` is True, and none near the
    indices ``taken`` of recorded iterations. A rollout of at most ``length`` iterations is one range.

    Greedy I-optimal design: each next window is the one that most lowers the mean variance of the predictions of all
    iterations, weighted by their seconds.
    """
    count = len(rollout)
    if count - first <= length:
        return [(first, count)] if count > first else []
    everywhere = np.ones(count, dtype=bool)
    lacking = everywhere if lacking is None or not lacking.any() else lacking
    scale = scaling(rollout)
    scaled = scale(rollout.features)
    gains = {
        start: scaled[start : start + length].T @ scaled[start : start + length]
        for start in range(first, count - length + 1, max(1, length // 2))
    }
    information = RIDGE * np.eye(scaled.shape[1])
    if recorded is not None and len(recorded):
        information = information + scale(recorded).T @ scale(recorded)
    chosen: list[int] = []
    for _ in range(windows):
        apart = [start for start in gains if all(abs(start - other) > length for other in chosen)]
        if not apart:
            break
        # What is lacking comes first. The others are for everything, which needs windows that differ from these.
        of_interest = lacking if 2 * len(chosen) < windows else everywhere
        importance = (
            (scaled[of_interest] * rollout.seconds[of_interest, None]).T
            @ scaled[of_interest]
            / rollout.seconds[of_interest].sum()
        )
        candidates = _fitting(apart, length, of_interest, taken)
        best = min(candidates, key=lambda start: _mean_variance(information + gains[start], importance))
        chosen.append(best)
        information = information + gains[best]
    return [(start, start + length) for start in sorted(chosen)]


def _fitting(
    starts: Sequence[int], length: int, of_interest: NDArray[np.bool_], taken: Collection[int]
) -> Sequence[int]:
    """Return the starts of windows that lie mostly where the mask ``of_interest`` is True, and apart from ``taken``.

    ``taken`` has indices of iterations, ``length`` is that of a window. A condition that no start meets is dropped.
    """
    inside = [start for start in starts if 2 * of_interest[start : start + length].sum() >= length] or starts
    return [start for start in inside if not any(start - length <= at < start + 2 * length for at in taken)] or inside


def _mean_variance(information: Floats, importance: Floats) -> float:
    """Return the mean variance of the predictions, by the information of the windows chosen so far."""
    return float(np.trace(np.linalg.solve(information, importance)))


def load_condition(rollout: Iterations, load: str) -> tuple[int, int, int]:
    """Return when ``load`` begins in a rollout: (least requests, most requests, index of the next iteration).

    The load begins in the first iteration with at least that many requests at once, or with at most that many after
    there were more. The number that does not apply is 0. All three are 0 for prefill, which is at the begin, and if
    the requests never become so few.
    """
    requests, peak = rollout.requests, float(rollout.requests.max(initial=0))
    if load == loads.PREFILL:
        return 0, 0, 0
    if load == loads.FULL:
        least = int(loads.FULL_SHARE * peak) + 1
        return least, 0, int(np.argmax(requests >= least)) + 1
    most = int(max(loads.TAIL_SHARE * peak, 1)) if load == loads.TAIL else int(loads.FULL_SHARE * peak)
    holds = (requests <= most) & (np.maximum.accumulate(requests) > most)
    return (0, most, int(np.argmax(holds)) + 1) if holds.any() else (0, 0, 0)
