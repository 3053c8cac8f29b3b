"""The order of findings, and of each stretch of time a single one: savings are disjoint, or said to be the same."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.analysis import exposed
from patcher.traces.analysis.pipelines import per_unit
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.places import host_of, place_of

SEVERITIES = ("problem", "warning", "note")
"""Severities of diagnoses, the most severe first."""

PARTS_OF: Mapping[str, tuple[str, ...]] = {
    "dispatch": ("free_host_late_ns", "free_latency_ns"),
    "launch-blocked": ("free_blocked_ns",),
    "waiting": ("free_waiting_ns",),
    "copies": ("copy_ns",),
    "lead-in": (model.LEAD_IN,),
}
"""Id of a diagnosis → the parts of the time that it is of."""


def _at_one_place(diagnosis: model.Diagnosis, profile: model.RankProfile | None) -> model.Diagnosis:
    """Return a diagnosis of idle time with the place that holds over half of it in its headline, and as its bound."""
    parts = _parts_of(diagnosis)
    if profile is None or diagnosis.saving_ns is None:
        return diagnosis
    gap = next((gap for gap in profile.gaps if gap.part in parts and gap.kind == "place"), None)
    if gap is None or 2 * gap.ns <= profile.sum_ns(*parts):
        return diagnosis
    return dataclasses.replace(
        diagnosis,
        headline=Text(
            "{title}, mostly at one place: {what}",
            diagnosis.title,
            host_of(gap) if gap.call or gap.within else place_of(gap),
        ),
        saving_ns=min(diagnosis.saving_ns, gap.ns // len(profile.units)),
        culprit=gap.call or gap.operator or gap.module or place_of(gap),
    )


def _parts_of(diagnosis: model.Diagnosis) -> tuple[str, ...]:
    """Return the parts of the time that a diagnosis is of, as far as units have them."""
    return tuple(part for part in PARTS_OF.get(diagnosis.id, ()) if hasattr(model.RecordedUnit, part))


def ordered(
    diagnoses: Sequence[model.Diagnosis], profiles: Sequence[model.RankProfile], meetings: Meetings
) -> list[model.Diagnosis]:
    """Return the diagnoses to report, by severity and saving: one for each time that could be saved.

    Where ranks meet in collectives they share one time, so the findings of a single rank are kept: of a straggler,
    beside what the others wait for it, else of the rank with the largest saving. The heaviest warning becomes a
    problem.
    """
    communication = max(_about_communication(diagnoses), key=_exposed_and_waiting, default=None)
    slow = exposed.straggler(meetings) if communication is not None and communication.id == "slow-rank" else None
    remaining = [diagnosis for diagnosis in diagnoses if diagnosis.id not in exposed.IDS]
    if slow is not None:
        remaining = [_same(diagnosis, profiles, slow.source) for diagnosis in _of_source(remaining, slow.source)]
    elif diagnoses and (meetings.ranks or meetings.pipeline):
        source = max(diagnoses, key=lambda diagnosis: diagnosis.saving_ns or 0).source
        remaining = _of_source(remaining, source)
        communication = next(iter(_of_source(_about_communication(diagnoses), source)), None)
    by_source = {profile.source: profile for profile in profiles}
    chosen = [*([communication] if communication else []), *_worst(remaining)]
    chosen = [_at_one_place(diagnosis, by_source.get(diagnosis.source)) for diagnosis in chosen]
    return _by_severity([_same_part(diagnosis, chosen) for diagnosis in chosen])


def _about_communication(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return the diagnoses of exposed communication, one of each profile that has some."""
    return [diagnosis for diagnosis in diagnoses if diagnosis.id in exposed.IDS]


def _same_part(diagnosis: model.Diagnosis, chosen: Sequence[model.Diagnosis]) -> model.Diagnosis:
    """Mark a slow unit as the same time as the finding on the part by which it is longer."""
    part = next(iter(diagnosis.parts), "") if diagnosis.id == "outlier" else ""
    for finding in chosen:
        about = ("communication_ns",) if finding.id in exposed.IDS else _parts_of(finding)
        if part in about and finding.source == diagnosis.source:
            return dataclasses.replace(diagnosis, same_as=finding.id)
    return diagnosis


def _exposed_and_waiting(diagnosis: model.Diagnosis) -> tuple[int, int]:
    """Return the key that sorts findings on communication: ns of it that are exposed, then of these waiting."""
    return sum(diagnosis.parts.values()), diagnosis.parts.get(exposed.WAITING, 0)


def _of_source(diagnoses: Sequence[model.Diagnosis], source: str) -> list[model.Diagnosis]:
    """Return the diagnoses of one profile, of all, and those without a saving."""
    return [diagnosis for diagnosis in diagnoses if diagnosis.source in (source, "") or not diagnosis.saving_ns]


def _worst(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return of each id the diagnosis with the largest saving; the first one of equal ones."""
    worst: dict[str, model.Diagnosis] = {}
    for diagnosis in sorted(diagnoses, key=lambda diagnosis: diagnosis.saving_ns or 0, reverse=True):
        worst.setdefault(diagnosis.id, diagnosis)
    return list(worst.values())


def _same(diagnosis: model.Diagnosis, profiles: Sequence[model.RankProfile], straggler: str) -> model.Diagnosis:
    """Mark a diagnosis of the straggler as what the others wait for, if it has most of that beyond the others."""
    more = _beyond_others(diagnosis, profiles, straggler)
    if diagnosis.saving_ns is None or 2 * more <= diagnosis.saving_ns:
        return diagnosis
    return dataclasses.replace(diagnosis, same_as="slow-rank")


def _beyond_others(diagnosis: model.Diagnosis, profiles: Sequence[model.RankProfile], source: str) -> int:
    """Return how many ns more of the diagnosis' part a profile has in a unit than the median of the others."""
    parts = _parts_of(diagnosis)
    usual = [per_unit(profile, *parts) for profile in profiles if profile.source != source]
    spent = [per_unit(profile, *parts) for profile in profiles if profile.source == source]
    return max(spent[0] - round(statistics.median(usual)), 0) if usual and spent else 0


def _by_severity(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return diagnoses by severity, then by saving; those about another finding's time come after it."""
    by_saving = sorted(diagnoses, key=lambda diagnosis: (bool(diagnosis.same_as), -(diagnosis.saving_ns or 0)))
    heaviest = next((diagnosis for diagnosis in by_saving if diagnosis.severity == "warning"), None)
    marked = [
        dataclasses.replace(diagnosis, severity="problem") if diagnosis is heaviest else diagnosis
        for diagnosis in by_saving
    ]
    return sorted(marked, key=lambda diagnosis: SEVERITIES.index(diagnosis.severity))
