"""The places where the device was free, in words: what a gap lies between, and why nothing ran there."""

from __future__ import annotations

from patcher.messages import COMMA, Text, joined
from patcher.traces.model import FREE, PARTS, FreeGap, RankProfile
from patcher.traces.words import apart, in_ms, short

_SHORT = {
    "free_host_late_ns": Text("between kernels launched one by one"),
    "free_waiting_ns": Text("between kernels that had been launched"),
    "lead_in_ns": Text("before the first kernel"),
}
_GRAPH = {
    "within": Text("within a replayed graph"),
    "behind": Text("after a replayed graph"),
    "before": Text("before a replayed graph"),
    "between": Text("between two replayed graphs"),
}


_LEAD_IN = Text("lead-in")
_ROOM = 51  # characters: what a line of the terminal has beside its numbers


def place_of(gap: FreeGap) -> str:
    """Return the kernel and stream before which a gap lies; of short gaps, the kind of place."""
    if gap.kind == "place":
        stream = short(gap.stream, 20)
        return Text("before {kernel} on {stream}", short(gap.after, _ROOM - len("before  on ") - len(stream)), stream)
    return (
        Text("within replayed graphs") if gap.graph else _SHORT.get(gap.part, Text("between kernels without a launch"))
    )


def behind(gap: FreeGap) -> str:
    """Return the kernel and the replayed graph after which a gap lies, in words; of short gaps, their number."""
    if gap.kind != "place":
        return Text("1 short gap") if gap.count == 1 else Text("{count:,} short gaps", gap.count)
    before, _ = apart([gap.before, gap.after])
    return joined(COMMA, (gap.before and Text("after {kernel}", before), _GRAPH.get(gap.graph, "")))


def why(gap: FreeGap) -> str:
    """Return why the device was free, and what the host did meanwhile, in words."""
    return joined(COMMA, (reason_of(gap), host_of(gap)))


def reason_of(gap: FreeGap) -> str:
    """Return the reason why the device was free, by the gap's part of the unit."""
    return FREE.get(gap.part) or (_LEAD_IN if gap.part == "lead_in_ns" else PARTS[gap.part])


def host_of(gap: FreeGap) -> str:
    """Return the call, operator or module that the host was in, in words; "" if unknown."""
    operator, module = (short(name) for name in (gap.operator, gap.module))
    around = operator or module
    if operator and module:
        around = Text("{operator} in {module}", operator, module)
    if gap.call:
        call = short(gap.call)
        if around:
            call = Text("{call} ({around})", call, around)
        held = 2 * gap.call_ns >= gap.ns
        return Text("the host was in {call}", call) if held else Text("the host came out of {call}", call)
    if not around:
        return ""
    return Text("the host was in {around}", around) if gap.within else Text("called for by {around}", around)


def first_place(profile: RankProfile, part: str) -> str:
    """Return the longest place in a part of the unit, with its time per unit, in words; "" without any."""
    gap = next((gap for gap in profile.gaps if gap.part == part), None)
    if gap is None:
        return ""
    count = len(profile.units)
    place = joined(COMMA, (place_of(gap), behind(gap), host_of(gap)))
    return Text(
        "{place}: {time} per unit, in {units:,} of {count:,} units", place, in_ms(gap.ns / count), gap.units, count
    )
