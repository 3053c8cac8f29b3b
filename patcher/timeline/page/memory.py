"""The lanes of memory in the picture: of each device and host what is in use, and the part that each role holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from patcher.messages import Text, joined
from patcher.page.markup import Markup, tag
from patcher.timeline.model import ROLES, MemoryPlace, RunTimeline
from patcher.traces.words import size

HEIGHT, GAP = 40, 8
"""Pixels of a lane, and below it."""

MOST = 8
"""Lanes; of more places the fullest devices, then hosts."""

_DOT = " \N{MIDDLE DOT} "
Point = tuple[float, int]


def places(timeline: RunTimeline) -> list[MemoryPlace]:
    """Return the places that have a lane."""
    by_name = {(place.of, place.place): place for place in timeline.memory.places if len(place.points) > 1}
    ordered = (by_name.get((peak.of, peak.place)) for peak in timeline.memory.highest())
    return [place for place in ordered if place is not None][:MOST]


def names(place: MemoryPlace, top: int) -> Iterator[Markup]:
    """Yield the name of a lane with its ``top`` in pixels, and the size of the device or host."""
    label = Text("host {place}", place.place) if place.of == "host" else Text("device {place}", place.place)
    yield tag("text", label, tag("title", label), x=0, y=top + 14)
    most = max(used for _, used, _ in place.points)
    yield tag("text", Text("{used} of {total}", size(most), size(place.total)), x=0, y=top + 28, class_="less")


def areas(
    place: MemoryPlace, top: int, ticks: Callable[[float], int], within: tuple[float, float], least: float
) -> Iterator[Markup]:
    """Yield the areas of a lane, the highest first: what is in use, and below it what the roles hold together.

    ``ticks`` places a time, ``within`` is the visible range in seconds, ``least`` the shortest time between points.
    """
    scale = max(place.total, *(used for _, used, _ in place.points), 1)
    stacked: list[tuple[str, str, list[Point]]] = [
        (Text("other"), "rest", [(at, used) for at, used, _ in place.points])
    ]
    for count in range(len(place.roles), 0, -1):
        role = place.roles[count - 1]
        held = [(at, min(sum(sizes[:count]), used)) for at, used, sizes in place.points]
        stacked.append((ROLES.get(role, role), role, held))
    for name, hue, points in stacked:
        line = _line(points, ticks, within, least, lambda used: round(top + HEIGHT - used / scale * HEIGHT))
        title = tag("title", joined(_DOT, (name, place.place)))
        yield tag("path", title, d=f"M0 {top + HEIGHT}{line}V{top + HEIGHT}", class_=f"curve mem r-{hue}")


def _line(
    points: Sequence[Point], ticks: Callable[[float], int], within: tuple[float, float], least: float,
    height: Callable[[int], int],
) -> str:  # fmt: skip
    """Return a step curve as SVG moves; of points closer than ``least`` seconds, only the highest is drawn.

    ``ticks`` places a time, ``height`` a number of bytes, ``within`` is the visible range in seconds.
    """
    start, end = within
    level = next((height(used) for at, used in reversed(points) if at <= start), height(0))
    moves, last = [f"V{level}"], start
    for at, used in points:
        if not start < at < end or height(used) == level or (at - last < least and height(used) > level):
            continue
        level, last = height(used), at
        moves.append(f"H{ticks(at)}V{level}")
    return "".join([*moves, f"H{ticks(end)}"])
