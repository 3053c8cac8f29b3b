"""A change at equal load: least squares of the time of a step on what it held, and on which side it lies."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from patcher.traces.model import EqualLoad, RecordedUnit

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


def at_equal_load(
    sides: Sequence[Sequence[RecordedUnit]], times: Sequence[int], sizes: Sequence[Sequence[int]] = ()
) -> EqualLoad | None:
    """Estimate the change of a unit's time between the sides at equal load, with its 95 % interval, by regression.

    ``times`` are in ns, one for each unit of both sides; ``sizes`` has the number of units of each capture of a side.
    None if no load is known, no load differs, the load differs with the side alone, or there are too few units.
    """
    units = [unit for side in sides for unit in side]
    base = [_scaled([1.0] * len(units))]
    used = []
    for name in BY:
        values = [getattr(unit, name) for unit in units]
        if None in values:
            continue
        own_side = _beyond(values, base[:1])
        residual = _beyond(values, base)
        if _square(residual) > _LEAST * max(_square(own_side), 1.0):  # each request that decodes has one token
            base.append(_scaled(residual))
            used.append(name)
    free = len(units) - len(base) - 1
    which = [float(at >= len(sides[0])) for at in range(len(units))]
    side, ns = _beyond(which, base), _beyond(times, base)
    if not used or free < FREEDOM or _square(side) <= APART * _square(_beyond(which, base[:1])):
        return None
    slope = _dot(ns, side) / _square(side)
    left = [time - slope * other for time, other in zip(ns, side, strict=True)]
    unexplained = _square(left)
    reach = _student(free, Z95) * math.sqrt(unexplained / free / _square(side))
    units_left = iter(left)
    captures = [[statistics.fmean(itertools.islice(units_left, size)) for size in of_side] for of_side in sizes]
    reach = max(reach, spread_of_captures(*captures))
    whole = _square(_beyond(times, base[:1]))
    change = round(slope - reach), round(slope), round(slope + reach)
    return EqualLoad(change, 1 - unexplained / whole if whole else 1.0, tuple(used))


def spread_of_captures(first: Sequence[float] = (), second: Sequence[float] = ()) -> float:
    """Return the half-width of a 98 % interval of the difference of two means, one value for each capture of a side.

    Student's t with the pooled variance of the sides; 0 with less than two captures on one. Not 95 %: a busy machine
    slows captures by turns, and at most one comparison in twenty of a program with itself shall see a difference.
    """
    if min(len(first), len(second)) < 2:
        return 0.0
    free = len(first) + len(second) - 2
    squares = sum((len(side) - 1) * statistics.variance(side) for side in (first, second))
    errors = EXACT98.get(free) or _student(free, Z98)
    return errors * math.sqrt(squares / free * (1 / len(first) + 1 / len(second)))


def _student(free: int, z: float) -> float:
    """Return the half-width of an interval in standard errors: Student's t with ``free`` degrees of freedom.

    ``z`` is the half-width for many.
    """
    return z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)


def _beyond(values: Sequence[float], base: Sequence[_Column]) -> _Column:
    """Return the residual of ``values`` after projection on the columns of ``base``, which are orthonormal."""
    residual = [float(value) for value in values]
    for column in base:
        along = _dot(residual, column)
        residual = [value - along * entry for value, entry in zip(residual, column, strict=True)]
    return residual


def _scaled(column: _Column) -> _Column:
    length = math.sqrt(_square(column))
    return [value / length for value in column]


def _dot(column: _Column, other: _Column) -> float:
    return math.fsum(a * b for a, b in zip(column, other, strict=True))


def _square(column: _Column) -> float:
    return _dot(column, column)
