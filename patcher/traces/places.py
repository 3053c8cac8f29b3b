"""Where the device was free, in words: what a gap lies between, and why nothing ran there."""

from __future__ import annotations

from patcher.traces.model import FREE, PARTS, FreeGap, RankProfile
from patcher.traces.words import apart, in_ms, percent, short

_SHORT = {
    "free_host_late_ns": "between kernels launched one by one",
    "free_waiting_ns": "between kernels that had been launched",
    "lead_in_ns": "before the first kernel",
}
_GRAPH = {
    "within": "within a replayed graph",
    "behind": "after a replayed graph",
    "before": "before a replayed graph",
    "between": "between two replayed graphs",
}


_ROOM = 60


def place_of(gap: FreeGap, room: int = _ROOM) -> str:
    """Before which kernel it lies; of short ones, between which. As long as there is ``room``."""
    if gap.kind == "place":
        stream = f" on {short(gap.stream, 20)}"
        return f"before {short(gap.after, room - len('before ') - len(stream))}{stream}"
    return "within replayed graphs" if gap.graph else _SHORT.get(gap.part, "between kernels without a launch")


def behind(gap: FreeGap) -> str:
    """Behind which kernel it lies, and how to the replay of a graph; of short ones, how many they are."""
    if gap.kind != "place":
        return f"{gap.count:,} short gap{'s' * (gap.count != 1)}"
    before, _ = apart([gap.before, gap.after])
    return ", ".join(filter(None, (gap.before and f"after {before}", _GRAPH.get(gap.graph, ""))))


def why(gap: FreeGap) -> str:
    """Return what the host did meanwhile, and what else is known of the reason."""
    return ", ".join(filter(None, (reason_of(gap), host_of(gap))))


def reason_of(gap: FreeGap) -> str:
    """Return the reason of the part of the unit that it is of."""
    return FREE.get(gap.part) or PARTS[gap.part].partition(",")[0]


def host_of(gap: FreeGap) -> str:
    """Return what the host was in; "" where that is not known."""
    operator, module = (short(name) for name in (gap.operator, gap.module))
    around = " in ".join(filter(None, (operator, module)))
    if gap.call:
        held = "was in" if 2 * gap.call_ns >= gap.ns else "came out of"
        return f"the host {held} {short(gap.call)}{f' ({around})' if around else ''}"
    if not around:
        return ""
    return f"the host was in {around}" if gap.within else f"called for by {around}"


def first_place(profile: RankProfile, part: str) -> str:
    """Return the first gap of a part of the time, as the end of a sentence; "" where none is known."""
    gap = next((gap for gap in profile.gaps if gap.part == part), None)
    if gap is None:
        return ""
    count = len(profile.units)
    words = ", ".join(filter(None, (place_of(gap), behind(gap), host_of(gap))))
    return f"{words}: {in_ms(gap.ns / count)} per unit, in {gap.units:,} of {count:,} units"


def share_of(gap: FreeGap, profile: RankProfile) -> str:
    """Its share of the time of all units."""
    return percent(gap.ns / (profile.total_ns or 1))
