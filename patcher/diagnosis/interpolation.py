"""Composition of micro-batches of all lengths, interpolated between the recorded ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.composition import (
    LEAST_HALF_WIDTH,
    ONE_WINDOW_HALF_WIDTH,
    nonnegative,
    shares_without_profiler,
    weighted,
)
from patcher.diagnosis.iterations import Floats
from patcher.diagnosis.loads import LONG, MEDIUM, NEAR, SHORT, LoadCheck

FEW = 4
"""Recorded micro-batches below which an interval is wider: nothing tells how much equal ones differ."""

ALIKE = 1.1
"""Longest over shortest length up to which recorded micro-batches count as equally long."""

STUDENT = (12.7, 4.3, 3.2, 2.8, 2.6, 2.4, 2.4, 2.3)
"""Standard errors in the half of a 95 % interval, for 1 to 8 degrees of freedom (Student's t distribution)."""


@dataclass(frozen=True)
class Interpolation:
    """Seconds of each class by the length of a micro-batch.

    They are a constant and parts that grow with the length, with its square (attention) and with its cube (what hardly
    any but long ones have), none of them below 0. ``length`` has the seconds that the recorded micro-batches
    take without a profiler, ``class_seconds`` the shape (micro-batches, classes). ``stretched`` is a mask of the
    classes that a profiler makes longer. ``expected`` tells that a length is what others of the same size or number in
    the call take; else it was measured. ``noise`` is the relative standard deviation of the seconds of such others.
    """

    length: Floats
    class_seconds: Floats
    stretched: NDArray[np.bool_]
    expected: bool
    noise: float = 0.0

    def predict_class_seconds(self, length: Floats) -> Floats:
        """Return the predicted seconds of each class of work in micro-batches of these lengths.

        ``length`` has the seconds of each micro-batch; the result has the shape (micro-batches, classes). If all
        recorded micro-batches are equally long, the seconds are proportional to the length.
        """
        if np.ptp(self.length) == 0:
            return np.asarray((length / self.length.mean())[:, None] * self.class_seconds.mean(axis=0))
        weights = 1 / np.maximum(self.length, 1e-9)
        longest = float(self.length.max())
        terms = nonnegative(_powers(self.length / longest), self.class_seconds, weights)
        predicted: Floats = _powers(length / longest) @ terms
        return predicted

    def shares_of(self, length: Floats) -> Floats:
        """Return the share of each class in micro-batches of these lengths; rows add up to 1."""
        return shares_without_profiler(self.predict_class_seconds(length), length, self.stretched)

    def half_widths(self, length: Floats) -> Floats:
        """Return the half-width of the 95 % interval of each class's share of the time of all these micro-batches.

        A class is a kind of work, such as attention. ``length`` has the seconds of each micro-batch. The half-width is
        at least 0.01, or 0.02 if few micro-batches were recorded or no others tell their length. It is also at least
        the change if shares instead of seconds are fitted, and what the recorded shares scatter around the fit. Where
        too few were recorded to scatter, it is the worst effect of noise: that all of it is time of one class.
        """
        few = len(self.length) < FEW or not self.expected
        recorded = shares_without_profiler(self.class_seconds, self.length, self.stretched)
        shares = replace(self, class_seconds=recorded * self.length[:, None]).shares_of(length)
        whole = weighted(self.shares_of(length), length)
        bend = np.abs(weighted(shares, length) - whole)
        count, alike = len(self.length), float(self.length.max()) <= ALIKE * float(self.length.min())
        free = count - (1 if alike else 2)  # degrees of freedom
        squares = ((recorded - self.shares_of(self.length)) ** 2).sum(axis=0)
        error = np.sqrt(squares / max(free, 1) / count)
        if free > 1:
            scatter = STUDENT[min(free, len(STUDENT)) - 1] * error
        else:
            scatter = 2 * np.maximum(error, self.noise * np.maximum(whole, 1 - whole) / np.sqrt(count))
        noise = self.noise * np.sqrt(whole * (1 - whole) / count)
        least = np.full(len(whole), ONE_WINDOW_HALF_WIDTH if few else LEAST_HALF_WIDTH)
        return np.asarray(np.max([least, bend, scatter, noise], axis=0))

    def check(self, length: Floats) -> list[tuple[LoadCheck, NDArray[np.bool_]]]:
        """Check the predicted against the measured seconds of micro-batches; return a check and a mask for each third.

        The thirds, of the range of lengths, are short, medium and long micro-batches; an empty one is left out.
        ``length`` has the seconds of all micro-batches. The predictions are scaled to the same sum, because the
        profiler slows all of them down. If all recorded micro-batches are equally long, so are all predictions. An
        error counts by as much as it exceeds what noise explains.
        """
        total = max(float(length.sum()), 1e-12)
        several = np.ptp(self.length) > 0
        predicted = self.predict_class_seconds(length).sum(axis=1) if several else np.ones(len(length))
        predicted = predicted * total / max(float(predicted.sum()), 1e-12)
        far = (length < NEAR[0] * self.length.min()) | (length > NEAR[1] * self.length.max())
        checks = []
        for load, mask in by_length(length).items():
            measured = float(length[mask].sum())
            error = float(predicted[mask].sum()) - measured
            by_chance = 2 * self.noise * measured / np.sqrt(len(self.length)) if self.expected else 0.0
            error = float(np.copysign(max(abs(error) - by_chance, 0.0), error))
            unlike = float(length[mask & far].sum()) / total
            checks.append((LoadCheck(load, error / max(measured, 1e-12), error / total, unlike, unknown=0.0), mask))
        return checks


def by_length(length: Floats) -> dict[str, NDArray[np.bool_]]:
    """Return ``short``, ``medium`` and ``long`` → the mask of these micro-batches; names without any are left out.

    The limits are at thirds of the range between the shortest and the longest ``length`` (seconds). Equal ones are all
    ``long``. There must be one micro-batch at least.
    """
    low, high = float(length.min()), float(length.max())
    third = (high - low) / 3
    masks = {LONG: length >= high - third, MEDIUM: (length > low + third) & (length < high - third)}
    masks[SHORT] = ~masks[LONG] & ~masks[MEDIUM]
    return {load: masks[load] for load in (SHORT, MEDIUM, LONG) if masks[load].any()}


def _powers(length: Floats) -> Floats:
    """Return 1, length, its square and its cube: shape (micro-batches, 4)."""
    return np.stack([np.ones(len(length)), length, length**2, length**3], axis=1)
