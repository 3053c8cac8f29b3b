"""The places where the device was free, in words: what a gap lies between, and why nothing ran there."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from patcher.messages import COMMA, Text, joined
from patcher.traces.model import FREE, LEAD_IN, PARTS, FreeGap, RankProfile
from patcher.traces.words import duration, host_name, in_ms, percent, short, shorten_distinct

_SHORT = {
    "free_host_late_ns": Text("between kernels that are launched one by one"),
    "free_latency_ns": Text("between kernels that are launched one by one"),
    "free_blocked_ns": Text("between kernels that are launched one by one"),
    "free_waiting_ns": Text("before kernels that were launched in time, but started late"),
    LEAD_IN: Text("before the first kernel"),
}
_GRAPH = {
    "within": Text("inside a replayed graph"),
    "behind": Text("after a replayed graph"),
    "before": Text("before a replayed graph"),
    "between": Text("between two replayed graphs"),
}


_BEFORE = Text("before the first kernel")
_DRAINS = re.compile(r"synchroni[sz]e|memcpy(?!\w*async)", re.IGNORECASE)
"""Calls of a device's runtime that always return only when the device has done its work."""

_FUNCTION = re.compile(  # of Python, that does not wait by its name
    r"^(?:.+\(\d+\): |built-in )(?!.*\b_?(?:wait\w*|acquire|poll|select|recv\w*|read\w*|sleep|join|get|result)$)"
)

_FAMILIES = {name: re.compile(name.replace("…", r"\w+")) for name in ("aclnn…GetWorkspaceSize", "…_Tiling", "aclnn…")}

_CLEARLY_LESS = 0.75  # of the idle time within a range: a function in it that covers less is not named instead

_ROOM = 51  # characters: what a line of the terminal has beside its numbers


def place_of(gap: FreeGap) -> str:
    """Return in words where a gap lies: before which kernel, on which stream."""
    if gap.kind == "place":
        stream = short(gap.stream, 20)
        return Text(
            "before {kernel} on {stream}",
            kernel=short(gap.after, _ROOM - len("before  on ") - len(stream)),
            stream=stream,
        )
    return (
        Text("inside replayed graphs")
        if gap.graph
        else _SHORT.get(gap.part, Text("between kernels whose launch the trace does not show"))
    )


def preceding_words(gap: FreeGap) -> str:
    """Return in words what comes before a gap: a kernel, and a replayed graph, if any."""
    if gap.kind != "place":
        return Text("1 short gap") if gap.count == 1 else Text("{count:,} short gaps", gap.count)
    before, _ = shorten_distinct([gap.before, gap.after])
    return joined(COMMA, (gap.before and Text("after {kernel}", before), _GRAPH.get(gap.graph, "")))


def why(gap: FreeGap) -> str:
    """Return why the device was free, and what the host did meanwhile, in words."""
    return joined(COMMA, (reason_of(gap), host_activity(gap)))


def reason_of(gap: FreeGap) -> str:
    """Return the reason why the device was free, by the gap's part of the step."""
    return FREE.get(gap.part) or (_BEFORE if gap.part == LEAD_IN else PARTS[gap.part])


def host_activity(gap: FreeGap) -> str:
    """Return in words what the host did during most of a gap, else what launched the next task; "" if unknown.

    If the next task waited, its launcher comes first. If the host was late, and no single activity covers half of the
    gap, the words say so.
    """
    operator, module, call = (host_name(name) for name in (gap.operator, gap.module, gap.call))
    around = operator or module
    if operator and module:
        around = Text("{operator} in {module}", operator=operator, module=module)
    launched = around and Text("launched by {caller}", around)
    if gap.part == "free_waiting_ns":
        return joined(COMMA, (launched, call and Text("during the gap, the host was in {call}", call)))
    if call:
        inside = Text("{call} ({caller})", call=call, caller=around) if around else in_program(gap.call, gap)
        share = percent(gap.call_ns / gap.ns, 0)
        return Text("the host was in {call} for {share} of this time", call=inside, share=share)
    if gap.within:
        return Text("the host was inside {operator}", around)
    if gap.kind != "place" or gap.part not in ("free_host_late_ns", LEAD_IN):
        return launched
    nothing: str = Text("no single recorded operator, call or frame covers half of the gap")
    if gap.returned_from:
        nothing = Text(
            "after the host returned from {call}, {statement}", call=host_name(gap.returned_from), statement=nothing
        )
    return joined(COMMA, (nothing, launched))


def in_program(name: str, gap: FreeGap | None) -> str:
    """Return the name of what the host was in, with the function or range of the program around the call of ``gap``."""
    if gap is None or not gap.caller:
        return host_name(name)
    return Text("{call} (within {caller})", call=host_name(name), caller=host_name(gap.caller))


def first_place(profile: RankProfile, *parts: str) -> str:
    """Return in words the place with most idle time in the given parts of a step, and this time; "" without any."""
    gap = next((gap for gap in profile.gaps if gap.part in parts), None)
    return place_with_time(profile, gap) if gap else ""


def place_with_time(profile: RankProfile, gap: FreeGap) -> str:
    """Return in words a place where the device was idle, with this time per step and the number of steps."""
    count, place = len(profile.units), place_in_words(gap)
    if count == 1:
        return Text("{place}: {time}", place=place, time=in_ms(gap.ns))
    return Text(
        "{place}: {time} per step, in {steps:,} of {count:,} steps",
        place=place,
        time=in_ms(gap.ns / count),
        steps=gap.units,
        count=count,
    )


def main_place(profile: RankProfile, parts: Collection[str]) -> FreeGap | None:
    """Return the place with over half of the idle time in the given parts of all steps; None without one.

    None, too, if a range around the function that the host was in covers clearly more of this time.
    The time of a place counts as that of the part that has most of it. But a long gap can have several parts, as at a
    program's start. Then only the time by which a place exceeds all other parts counts as that of the given ones.
    """
    whole = profile.sum_ns(*parts)
    elsewhere = profile.sum_ns(*(part for part in FREE if part not in parts))
    for gap in profile.gaps:
        least = gap.ns if gap.part in parts else gap.ns - elsewhere
        if gap.kind == "place" and gap.part in (*parts, *FREE) and 2 * least > whole:
            return None if _is_part_of_range(profile, gap.call, parts) else gap
    return None


def _is_part_of_range(profile: RankProfile, function: str, parts: Collection[str]) -> bool:
    """Tell whether one range covers clearly more of the idle time in ``parts`` than all calls of a ``function`` in it.

    False for a function that waits, and for calls of the device's runtime: these tell more than what is around them.
    """
    late = profile.late_range
    if late is None or "free_host_late_ns" not in parts or not _FUNCTION.search(function):
        return False
    covered = sum(gap.call_ns for gap in profile.gaps if gap.call == function and gap.part in parts)
    return covered < _CLEARLY_LESS * late.idle_ns and 2 * late.idle_ns > profile.sum_ns(*parts)


def time_with_cut(profile: RankProfile, gap: FreeGap) -> int:
    """Return the ns of a place over all steps, with the like time before the first kernel if the last step lacks it.

    That time is alike if the host was in the same call, and the same kernel came next.
    """
    before = sum(
        lead_in.ns for lead_in in profile.gaps
        if lead_in.part == LEAD_IN and lead_in.call == gap.call and lead_in.after == gap.after
    )  # fmt: skip
    return gap.ns + min(before, profile.cut_ns)


class HostCause(NamedTuple):
    """Call, frame, range or operator that covers ``ns`` of the idle time of all steps; ``gap`` is its longest place.

    ``gap`` is None if it covers many gaps, each of which is shorter than it.
    """

    name: str
    ns: int
    gap: FreeGap | None


def host_cause(profile: RankProfile, parts: Collection[str]) -> HostCause | None:
    """Return the call, frame or operator that the host was in during over half of the idle time of the given parts.

    Its times at all places are added up. Calls of a family count as one, with its name. Without such a one, host-bound
    time may lie in a range with many gaps. None if there is none, either.
    """
    late = profile.late_range
    sums, places = Counter[str](), defaultdict[str, list[FreeGap]](list)
    for gap in profile.gaps:
        name = gap.call or (gap.operator if gap.within else "")
        if name and gap.part in parts:
            sums[call_family(name)] += gap.call_ns
            places[call_family(name)].append(gap)
    for name, ns in sums.most_common(1):
        if 2 * ns > profile.sum_ns(*parts):
            longest, calls = places[name][0], {gap.call for gap in places[name]}
            if late and _is_part_of_range(profile, name, parts):
                return HostCause(late.name, late.idle_ns, replace(longest, call=late.name, caller=""))
            callers = {gap.caller for gap in profile.gaps if gap.call in calls}
            name, call = (name, name) if len(calls) > 1 else (longest.call or name, longest.call)
            return HostCause(name, ns, replace(longest, call=call, caller=callers.pop() if len(callers) == 1 else ""))
    if late is not None and "free_host_late_ns" in parts and 2 * late.idle_ns > profile.sum_ns(*parts):
        return HostCause(late.name, late.idle_ns, None)
    return None


def call_family(call: str) -> str:
    """Return the family of CANN's calls that do the same for different operators; ``call`` if it is in none."""
    return next((family for family, pattern in _FAMILIES.items() if pattern.fullmatch(call)), call)


def drained_by(profile: RankProfile, parts: Collection[str]) -> FreeGap | None:
    """Return the short gaps after a call that waits for the device, with over half of the idle time in the given parts.

    Before most of these gaps, the host waited in that call until the device was empty. None without more than one in
    each step.
    """
    for gap in profile.gaps:
        if gap.kind != "place" and gap.part in parts and _DRAINS.search(gap.returned_from):
            return gap if 2 * gap.ns > profile.sum_ns(*parts) and gap.count > len(profile.units) else None
    return None


def activity_name(profile: RankProfile, parts: Collection[str]) -> str:
    """Return the call, frame, range or operator of the host during over half of the idle time of the given parts.

    "" if nothing that was recorded covers as much.
    """
    gap, cause = main_place(profile, parts), host_cause(profile, parts)
    name = cause.name if cause else ""
    return (gap.call or (gap.operator if gap.within else "") or name) if gap else name


def place_in_words(gap: FreeGap) -> str:
    """Return where a gap lies and what the host did meanwhile, in words."""
    return joined(COMMA, (place_of(gap), preceding_words(gap), host_activity(gap)))


def longest_gap_text(gap: FreeGap) -> str:
    """Return a text on a place's longest gap: its length, and its begin as `ts` in the trace, in microseconds."""
    return Text(
        "the longest gap lasts {time} and begins at {microseconds} µs in the trace (field ts)",
        time=duration(gap.longest_ns),
        microseconds=f"{gap.at_ns // 1000}.{gap.at_ns % 1000:03}",
    )
