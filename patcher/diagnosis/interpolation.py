"""Composition of micro-batches of all lengths, interpolated between the recorded ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patcher.diagnosis.composition import LEAST_HALF_WIDTH, ONE_WINDOW_HALF_WIDTH, nonnegative, weighted
from patcher.diagnosis.iterations import Floats
from patcher.diagnosis.loads import LONG, MEDIUM, NEAR, SHORT, LoadCheck

FEW = 4
"""Recorded micro-batches below which an interval is wider: nothing tells how much equal ones differ."""


@dataclass(frozen=True)
class Interpolation:
    """Seconds of each class by the length of a micro-batch.

    They are a constant, a part that grows with the length, and one with its square (attention), none of them below 0.
    ``length`` has the seconds that the recorded micro-batches take without a profiler, ``class_seconds`` the shape
    (micro-batches, classes). ``sized`` tells that the lengths are known from the sizes; else they are those under the
    profiler. ``noise`` is the relative standard deviation of micro-batches of about the same size.
    """

    length: Floats
    class_seconds: Floats
    sized: bool
    noise: float = 0.0

    def class_seconds_of(self, length: Floats) -> Floats:
        """Return the seconds of each class in micro-batches of these lengths: (micro-batches, classes)."""
        if np.ptp(self.length) == 0:
            return np.asarray((length / self.length.mean())[:, None] * self.class_seconds.mean(axis=0))
        weights = 1 / np.maximum(self.length, 1e-9)
        longest = float(self.length.max())
        terms = [nonnegative(_powers(self.length / longest), column, weights) for column in self.class_seconds.T]
        predicted: Floats = _powers(length / longest) @ np.stack(terms, axis=1)
        return predicted

    def shares_of(self, length: Floats) -> Floats:
        """Return the share of each class in micro-batches of these lengths; rows add up to 1."""
        return _normalized(self.class_seconds_of(length))

    def half_widths(self, length: Floats) -> Floats:
        """Return the half-width of each class's share of all micro-batches of these lengths.

        It is the largest of: the least one, what recorded micro-batches differ by from the fit, what a fit of shares
        instead of seconds would change, and the noise, which may lie in any class of the few recorded ones.
        """
        few = len(self.length) < FEW or not self.sized
        recorded = _normalized(self.class_seconds)
        shares = Interpolation(self.length, recorded * self.length[:, None], self.sized).shares_of(length)
        whole = weighted(self.shares_of(length), length)
        bend = np.abs(weighted(shares, length) - whole)
        noise = self.noise * np.sqrt(whole * (1 - whole) / len(self.length))
        squares = ((recorded - self.shares_of(self.length)) ** 2).sum(axis=0)
        spread = 2 * np.sqrt(squares / max(len(recorded) - 2, 1) / len(recorded))
        least = np.full(len(whole), ONE_WINDOW_HALF_WIDTH if few else LEAST_HALF_WIDTH)
        return np.asarray(np.max([least, bend, spread, noise], axis=0))

    def check(self, length: Floats) -> list[tuple[LoadCheck, NDArray[np.bool_]]]:
        """Return for each third of the lengths how well the recorded micro-batches predict it, and a mask of it.

        The prediction has one common factor, by which the profiler slows all of them down. Recorded ones of a single
        length predict that length for all.
        """
        total = max(float(length.sum()), 1e-12)
        several = np.ptp(self.length) > 0
        predicted = self.class_seconds_of(length).sum(axis=1) if several else np.ones(len(length))
        predicted = predicted * total / max(float(predicted.sum()), 1e-12)
        far = (length < NEAR[0] * self.length.min()) | (length > NEAR[1] * self.length.max())
        checks = []
        for load, mask in by_length(length).items():
            measured = float(length[mask].sum())
            error = float(predicted[mask].sum()) - measured
            unlike = float(length[mask & far].sum()) / total
            checks.append((LoadCheck(load, error / max(measured, 1e-12), error / total, unlike, unknown=0.0), mask))
        return checks


def by_length(length: Floats) -> dict[str, NDArray[np.bool_]]:
    """Return length → a mask of its micro-batches: thirds of the range between the shortest and the longest."""
    low, high = float(length.min()), float(length.max())
    third = (high - low) / 3
    masks = {LONG: length >= high - third, MEDIUM: (length > low + third) & (length < high - third)}
    masks[SHORT] = ~masks[LONG] & ~masks[MEDIUM]
    return {load: masks[load] for load in (SHORT, MEDIUM, LONG) if masks[load].any()}


def _powers(length: Floats) -> Floats:
    """Return 1, length and its square: shape (micro-batches, 3)."""
    return np.stack([np.ones(len(length)), length, length**2], axis=1)


def _normalized(class_seconds: Floats) -> Floats:
    """Return the seconds of each class as shares of their micro-batch."""
    shares: Floats = class_seconds / np.maximum(class_seconds.sum(axis=1, keepdims=True), 1e-12)
    return shares
