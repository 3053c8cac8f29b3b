"""The diagnoses: what there is to gain; profiles made into a report."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis import collectives, copying, exposed, host_bound, host_only, priorities
from patcher.traces.analysis.checks import DEVICE, EVERY, FUNCTION, NOTABLE
from patcher.traces.analysis.host_steps import BLOCKS
from patcher.traces.analysis.pipelines import times_as_long
from patcher.traces.analysis.ranks import match_collectives, missing_ranks, unrelated
from patcher.traces.analysis.rates import unaligned_size
from patcher.traces.families import ELEMENTWISE, OTHER, SAMPLING
from patcher.traces.places import call_family, in_program, place_in_words
from patcher.traces.rank_trace import GRAPH_CAPTURE
from patcher.traces.words import cold_start_phrase, host_name, in_ms, listed, percent, short, shorten_distinct, size

LOSS, HOST_LOSS = 0.05, 0.5
"""The share of the time of all steps that slow ones have to lose to be worth a verdict, and that without a device.

There other processes on the cores make single steps longer, too: a verdict takes most of the time, or `NOTABLE` of it
if the slow step does more work.
"""

_COMMUNICATION = "communication_ns"

_FUSED = 0.3
"""Share of the kernel time that elementwise kernels take, from which on the advice is to fuse them."""

_CONVERTS_FORMATS = "TransData"
"""Kernel of an NPU that converts tensors from one memory format, such as NZ, to another."""

_CONVERTS_TYPES = re.compile(r"(?:aclnn)?Cast(?:_\w+)?")  # kernels of an NPU
_COPIES_VIEWS = re.compile(r"ViewCopy|direct_copy_kernel")  # on NPUs; on GPUs a part of the name

_ABOUT_STOP = Text(
    "find out what stops the process there: Python's garbage collection (compare with gc.disable()), another process on"
    " its cores, page faults, or the profiler; the code that it stopped in need not be slow"
)

_EXACT = Text("upper bound of the saving: the measured time by which slow steps exceed the median step")

_BEYOND_FASTEST_THIRD = Text(
    "upper bound of the saving: the measured time by which steps exceed the median of the fastest third of them"
)


_GROWTH = 1.2
"""Factor between the first and the last third of step times from which on they have a trend: on devices they vary less
than on a host."""


def reported(profiles: Sequence[model.RankProfile]) -> model.TraceReport:
    """Return the report on the ranks of one run: findings and a verdict.

    If ``profiles`` are of several stages, the report nests one report for each of them.
    """
    parts = list(dict.fromkeys(profile.part for profile in profiles))
    if len(parts) < 2:
        return _report_stage(profiles, labelled=len(profiles) > 1)
    stages = [_report_stage([profile for profile in profiles if profile.part == part], labelled=True) for part in parts]
    findings = tuple(finding for stage in stages for finding in stage.findings)
    verdict = model.Verdict(Text("{count} stages, each reported separately", len(stages)))
    return model.TraceReport(tuple(profiles), findings, verdict, stages=tuple(stages))


def _report_stage(profiles: Sequence[model.RankProfile], *, labelled: bool) -> model.TraceReport:
    """Return the report of the ranks of one stage, such as rollout: findings, most important first, and the verdict.

    Findings that a failed check withdraws are left out; ranks of the run without a profile are a finding. If
    ``labelled``, each evidence begins with the label of its profile.
    """
    meetings = match_collectives(profiles)
    profiles = collectives.with_usual_times(profiles, meetings.waits)
    diagnoses: list[model.Diagnosis] = []
    withdrawn: list[model.Diagnosis] = []
    for profile in profiles:
        for diagnosis in filter(
            None, (*_diagnose_profile(profile), exposed.diagnose_communication(profile, profiles, meetings))
        ):
            (withdrawn if diagnosis.id in profile.withdrawn else diagnoses).append(diagnosis)
    if not unrelated(profiles) and (slow := host_only.diagnose_straggler(profiles)):
        diagnoses = [slow, *_blame_stragglers(diagnoses, profiles, slow)]
    if len(profiles) > 1 and (missing := missing_ranks(profiles)):
        evidence = Text(
            "The report covers {count} of {total} ranks. How long these ranks waited for the missing ones is unknown."
            " Missing: {ranks}.",
            count=len(profiles), total=len(profiles) + len(missing), ranks=listed(missing),
        )  # fmt: skip
        diagnoses.append(model.Diagnosis("missing-ranks", "note", evidence, None, model.EXACT))
    labels = {profile.source: profile.label or profile.source for profile in profiles} if labelled else {}
    ordered = [
        dataclasses.replace(diagnosis, evidence=_with_label(labels.get(diagnosis.source), diagnosis.evidence))
        for diagnosis in priorities.select_findings(diagnoses, profiles, meetings)
    ]
    verdict = _verdict(profiles, ordered, withdrawn, labels)
    return model.TraceReport(tuple(profiles), tuple(ordered), verdict, meetings.ranks)


def _blame_stragglers(
    diagnoses: Sequence[model.Diagnosis], profiles: Sequence[model.RankProfile], waits: model.Diagnosis
) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses, without that of an idle host on ranks that mostly wait in collectives.

    There the host is idle because it waits for other ranks. The others' is marked as the cause of this waiting if most
    of it is time that the typical other rank does not spend. If ``waits``, that of the waiting, is on a single step,
    one of that slow step is left out where the rank waits in it.
    """
    waiting = {profile.source for profile in profiles if profile.on_host and host_only.waits_mostly(profile)}
    for diagnosis in diagnoses:
        if diagnosis.slow_steps and waits.step in diagnosis.slow_steps.numbers and _COMMUNICATION in diagnosis.parts:
            continue
        if diagnosis.id != "host-idle":
            yield diagnosis
        elif host_only.idles_longer(profiles, diagnosis.source, diagnosis.saving_ns or 0):
            yield dataclasses.replace(diagnosis, same_as=waits.id)
        elif diagnosis.source not in waiting:
            yield diagnosis


def _with_label(profile: str | None, evidence: str) -> str:
    """Return the evidence, after the name of its profile if that is given."""
    return Text("{profile}: {evidence}", profile=profile, evidence=evidence) if profile else evidence


def _diagnose_profile(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses of one profile by itself, without its communication.

    They are on the device's idle time (without a device on the host's time), on copies, unaligned collectives, the
    slowest step, and computing.
    """
    yield from host_bound.diagnoses(profile)
    yield from host_only.diagnoses(profile)
    yield from filter(
        None,
        (
            copying.diagnose_copies(profile),
            collectives.diagnose_unaligned_collectives(profile),
            _diagnose_slowest_step(profile),
            _diagnose_computing(profile),
        ),
    )


def _diagnose_slowest_step(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose the slowest step if it took over 1.3 times the median, or step times on a device have a trend.

    It is None otherwise, for under 3 steps, and if the steps take equally long on the host. The time before the first
    kernel does not count, and a step that starts the profiler is left out. So are steps with prefill where others only
    decode: they have more to do.
    """
    if len(profile.units) < 3:
        return None
    time = _duration_of(profile)
    alike = _decode_steps(profile.units) or profile.units
    units = [unit for unit in alike if not unit.profiler_start]
    slowest, usual = max(units, key=time, default=None), model.lower_median(model.units_on_device(alike), time)
    if slowest is None or _is_steady_on_host(profile.units):
        return None
    change = _trend(profile, units)
    if time(slowest) <= _longest_usual(profile, time(usual), change):
        return None
    between = Counter(profile.idle_between)
    if 2 * (between[slowest.number] - between[usual.number]) > time(slowest) - time(usual):
        return _diagnose_between_steps(profile)
    return _diagnose_longer_steps(profile, units, slowest, usual, change, total=len(alike))


def _longest_usual(profile: model.RankProfile, median_ns: int, change: tuple[int, int] | None) -> float:
    """Return the ns up to which a step is not slow: 1.3 times the median, or the median if times on a device change."""
    return median_ns if change and not profile.on_host else model.SLOW * median_ns


def _diagnose_longer_steps(
    profile: model.RankProfile, units: Sequence[model.RecordedUnit], slowest: model.RecordedUnit,
    usual: model.RecordedUnit, change: tuple[int, int] | None, *, total: int,
) -> model.Diagnosis:  # fmt: skip
    """Diagnose the slow steps among ``units``: ``slowest`` and those like it, compared with ``usual``, the median step.

    The diagnosis is only a note if all slow steps together lose little of the time. Its saving is what they take beyond
    the median, in ns, spread over all steps. If step times rise or fall throughout, ``change`` is `_trend`, and all
    longer steps count on a device. ``total`` is the number of steps that were compared, also those that start the
    profiler.
    """
    time = _duration_of(profile)
    limit = _longest_usual(profile, time(usual), change)
    lost, most, similar = _longer_steps(units, time, time(usual), limit)
    more, cause, better = _about_slow_step(profile, slowest, usual, has_trend=change is not None)
    advice = Text("check what is special about this step: its requests, a copy, garbage collection, another process")
    slow_steps, certainty, saving = None, _EXACT, lost // len(profile.units)
    delayed = _delayed_step(profile, slowest, usual)
    if change:
        headline, better = _with_cause(_trend_headline(*change), cause), host_only.advice_on_trend(better)
        if not profile.on_host or _steps_on_host(profile, units):
            saving, certainty = _excess_over_fastest_third([*map(time, units)], change), _BEYOND_FASTEST_THIRD
        if not profile.on_host:
            lost = saving * len(units)
    else:
        headline = _slow_steps_headline(profile, total, similar, slowest, usual, cause)
        if not host_only.alternation(profile, similar, usual.number):
            slow_steps = model.SlowSteps(tuple(similar), most, cause, delayed.number if delayed else None)
    evidence = _slow_step_evidence(
        profile, slowest, time(slowest), time(usual), more, None if profile.on_host else delayed
    )
    part = _part_of_slow_step(profile, slowest, usual)
    severity = _severity_of_slow_steps(profile, lost, sum(map(time, units)), slowest, usual)
    if slow_steps and 2 * len(similar) >= len(units) and host_only.causes_differ(profile, similar, usual.number, cause):
        severity = "note"  # half of the steps, each for a reason of its own: none of them is an exception
    return model.Diagnosis(
        "outlier", severity, evidence, saving, certainty, better or advice, profile.source,
        parts={part: saving} if part else {}, headline=headline, slow_steps=slow_steps,
    )  # fmt: skip


def _duration_of(profile: model.RankProfile) -> Callable[[model.RecordedUnit], int]:
    """Return the function that returns the ns of a step on the device, or on the host if there is no device."""
    return operator.attrgetter("host_ns" if profile.on_host else "device_ns")


def _diagnose_between_steps(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose the idle time between the end of a step's mark and the next one, which makes some steps seem slow."""
    ns, around = sum(profile.idle_between.values()), profile.range_between
    share = ns / profile.total_ns
    evidence = Text(
        "For {share} of the time, no step was running on the host, and the device was idle: {time} in all.",
        share=percent(share), time=in_ms(ns),
    )  # fmt: skip
    headline = Text("The device is idle between steps for {share} of the time", percent(share))
    if around:
        headline = Text("{title}, mostly while the host was in {call}", title=headline, call=host_name(around.name))
    return model.Diagnosis(
        "outlier", "warning" if share >= LOSS else "note", evidence,
        (around.idle_ns if around else ns) // len(profile.units),
        Text("upper bound of the saving: the measured idle time between steps"),
        Text("find out what the host does or waits for between steps, such as requests or transfers that come late"),
        profile.source, parts={"free_host_late_ns": ns // len(profile.units)}, headline=headline,
    )  # fmt: skip


def _steps_on_host(profile: model.RankProfile, units: Sequence[model.RecordedUnit]) -> list[model.HostStep]:
    """Return ``units`` as the host recorded them; [] if the profile has a device, or the host recorded none."""
    numbers = {unit.number for unit in units if profile.on_host}
    return [step for step in profile.host_steps if step.number in numbers]


def _trend(profile: model.RankProfile, units: Sequence[model.RecordedUnit]) -> tuple[int, int] | None:
    """Return the median time of the first and of the last third of ``units`` (ns) if it rises or falls throughout.

    None otherwise.
    """
    if steps := _steps_on_host(profile, units):
        return host_only.trend_of_steps(steps)
    if profile.on_host:
        return host_only.trend([unit.host_ns for unit in units])
    on_device = [unit.device_ns for unit in units[:-1]]  # the last step ends with its last kernel
    return host_only.trend(on_device, factor=_GROWTH)


class LongerSteps(NamedTuple):
    """The time that longer steps take beyond the median, in all and at most in one of them (ns).

    ``similar`` are the numbers of the steps that are about as slow as the slowest.
    """

    lost: int
    most: int
    similar: list[int]


def _longer_steps(
    units: Sequence[model.RecordedUnit], time: Callable[[model.RecordedUnit], int], usual_ns: int, limit: float
) -> LongerSteps:
    """Return by how much steps that take longer than ``limit`` exceed ``usual_ns``; there has to be such a step.

    ``time`` returns the time of a step. All times are in ns.
    """
    late = [(unit.number, time(unit) - usual_ns) for unit in units if time(unit) > limit]
    lost, most = sum(excess for _, excess in late), max(excess for _, excess in late)
    return LongerSteps(lost, most, [number for number, excess in late if host_only.SIMILAR * excess >= most])


def _excess_over_fastest_third(times: Sequence[int], change: tuple[int, int]) -> int:
    """Return the mean time by which steps exceed the median of the fastest third of them; ``times`` are theirs (ns).

    ``change`` is the median time of the first and of the last third.
    """
    least = min(change)
    return sum(max(ns - least, 0) for ns in times) // len(times)


def _is_steady_on_host(units: Sequence[model.RecordedUnit]) -> bool:
    """Tell whether no step takes over 10 % longer on the host than the median, and host and device agree within 10 %.

    The sums over all steps have to agree. Then a step seems long on the device only because the next one begins its
    first kernel late.
    """
    on_host = [unit.host_ns for unit in units]
    on_device = sum(unit.device_ns + unit.lead_in_ns for unit in units)
    is_steady = max(on_host) <= (1 + NOTABLE) * model.lower_median(on_host)
    return is_steady and abs(on_device - sum(on_host)) <= NOTABLE * sum(on_host)


def _delayed_step(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> model.RecordedUnit | None:
    """Return the step after ``slowest`` if the host spends most of the additional time there; else None.

    On the device a step lasts until the next one begins its first kernel, so a delay before that kernel counts for the
    step before. ``usual`` is the median step.
    """
    following = _step_after(profile, slowest)
    excess, median = slowest.device_ns - usual.device_ns, profile.host_median_ns
    if following is None or 2 * (slowest.host_ns - median) >= excess or 2 * (following.host_ns - median) < excess:
        return None
    return following


def _step_after(profile: model.RankProfile, step: model.RecordedUnit) -> model.RecordedUnit | None:
    """Return the recorded step that follows ``step``; None for the last one."""
    return next((unit for unit in profile.units if unit.number > step.number), None)


def _severity_of_slow_steps(
    profile: model.RankProfile, lost: int, whole: int, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> str:
    """Return "warning" if slow steps ``lost`` at least 5 % of the ``whole`` time (both ns), else "note".

    Without a device they have to lose half of it, unless the ``slowest`` step does more work than the ``usual`` one.
    """
    loss = LOSS
    if profile.on_host:
        loss = NOTABLE if host_only.does_more_work(profile, slowest.number, usual.number) else HOST_LOSS
    return "warning" if lost >= loss * whole else "note"


def _part_of_slow_step(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return the part of the time, a key of `PARTS`, by which ``slowest`` exceeds ``usual`` most.

    Without a device it is "communication_ns" if collectives take most of the additional time, else "".
    """
    if host_only.waits_longer(profile, slowest.number, usual.number):
        return _COMMUNICATION
    return "" if profile.on_host else _longer_part(slowest, usual)


def _about_slow_step(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit, *, has_trend: bool
) -> tuple[str, str, str]:
    """Return why the step ``slowest`` takes longer than ``usual``: evidence, cause, and advice; "" where unknown.

    With ``has_trend``, the step times rise or fall throughout: then no advice is on a single place that held the host.
    """
    if profile.on_host:
        return host_only.excess(profile, slowest.number, usual.number)
    advice, part = "", _longer_part(slowest, usual)
    held = _longer_activity(profile, slowest, usual) or _longer_gap(profile, slowest, usual)
    if held and _host_held(held) and not has_trend:
        advice = _ABOUT_STOP if _is_stop(profile, held) else host_bound.advice_on_place(profile, held)
    if not advice and part in host_bound.HOST_PARTS and _without_graphs(profile, slowest, usual):
        advice = Text(
            "find out why this step replays no graph as the others do: a graph may not have been captured for its batch"
            " size, or it may hold a prefill"
        )
    if part == "compute_ns":
        advice = Text(
            "compare the longest kernels of this step with those of the median step. Possible causes: larger inputs,"
            " more kernels, another process on the device, or a lower clock frequency"
        )
        if _equally_longer(profile, slowest, usual) is not None:
            advice = _advice_on_all_kernels(profile, slowest, usual)
        elif longer := _longer_kernel(profile, slowest, usual):
            advice = Text(
                "compare the inputs of {kernel} in this step with those in the median step, and how often it runs",
                kernel=short(longer.name),
            )
    if part == "copy_ns" and (launch := _launch_of_copies(profile, slowest, usual)):
        advice = Text(
            "check whether {frame} has to copy in this step, and how often: copy less, or let kernels run meanwhile",
            host_name(launch.name),
        )
    if part == _COMMUNICATION:
        advice = Text(
            "find out which rank is the last to enter the collectives of this step, because the other ranks wait for it"
        )
        name, _ = _most_longer_collective(profile, slowest, usual)
        calls = Counter(collective.unit for collective in profile.collectives if collective.name == name)
        if calls[slowest.number] > calls[usual.number]:
            advice = Text(
                "check whether this step needs its additional collectives ({count:,} instead of {usual:,}), and which"
                " rank is the last to enter them",
                count=calls[slowest.number], usual=calls[usual.number],
            )  # fmt: skip
    return *_why_slower(profile, slowest, usual), advice


def _decode_steps(units: Sequence[model.RecordedUnit]) -> list[model.RecordedUnit]:
    """Return the steps that only decode; [] if fewer than 3 do, or all."""
    decoding = [
        unit
        for unit in units
        if unit.tokens is not None and unit.requests and unit.tokens - (unit.drafts or 0) <= unit.requests
    ]
    return decoding if 3 <= len(decoding) < len(units) else []


def _slow_step_evidence(
    profile: model.RankProfile, slowest: model.RecordedUnit, ns: int, usual_ns: int, more: str,
    delayed: model.RecordedUnit | None,
) -> Text:  # fmt: skip
    """Return the sentences on the step ``slowest``: it took ``ns``, so many times the median step, and ``more``.

    A step that has the profiler's start-up cost in its time is said to have it. If the next step is ``delayed``, that
    is the slow one: the device was in the step before until the first kernel of the delayed one.
    """
    values = {"number": slowest.number, "time": in_ms(ns), "times": ns / max(usual_ns, 1)}
    evidence = Text("Step {number} took {time}, {times:.1f} times as long as the median step.", **values)
    if profile.on_host:
        evidence = Text(
            "Step {number} took {time} on the host, {times:.1f} times as long as the median step.", **values
        )
    if delayed is not None:
        evidence = Text(
            "Step {delayed} took {host_time} on the host. The device spent this time before the first kernel of step"
            " {delayed}, so it counts for step {number} there: {time}, {times:.1f} times as long as the median step.",
            delayed=delayed.number,
            host_time=in_ms(delayed.host_ns),
            **values,
        )
    if slowest.number not in profile.cold:
        return sentences(evidence, more)
    return sentences(evidence, more, Text("{sentence}.", cold_start_phrase([slowest.number])))


def _slow_steps_headline(
    profile: model.RankProfile, total: int, similar: Sequence[int],
    slowest: model.RecordedUnit, usual: model.RecordedUnit, cause: str,
) -> str:  # fmt: skip
    """Return the headline on the slow steps, with the ``cause`` of the slowest one, if that is known.

    ``similar`` are the numbers of the steps that are about as slow, of ``total`` steps that were compared. The headline
    is "" if only one step is slow, for an unknown cause, and it is not the first step of the profile. It is "", too, if
    the first step only seems slow because the next one began late.
    """
    if alternating := host_only.alternation(profile, similar, usual.number):
        return _with_cause(alternating, cause)
    title: str = ""
    if len(similar) > 1 and total < len(profile.units):
        title = Text(
            "{count} of {total} decode steps take much longer than the others", count=len(similar), total=total
        )
    elif len(similar) > 1:
        title = Text("{count} of {total} steps take much longer than the others", count=len(similar), total=total)
    elif slowest is profile.units[0] and _delayed_step(profile, slowest, usual) is None:
        title = Text("The first recorded step takes much longer than the others")
    if host_only.causes_differ(profile, similar, usual.number, cause):
        return Text("{title}; in the slowest step, {cause}", title=title, cause=cause)
    return _with_cause(title, cause)


def _with_cause(headline: str, cause: str) -> str:
    """Return a headline on slow steps ("": the usual one) with their cause; unchanged if that is ""."""
    return Text("{title}: {cause}", title=headline or model.TITLES["outlier"], cause=cause) if cause else headline


def _trend_headline(first: int, last: int) -> str:
    """Return the headline on steps whose times rise or fall throughout, from ``first`` to ``last`` (ns)."""
    times = {"first": in_ms(first), "last": in_ms(last)}
    if first > last:
        return Text("The step time keeps falling, from {first} in the first third to {last} in the last third", **times)
    return Text("The step time keeps growing, from {first} in the first third to {last} in the last third", **times)


def _why_slower(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> tuple[str, str]:
    """Return the evidence why the step ``slowest`` takes longer on the device than ``usual``, and a text on the cause.

    The evidence names the part of the time that grew most, the place if most of that is idle time at one place, and
    different numbers of kernels. The cause is what held the host for most of the additional time, else the part that
    has most of it, else "".
    """
    part = _longer_part(slowest, usual)
    excess, whole = slowest.parts[part] - usual.parts[part], slowest.device_ns - usual.device_ns
    label = model.FREE.get(part, model.PARTS[part])
    share = percent(min(excess / whole, 1), 0)
    most = Text(
        "{share} of the slow step's additional time is in this part of the step: {part}.", share=share, part=label
    )
    cause = Text("most of the additional time is in this part of the step: {part}", label) if 2 * excess > whole else ""
    if part == "compute_ns":
        kernels, cause = _about_kernels(profile, slowest, usual, cause)
        most = sentences(most, kernels)
    if part == _COMMUNICATION and cause and (collective := _longer_collective(profile, slowest, usual, excess)):
        cause = joined(SEMICOLON, (cause, collective))
    if part == "copy_ns" and cause and (launch := _launch_of_copies(profile, slowest, usual)):
        cause = Text(
            "most of the additional time is copying, {direction}, launched in {frame}",
            direction=copying.direction_words(launch.copy),
            frame=host_name(launch.name),
        )
    if cause and part in host_bound.HOST_PARTS and (launches := _without_graphs(profile, slowest, usual)):
        cause = joined(SEMICOLON, (cause, launches))
    if held := _longer_activity(profile, slowest, usual):
        cause = Text("most of the additional time is spent in {place}", _host_held(held))
        if _is_stop(profile, held):
            cause = Text(
                "the host recorded nothing for up to {time} within {place}, and the trace does not tell why",
                time=in_ms(held.longest_ns), place=host_name(held.module or held.call),
            )  # fmt: skip
    if gap := _longer_gap(profile, slowest, usual):
        most = sentences(most, _gap_evidence(profile, slowest, gap))
    return sentences(most, _kernel_counts(slowest, usual)), cause


def _about_kernels(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit, cause: str
) -> tuple[str, str]:
    """Return a sentence on the kernels by which ``slowest`` computes longer than ``usual``, and a text on the cause.

    The sentence is "" if no kernels explain it. ``cause`` is the text if the kernels tell no other one; it is "" if
    computing has at most half of the additional time.
    """
    times = _equally_longer(profile, slowest, usual)
    longer = _longer_kernel(profile, slowest, usual) if times is None else None
    evidence = ""
    if times is not None:
        evidence = Text(
            "All large kernels take {times:.2f} times as long as in the median step, which has as many kernels.", times
        )
        if cause:
            cause = Text("all large kernels take {times:.2f} times as long, and their number is the same", times)
    elif longer is not None:
        evidence = longer.evidence
        if 2 * longer.ns > slowest.device_ns - usual.device_ns:
            cause = Text("the kernel {kernel} takes most of the additional time", short(longer.name))
    return evidence, cause


def _gap_evidence(profile: model.RankProfile, slowest: model.RecordedUnit, gap: model.FreeGap) -> str:
    """Return the sentences on the place of most additional time of the step ``slowest``.

    They say so if the longest idle time in ``gap`` lasts until the first kernel of the next step.
    """
    evidence = Text("Most of this additional time is at one place: {place}.", place_in_words(gap))
    following = _step_after(profile, slowest)
    if following is None or gap.begin_ns + gap.longest_ns < slowest.lead_in_ns + slowest.device_ns:
        return evidence
    return sentences(evidence, Text("This gap ends at the first kernel of step {number}.", following.number))


def _launch_of_copies(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> model.CopyLaunch | None:
    """Return what launched over half of the copies by which ``slowest`` is longer than ``usual``; None if unknown.

    Copies that delay the first kernel of a step belong to that step, although the device runs them before.
    """
    step = _delayed_step(profile, slowest, usual) or slowest
    launch, typical = profile.copy_launches.get(step.number), profile.copy_launches.get(usual.number)
    if launch is None:
        return None
    more = launch.ns - (typical.ns if typical is not None and typical.name == launch.name else 0)
    return launch if 2 * more > slowest.copy_ns - usual.copy_ns else None


def _kernel_counts(slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return the sentence on how many kernels the slow and the median step launched; "" if they are as many."""
    if slowest.kernels == usual.kernels:
        return ""
    return Text(
        "The slow step launched {count:,} kernels, the median step {median:,}.",
        count=slowest.kernels,
        median=usual.kernels,
    )


class LongerKernel(NamedTuple):
    """A kernel that takes ``ns`` longer in a slow step than in the median step, and a sentence on both times."""

    name: str
    ns: int
    evidence: str


def _longer_kernel(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> LongerKernel | None:
    """Return the kernel that has over half of the additional computing time of the ``slowest`` step; None without one.

    If it has little of the computing time of the ``usual`` step, it is taken to have the most that is not recorded.
    """
    slow_ns, usual_ns = (profile.kernels_of_steps.get(unit.number, {}) for unit in (slowest, usual))
    if not slow_ns or not usual_ns:
        return None
    most = round(model.LARGE_KERNEL * usual.compute_ns)
    name = max(slow_ns, key=lambda kernel: slow_ns[kernel] - usual_ns.get(kernel, most))
    longer = slow_ns[name] - usual_ns.get(name, most)
    if 2 * longer <= slowest.compute_ns - usual.compute_ns:
        return None
    values = {
        "kernel": short(name), "time": in_ms(slow_ns[name]), "median_time": in_ms(usual_ns.get(name, most)),
    }  # fmt: skip
    evidence = Text("{kernel} takes {time} in this step, but {median_time} in the median step.", **values)
    if name not in usual_ns:
        evidence = Text("{kernel} takes {time} in this step, but less than {median_time} in the median step.", **values)
    return LongerKernel(name, longer, evidence)


def _equally_longer(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> float | None:
    """Return how many times as long as in the ``usual`` step all large kernels of the ``slowest`` one take.

    None if they are not longer by about the same factor, or if the steps launch different numbers of kernels. A kernel
    that is large in one of the steps alone is taken to have the most that is not recorded in the other one.
    """
    slow_ns, usual_ns = (profile.kernels_of_steps.get(unit.number, {}) for unit in (slowest, usual))
    if not slow_ns or not usual_ns or slowest.kernels != usual.kernels:
        return None
    names = {*slow_ns, *usual_ns}
    slow, typical = (
        {name: sums.get(name, model.LARGE_KERNEL * unit.compute_ns) for name in names}
        for sums, unit in ((slow_ns, slowest), (usual_ns, usual))
    )
    return times_as_long(slow, typical)


def _advice_on_all_kernels(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> Text:
    """Return the advice on a step whose kernels are as many as in the ``usual`` one, but all longer.

    Larger inputs are ruled out if both steps have the same operators and shapes. Nothing tells without shapes.
    """
    slow, typical = (profile.inputs_of_steps.get(unit.number) for unit in (slowest, usual))
    if slow is None or typical is None:
        return Text(
            "check the device's clock frequency and power limit, then look for another process on the device. The trace"
            " has no shapes, so it cannot rule out larger inputs"
        )
    if slow == typical:
        return Text("check the device's clock frequency and power limit, then look for another process on the device")
    return Text(
        "check the device's clock frequency and power limit, and whether the inputs of this step are larger: its"
        " operators or their shapes differ from those of the median step; then look for another process on the device"
    )


def _without_graphs(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return in words that graphs launch few kernels of the ``slowest`` step, but most of the ``usual`` one; else "".

    Few are at most half as large a share.
    """
    slow, typical = (profile.graph_shares.get(unit.number, 0.0) for unit in (slowest, usual))
    if typical < host_bound.MOSTLY_GRAPHS or 2 * slow > typical:
        return ""
    return Text(
        "graphs launch {share} of its kernels, but {usual_share} of those of the median step",
        share=percent(slow, 0),
        usual_share=percent(typical, 0),
    )


def _most_longer_collective(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> tuple[str, int]:
    """Return the name of the collectives that take longer in the ``slowest`` step by most, and by how many ns."""
    longer = Counter[str]()
    for collective in profile.collectives:
        if collective.unit == slowest.number:
            longer[collective.name] += collective.ns
        elif collective.unit == usual.number:
            longer[collective.name] -= collective.ns
    return max(longer.items(), key=operator.itemgetter(1), default=("", 0))


def _longer_collective(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit, excess: int
) -> str:
    """Return by how much the collectives of one name take longer in the ``slowest`` step than in the ``usual`` one.

    The name is that with the largest difference, told by its kind and the size of its longest message, if known. "" if
    that is not over half of ``excess``, in ns.
    """
    name, ns = _most_longer_collective(profile, slowest, usual)
    if 2 * ns <= excess:
        return ""
    messages = [each for each in profile.collectives if (each.unit, each.name) == (slowest.number, name)]
    longest = max(messages, key=operator.attrgetter("ns"))
    label = longest.kind or short(name)
    if longest.bytes is not None:
        label = Text("{collective} of {size}", collective=label, size=size(longest.bytes))
    return Text("{collective} takes {time} longer", collective=label, time=in_ms(ns))


def _longer_gap(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> model.FreeGap | None:
    """Return the place with over half of the time by which one part of the ``slowest`` step exceeds the ``usual`` one.

    That is the part that exceeds it most. None without such a place, for instance if the part is no idle time.
    """
    part = _longer_part(slowest, usual)
    gap = next((gap for gap in profile.gaps if (gap.unit, gap.part, gap.kind) == (slowest.number, part, "place")), None)
    return gap if gap and 2 * gap.unit_ns > slowest.parts[part] - usual.parts[part] else None


def _longer_activity(
    profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit
) -> model.FreeGap | None:
    """Return the longest place of what held the host for over half of the additional time of the ``slowest`` step.

    Places with the same call, family of calls, frame or range count together, with the time beyond their mean in the
    other steps.
    """
    sums, places = Counter[str](), dict[str, model.FreeGap]()
    part = _longer_part(slowest, usual)
    for gap in profile.gaps:
        if (gap.unit, gap.part) == (slowest.number, part) and (name := _host_held(gap)):
            more = gap.unit_ns - (gap.ns - gap.unit_ns) // max(len(profile.units) - 1, 1)
            family = call_family(gap.call)
            name = name if family == gap.call else family
            sums[name] += more * gap.call_ns // gap.ns
            if places.setdefault(name, gap).call != gap.call:
                places[name] = dataclasses.replace(places[name], call=family)
    for name, ns in sums.most_common(1):
        return places[name] if 2 * ns > slowest.device_ns - usual.device_ns else None
    return None


def _is_stop(profile: model.RankProfile, gap: model.FreeGap) -> bool:
    """Tell whether the host recorded nothing within a frame of Python that does not wait, in few of the steps."""
    waits = BLOCKS.search(gap.call) or gap.call.startswith("built-in ") or not FUNCTION.search(gap.call)
    return bool(profile.has_stacks and gap.unrecorded and not waits and 2 * gap.units < len(profile.units))


def _host_held(gap: model.FreeGap) -> str:
    """Return the call, frame or range that the host was in during most of a gap; "" if it was not host-bound.

    An operator of torch counts as none: it is longer in one step if something interrupts it. That of a collective does
    count, because it can set up a communicator.
    """
    is_long = gap.within and ("::" not in gap.operator or gap.operator.startswith("c10d::"))
    name = gap.call or (gap.operator if is_long else "")
    return in_program(name, gap) if name and gap.part in ("free_host_late_ns", "free_blocked_ns") else ""


def _longer_part(slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return the part by which a step exceeds another one most."""
    return max(model.PARTS, key=lambda part: slowest.parts[part] - usual.parts[part])


def _diagnose_computing(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose a device that computes for over half of the time, as a note; None below that.

    The evidence names the longest kernels, and how much faster the device's roofline would be where it is known. The
    advice is on the longest kernel if that runs on AI_CPU, or converts formats or types.
    """
    share = profile.share("compute_ns", "overlap_ns")
    if share <= 0.5:
        return None
    headline = "" if share >= priorities.NEARLY_ALL else Text("Most of the time, the device is computing")
    kernels = [kernel for kernel in profile.kernels if kernel.kind == model.COMPUTE]
    whole = sum(kernel.ns for kernel in kernels) or 1
    largest = zip(kernels[:3], shorten_distinct([kernel.name for kernel in kernels[:3]]), strict=True)
    longest = joined(
        COMMA, (Text("{name} ({share})", name=name, share=percent(kernel.ns / whole, 0)) for kernel, name in largest)
    )
    evidence: str = Text("{share} of the time is computing.", percent(share))
    if longest:
        evidence = sentences(evidence, Text("Longest kernels: {longest}.", longest))
    above = sum(max(rate.ns - rate.least_ns, 0) for rate in profile.rates if rate.least_ns is not None)
    if above:
        less = min(above, profile.sum_ns("compute_ns", "overlap_ns")) // len(profile.units)
        roofline = Text(
            "At the device's roofline, the operators with known FLOPs and bytes ({share} of the kernel time) would"
            " take {time} less per step.",
            share=percent(min(sum(rate.ns for rate in profile.rates) / whole, 1)),
            time=in_ms(less),
        )
        evidence = sentences(evidence, roofline)
    advice = _advice_on_kernels(profile, kernels)
    return model.Diagnosis("compute", "note", evidence, None, model.EXACT, advice, profile.source, headline=headline)


def _advice_by_name(profile: model.RankProfile, name: str) -> str:
    """Return what to do about a kernel that runs on the NPU's CPU, or only converts or copies tensors; else ""."""
    if _runs_on_cpu_core(profile, name):
        return Text("{kernel} runs on AI_CPU: replace it with an operator that has an AI Core kernel", short(name))
    if _CONVERTS_TYPES.fullmatch(name):
        return Text(
            "{kernel} only converts tensors from one data type to another: keep one data type from operator to"
            " operator, or convert the weights once instead of in each micro-batch",
            short(name),
        )
    if _COPIES_VIEWS.search(name):
        return Text(
            "{kernel} only copies tensors, to make them contiguous or to change their data type: find the transposes,"
            " contiguous() and to() before it, and keep one layout and data type from operator to operator",
            short(name),
        )
    if name == _CONVERTS_FORMATS:
        return Text(
            "{kernel} only converts the memory format of tensors: set torch.npu.config.allow_internal_format = False,"
            " or keep one format from operator to operator",
            name,
        )
    return ""


def _advice_on_kernels(profile: model.RankProfile, kernels: Sequence[model.Kernel]) -> str:
    """Return what to do about ``kernels``, the computing ones of a profile, longest first."""
    longest = kernels[0] if kernels else None
    if longest and (advice := _advice_by_name(profile, longest.name)):
        return advice
    fusible = sum(kernel.ns for kernel in kernels if kernel.family == ELEMENTWISE)
    size, ns, _ = unaligned_size(profile) or (0, 0, "")
    if ns > fusible:
        return Text(
            "pad the size {size:,} to a multiple of 64 or 128, such as {padded:,}: other sizes make matmuls in half"
            " precision slow. For a vocabulary, pad the embedding and the head, and mask the new logits",
            size=size, padded=-(-size // 128) * 128,
        )  # fmt: skip
    if longest and longest.family in (OTHER, SAMPLING) and longest.ns > fusible:
        name = profile.operator_of(longest) or short(longest.name)
        return Text("check whether {name} can run less often, on less data, or in a faster implementation", name)
    fusible_share = fusible / (sum(kernel.ns for kernel in profile.kernels) or 1)
    if fusible_share >= _FUSED:
        return Text(
            "elementwise and normalization kernels take {share} of the kernel time: fuse them, for example by"
            " torch.compile, fused attention or a fused optimizer",
            percent(fusible_share, 0),
        )
    return Text("make the kernels faster: try another precision, or larger batches if the kernels are short")


def _runs_on_cpu_core(profile: model.RankProfile, kernel: str) -> bool:
    """Tell whether all calls of an NPU's kernel ran on AI_CPU, which is far slower than an AI Core."""
    return {use.core for use in profile.kernel_uses if use.name == kernel} == {"AI_CPU"}


# ---------------------------------------------------------------- the verdict


def _verdict(
    profiles: Sequence[model.RankProfile],
    diagnoses: Sequence[model.Diagnosis],
    withdrawn: Sequence[model.Diagnosis],
    labels: Mapping[str, str],
) -> model.Verdict:
    """Return the verdict of a report, whose title is that of the first diagnosis that is a problem.

    Without a problem it is that of the leading note. Without that, the title names the largest of the ``withdrawn``
    diagnoses, or says that nothing stands out. If failed checks withdraw all diagnoses of the device, and there is none
    on operators, the title says that the data is not sufficient; without profiles, too. Before all of these, it says so
    if all ranks mostly capture graphs, and the first diagnosis does not name that as the cause. ``diagnoses`` are in
    the order of the report, ``labels`` maps the source of a profile to its label.
    """
    withdrawn_ids = {diagnosis for profile in profiles if not profile.on_host for diagnosis in profile.withdrawn}
    first = next((diagnosis for diagnosis in diagnoses if diagnosis.severity == "problem"), None)
    on_operators = any(diagnosis.id == "host-operators" for diagnosis in diagnoses)
    captures = bool(profiles) and all(2 * profile.capture_share > 1 for profile in profiles)
    if captures and (first is None or first.culprit != GRAPH_CAPTURE):
        title: str = Text(
            "Most of the time, the host captures graphs: {share}. A capture runs no kernels; only the later replays do",
            percent(min(profile.capture_share for profile in profiles), 0),
        )
    elif not profiles or (set(DEVICE) <= withdrawn_ids and not on_operators):
        title = Text("No verdict: the data is not sufficient")
    else:
        leading = first or _leading_note(profiles, diagnoses)
        title = leading.title if leading else _title_without_finding(withdrawn)
    return model.Verdict(title, *_ascend_rule(profiles, first), tuple(_withdrawals(profiles, labels)))


def _leading_note(
    profiles: Sequence[model.RankProfile], diagnoses: Sequence[model.Diagnosis]
) -> model.Diagnosis | None:
    """Return the first diagnosis on computing, or on operators of a run without a device; None without one.

    If nothing has much of the time of such a run, one on slow steps counts, too.
    """
    mixed = {profile.source for profile in profiles if profile.on_host and host_only.is_mixed(profile)}
    for diagnosis in diagnoses:
        is_slow_step = diagnosis.id == "outlier" and diagnosis.source in mixed
        if is_slow_step or diagnosis.id in ("compute", "host-operators"):
            return diagnosis
    return None


def _title_without_finding(withdrawn: Sequence[model.Diagnosis]) -> str:
    """Return the title of a verdict without a finding.

    It names the largest ``withdrawn`` warning as unconfirmed, else the withdrawn diagnosis of computing; without these,
    it says that nothing stands out.
    """
    warnings = (diagnosis for diagnosis in withdrawn if diagnosis.severity == "warning")
    computing = next((diagnosis for diagnosis in withdrawn if diagnosis.id == "compute"), None)
    largest = max(warnings, key=lambda diagnosis: diagnosis.saving_ns or 0, default=computing)
    if largest is None:
        return Text("Nothing stands out")
    return Text("No verdict: a check of the data failed. Unconfirmed finding: {finding}", largest.title)


def _withdrawals(profiles: Sequence[model.RankProfile], labels: Mapping[str, str]) -> Iterator[str]:
    """Yield for each failed check a sentence with its evidence and the diagnoses that it withdraws.

    The check for kernels is skipped for a profile without a device. ``labels`` maps the source of a profile to the
    label that begins the sentence.
    """
    for profile in profiles:
        for check in profile.failed:
            if not (profile.on_host and check.id == "kernels"):  # there is nothing that could launch one
                yield _with_label(labels.get(profile.source), _withdrawal(check))


def _withdrawal(check: model.Check) -> str:
    """Return the evidence of a failed check, with the ids of the diagnoses that it withdraws, if any, or "all"."""
    names = [name for name in check.withdraws if name in model.TITLES]
    if not names:
        return check.evidence
    verdicts = Text("all") if set(EVERY) <= set(names) else joined(COMMA, names)
    return Text(
        "{failed_check} (verdicts that rlpatch therefore withdraws: {verdicts})",
        failed_check=check.evidence,
        verdicts=verdicts,
    )


def _ascend_rule(profiles: Sequence[model.RankProfile], first: model.Diagnosis | None) -> tuple[str, str]:
    """Return what the Ascend guide concludes from the largest Free time of a rank, and why the verdict differs.

    Free is what torch_npu's step_trace_time calls idle; above 10 %, the guide blames a host that launches late. The
    verdict is ``first``, the first diagnosis that is a problem, if any. Both texts are sentences. The second one is ""
    up to 10 % or if the verdict does not differ; both are "" without a device.
    """
    with_time = [profile for profile in profiles if profile.total_ns]
    if not with_time:
        return "", ""
    reasons = {**model.FREE, "copy_ns": model.PARTS["copy_ns"]}
    profile = max(with_time, key=lambda candidate: candidate.free_share)
    free = profile.free_share
    rule = Text("Free time, as torch_npu's step_trace_time counts it, is {share}", percent(free))
    if len(profiles) > 1:
        rule = Text(
            "Counted as in torch_npu's step_trace_time, Free time of {profile} is {share}",
            profile=profile.label,
            share=percent(free),
        )
    if free <= NOTABLE:
        return Text(
            "{free_share}, within the limit of 10 %: the Ascend guide recommends looking at computing first, then at"
            " communication.",
            rule,
        ), ""
    rule = Text(
        "{free_share}, above the limit of 10 %: the Ascend guide recommends looking at the host's launches first.", rule
    )
    if first is not None and first.id == "dispatch":
        return rule, ""
    shares = ((reason, profile.share(part)) for part, reason in reasons.items())
    causes = joined(
        COMMA,
        (Text("{share} {reason}", share=percent(share), reason=reason) for reason, share in shares if share >= 0.0005),
    )
    difference = Text("This Free time includes copies and all kinds of waiting: {shares}.", causes)
    if first is not None and first.saving_ns:
        difference = sentences(difference, Text("However, rlpatch's main finding is: {title}.", first.title))
    return rule, difference
