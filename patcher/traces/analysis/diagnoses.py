"""The diagnoses: what there is to gain; profiles made into a report."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

from patcher.messages import COMMA, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis import collectives, host_bound, host_only, pipelines
from patcher.traces.analysis.checks import DEVICE, EVERY, NOTABLE
from patcher.traces.analysis.ranks import met, missing
from patcher.traces.places import first_place, place_in_words
from patcher.traces.words import apart, cold_units, in_ms, listed, percent

COPIES = 0.05
SLOW = 1.3
"""A unit that takes so many times the median is an outlier."""

BLAMED = 1.5
"""The others wait so many times as long for the slow rank as for any other."""

SEVERITIES = ("problem", "warning", "note")
"""Severities of diagnoses, the most severe first."""

_EXACT = Text("exact; the saving is an upper bound")


def reported(profiles: Sequence[model.RankProfile]) -> model.TraceReport:
    """Report on the ranks of one run: diagnoses, and the verdict. Several stages get one nested report each."""
    parts = list(dict.fromkeys(profile.part for profile in profiles))
    if len(parts) < 2:
        return _stage(profiles, named=len(profiles) > 1)
    stages = [_stage([profile for profile in profiles if profile.part == part], named=True) for part in parts]
    findings = tuple(finding for stage in stages for finding in stage.findings)
    verdict = model.Verdict(Text("{count} stages, each by itself", len(stages)))
    return model.TraceReport(tuple(profiles), findings, verdict, stages=tuple(stages))


def _stage(profiles: Sequence[model.RankProfile], *, named: bool) -> model.TraceReport:
    """Return the report of one stage; if ``named``, each evidence begins with the label of its profile."""
    ranks, exact, waits = met(profiles)
    profiles = collectives.sized(profiles, waits)
    diagnoses = [
        diagnosis for profile in profiles
        for diagnosis in (*_diagnoses(profile, ranks), pipelines.bubble(profile, profiles))
        if diagnosis is not None and diagnosis.id not in profile.withdrawn
    ]  # fmt: skip
    slow = _slow_rank(ranks, exact=exact)
    if slow is not None and not any(slow.id in profile.withdrawn for profile in profiles):
        diagnoses.append(slow)
    if len(profiles) > 1 and (missing_ranks := missing(profiles)):
        there = Text("{count} of {total} ranks were reported", len(profiles), len(profiles) + len(missing_ranks))
        evidence = Text("{reported}, without {ranks}: who waits for those is not known.", there, listed(missing_ranks))
        diagnoses.append(model.Diagnosis("missing-ranks", "note", evidence, None, "exact"))
    whose = {profile.source: profile.label or profile.source for profile in profiles} if named else {}
    ordered = [
        dataclasses.replace(diagnosis, evidence=_of(whose.get(diagnosis.source), diagnosis.evidence))
        for diagnosis in _ordered(diagnoses)
    ]
    return model.TraceReport(tuple(profiles), tuple(ordered), _verdict(profiles, ordered, whose), ranks)


def _of(profile: str | None, evidence: str) -> str:
    """Return the evidence, after the name of its profile if that is given."""
    return Text("{profile}: {evidence}", profile, evidence) if profile else evidence


def _ordered(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Return of each id the diagnosis with the largest saving, by severity; the heaviest warning becomes a problem."""
    by_saving = sorted(diagnoses, key=lambda diagnosis: diagnosis.saving_ns or 0, reverse=True)
    worst = {finding.id: finding for finding in reversed(by_saving)}
    ordered = [finding for finding in by_saving if finding is worst[finding.id]]
    heaviest = next((diagnosis for diagnosis in ordered if diagnosis.severity == "warning"), None)
    ordered = [
        dataclasses.replace(diagnosis, severity="problem") if diagnosis is heaviest else diagnosis
        for diagnosis in ordered
    ]
    return sorted(ordered, key=lambda diagnosis: SEVERITIES.index(diagnosis.severity))


def _diagnoses(profile: model.RankProfile, ranks: Sequence[model.Rank]) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses of one profile: of large parts of the time, then of collectives, outlier and computing."""
    bounds = _bounds(profile)
    for name, part in _WEIGHED.items():
        saving = min(profile.sum_ns(part), bounds.get(name, profile.total_ns))
        share = (saving if name == "collective-idle" else profile.sum_ns(part)) / (profile.total_ns or 1)
        if share >= (COPIES if name == "copies" else NOTABLE):
            evidence, advice, certainty = _said_of(name, profile, ranks, percent(share))
            if first := first_place(profile, part):
                advice = Text("{advice}; the largest share is {first}", advice, first)
            saving //= len(profile.units)
            yield model.Diagnosis(name, "warning", evidence, saving, certainty, advice, profile.source)
    yield from host_bound.diagnoses(profile)
    yield from host_only.diagnoses(profile)
    yield from filter(
        None,
        (
            collectives.outlier(profile), collectives.unaligned(profile), _outlier(profile), _compute(profile),
        ),
    )  # fmt: skip


_WEIGHED = {
    "communication": "communication_ns",
    "collective-idle": "communication_ns",
    "copies": "copy_ns",
}
"""Diagnosis → the part of the time that it is of."""


def _said_of(name: str, profile: model.RankProfile, ranks: Sequence[model.Rank], share: str) -> tuple[Text, Text, Text]:
    """Return evidence, advice and certainty of the diagnosis ``name``; ``share`` is its share of the time, as text."""
    if name == "communication":
        return (*_communication(profile, ranks, share), _EXACT)
    if name == "collective-idle":
        return (
            Text(
                "For up to {share} of the time the device was idle in collectives that nothing hides, according to the"
                " vendor.",
                share,
            ),
            Text("the network is not what takes the time: look at what the device and the other ranks do meanwhile"),
            Text("upper bound; the vendor's own parts"),
        )
    return (
        Text("{share} of the time is copies that neither computing nor communication hides.", share),
        Text("pinned memory, copies that do not block, a stream of their own, fewer transfers of tensors to the host"),
        _EXACT,
    )


def _communication(profile: model.RankProfile, ranks: Sequence[model.Rank], share: str) -> tuple[Text, Text]:
    """Return evidence and advice on exposed communication; waiting and idle time come before the network is blamed."""
    hidden = percent(profile.share("overlap_ns"))
    evidence = Text(
        "{share} of the time is communication that nothing hides, {hidden} is hidden behind computing.", share, hidden
    )
    advice = Text("look at the slowest rank, and at overlap with computing; then at sizes and links")
    with_transit = [collective for collective in profile.collectives if collective.transit_ns is not None]
    evidence = sentences(evidence, _transit(with_transit))
    rank_of_profile = next((rank for rank in ranks if rank.source == profile.source and rank.collectives), None)
    if rank_of_profile is not None:
        whole = sum(collective.ns for collective in profile.collectives) or 1
        waits = Text("{share} of it waits for ranks that come later.", percent(rank_of_profile.waits_ns / whole))
        evidence = sentences(evidence, waits)
    elif not with_transit:
        every = Text("all {world:,} ranks", profile.world) if profile.world else Text("all ranks")
        waits = Text(
            "Waiting for a slow rank counts as communication: report {ranks} before you blame the network.", every
        )
        evidence = sentences(evidence, waits)
    return evidence, advice


def _transit(collectives: Sequence[model.Collective]) -> str:
    """Return the vendor's shares of transit, waiting and idle time in collectives, as a sentence.

    A time that the vendor does not give counts as 0. The sentence is "" only if there are no collectives.
    """
    if not collectives:
        return ""
    whole = sum(collective.ns for collective in collectives) or 1
    columns = zip(
        *((collective.transit_ns or 0, collective.wait_ns or 0, collective.idle_ns or 0) for collective in collectives),
        strict=True,
    )
    transit, wait, idle = (percent(sum(column) / whole) for column in columns)
    return Text(
        "Within the collectives {transit} is transit, {wait} waiting, {idle} idle, according to the vendor.",
        transit,
        wait,
        idle,
    )


def _bounds(profile: model.RankProfile) -> dict[str, int]:
    """Return diagnosis → upper bound in ns of what collectives can save.

    ``collective-idle`` is bounded by the idle time that the vendor measured in collectives. If there is some,
    ``communication`` is bounded by the remaining time of the collectives, else it has no bound.
    """
    idle = sum(collective.idle_ns or 0 for collective in profile.collectives)
    bounds = {"collective-idle": idle}
    if idle:
        bounds["communication"] = max(sum(collective.ns for collective in profile.collectives) - idle, 0)
    return bounds


def _outlier(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose the slowest unit if it took over 1.3 times the median, without lead-in; else, or under 3 units, None."""
    if len(profile.units) < 3:
        return None
    time = operator.attrgetter("host_ns" if profile.on_host else "device_ns")
    units = [unit for unit in profile.units if not unit.profiler_start]  # rlpatch itself makes that one longer
    slowest, usual = max(units, key=time, default=None), model.lower_median(model.timed(profile.units), time)
    if slowest is None:
        return None
    if time(slowest) <= SLOW * time(usual):
        return None
    values = slowest.number, in_ms(time(slowest)), time(slowest) / max(time(usual), 1)
    evidence = Text("Unit {number} took {time}, {times:.1f} times the median.", *values)
    if profile.on_host:
        evidence = Text("Unit {number} took {time} on the host, {times:.1f} times the median.", *values)
    cold = Text("{sentence}.", cold_units([slowest.number])) if slowest.number in profile.cold else ""
    evidence = sentences(evidence, _excess(profile, slowest, usual), cold)
    late = [time(unit) - time(usual) for unit in units if time(unit) > SLOW * time(usual)]
    advice = Text("look at what this unit held: its requests, a copy, a garbage collection, another process")
    saving = sum(late) // len(profile.units)
    return model.Diagnosis("outlier", "warning", evidence, saving, _EXACT, advice, profile.source)


def _excess(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return by which part and kernels the slowest unit exceeds the usual one, in sentences; "" without a device."""
    if profile.on_host:
        return host_only.excess(profile, slowest.number, usual.number)
    more = {part: slowest.parts[part] - usual.parts[part] for part in model.PARTS}
    part = max(more, key=lambda name: more[name])
    excess = slowest.device_ns - usual.device_ns
    most = Text("{share} of the difference is {part}.", percent(min(more[part] / excess, 1), 0), model.PARTS[part])
    gap = next((gap for gap in profile.gaps if (gap.unit, gap.part, gap.kind) == (slowest.number, part, "place")), None)
    if gap is not None and 2 * gap.unit_ns > more[part]:
        most = sentences(most, Text("Most of that: {place}.", place_in_words(gap)))
    if slowest.kernels == usual.kernels:
        return most
    kernels = Text("It launched {count:,} kernels, the median unit {median:,}.", slowest.kernels, usual.kernels)
    return sentences(most, kernels)


def _compute(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose a device that computes for 80 % of the time or more, with its longest kernels; below that None."""
    share = profile.share("compute_ns", "overlap_ns")
    if share < 1 - 2 * NOTABLE:
        return None
    kernels = [kernel for kernel in profile.kernels if kernel.kind == model.COMPUTE]
    whole = sum(kernel.ns for kernel in kernels) or 1
    largest = zip(kernels[:3], apart([kernel.name for kernel in kernels[:3]]), strict=True)
    longest = ", ".join(f"{name} ({percent(kernel.ns / whole, 0)})" for kernel, name in largest)
    advice = Text("faster or fewer kernels: fusion, another precision, larger batches")
    evidence = Text("{share} of the time is computing. The longest kernels: {longest}.", percent(share), longest)
    above = sum(max(rate.ns - rate.least_ns, 0) for rate in profile.rates if rate.least_ns is not None)
    if above:
        less = min(above, profile.sum_ns("compute_ns", "overlap_ns")) // len(profile.units)
        roofline = Text(
            "At the roofline of the device, operators of known work would take {time} less per unit.", in_ms(less)
        )
        evidence = sentences(evidence, roofline)
    return model.Diagnosis("compute", "note", evidence, None, "exact", advice, profile.source)


def _slow_rank(ranks: Sequence[model.Rank], *, exact: bool) -> model.Diagnosis | None:
    """Diagnose ranks that wait for each other, and the straggler if there is a clear one; None if the waits are small.

    Small is under 2.5 % of the rank's median unit. ``exact`` tells whether the trace names the groups of collectives.
    """
    if len(ranks) < 2:
        return None
    waits = max(ranks, key=lambda rank: rank.waits_per_unit)
    per_unit = waits.waits_per_unit
    slow, second, *_ = sorted(ranks, key=lambda rank: -rank.awaited_per_unit)
    if not per_unit or per_unit < COPIES / 2 * waits.median_ns:
        return None
    last, other = _rank(slow), _rank(second)
    first = waits.source if waits.rank is None else Text("Rank {rank}", waits.rank)
    evidence = Text("{first} waits longest, {per_unit} per unit", first, in_ms(per_unit))
    awaited, less = in_ms(slow.awaited_per_unit), in_ms(second.awaited_per_unit)
    if slow.awaited_per_unit and slow.awaited_per_unit >= BLAMED * second.awaited_per_unit:
        evidence = Text(
            "{first} waits longest, {time} per unit, and {last} comes last in {times} of {count} collectives: the"
            " others wait {awaited} per unit for it.",
            first,
            in_ms(per_unit),
            last,
            slow.last,
            slow.collectives,
            awaited,
        )
        advice = Text("look at what {last} does before: its load, its host, its cores", last)
    else:
        whom = Text("the others wait {awaited} per unit for {last}, {less} for {other}", awaited, last, less, other)
        if not slow.awaited_per_unit:
            whom = Text("several come last together")
        evidence = Text(
            "{first} waits longest, {time} per unit, and no rank is the slow one: {whom}.", first, in_ms(per_unit), whom
        )
        advice = Text(
            "look at what differs between the ranks from one collective to the next: lengths, experts, stages"
        )
    certainty = "exact" if exact else Text("heuristic: the trace names no groups")
    return model.Diagnosis("slow-rank", "warning", evidence, per_unit, certainty, advice)


def _rank(rank: model.Rank) -> str:
    return rank.source if rank.rank is None else Text("rank {rank}", rank.rank)


# ---------------------------------------------------------------- the verdict


def _verdict(
    profiles: Sequence[model.RankProfile], diagnoses: Sequence[model.Diagnosis], whose: Mapping[str, str]
) -> model.Verdict:
    """Return the verdict: the title of the problem, or that nothing stands out, or that the data supports none.

    ``whose`` maps the source of a profile to its label.
    """
    withdrawn = {diagnosis for profile in profiles if not profile.on_host for diagnosis in profile.withdrawn}
    first = next((diagnosis for diagnosis in diagnoses if diagnosis.severity == "problem"), None)
    if not profiles or set(DEVICE) <= withdrawn:
        title: str = Text("No verdict: the data does not support one")
    else:
        titles = (
            diagnosis.title
            for diagnosis in diagnoses
            if diagnosis is first or diagnosis.id in ("compute", "host-operators")
        )
        title = next(titles, Text("Nothing stands out"))
    return model.Verdict(title, *_guide(profiles, first), tuple(_withdrawals(profiles, whose)))


def _withdrawals(profiles: Sequence[model.RankProfile], whose: Mapping[str, str]) -> Iterator[str]:
    """Yield for each failed check its evidence and the diagnoses that it withdraws; ``whose``: source → label."""
    for profile in profiles:
        for check in profile.failed:
            if not (profile.on_host and check.id == "kernels"):  # there is nothing that could launch one
                yield _of(whose.get(profile.source), _withdrawal(check))


def _withdrawal(check: model.Check) -> str:
    """Return the evidence of a failed check, with the ids of the diagnoses that it withdraws."""
    names = [name for name in check.withdraws if name in model.TITLES]
    rests = Text("every verdict") if set(EVERY) <= set(names) else ", ".join(names)
    return Text("{evidence} (withdrawn: {rests})", check.evidence, rests) if names else check.evidence


def _guide(profiles: Sequence[model.RankProfile], first: model.Diagnosis | None) -> tuple[str, str]:
    """Return the guide's rule for the rank with the most free time, and why the verdict differs; "" if it does not."""
    with_time = [profile for profile in profiles if profile.total_ns]
    if not with_time:
        return "", ""
    reasons = {**model.FREE, "copy_ns": model.PARTS["copy_ns"]}
    profile = max(with_time, key=lambda candidate: candidate.free_share)
    free = profile.free_share
    rule = Text("The guide's rule: Free is {share}", percent(free))
    if len(profiles) > 1:
        rule = Text("The guide's rule: Free of {profile} is {share}", profile.label, percent(free))
    if free <= NOTABLE:
        return Text("{rule}, not above 10 %: computing first, then communication.", rule), ""
    rule = Text("{rule}, above 10 %: dispatch.", rule)
    if first is not None and first.id == "dispatch":
        return rule, ""
    shares = ((reason, profile.share(part)) for part, reason in reasons.items())
    causes = joined(
        COMMA, (Text("{share} {reason}", percent(share), reason) for reason, share in shares if share >= 0.0005)
    )
    difference = Text("That Free counts copies and every wait: {shares}.", causes)
    if first is not None and first.saving_ns:
        difference = sentences(difference, Text("Something else weighs more: {title}.", first.title))
    return rule, difference
