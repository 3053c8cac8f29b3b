"""The order of findings, and of each stretch of time a single one: savings are disjoint, or said to be the same."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Mapping, Sequence

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.analysis import exposed
from patcher.traces.analysis.checks import HOST
from patcher.traces.analysis.pipelines import per_unit
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.places import (
    HostCause,
    activity_name,
    call_family,
    drained_by,
    host_activity,
    host_cause,
    in_program,
    main_place,
    place_of,
    time_with_cut,
)
from patcher.traces.words import host_name, in_ms

SEVERITIES = ("problem", "warning", "note")
"""Severities of diagnoses, the most severe first."""

PARTS_OF: Mapping[str, tuple[str, ...]] = {
    **HOST,
    "idle-unknown": ("free_unknown_ns",),
    "copies": ("copy_ns",),
    "lead-in": (model.LEAD_IN,),
}
"""Id of a diagnosis → the parts of the time that it is of."""

_OF_HOST = ("dispatch", "launch-blocked")  # ids of the diagnoses of a device that waits for the host
_OF_HOST_PARTS = tuple(part for name in _OF_HOST for part in PARTS_OF[name])
_PREPARE_EARLIER = Text(
    "let the host prepare a step while the device computes the one before (asynchronous scheduling)"
)

_ON_DEVICE = ("waiting", "idle-unknown")
"""Ids of the diagnoses of idle time whose culprit is a place on the device, not what the host is in."""

_AT_MORE_PLACES = 1.1
"""A call's idle time at all places is so many times that at the main one if the call, not the place, is named."""

_NEARLY_AS_LONG = 0.8
"""Share of the longest host-bound time from which on another rank's may be what the host waits for in a collective."""

NEARLY_ALL = 0.8
"""The share of the time from which on computing comes before all host-bound time."""


def _name_main_place(diagnosis: model.Diagnosis, profile: model.RankProfile | None) -> model.Diagnosis:
    """Return a diagnosis of idle time whose headline and culprit name the place with over half of this time.

    Without such a place, "host-bound" names the call, frame or operator that keeps the host for over half of this time.
    In both cases, the saving is at most the time there. A place has the like time before the first kernel, too, if the
    last step lacks it. Any other diagnosis, and one without ``profile``, is unchanged.
    """
    parts = PARTS_OF.get(diagnosis.id, ())
    if profile is None or diagnosis.saving_ns is None or not parts:
        return diagnosis
    gap = main_place(profile, parts)
    cause = host_cause(profile, parts) if diagnosis.id == "dispatch" else None
    if gap is None or (cause is not None and _is_at_more_places(cause, gap, profile)):
        if cause is None:
            return _name_draining_call(diagnosis, profile)
        call = in_program(cause.name, cause.gap)
        longer = time_with_cut(profile, cause.gap) - cause.gap.ns if cause.gap else 0
        return dataclasses.replace(
            diagnosis,
            headline=Text("{title}, mostly while the host was in {call}", title=diagnosis.title, call=call),
            saving_ns=min(diagnosis.saving_ns, cause.ns // len(profile.units)) + longer // len(profile.units),
            culprit=cause.name,
        )
    is_known = bool(gap.call or gap.within)
    longer = time_with_cut(profile, gap) - gap.ns
    covered = (gap.call_ns if gap.part == "free_host_late_ns" else 0) or gap.ns
    headline = Text(
        "{title}, mostly at one place: {place}",
        title=diagnosis.title,
        place=host_activity(gap) if is_known else place_of(gap),
    )
    if not is_known and gap.part in ("free_host_late_ns", model.LEAD_IN):
        unknown = Text("{headline}; no single recorded event covers half of this time", headline)
        nothing = Text("{headline}; almost nothing was recorded on the host during this time", headline)
        headline = nothing if gap.unrecorded else unknown
    return dataclasses.replace(
        diagnosis,
        headline=headline,
        saving_ns=min(diagnosis.saving_ns + longer // len(profile.units), (covered + longer) // len(profile.units)),
        culprit=gap.call or gap.operator or gap.module or place_of(gap),
    )


def _is_at_more_places(cause: HostCause, gap: model.FreeGap, profile: model.RankProfile) -> bool:
    """Tell whether the host is in what held it at the main place, or in calls of its family, a tenth longer."""
    return call_family(gap.call) == call_family(cause.name) and cause.ns > _AT_MORE_PLACES * time_with_cut(profile, gap)


def _name_draining_call(diagnosis: model.Diagnosis, profile: model.RankProfile) -> model.Diagnosis:
    """Return a diagnosis of host-bound time, with the call that let the device run empty before most of this time."""
    gap = drained_by(profile, PARTS_OF["dispatch"]) if diagnosis.id == "dispatch" else None
    if gap is None:
        return diagnosis
    call = host_name(gap.returned_from)
    headline = Text(
        "{title}, mostly after the host had waited for the device in {call}", title=diagnosis.title, call=call
    )
    return dataclasses.replace(diagnosis, headline=headline, culprit=gap.returned_from)


def select_findings(
    diagnoses: Sequence[model.Diagnosis], profiles: Sequence[model.RankProfile], meetings: Meetings
) -> list[model.Diagnosis]:
    """Return the findings to report, most severe first, then by saving; each stretch of time counts in only one.

    If ranks wait for each other, only the straggler's diagnoses are kept, next to the finding on the waiting. Without a
    straggler, they are those of the rank with the largest saving. Of each id, the diagnosis with the largest saving is
    kept. The warning with the largest saving becomes a problem, unless computing outweighs it.
    """
    by_source = {profile.source: profile for profile in profiles}
    findings, has_straggler = _select_reported(diagnoses, profiles, meetings)
    findings = [_subtract_slow_steps(diagnosis, findings) for diagnosis in findings]
    findings = [_name_main_place(diagnosis, by_source.get(diagnosis.source)) for diagnosis in findings]
    findings = findings if has_straggler else _join_late_start(findings, by_source)
    findings = [_name_cause_of_waiting(diagnosis, findings, by_source) for diagnosis in findings]
    marked = [
        dataclasses.replace(diagnosis, same_as="slow-rank")
        if any(_is_slow_step_of_straggler(diagnosis, waiting, by_source) for waiting in findings)
        else _mark_explained(diagnosis, findings)
        for diagnosis in findings
    ]
    return _sort_by_severity(marked, by_source)


def _select_reported(
    diagnoses: Sequence[model.Diagnosis], profiles: Sequence[model.RankProfile], meetings: Meetings
) -> tuple[list[model.Diagnosis], bool]:
    """Return the diagnoses to report, one of each id, that of communication first; and whether there is a straggler.

    Then the diagnoses are those of the straggler, marked if they are the cause of the waiting.
    """
    communication = max(_on_communication(diagnoses), key=_exposed_and_waiting, default=None)
    slow = exposed.straggler(meetings) if communication is not None and communication.id == "slow-rank" else None
    remaining = [diagnosis for diagnosis in diagnoses if diagnosis.id not in exposed.IDS]
    if slow is not None:
        remaining = [
            _mark_cause_of_waiting(diagnosis, profiles, slow.source) for diagnosis in _of_source(remaining, slow.source)
        ]
    elif diagnoses and (meetings.ranks or meetings.pipeline):
        source = _source_with_most_to_save(diagnoses, {profile.source: profile for profile in profiles})
        remaining = _of_source(remaining, source)
        communication = next(iter(_of_source(_on_communication(diagnoses), source)), None)
    return [*([communication] if communication else []), *_largest_by_id(remaining)], slow is not None


def _source_with_most_to_save(diagnoses: Sequence[model.Diagnosis], by_source: Mapping[str, model.RankProfile]) -> str:
    """Return the source of the diagnosis with the largest saving.

    If its host waits in a collective for other ranks, and another rank's host does not, that rank's host-bound time
    counts if it is nearly as long: it may be what they wait for.
    """
    largest = max(diagnoses, key=lambda diagnosis: diagnosis.saving_ns or 0)
    if largest.id != "dispatch" or not _meets_on_host(by_source[largest.source]):
        return largest.source
    late = (
        diagnosis
        for diagnosis in diagnoses
        if diagnosis.id == "dispatch" and not _meets_on_host(by_source[diagnosis.source])
        and (diagnosis.saving_ns or 0) >= _NEARLY_AS_LONG * (largest.saving_ns or 0)
    )  # fmt: skip
    return max(late, key=lambda diagnosis: diagnosis.saving_ns or 0, default=largest).source


def _meets_on_host(profile: model.RankProfile) -> bool:
    """Tell whether the host is in a collective of torch.distributed during most of the main host-bound time."""
    return re.search(r"distributed_c10d\.py|^c10d::|^gloo:", activity_name(profile, PARTS_OF["dispatch"])) is not None


def _join_late_start(
    findings: Sequence[model.Diagnosis], by_source: Mapping[str, model.RankProfile]
) -> list[model.Diagnosis]:
    """Return the findings; one on a late start has the host-bound time after it, too, which others are marked as."""
    starts = (finding for finding in findings if finding.id == "lead-in" and finding.saving_ns)
    start = next((finding for finding in starts if _starts_late(by_source[finding.source])), None)
    if start is None:
        return [*findings]
    before, within = (by_source[start.source].sum_ns(*parts) for parts in ((model.LEAD_IN,), _OF_HOST_PARTS))
    headline = Text(
        "The device waits for the host: {before} before the first kernel, which is no part of the step, and {within} in"
        " the step",
        before=in_ms(before), within=in_ms(within),
    )  # fmt: skip
    advice = start.advice if start.culprit and "::" not in start.culprit else _PREPARE_EARLIER
    start = dataclasses.replace(start, headline=headline, saving_ns=before + within, advice=advice)
    same = [dataclasses.replace(each, same_as=start.id) if each.id in _OF_HOST else each for each in findings]
    return [start, *(finding for finding in same if finding.id != start.id)]


def _starts_late(profile: model.RankProfile) -> bool:
    """Tell whether the device waits for the host for a quarter of the time, and computes for half to 3/4 of a step."""
    before, computing = profile.sum_ns(model.LEAD_IN), profile.sum_ns("compute_ns", "overlap_ns")
    whole, waiting = profile.total_ns + before, before + profile.sum_ns(*_OF_HOST_PARTS)
    return len(profile.units) == 1 and 4 * waiting >= whole < 2 * computing and 4 * computing < 3 * profile.total_ns


def _name_cause_of_waiting(
    diagnosis: model.Diagnosis, findings: Sequence[model.Diagnosis], by_source: Mapping[str, model.RankProfile]
) -> model.Diagnosis:
    """Return the diagnosis of a straggler whose headline names what its host does while the other ranks wait.

    That is known from a finding on the straggler that explains over half of the waiting. If it is late in one step, the
    headline has the cause of this slow step. Any other diagnosis is unchanged, as is one without a device.
    ``by_source`` has the profile of each source.
    """
    if diagnosis.id != "slow-rank" or not diagnosis.culprit or by_source[diagnosis.source].on_host:
        return diagnosis
    title = Text("Ranks wait for {rank}", diagnosis.culprit) if diagnosis.step is None else diagnosis.title
    for slow in findings:
        if slow.slow_steps and _is_slow_step_of_straggler(slow, diagnosis, by_source):
            number, cause_of_step = slow.slow_steps.host_number, slow.slow_steps.cause
            if number != diagnosis.step:
                cause_of_step = Text("in step {number}, {cause}", number=number, cause=cause_of_step)
            headline: str = Text("{title}: {cause}", title=title, cause=cause_of_step)
            return dataclasses.replace(diagnosis, headline=headline, advice=slow.advice or diagnosis.advice)
    for cause in findings:
        if cause.same_as != "slow-rank" or 2 * (cause.saving_ns or 0) <= (diagnosis.saving_ns or 0):
            continue
        headline = _headline_with_activity(title, cause, by_source)
        if headline:
            return dataclasses.replace(diagnosis, headline=headline, advice=cause.advice or diagnosis.advice)
    return diagnosis


def _headline_with_activity(title: str, cause: model.Diagnosis, by_source: Mapping[str, model.RankProfile]) -> str:
    """Return the title of a straggler with what it copies, or what its host is in, as ``cause`` names it.

    "" if ``cause`` names neither.
    """
    if cause.id == "copies":
        return Text("{title}: it copies for longer, {direction}", title=title, direction=cause.culprit)
    name = "" if cause.id in _ON_DEVICE else cause.culprit
    if cause.id == "dispatch":  # its culprit may be a place on the device
        name = activity_name(by_source[cause.source], PARTS_OF[cause.id])
    return Text("{title}, mostly while its host is in {call}", title=title, call=host_name(name)) if name else ""


def _is_slow_step_of_straggler(
    slow: model.Diagnosis, waiting: model.Diagnosis, by_source: Mapping[str, model.RankProfile]
) -> bool:
    """Tell whether ``slow`` is on the step in which ranks wait most for a straggler, and explains most of ``waiting``.

    It may be the step before: what a rank does at its end delays the first collective of the next one.
    The findings with a saving are those of the straggler if ``waiting`` names one. Its own waiting explains nothing.
    """
    steps = slow.slow_steps
    if steps is None or waiting.step is None or not slow.saving_ns or not steps.cause:
        return False
    late_in = (waiting.step, waiting.step - 1)
    if len(steps.numbers) > 1 or steps.host_number not in late_in or "communication_ns" in slow.parts:
        return False
    if by_source[waiting.source].on_host and slow.source != waiting.source:
        return False
    return 2 * steps.excess_ns > (waiting.saving_ns or 0) * len(by_source[waiting.source].units)


def _on_communication(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return the diagnoses of exposed communication, one of each profile that has some."""
    return [diagnosis for diagnosis in diagnoses if diagnosis.id in exposed.IDS]


def _mark_explained(diagnosis: model.Diagnosis, findings: Sequence[model.Diagnosis]) -> model.Diagnosis:
    """Return the diagnosis of the slowest step with ``same_as``: the id of the first finding about the same time.

    For a warning, a finding that would save less than the diagnosis does not count. The diagnosis is unchanged if there
    is no such finding, or if it is about something else than the slowest step.
    """
    for finding in findings:
        reduced = diagnosis.severity == "warning" and (finding.saving_ns or 0) < (diagnosis.saving_ns or 0)
        if _is_in_slow_steps(finding, diagnosis) and not reduced:
            return dataclasses.replace(diagnosis, same_as=finding.id)
    return diagnosis


def _is_in_slow_steps(finding: model.Diagnosis, outlier: model.Diagnosis) -> bool:
    """Tell whether the ``finding`` is about time by which slow steps of its profile are longer.

    ``outlier`` is the diagnosis of the slow steps. False if it is any other diagnosis.
    """
    part = next(iter(outlier.parts), "") if outlier.id == "outlier" else ""
    about = ("communication_ns",) if finding.id in exposed.IDS else PARTS_OF.get(finding.id, ())
    return part in about and finding.source == outlier.source


def _subtract_slow_steps(diagnosis: model.Diagnosis, findings: Sequence[model.Diagnosis]) -> model.Diagnosis:
    """Return a diagnosis without the part of its saving that lies in slow steps, if that is over half of the saving.

    Then only few steps have the cause, and the diagnosis of the slowest step comes first. Only a diagnosis of idle
    time, copies or transfer changes: other ranks explain waiting.
    """
    if diagnosis.id not in (*PARTS_OF, exposed.PARTS[exposed.TRANSFER]):
        return diagnosis
    for outlier in findings:
        saving, longer = diagnosis.saving_ns or 0, outlier.saving_ns or 0
        if outlier.severity == "warning" and _is_in_slow_steps(diagnosis, outlier) and 2 * longer > saving:
            return dataclasses.replace(diagnosis, saving_ns=max(saving - longer, 0))
    return diagnosis


def _exposed_and_waiting(diagnosis: model.Diagnosis) -> tuple[int, int]:
    """Return the key that sorts findings on communication: ns of it that are exposed, then of these waiting."""
    return sum(diagnosis.parts.values()), diagnosis.parts.get(exposed.WAITING, 0)


def _of_source(diagnoses: Sequence[model.Diagnosis], source: str) -> list[model.Diagnosis]:
    """Return the diagnoses of one profile, those of no single profile, and all without a saving."""
    return [diagnosis for diagnosis in diagnoses if diagnosis.source in (source, "") or not diagnosis.saving_ns]


def _largest_by_id(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return for each id the diagnosis with the largest saving, largest first; of equal savings the first."""
    worst: dict[str, model.Diagnosis] = {}
    for diagnosis in sorted(diagnoses, key=lambda diagnosis: diagnosis.saving_ns or 0, reverse=True):
        worst.setdefault(diagnosis.id, diagnosis)
    return list(worst.values())


def _mark_cause_of_waiting(
    diagnosis: model.Diagnosis, profiles: Sequence[model.RankProfile], straggler_source: str
) -> model.Diagnosis:
    """Return a diagnosis of the straggler, marked as the cause of the other ranks' waiting if it is.

    It is the cause if over half of its saving is time that the other ranks do not spend. ``straggler_source`` is the
    source of the straggler's profile.
    """
    more = _excess_over_others(diagnosis, profiles, straggler_source)
    if diagnosis.saving_ns is None or 2 * more <= diagnosis.saving_ns:
        return diagnosis
    return dataclasses.replace(diagnosis, same_as="slow-rank")


def _excess_over_others(diagnosis: model.Diagnosis, profiles: Sequence[model.RankProfile], source: str) -> int:
    """Return by how many ns per step the profile of ``source`` exceeds the median of the others; at least 0.

    Counted are the parts of a step, such as host-bound time, that the diagnosis is about.
    """
    parts = PARTS_OF.get(diagnosis.id, ())
    usual = [per_unit(profile, *parts) for profile in profiles if profile.source != source]
    spent = [per_unit(profile, *parts) for profile in profiles if profile.source == source]
    return max(spent[0] - round(statistics.median(usual)), 0) if usual and spent else 0


def _sort_by_severity(
    diagnoses: Sequence[model.Diagnosis], by_source: Mapping[str, model.RankProfile]
) -> list[model.Diagnosis]:
    """Return the diagnoses by severity, then by saving, after the largest warning was made a problem.

    There is no problem if computing outweighs that warning. Within a severity, those with ``same_as`` (explained by
    another finding) come last. ``by_source`` has the profile of each source.
    """
    by_saving = sorted(diagnoses, key=lambda diagnosis: (bool(diagnosis.same_as), -(diagnosis.saving_ns or 0)))
    heaviest = next((diagnosis for diagnosis in by_saving if diagnosis.severity == "warning"), None)
    if heaviest and _is_outweighed(heaviest, diagnoses, by_source.get(heaviest.source)):
        heaviest = None
    marked = [
        dataclasses.replace(diagnosis, severity="problem") if diagnosis is heaviest else diagnosis
        for diagnosis in by_saving
    ]
    return sorted(marked, key=lambda diagnosis: SEVERITIES.index(diagnosis.severity))


def _is_outweighed(
    diagnosis: model.Diagnosis, diagnoses: Sequence[model.Diagnosis], profile: model.RankProfile | None
) -> bool:
    """Tell whether computing matters more than ``diagnosis``, which is about an idle device.

    It matters more than host-bound time, which the profiler makes longer, and than idle time of unknown cause, if that
    saves less than two thirds of computing and has no known place or cause, or if computing takes nearly all the time.
    It matters more than many short gaps in one range, too, if it takes over twice as long, and than the time before the
    first kernel if it takes over half of the time including that. False for any other diagnosis, or if ``diagnoses``
    has none on computing in ``profile``.
    """
    computing = any(other.id == "compute" and other.source == diagnosis.source for other in diagnoses)
    if diagnosis.id not in ("dispatch", "idle-unknown", "lead-in") or not computing or profile is None:
        return False
    saved_ns, computing_ns = (diagnosis.saving_ns or 0) * len(profile.units), profile.sum_ns("compute_ns", "overlap_ns")
    if diagnosis.id == "lead-in":
        return 2 * computing_ns > profile.total_ns + profile.sum_ns(model.LEAD_IN) and not _starts_late(profile)
    cause = host_cause(profile, PARTS_OF["dispatch"])
    in_range = cause is not None and cause.gap is None and diagnosis.culprit == cause.name
    if in_range and 2 * saved_ns < computing_ns:
        return True
    is_small = not diagnosis.culprit and 3 * saved_ns < 2 * computing_ns
    return is_small or profile.share("compute_ns", "overlap_ns") >= NEARLY_ALL
