"""The places at which the host runs no operator for much of the time."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import FUNCTION, NOTABLE
from patcher.traces.analysis.host_only.large_ranges import longest_ranges, main_parts, names_with_shares
from patcher.traces.analysis.host_only.measures import (
    MOST_NAMED,
    communicates,
    is_function,
    is_whole_trace,
    median,
    names_cause,
    typical,
)
from patcher.traces.analysis.host_only.trends import trend, with_trend
from patcher.traces.analysis.host_only.wording import COLLECTORS, GROWS, WITH_STACKS, advice_on, place_words
from patcher.traces.analysis.host_steps import is_library
from patcher.traces.families import COLLECTIVE
from patcher.traces.operator_families import operator_family
from patcher.traces.words import host_name, in_ms, percent

_LARGE_PLACE = 0.2
"""Share of the time without operators from which on a headline names a place beside the longest one."""

_OF_TORCH = re.compile(r"DataLoader|^Optimizer\.")
"""Part of the name of a range that torch records by itself."""

_INNER = 0.8
"""Share of an outer frame's time from which on a frame within it is named instead."""


def diagnose_idle_host(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose the places at which no operator runs for at least 10 % of a typical step; None without any.

    A place counts with its median time over the steps; shares are those of the time of all steps. The longest place is
    the cause if it has half of the time without operators, and no other has a fifth of it; else up to three are. The
    diagnosis is a warning if they take half of the time without operators, and that is half of the step; else a note.
    The saving in ns is per step.
    """
    steps = profile.host_steps
    times = [step.ns for step in steps]
    whole, idle, steps_ns = median(times), median([step.idle_ns for step in steps]), sum(times)
    places, parts = _places_or_frame(steps, least=NOTABLE * whole, half=idle / 2)
    if not places:
        return None
    first, longest_ns = places[0]
    idle_times = _idle_times(steps, [place for place, _ in places])
    headline, in_headline = _idle_headline(places, idle, idle_times)
    if parts and first.around and (ranges := main_parts(steps, steps_ns)):
        longest = names_with_shares(ranges.items(), steps_ns)
        headline = Text("{headline}; most of the time in {ranges}", headline=headline, ranges=longest)
    is_most = 2 * sum(ns for _, ns in in_headline) >= idle
    is_warning = is_most and 2 * idle >= whole
    evidence = sentences(
        _idle_evidence(profile, first, idle_times),
        _calls_within(parts),
        _other_places(places[1:MOST_NAMED], idle_times),
        longest_ranges(steps, steps_ns) if is_warning and longest_ns < _INNER * idle else "",
    )
    saving = sum(idle_times.per_step(place) for place, _ in in_headline)
    certainty = Text("upper bound of the saving; operators that the profiler did not record count as idle time")
    advice = _idle_advice(profile, places[0], parts)
    if is_most and _has_trend(first, idle_times):
        advice = joined(SEMICOLON, (GROWS, advice))
    culprit = first.inside if 2 * longest_ns >= idle and not communicates(first) else ""
    return model.Diagnosis(
        "host-idle", "warning" if is_warning else "note", evidence, saving, certainty, advice, profile.source,
        headline=headline, culprit=culprit,
    )  # fmt: skip


def _has_trend(place: model.HostPlace, idle: _IdleTimes) -> bool:
    """Tell whether the time at a place has a trend of its own; that of a collective is one of another rank."""
    return trend(idle.of_places[place]) is not None and not communicates(place)


def _idle_advice(
    profile: model.RankProfile, longest: tuple[model.HostPlace, int], parts: Sequence[tuple[str, float]]
) -> str:
    """Return what to do about the ``longest`` place without operators, or about the call in it with half of its ns.

    ``parts`` has the calls in it with their ns. Without them, the advice on a range of the user is to record stacks,
    unless the profile has these.
    """
    place, ns = longest
    if parts and 2 * parts[0][1] >= ns:
        return advice_on(model.HostPlace(parts[0][0]))
    if _is_only_range(place.inside) and not profile.has_stacks:
        return Text(
            "find out whether the host works or waits in {range}: record Python's stack frames, too: {command}",
            range=host_name(place.inside),
            command=WITH_STACKS,
        )
    return advice_on(place)


def _other_places(places: Sequence[tuple[model.HostPlace, int]], idle: _IdleTimes) -> str:
    """Return a sentence on the ``places`` without operators that are not the main one; "" without any."""
    if not places:
        return ""
    return Text(
        "Other places where no operator runs: {places}.",
        _places_with_times((place, idle.per_step(place)) for place, _ in places),
    )


def _is_only_range(name: str) -> bool:
    """Tell whether the name of a place is that of a range of the user, which does not say what Python does in it."""
    is_torch = name in COLLECTORS or _OF_TORCH.search(name) or operator_family(name) == COLLECTIVE
    return bool(name) and not is_torch and not FUNCTION.search(name)


def _idle_evidence(profile: model.RankProfile, place: model.HostPlace, idle: _IdleTimes) -> Text:
    """Return the sentences on the time without operators, and the ``place`` with most of it in a typical step."""
    steps = profile.host_steps
    values = {
        "step_time": in_ms(sum(step.ns for step in steps) / len(steps)), "time": in_ms(idle.ns / len(steps)),
        "share": idle.share, "place": place_words(place), "longest": in_ms(idle.per_step(place)),
    }  # fmt: skip
    if is_whole_trace(profile):
        return Text(
            "In the {step_time} of the trace, no operator ran on the host for {time} ({share}). The main place:"
            " {place}, {longest}.",
            **values,
        )
    return Text(
        "On average, a step takes {step_time}, and no operator ran on the host for {time} of it ({share}). The main"
        " place: {place}, {longest} on average.",
        **values,
    )


class _IdleTimes(NamedTuple):
    """The time without operators: its ``share`` of the time in words, its ns in all steps, and by place and step."""

    share: str
    ns: int
    of_places: Mapping[model.HostPlace, Sequence[int]]

    def per_step(self, place: model.HostPlace) -> int:
        """Return the mean ns at a place per step."""
        times = self.of_places[place]
        return sum(times) // len(times)


def _idle_times(steps: Sequence[model.HostStep], places: Sequence[model.HostPlace]) -> _IdleTimes:
    """Return the time without operators of all steps, and that at the ``places``.

    A place that names a frame has the time at other places in that frame, too, unless they are among the ``places``.
    """
    idle = sum(step.idle_ns for step in steps)
    share = percent(idle / (sum(step.ns for step in steps) or 1), 0)
    times: dict[model.HostPlace, list[int]] = {place: [] for place in places}
    for step, (place, of_steps) in itertools.product(steps, times.items()):
        within = step.frames.get(place.inside, {}).items()
        around = step.frames.get(place.around, ())
        more = sum(ns for at, ns in within if at not in times and (at in around or place.around in ("", at.around)))
        of_steps.append(step.places.get(place, 0) + more)
    return _IdleTimes(share, idle, times)


class _IdleHeadline(NamedTuple):
    """A headline on the places without operators that it names, and their ns in a typical step."""

    text: str
    places: Sequence[tuple[model.HostPlace, int]]


def _idle_headline(
    places: Sequence[tuple[model.HostPlace, int]], typical_idle: float, idle: _IdleTimes
) -> _IdleHeadline:
    """Return the headline on the time without operators, ``typical_idle`` ns in the median step, mostly at ``places``.

    The longest place comes first.
    """
    first, longest = places[0]
    has_half = 2 * longest >= typical_idle
    large = [(place, ns) for place, ns in places[:MOST_NAMED] if ns >= _LARGE_PLACE * typical_idle]
    if has_half and len(large) == 1 and 2 * sum(idle.of_places[first]) >= idle.ns:
        return _IdleHeadline(_mostly_at(first, idle), large)
    in_headline = large if has_half and len(large) > 1 else places[:MOST_NAMED]
    headline = Text(
        "No device data; for {share} of the time, the host runs no operator: {places}",
        share=idle.share,
        places=_places_with_times((place, idle.per_step(place)) for place, _ in in_headline),
    )
    if has_half and not any(names_cause(place) for place, _ in large):
        headline = Text("{headline}; what ran in this time was not recorded", headline)
    return _IdleHeadline(headline, in_headline)


def _mostly_at(place: model.HostPlace, idle: _IdleTimes) -> str:
    """Return the headline on the time without operators, mostly at one place, with the trend of that.

    If the place has far from all of this time, the headline has its share of it, too.
    """
    times = idle.of_places[place]
    place_ns = sum(times)
    headline: str = Text(
        "No device data; for {share} of the time, the host runs no operator, mostly {place}",
        share=idle.share,
        place=place_words(place),
    )
    if place_ns < _INNER * idle.ns:
        headline = Text(
            "No device data; for {share} of the time, the host runs no operator; {part} of this is {place}",
            share=idle.share,
            part=percent(place_ns / (idle.ns or 1), 0),
            place=place_words(place),
        )
    if communicates(place):
        return headline  # a trend of the waiting would be one of another rank
    if names_cause(place):
        return with_trend(headline, times)
    return Text("{headline}; what ran in this time was not recorded", headline)


def _calls_within(parts: Sequence[tuple[str, float]]) -> str:
    """Return a sentence on the calls within a frame: their names, and the mean ns of each per step; "" without any."""
    if not parts:
        return ""
    longest = joined(COMMA, (Text("{place} {time}", place=host_name(name), time=in_ms(ns)) for name, ns in parts))
    return Text("The longest calls within this part, with their mean time per step: {places}.", longest)


def _places_or_frame(
    steps: Sequence[model.HostStep], least: float, half: float
) -> tuple[list[tuple[model.HostPlace, int]], list[tuple[str, float]]]:
    """Return the places without operators with their typical ns, longest first, or the frame around them.

    Places below ``least`` ns are left out. If no place has ``half`` ns, but a frame around several does, that frame is
    the only place. So is one whose own code and calls of libraries are the large places. Then the second list has what
    runs in the frame, with its mean ns; otherwise it is empty. A call with nearly all of the frame's time is the place.
    """
    places = [(place, ns) for place, ns in _typical_places(steps) if ns >= least]
    frame, ns, parts = _typical_frame(steps)
    place = model.HostPlace(frame)
    if parts and parts[0][1] >= _INNER * ns:
        place = model.HostPlace(parts[0][0], frame)
    if places and places[0][1] >= half:
        large = [place.inside for place, place_ns in places if place_ns >= _LARGE_PLACE * 2 * half]
        are_parts = set(large) <= {name for name, _ in parts} and not any(map(is_function, large))
        return ([(place, ns)], parts) if len(large) > 1 and are_parts else (places, [])
    return ([(place, ns)], parts) if frame and ns >= max(least, half) else (places, [])


def _typical_frame(steps: Sequence[model.HostStep]) -> tuple[str, int, list[tuple[str, float]]]:
    """Return the frame in which a step spends most time without operators, its ns, and (name, mean ns) of calls in it.

    Frames with at least 80 % of the longest one's time are candidates. The innermost one counts, in the program's own
    code if there is one. The ns of the frame are the lower median over the steps. Of the calls, the three longest are
    returned. Without any frame, the result is ("", 0, []).
    """
    times = typical([{frame: sum(places.values()) for frame, places in step.frames.items()} for step in steps])
    longest_ns = max(times.values(), default=0)
    if not longest_ns:
        return "", 0, []
    _, ns, frame = min((is_library(frame), ns, frame) for frame, ns in times.items() if ns >= _INNER * longest_ns)
    parts = Counter[str]()
    for step in steps:
        for place, part_ns in step.frames.get(frame, {}).items():
            if place.inside != frame:
                parts[place.inside] += part_ns
    return frame, ns, [(name, part_ns / len(steps)) for name, part_ns in parts.most_common(MOST_NAMED)]


def _places_with_times(places: Iterable[tuple[model.HostPlace, int]]) -> str:
    """Return places with their ns in words."""
    return joined(COMMA, (Text("{place} {time}", place=place_words(place), time=in_ms(ns)) for place, ns in places))


def _typical_places(steps: Sequence[model.HostStep]) -> list[tuple[model.HostPlace, int]]:
    """Return (place, ns) for each place at which no operator runs, longest first.

    The ns are the lower median over the steps; a step without the place counts 0.
    """
    return typical([step.places for step in steps]).most_common()


def diagnose_scattered_places(profile: model.RankProfile, whole: int, idle: int) -> model.Diagnosis:
    """Diagnose steps in which mostly no operator runs, at a place with over half of this time or at many, as a note.

    ``whole`` is the time of all steps in ns, ``idle`` the part of it without an operator. The evidence names the
    longest place.
    """
    share = percent(idle / whole, 0)
    places = ((ns, step.number, place) for step in profile.host_steps for place, ns in step.places.items())
    longest, number, place = max(places, default=(0, 0, None))
    evidence: str = Text("For {share} of the time, no operator ran on the host.", share)
    if place is not None:
        stretch = Text(
            "The longest time without an operator: {place}, {time} in step {number}.",
            place=place_words(place),
            time=in_ms(longest),
            number=number,
        )
        evidence = sentences(evidence, stretch)
    headline: str = Text(
        "No device data; for {share} of the time, the host runs no operator; these gaps are at different places in"
        " different steps",
        share,
    )
    if len(profile.host_steps) == 1:
        headline = Text(
            "No device data; for {share} of the time, in many short periods, the host runs no operator", share
        )
    sums = sum((Counter(step.places) for step in profile.host_steps), Counter[model.HostPlace]())
    for most, ns in sums.most_common(1):
        if 2 * ns > idle:
            headline = _mostly_at(most, _idle_times(profile.host_steps, [most]))
    advice = advice_on(place) if place is not None else ""
    return model.Diagnosis(
        "host-operators", "note", evidence, None, model.EXACT, advice, profile.source, headline=headline
    )
