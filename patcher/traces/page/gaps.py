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
    """Return the table of places at which the device was free, longest first, with links to those that are drawn."""
    places = [_spot_link(profile, at, gap) for at, gap in enumerate(profile.gaps)]
    return table_section(tables.gaps(profile), limits.rows, {"step": places})


def _spot_link(profile: RankProfile, at: int, gap: FreeGap) -> Content:
    """Return where an idle place is, by step and time: a link to its frame in a picture, or text if none shows it."""
    drawn = next((lanes.number for lanes in profile.lanes if lanes.number in gap.spots), None)
    if drawn is None or at >= MARKED:
        return Text("step #{number}, {time} after its start", number=gap.unit, time=duration(gap.begin_ns))
    return tag(
        "a",
        Text("step #{number}, {time} after its start", number=drawn, time=duration(gap.spots[drawn][0])),
        href=f"#{_name(profile, at, drawn)}",
    )


def idle_frames(profile: RankProfile, lanes: Lanes, across: Scale, height: float) -> Iterator[Markup]:
    """Yield a frame, ``height`` high, around the longest gap of each of the first 20 idle places in a step's picture.

    An idle place is a point between two kernels at which the device waits. ``lanes`` tell the step; a place without a
    gap in it gets no frame. Places are numbered from 1 in the tooltips. ``across`` maps ns to the width of the picture.
    """
    for at, gap in enumerate(profile.gaps[:MARKED]):
        if lanes.number in gap.spots:
            begin, ns = gap.spots[lanes.number]
            title = Text(
                "{number}: {place}\n{why}\n{time}, begins at {begin}",
                number=at + 1,
                place=cut(place_of(gap)),
                why=cut(why(gap)),
                time=duration(ns),
                begin=duration(begin),
            )
            wide = max(across.length(ns), 1.0)
            name = _name(profile, at, lanes.number)
            yield svg.shape("rect", title=title, id=name, x=across(begin), y=0, width=wide, height=height, class_="gap")


def _name(profile: RankProfile, at: int, unit: int) -> str:
    """Return the id of the frame of a place in a step, unique on the page."""
    return f"gap{zlib.crc32(profile.source.encode('utf-8', 'replace')):x}-{unit}-{at}"
