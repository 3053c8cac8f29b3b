"""The choice of the iterations to record, from the timeline alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis import loads
from patcher.diagnosis.design import RIDGE, scaling
from patcher.diagnosis.iterations import Floats, Iterations

WINDOWS, LENGTH = 8, 5
"""Number of windows, and of iterations in each. In 22 of 23 real rollouts that they supported, every class above 5 %
was within 1.5 points, and within 2.1 in the other; on a machine that others used in 17 of 21, and within 2.1. Six
windows were within 1.5 points in 20 of the 23.
"""


class LoadCondition(NamedTuple):
    """Number of requests at once from which a recorder counts, and the index of the first iteration counted then.

    It counts after the first iteration with at least ``least`` requests, or else with at most ``most`` after there were
    more. With 0 for both, it counts from the start of a rollout.
    """

    least: int
    most: int
    origin: int


FROM_START = LoadCondition(0, 0, 0)


def choose_windows(
    rollout: Iterations,
    *,
    first: int,
    recorded: Floats | None = None,
    taken: Collection[int] = (),
    lacking: NDArray[np.bool_] | None = None,
) -> list[tuple[int, int]]:
    """Choose the iterations of a rollout whose recording tells most of its composition, as half-open ranges in order.

    There are at most `WINDOWS` ranges of `LENGTH` iterations, none before iteration ``first``. None has the last
    iteration, whose recording may go on until the next rollout begins. They do not touch, because opening one disturbs
    the next iteration. ``recorded`` has the features, of shape (iterations, features), of iterations recorded before,
    and ``taken`` the indices of these. If possible, no window lies near these, and half of the windows lie where the
    mask ``lacking`` is True. If at most `LENGTH` iterations are left from ``first`` on, they are the only range, the
    last one included; [] if none are.
    """
    # Greedy I-optimal design: each next window is the one that most lowers the mean variance of the predictions of all
    # iterations, weighted by their seconds.
    count = len(rollout)
    if count - first <= LENGTH:
        return [(first, count)] if count > first else []
    everywhere = np.ones(count, dtype=bool)
    lacking = everywhere if lacking is None or not lacking.any() else lacking
    scale = scaling(rollout)
    scaled = scale(rollout.features)
    gains = {
        start: scaled[start : start + LENGTH].T @ scaled[start : start + LENGTH]
        for start in range(first, count - LENGTH, LENGTH // 2)
    }
    information = RIDGE * np.eye(scaled.shape[1])
    if recorded is not None and len(recorded):
        information = information + scale(recorded).T @ scale(recorded)
    chosen: list[int] = []
    for _ in range(WINDOWS):
        apart = [start for start in gains if all(abs(start - other) > LENGTH for other in chosen)]
        if not apart:
            break
        # What is lacking comes first. The others are for everything, which needs windows that differ from these.
        of_interest = lacking if 2 * len(chosen) < WINDOWS else everywhere
        importance = (
            (scaled[of_interest] * rollout.seconds[of_interest, None]).T
            @ scaled[of_interest]
            / rollout.seconds[of_interest].sum()
        )
        candidates = _preferred_starts(apart, of_interest, taken)
        variances = _mean_variances(information + np.stack([gains[start] for start in candidates]), importance)
        best = candidates[int(np.argmin(variances))]
        chosen.append(best)
        information = information + gains[best]
    return [(start, start + LENGTH) for start in sorted(chosen)]


def _preferred_starts(starts: Sequence[int], of_interest: NDArray[np.bool_], taken: Collection[int]) -> Sequence[int]:
    """Return those of ``starts`` whose windows lie mostly where ``of_interest`` is True, and away from ``taken``.

    A start is the index of a window's first iteration, ``of_interest`` a mask of iterations, and ``taken`` has indices
    of recorded ones. A condition that no start meets is dropped.
    """
    inside = [start for start in starts if 2 * of_interest[start : start + LENGTH].sum() >= LENGTH] or starts
    return [start for start in inside if not any(start - LENGTH <= at < start + 2 * LENGTH for at in taken)] or inside


def _mean_variances(information: Floats, importance: Floats) -> Floats:
    """Return the mean variance of the predictions for each matrix of ``information``, that of a choice of windows."""
    # NumPy 1 takes a matrix without the first axis for vectors.
    variances: Floats = np.trace(np.linalg.solve(information, importance[None]), axis1=1, axis2=2)
    return variances


def load_condition(rollout: Iterations, load: str) -> LoadCondition:
    """Return when ``load`` begins in a rollout, by the number of requests at once.

    A load is prefill, full, middle or tail. The result is `FROM_START` for prefill, which comes first, and if there
    never are so few requests after more.
    """
    requests, peak = rollout.requests, float(rollout.requests.max(initial=0))
    if load == loads.PREFILL:
        return FROM_START
    if load == loads.FULL:
        least = int(loads.FULL_SHARE * peak) + 1
        return LoadCondition(least, 0, int(np.argmax(requests >= least)) + 1)
    most = int(max(loads.TAIL_SHARE * peak, 1)) if load == loads.TAIL else int(loads.FULL_SHARE * peak)
    holds = (requests <= most) & (np.maximum.accumulate(requests) > most)
    return LoadCondition(0, most, int(np.argmax(holds)) + 1) if holds.any() else FROM_START
