"""Where the device was free, on the page: a table of places, and their marks among the lanes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from patcher.messages.text import Text
from patcher.page.markup import Content, Markup, tag
from patcher.traces.model import FreeGap, Lanes, RankProfile
from patcher.traces.page import svg
from patcher.traces.page.svg import Scale
from patcher.traces.page.tables import Cell, PageLimits, table, timed
from patcher.traces.places import behind, host_of, place_of, reason_of, why
from patcher.traces.words import cut, duration, millis, percent

MARKED = 20
"""Places that are marked among the lanes."""


def free_places(profile: RankProfile, limits: PageLimits) -> Content:
    """The places at which the device was free, that with the most time first."""
    count, total = len(profile.units) or 1, profile.total_ns or 1
    rows = []
    for at, gap in enumerate(profile.gaps):
        rows.append((
            cut(place_of(gap)), cut(host_of(gap) or reason_of(gap)), Cell(millis(gap.ns / count), gap.ns),
            Cell(percent(gap.ns / total), gap.ns, (gap.ns / total, gap.part)), gap.units,
            Cell(_seen(profile, at, gap), gap.unit), gap.count, timed(gap.longest_ns), reason_of(gap), cut(behind(gap)),
        ))  # fmt: skip
    heads = (
        Text("place"), Text("why"), Text("ms per unit"), Text("share of unit time"), Text("units"), Text("where"),
        Text("gaps"), Text("longest"), Text("free"), "",
    )  # fmt: skip
    about = Text(
        "Nothing ran on the device there. A row sums the gaps between the same kernels, with the same call, operator"
        " and module on the host. The first {marked} are framed in the units drawn above.",
        MARKED,
    )
    return table(Text("Where the device was free"), heads, rows, limits, about, names=2)


def _seen(profile: RankProfile, at: int, gap: FreeGap) -> Content:
    """The unit that has most of it, or the link to where it is drawn."""
    drawn = next((lanes.number for lanes in profile.lanes if lanes.number in gap.spots), None)
    if drawn is None or at >= MARKED:
        return Text("#{number} at {time}", gap.unit, duration(gap.begin_ns))
    return tag(
        "a", Text("#{number} at {time}", drawn, duration(gap.spots[drawn][0])), href=f"#{_name(profile, at, drawn)}"
    )


def frames(profile: RankProfile, lanes: Lanes, across: Scale, height: float) -> Iterator[Markup]:
    """The places that lie in the unit of ``lanes``, as frames around all of these."""
    for at, gap in enumerate(profile.gaps[:MARKED]):
        if lanes.number in gap.spots:
            begin, ns = gap.spots[lanes.number]
            title = Text(
                "{number}: {place}\n{why}\n{time} at {begin}",
                at + 1,
                cut(place_of(gap)),
                cut(why(gap)),
                duration(ns),
                duration(begin),
            )
            wide = max(across.length(ns), 1.0)
            name = _name(profile, at, lanes.number)
            yield svg.shape("rect", title=title, id=name, x=across(begin), y=0, width=wide, height=height, class_="gap")


def _name(profile: RankProfile, at: int, unit: int) -> str:
    """What a link leads to: no two places of a page have the same."""
    return f"gap{zlib.crc32(profile.source.encode('utf-8', 'replace')):x}-{unit}-{at}"
