"""What the page says of how fast things ran for what they had to do."""

from __future__ import annotations

from patcher.page.markup import Content
from patcher.traces.model import Collective, RankProfile
from patcher.traces.page.tables import Cell, PageLimits, table, timed
from patcher.traces.words import cut, size

_TIMES = {
    "usual_ns": "by its neighbours", "excess_ns": "longer by", "waits_ns": "waits for the last rank",
    "transit_ns": "transit", "wait_ns": "waiting", "idle_ns": "idle",
}  # fmt: skip
"""Time of a collective → the head of its column, which is there where one of them has it."""


def collectives(profile: RankProfile, limits: PageLimits) -> Content:
    """Each collective with its size and rate, that which takes most of what is not usual first."""
    known = [one for one in profile.collectives if one.size]
    times = {name: head for name, head in _TIMES.items() if any(getattr(one, name) for one in known)}
    rows = [
        (*_measured(one), *(_timed(getattr(one, name)) for name in times))
        for one in sorted(known, key=lambda one: (-one.excess_ns, -one.ns))
    ]
    heads = ("name", "group", "unit", "n-th there", "size", "time", "GB/s", *times.values())
    about = (
        "GB/s is the size by the time without waiting, as far as that is known. By its neighbours: at the rate of those"
        " of its kind and group that are nearest in size."
    )
    return table("Collectives", heads, rows, limits, about, names=2)


def _measured(one: Collective) -> tuple[str | Cell | int, ...]:
    rate = Cell("", 0) if one.gb_per_s is None else Cell(f"{one.gb_per_s:,.2f}", one.gb_per_s)
    unit, carried = Cell(f"#{one.unit}", one.unit), Cell(size(one.size or 0), one.size)
    return cut(one.kind or one.name), cut(one.group), unit, one.index + 1, carried, timed(one.ns), rate


def _timed(ns: int | None) -> Cell:
    """A time, empty where it is not known."""
    return timed(ns) if ns else Cell("", 0)
