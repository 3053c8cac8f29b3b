"""The memory lanes of the picture: for each device and host the memory in use, and the part that each role holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from patcher.messages import Text, joined
from patcher.page.markup import Markup, tag
from patcher.timeline.model import ROLES, MemoryPlace, RunTimeline
from patcher.timeline.shares import coarser
from patcher.traces.words import size

HEIGHT, GAP = 40, 8
"""Height of a lane, and of the gap below it, in pixels."""

MOST = 8
"""Most lanes; of more places, the fullest devices come first, then the fullest hosts."""

_DOT = " \N{MIDDLE DOT} "
Point = tuple[float, int]


def places(timeline: RunTimeline) -> list[MemoryPlace]:
    """Return up to eight devices and hosts that have a lane: devices before hosts, and the fullest first."""
    by_name = {(place.of, place.place): place for place in timeline.memory.places if len(place.points) > 1}
    ordered = (by_name.get((peak.of, peak.place)) for peak in timeline.memory.highest())
    return [place for place in ordered if place is not None][:MOST]


def labels(place: MemoryPlace, top: int) -> Iterator[Markup]:
    """Yield the SVG texts beside a memory lane: name of the device or host, and its peak; ``top`` is in pixels."""
    label = Text("host {host}", place.place) if place.of == "host" else Text("device {device}", place.place)
    yield tag("text", label, tag("title", label), x=0, y=top + 14)
    most = max(used for _, used, _ in place.points)
    yield tag(
        "text", Text("peak {used} of {total}", used=size(most), total=size(place.total)), x=0, y=top + 28, class_="less"
    )


def areas(
    place: MemoryPlace, top: int, ticks: Callable[[float], int], within: tuple[float, float], least: float
) -> Iterator[Markup]:
    """Yield the SVG areas of a memory lane, the highest first: all memory in use, then the stacked parts of the roles.

    The area of a role is what it and the roles before it hold, at most the memory in use.
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
        line = step_curve(points, ticks, within, least, lambda used: round(top + HEIGHT - used / scale * HEIGHT))
        title = tag("title", joined(_DOT, (name, place.place)))
        yield tag("path", title, d=f"M0 {top + HEIGHT}{line}V{top + HEIGHT}", class_=f"curve mem r-{hue}")


def step_curve(
    points: Sequence[Point], ticks: Callable[[float], int], within: tuple[float, float], least: float,
    height: Callable[[int], int],
) -> str:  # fmt: skip
    """Return a step curve through points (time in seconds, number) as SVG path commands, without the move to its start.

    It begins at the level of the last point before the visible range, or of 0. ``ticks`` returns the horizontal
    position of a time, ``height`` the vertical one of a number, ``within`` is the visible range in seconds.
    """
    start, end = within
    level = next((height(used) for at, used in reversed(points) if at <= start), height(0))
    moves = [f"V{level}"]
    visible = [point for point in points if start < point[0] < end]
    for at, used in coarser(visible, least):
        if height(used) != level:
            level = height(used)
            moves.append(f"H{ticks(at)}V{level}")
    return "".join([*moves, f"H{ticks(end)}"])
