"""The iterations of a rollout by load, and the check of the recorded ones against the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.design import RIDGE, scaling
from patcher.diagnosis.iterations import Floats, Iterations
from patcher.messages import Text

PREFILL, FULL, MIDDLE, TAIL = "prefill", "full", "middle", "tail"
SHORT, MEDIUM, LONG = "short", "medium", "long"
LOADS = {
    PREFILL: Text("prefill"), FULL: Text("full load"), MIDDLE: Text("medium load"), TAIL: Text("tail"),
    SHORT: Text("short"), MEDIUM: Text("medium"), LONG: Text("long"),
}  # fmt: skip
"""Load of an iteration, or length of a micro-batch → its name for people."""

FULL_SHARE, TAIL_SHARE = 2 / 3, 0.1
"""Share of the most requests at once from which on the load is full, and below which it is a tail."""

MOST_ERROR = 0.05
"""Error of a predicted time, as share of the whole, above which the recorded iterations do not support a load."""

UNLIKE_SHARE, UNLIKE_ERROR = 0.2, 0.02
"""Where more than this share of the whole lies in iterations unlike any recorded one, the error above which a load is
not supported.
"""

NEAR = (0.8, 1.25)
"""Features are near the recorded ones from this share of the smallest to this multiple of the largest."""

MOST_UNKNOWN = 4.0
"""How many times the noise of one recorded iteration a load's error may be, as a share of the whole. With designed
windows it is 0.1 to 0.2 times. Beyond this, no recorded iteration tells what some feature of the load costs.

With these three, 86 % of the random plans whose classes were over two points off were noticed, and 31 % of the others
withheld: 560 plans for 14 real rollouts. No logistic fit of the same figures, tested on other rollouts, does better.
"""

WAIT = 3.0
"""An iteration that takes this many times its predicted time waited for something that no recorded one shows."""


@dataclass(frozen=True)
class LoadCheck:
    """Check of the iterations of one load.

    ``relative`` is the error of the predicted time as a share of the measured time, above 0 if too much is predicted;
    ``of_whole`` is the same error as a share of all seconds, and ``unlike`` the share of all seconds in iterations
    whose features no recorded iteration is near. ``unknown`` is the error that comes of one recorded iteration's noise,
    as a multiple of it and a share of all seconds.
    """

    load: str
    relative: float
    of_whole: float
    unlike: float
    unknown: float

    @property
    def is_known(self) -> bool:
        """Whether most of this load is like recorded iterations, and these tell the cost of each of its features."""
        return self.unlike <= UNLIKE_SHARE and self.unknown <= MOST_UNKNOWN

    @property
    def supported(self) -> bool:
        """Tell whether the recorded iterations predict this load's time within 5 % of all seconds.

        The limit is 2 % if over a fifth of all seconds lie in iterations of this load that are unlike recorded ones.
        False, too, if no recorded iteration tells the cost of one of its features.
        """
        most = MOST_ERROR if self.unlike <= UNLIKE_SHARE else UNLIKE_ERROR
        return self.unknown <= MOST_UNKNOWN and abs(self.of_whole) <= most


def by_load(iterations: Iterations) -> dict[str, NDArray[np.bool_]]:
    """Return ``prefill``, ``full``, ``middle``, ``tail`` → a mask of its iterations; loads without any are left out.

    Any prompt token makes a prefill. Full load is above two thirds of the most requests at once, a tail at most a
    tenth of them, or one request.
    """
    requests, prefill = iterations.requests, iterations.prefill > 0
    peak = float(requests.max(initial=0))
    full, tail = requests > FULL_SHARE * peak, requests <= max(TAIL_SHARE * peak, 1)
    masks = {PREFILL: prefill, FULL: ~prefill & full, MIDDLE: ~prefill & ~full & ~tail, TAIL: ~prefill & tail & ~full}
    return {load: mask for load, mask in masks.items() if mask.any()}


def median_ratio(seconds: Floats, predicted: Floats) -> float:
    """Return the median of measured over ``predicted`` seconds: the factor by which a profiler slows iterations down.

    Iterations without a predicted time are left out; 1 if none is left.
    """
    usable = predicted > 0
    return float(np.median(seconds[usable] / predicted[usable])) if usable.any() else 1.0


def excess(seconds: Floats, predicted: Floats, times: float) -> Floats:
    """Return by how much each iteration took longer than ``predicted``, 0 for those below ``times`` as long."""
    return np.where(seconds > times * predicted, seconds - predicted, 0.0)


def total_errors(predicted: Floats, iterations: Iterations) -> dict[str, float]:
    """Return load → predicted minus measured seconds, summed over the iterations with this load.

    Loads are prefill, full, middle and tail; those without iterations are left out. ``predicted`` has a value for each
    iteration, and is scaled to the sum of the measured ones first.
    """
    seconds = iterations.seconds
    scaled = predicted * float(seconds.sum()) / max(float(predicted.sum()), 1e-12)
    return {load: float((scaled - seconds)[mask].sum()) for load, mask in by_load(iterations).items()}


def check_loads(errors: Mapping[str, float], iterations: Iterations, recorded_features: Floats) -> list[LoadCheck]:
    """Check for each load how well its time was predicted, and how much of it is unlike every recorded iteration.

    Loads are prefill, full, middle and tail, in this order; those without iterations are left out. ``errors`` maps the
    loads of ``iterations``, those of the timeline, to predicted minus measured seconds. ``recorded_features`` are those
    of the recorded iterations: shape (recorded iterations, features).
    """
    features, seconds = iterations.features, iterations.seconds
    total = max(float(seconds.sum()), 1e-12)
    low, high = recorded_features.min(axis=0) * NEAR[0], recorded_features.max(axis=0) * NEAR[1]
    varying = slice(1, 4)  # the other features follow from these
    far = ((features < low) | (features > high))[:, varying].any(axis=1)
    scale = scaling(iterations)
    recorded, scaled = scale(recorded_features), scale(features)
    information = RIDGE * np.eye(scaled.shape[1]) + recorded.T @ recorded
    checks = []
    for load, mask in by_load(iterations).items():
        measured = float(seconds[mask].sum())
        unlike = float(seconds[mask & far].sum()) / total
        mean = (scaled[mask] * seconds[mask, None]).sum(axis=0) / total
        unknown = float(np.sqrt(mean @ np.linalg.solve(information, mean)))
        checks.append(LoadCheck(load, errors[load] / max(measured, 1e-12), errors[load] / total, unlike, unknown))
    return checks
