"""Lengths and shares as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Return a duration in seconds as text, to about three digits: 2 h 05 min, 340 s, 12.3 s, 45.6 ms.

    Below a microsecond it is "0 s". Minutes are not rounded up.
    """
    if value >= 3600:
        return f"{int(value // 3600)} h {int(value % 3600 // 60):02} min"
    if value >= 100:
        return f"{value:,.0f} s"
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 0.995:
        return f"{value:.2f} s"
    return f"{1000 * value:.3g} ms" if value >= 1e-6 else "0 s"


def share(value: float) -> str:
    """Return a share of 0 to 1 in percent, with the percent sign."""
    return f"{100 * value:.0f} %"


def brief(length: float) -> str:
    """Return a duration in seconds as text without a unit, rounded to 0 to 3 decimals by its size."""
    return f"{length:,.{0 if length >= 1000 else 1 if length >= 100 else 2 if length >= 1 else 3}f}"
