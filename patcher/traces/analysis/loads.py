"""A change at equal load: least squares of the time of a step on what it held, and on which side it lies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patcher.traces.model import ENOUGH_CAPTURES, EqualLoad, RecordedUnit

BY = ("requests", "tokens", "context")
"""Loads with which the time of a step may grow."""

FREEDOM = 5
"""Steps more than unknowns, below which a fit says nothing."""

APART = 0.05
"""Share left unexplained: if the loads tell the side of a step but for less, side and load cannot be separated."""

Z95, Z98 = 1.959964, 2.326348
"""Half-widths of intervals of 95 and 98 % in standard errors, for many degrees of freedom."""

EXACT98 = {2: 6.964557, 3: 4.540703, 4: 3.746947}
"""Half-widths of an interval of 98 % for few degrees of freedom, where the expansion is off by over 3 %."""

_LEAST = 1e-9
_Column = list[float]


class Fit(NamedTuple):
    """Change of a value between two sides at equal loads, with its standard error, by least squares.

    ``free`` is the number of degrees of freedom, ``share`` that of the variance which loads and side explain, 0 to 1.
    ``by`` names the loads that count, ``unexplained`` is what is left of each value.
    """

    change: float
    error: float
    free: int
    share: float
    by: tuple[str, ...]
    unexplained: Sequence[float]


def fit_change(
    loads: Mapping[str, Sequence[float | None]], is_after: Sequence[bool], values: Sequence[float]
) -> Fit | None:
    """Estimate by least squares how far ``values`` change between two sides at equal ``loads``.

    ``is_after`` tells for each value whether it is from the side after. ``loads`` maps a name, such as requests, to one
    number for each value; a load with a None is not used. Returns None if no load varies, if the loads tell the sides
    apart so that their effects cannot be separated, or if there are too few values.
    """
    base = [_scaled([1.0] * len(values))] if values else []
    used = []
    for name, load in loads.items():
        numbers = [number for number in load if number is not None]
        if len(numbers) < len(load) or not numbers:
            continue
        from_mean, residual = _residual(numbers, base[:1]), _residual(numbers, base)
        if _square(residual) > _LEAST * max(_square(from_mean), 1.0):  # each request that decodes has one token
            base.append(_scaled(residual))
            used.append(name)
    free = len(values) - len(base) - 1
    which = [*map(float, is_after)]
    side, beyond = _residual(which, base), _residual(values, base)
    if not used or free < FREEDOM or _square(side) <= APART * _square(_residual(which, base[:1])):
        return None
    slope = _dot(beyond, side) / _square(side)
    unexplained = [value - slope * other for value, other in zip(beyond, side, strict=True)]
    squares, whole = _square(unexplained), _square(_residual(values, base[:1]))
    error = math.sqrt(squares / free / _square(side))
    return Fit(slope, error, free, 1 - squares / whole if whole else 1.0, tuple(used), unexplained)


def at_equal_load(
    sides: Sequence[Sequence[RecordedUnit]], times: Sequence[int], sizes: Sequence[Sequence[int]] = ()
) -> EqualLoad | None:
    """Estimate the change of a step's time between the sides at equal load, with its 95 % interval, by regression.

    ``times`` has the ns of each step of both sides; ``sizes`` has for each side the number of steps of each capture (a
    recorded window). With it, the interval is also as wide as captures of one side differ. None if no load is known and
    varies, if the loads tell the sides apart, or if there are too few steps.
    """
    units = [unit for side in sides for unit in side]
    loads = {name: [getattr(unit, name) for unit in units] for name in BY}
    fit = fit_change(loads, [at >= len(sides[0]) for at in range(len(units))], times)
    if fit is None:
        return None
    unexplained = iter(fit.unexplained)
    captures = [[statistics.fmean(itertools.islice(unexplained, size)) for size in of_side] for of_side in sizes]
    reach = max(student_half_width(fit.free, Z95) * fit.error, spread_of_captures(*captures))
    change = round(fit.change - reach), round(fit.change), round(fit.change + reach)
    return EqualLoad(change, fit.share, fit.by)


def spread_of_captures(first: Sequence[float] = (), second: Sequence[float] = ()) -> float:
    """Return the half-width of a 98 % interval of the difference of two sides' means, from how their captures differ.

    ``first`` and ``second`` have one value for each capture (recorded window) of a side. The variance is pooled, so a
    single capture is judged by how those of the other side differ. It is 0 with fewer than four captures, or none on a
    side. An interval of 95 % would be too narrow, because a busy machine slows captures by turns. At most one
    comparison in twenty of a program with itself may see a difference.
    """
    if not first or not second or len(first) + len(second) < ENOUGH_CAPTURES:
        return 0.0
    free = len(first) + len(second) - 2
    squares = sum((len(side) - 1) * statistics.variance(side) for side in (first, second) if len(side) > 1)
    errors = EXACT98.get(free) or student_half_width(free, Z98)
    return errors * math.sqrt(squares / free * (1 / len(first) + 1 / len(second)))


def student_half_width(degrees: float, z: float) -> float:
    """Approximate the half-width of a confidence interval, in standard errors, by Student's t distribution.

    ``degrees`` are the degrees of freedom, and ``z`` is the half-width for infinitely many.
    """
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _residual(values: Sequence[float], base: Sequence[_Column]) -> _Column:
    """Return ``values`` less their projection on the columns of ``base``, which are orthonormal."""
    residual = [float(value) for value in values]
    for column in base:
        along = _dot(residual, column)
        residual = [value - along * entry for value, entry in zip(residual, column, strict=True)]
    return residual


def _scaled(column: _Column) -> _Column:
    """Return a column with length 1."""
    length = math.sqrt(_square(column))
    return [value / length for value in column]


def _dot(column: _Column, other: _Column) -> float:
    return math.fsum(a * b for a, b in zip(column, other, strict=True))


def _square(column: _Column) -> float:
    """Return the square of a column's length."""
    return _dot(column, column)
