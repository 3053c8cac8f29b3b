"""The iterations of a rollout by load, and the check of the recorded ones against the timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.design import RIDGE, scaling
from patcher.diagnosis.iterations import Floats, Iterations
from patcher.messages import Text

PREFILL, FULL, MIDDLE, TAIL = "prefill", "full", "middle", "tail"
SHORT, MEDIUM, LONG = "short", "medium", "long"
LOADS = {
    PREFILL: Text("prefill"), FULL: Text("full load"), MIDDLE: Text("middle load"), TAIL: Text("tail"),
    SHORT: Text("short"), MEDIUM: Text("medium"), LONG: Text("long"),
}  # fmt: skip
"""Load of an iteration, or length of a micro-batch → its name for people."""

FULL_SHARE, TAIL_SHARE = 2 / 3, 0.1
"""Share of the most requests at once from which on the load is full, and below which it is a tail."""

LEAST_MISFIT, MOST_MISFIT = 0.03, 0.05
"""Error of a load's predicted time, as share of the whole, above which it is not supported: as large as an iteration
differs from the next one for no reason that the timeline knows, but not below or above these.
"""

MOST_UNKNOWN = 3.0
"""How many times the noise of one recorded iteration a load's error may be, as a share of the whole. With designed
windows it is 0.1 to 0.2 times. Beyond this, no recorded iteration tells what some feature of the load costs.
"""

WAIT = 3.0
"""An iteration that takes this many times its predicted time waited for something that no recorded one shows."""


@dataclass(frozen=True)
class LoadCheck:
    """Check of the iterations of one load.

    ``relative`` is the predicted over the measured time, less 1, ``of_whole`` the same error as a share of all seconds,
    and ``allowed`` how large that may be. ``unknown`` is the error that comes of one recorded iteration's noise, as a
    multiple of it and a share of all seconds.
    """

    load: str
    relative: float
    of_whole: float
    allowed: float
    unknown: float

    @property
    def supported(self) -> bool:
        """Whether the recorded iterations tell the time of this load, and agree with the timeline."""
        return self.is_known and abs(self.of_whole) <= self.allowed

    @property
    def is_known(self) -> bool:
        """Whether the recorded iterations tell what each feature of this load costs."""
        return self.unknown <= MOST_UNKNOWN


def by_load(iterations: Iterations) -> dict[str, NDArray[np.bool_]]:
    """Return load → a mask of its iterations, without loads that have none."""
    requests, prefill = iterations.requests, iterations.prefill > 0
    peak = float(requests.max(initial=0))
    full, tail = requests > FULL_SHARE * peak, requests <= max(TAIL_SHARE * peak, 1)
    masks = {PREFILL: prefill, FULL: ~prefill & full, MIDDLE: ~prefill & ~full & ~tail, TAIL: ~prefill & tail & ~full}
    return {load: mask for load, mask in masks.items() if mask.any()}


def median_ratio(seconds: Floats, predicted: Floats) -> float:
    """Return the median of ``seconds`` over ``predicted``, 1 if empty: by so much a profiler changes iterations."""
    usable = predicted > 0
    return float(np.median(seconds[usable] / predicted[usable])) if usable.any() else 1.0


def excess(seconds: Floats, predicted: Floats, times: float) -> Floats:
    """Return by how much each iteration took longer than ``predicted``, 0 for those below ``times`` as long."""
    return np.where(seconds > times * predicted, seconds - predicted, 0.0)


def check(predicted: Floats, iterations: Iterations, recorded_features: Floats) -> list[LoadCheck]:
    """Return for each load how well ``predicted`` agrees with the timeline's seconds, after one common factor."""
    seconds = iterations.seconds
    total = max(float(seconds.sum()), 1e-12)
    predicted = predicted * total / max(float(predicted.sum()), 1e-12)
    allowed = min(max(_noise(seconds / np.maximum(predicted, 1e-12)), LEAST_MISFIT), MOST_MISFIT)
    scale = scaling(iterations)
    recorded, scaled = scale(recorded_features), scale(iterations.features)
    information = RIDGE * np.eye(scaled.shape[1]) + recorded.T @ recorded
    checks = []
    for load, mask in by_load(iterations).items():
        measured = float(seconds[mask].sum())
        error = float(predicted[mask].sum()) - measured
        mean = (scaled[mask] * seconds[mask, None]).sum(axis=0) / total
        unknown = float(np.sqrt(mean @ np.linalg.solve(information, mean)))
        checks.append(LoadCheck(load, error / max(measured, 1e-12), error / total, allowed, unknown))
    return checks


def _noise(ratios: Floats) -> float:
    """Return the robust relative standard deviation between neighbours, which have nearly the same load."""
    if len(ratios) < 2:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(ratios))) / np.sqrt(2) / max(float(np.median(ratios)), 1e-12))
