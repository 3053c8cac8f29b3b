"""The free places of the device on the page: a table of places, and their marks among the lanes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from patcher.messages import Text
from patcher.page.markup import Content, Markup, tag
from patcher.page.table import table_section
from patcher.traces import tables
from patcher.traces.model import FreeGap, Lanes, RankProfile
from patcher.traces.page import svg
from patcher.traces.page.limits import PageLimits
from patcher.traces.page.svg import Scale
from patcher.traces.places import place_of, why
from patcher.traces.tables import MARKED
from patcher.traces.words import cut, duration


def free_places(profile: RankProfile, limits: PageLimits) -> Content:
    """The places at which the device was free, that with the most time first."""
    places = [_seen(profile, at, gap) for at, gap in enumerate(profile.gaps)]
    return table_section(tables.gaps(profile), limits.rows, {"unit": places})


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
    """Return what a link leads to: no two places of a page have the same."""
    return f"gap{zlib.crc32(profile.source.encode('utf-8', 'replace')):x}-{unit}-{at}"
