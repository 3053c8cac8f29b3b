"""What there is to gain, and what it comes to: profiles made into a report."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence

from patcher.traces import model
from patcher.traces.analysis import collectives, pipelines
from patcher.traces.analysis.checks import DEVICE, EVERY, NOTABLE
from patcher.traces.analysis.ranks import met, missing, waits
from patcher.traces.places import first_place
from patcher.traces.words import apart, cold_units, in_ms, listed, percent, short

COPIES = 0.05
SLOW = 1.3
"""A unit that takes so many times the median is an outlier."""

BLAMED = 1.5
"""The others wait so many times as long for the slow rank as for any other."""

SEVERITIES = ("problem", "warning", "note")
"""Of diagnoses, as they are ordered."""

TITLES = {
    "communication": "Communication that nothing hides",
    "collective-idle": "The device is idle within collectives",
    "collective-outlier": collectives.TITLE,
    "collective-unaligned": collectives.UNALIGNED,
    "pipeline-bubble": pipelines.TITLE,
    "dispatch": "Dispatch: the device waits for the host",
    "lead-in": "The device waits for the first kernel",
    "waiting": "Launched, but not started",
    "copies": "Copies that nothing hides",
    "outlier": "One unit takes much longer than the others",
    "slow-rank": "Ranks wait for each other",
    "missing-ranks": "Not all ranks were reported",
    "compute": "The device computes nearly all the time",
    "host-operators": "No device: the operators on the host take the time",
}
"""Id of a diagnosis → its title, which is the verdict where it weighs most."""

_FASTER_LAUNCH = {
    "torch.profiler": "CUDA graphs (without enforce_eager), asynchronous scheduling, fewer and larger operators",
    "torch_npu.profiler": "ACL graphs, TASK_QUEUE_ENABLE=2, binding processes to cores, asynchronous scheduling",
}
_EXACT = "exact; the saving is an upper bound"


def reported(profiles: Sequence[model.RankProfile]) -> model.TraceReport:
    """Report on one or several ranks of one run: diagnoses, and the verdict that they come to.

    Stages have nothing to do with each other: each of several has a report of its own within.
    """
    parts = list(dict.fromkeys(profile.part for profile in profiles))
    if len(parts) < 2:
        return _stage(profiles, named=len(profiles) > 1)
    stages = [_stage([profile for profile in profiles if profile.part == part], named=True) for part in parts]
    findings = tuple(finding for stage in stages for finding in stage.findings)
    verdict = model.Verdict(f"{len(stages)} stages, each by itself")
    return model.TraceReport(tuple(profiles), findings, verdict, stages=tuple(stages))


def _stage(profiles: Sequence[model.RankProfile], *, named: bool) -> model.TraceReport:
    """Return the report of one stage; what is found is ``named`` by its profile where it is not the only one."""
    ranks, exact = met(profiles)
    profiles = collectives.sized(profiles, waits(profiles))
    diagnoses = [
        diagnosis for profile in profiles
        for diagnosis in (*_diagnoses(profile, ranks), pipelines.bubble(profile, profiles))
        if diagnosis is not None and diagnosis.id not in profile.withdrawn
    ]  # fmt: skip
    slow = _slow_rank(ranks, exact=exact)
    if slow is not None and not any(slow.id in profile.withdrawn for profile in profiles):
        diagnoses.append(slow)
    if len(profiles) > 1 and (gone := missing(profiles)):
        there = f"{len(profiles)} of {len(profiles) + len(gone)} ranks were reported"
        evidence = f"{there}, without {listed(gone)}: who waits for those is not known."
        diagnoses.append(model.Diagnosis("missing-ranks", "note", evidence, None, "exact", TITLES["missing-ranks"]))
    whose = {profile.source: f"{profile.label or profile.source}: " * named for profile in profiles}
    ordered = [
        dataclasses.replace(diagnosis, evidence=whose.get(diagnosis.source, "") + diagnosis.evidence)
        for diagnosis in _ordered(diagnoses)
    ]
    return model.TraceReport(tuple(profiles), tuple(ordered), _verdict(profiles, ordered, whose), ranks)


def _ordered(diagnoses: Sequence[model.Diagnosis]) -> list[model.Diagnosis]:
    """Of each diagnosis the one with the most to gain; the heaviest warning is the problem, and comes first."""
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
    """The parts of the time that weigh, with {} for their share in the evidence; then the outlier, and computing."""
    texts = (
        ("communication", "communication_ns", *_communication(profile, ranks), _EXACT),
        (
            "collective-idle", "communication_ns",
            "For up to {} of the time the device was idle in collectives that nothing hides, according to the vendor.",
            "the network is not what takes the time: look at what the device and the other ranks do meanwhile",
            "upper bound; the vendor's own parts",
        ),
        ("dispatch", "free_host_late_ns", *_dispatch(profile)),
        (
            "waiting", "free_waiting_ns",
            "For {} of the time the device was free although its next kernel had been launched.",
            "look at what streams wait for: events between them, copies, the start of a graph, synchronisation",
            "upper bound",
        ),
        ("lead-in", "lead_in_ns", *_lead_in(profile), "upper bound; what ran before the recording is not in it"),
        (
            "copies", "copy_ns",
            "{} of the time is copies that neither computing nor communication hides.",
            "pinned memory, copies that do not block, a stream of their own, fewer transfers of tensors to the host",
            _EXACT,
        ),
    )  # fmt: skip
    bounds = _bounds(profile)
    for name, part, evidence, advice, certainty in texts:
        saving = min(profile.sum_ns(part), bounds.get(name, profile.total_ns))
        share = (saving if name == "collective-idle" else profile.sum_ns(part)) / (profile.total_ns or 1)
        if share >= (COPIES if name == "copies" else NOTABLE):
            shown, saving = evidence.format(percent(share)), saving // len(profile.units)
            if first := first_place(profile, part):
                advice = f"{advice}; the largest share is {first}"
            yield model.Diagnosis(name, "warning", shown, saving, certainty, TITLES[name], advice, profile.source)
    yield from filter(
        None,
        (
            collectives.outlier(profile), collectives.unaligned(profile), _outlier(profile), _compute(profile),
            _host_operators(profile),
        ),
    )  # fmt: skip


def _communication(profile: model.RankProfile, ranks: Sequence[model.Rank]) -> tuple[str, str]:
    """Evidence and advice: transit, waiting and idle times come before the network is blamed."""
    hidden = percent(profile.share("overlap_ns"))
    evidence = f"{{}} of the time is communication that nothing hides, {hidden} is hidden behind computing."
    advice = "look at the slowest rank, and at overlap with computing; then at sizes and links"
    timed = [collective for collective in profile.collectives if collective.transit_ns is not None]
    evidence += _transit(timed)
    own = next((rank for rank in ranks if rank.source == profile.source and rank.collectives), None)
    if own is not None:
        whole = sum(collective.ns for collective in profile.collectives) or 1
        evidence += f" {percent(own.waits_ns / whole)} of it waits for ranks that come later."
    elif not timed:
        every = f"all {profile.world:,} ranks" if profile.world else "all ranks"
        evidence += f" Waiting for a slow rank counts as communication: report {every} before you blame the network."
    return evidence, advice


def _transit(timed: Sequence[model.Collective]) -> str:
    """Return how the vendor divides collectives, as a sentence; "" without any that it divides."""
    if not timed:
        return ""
    whole = sum(collective.ns for collective in timed) or 1
    columns = zip(
        *((collective.transit_ns or 0, collective.wait_ns or 0, collective.idle_ns or 0) for collective in timed),
        strict=True,
    )
    transit, wait, idle = (percent(sum(column) / whole) for column in columns)
    return f" Within the collectives {transit} is transit, {wait} waiting, {idle} idle, according to the vendor."


def _bounds(profile: model.RankProfile) -> dict[str, int]:
    """Bound what can be gained: of communication no time in which the device was idle, and of that no more than it.

    Only where the vendor tells both apart is there something idle; other collectives count whole.
    """
    idle = sum(collective.idle_ns or 0 for collective in profile.collectives)
    bounds = {"collective-idle": idle}
    if idle:
        bounds["communication"] = max(sum(collective.ns for collective in profile.collectives) - idle, 0)
    return bounds


def _dispatch(profile: model.RankProfile) -> tuple[str, str, str]:
    evidence = "For {} of the time the device was free and its next kernel had not been launched."
    if profile.prompt_share is not None:
        evidence += f" {percent(profile.prompt_share, 0)} of the kernels start within 20 µs of their launch."
    advice = _FASTER_LAUNCH[model.PROFILERS[profile.form]]
    return evidence, advice, "upper bound; the profiler's own cost is in it"


def _lead_in(profile: model.RankProfile) -> tuple[str, str]:
    evidence = "{} of the time lies before the first kernel of the first unit."
    longest = max(profile.operators, key=lambda operator: operator.host_ns, default=None)
    if longest and len(profile.units) == 1:
        evidence += f" On the host {short(longest.name)} took {in_ms(longest.host_ns)}."
    return evidence, "look at what the host waits for there: a copy that blocks, a synchronisation, another process"


def _outlier(profile: model.RankProfile) -> model.Diagnosis | None:
    """Return the slowest unit, each from its first kernel on: a lead-in is a finding of its own."""
    if len(profile.units) < 3:
        return None
    time = operator.attrgetter("host_ns" if profile.on_host else "stage_ns")
    units = [unit for unit in profile.units if not unit.profiler_start]  # rlpatch itself makes that one longer
    slowest, usual = max(units, key=time, default=None), model.lower_median(model.timed(profile.units), time)
    if slowest is None:
        return None
    if time(slowest) <= SLOW * time(usual):
        return None
    evidence = (
        f"Unit {slowest.number} took {in_ms(time(slowest))}{' on the host' * profile.on_host},"
        f" {time(slowest) / max(time(usual), 1):.1f} times the median.{_excess(profile, slowest, usual)}"
    )
    if slowest.number in profile.cold:
        evidence += f" {cold_units([slowest.number])}."
    late = [time(unit) - time(usual) for unit in units if time(unit) > SLOW * time(usual)]
    advice = "look at what this unit held: its requests, a copy, a garbage collection, another process"
    saving = sum(late) // len(profile.units)
    return model.Diagnosis("outlier", "warning", evidence, saving, _EXACT, TITLES["outlier"], advice, profile.source)


def _excess(profile: model.RankProfile, slowest: model.RecordedUnit, usual: model.RecordedUnit) -> str:
    """Return in what the slowest unit differs on the device from the usual one."""
    if profile.on_host:
        return ""
    more = {part: slowest.parts[part] - usual.parts[part] for part in model.PARTS if part != "lead_in_ns"}
    part = max(more, key=lambda name: more[name])
    excess = slowest.stage_ns - usual.stage_ns
    sentences = f" {percent(min(more[part] / excess, 1), 0)} of the difference is {model.PARTS[part]}."
    if slowest.kernels != usual.kernels:
        sentences += f" It launched {slowest.kernels:,} kernels, the median unit {usual.kernels:,}."
    return sentences


def _host_operators(profile: model.RankProfile) -> model.Diagnosis | None:
    """Return the operators that take most of the time on the host, where there is no device."""
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    if not profile.on_host or not calls:
        return None
    whole = sum(call.host_ns for call in calls) or 1
    longest = ", ".join(f"{short(call.name)} ({percent(call.host_ns / whole, 0)})" for call in calls[:3])
    spent = f"{in_ms(whole // len(profile.units))} of a unit are operators' own time, on all threads"
    evidence = f"Nothing ran on a device, so this is the host's time: {spent}. The longest: {longest}."
    advice = "more threads (OMP_NUM_THREADS), cores of their own, fewer and larger operators, another precision"
    title = TITLES["host-operators"]
    return model.Diagnosis("host-operators", "note", evidence, None, "exact", title, advice, profile.source)


def _compute(profile: model.RankProfile) -> model.Diagnosis | None:
    share = profile.share("compute_ns", "overlap_ns")
    if share < 1 - 2 * NOTABLE:
        return None
    kernels = [kernel for kernel in profile.kernels if kernel.kind == model.COMPUTE]
    whole = sum(kernel.ns for kernel in kernels) or 1
    shown = zip(kernels[:3], apart([kernel.name for kernel in kernels[:3]]), strict=True)
    longest = ", ".join(f"{name} ({percent(kernel.ns / whole, 0)})" for kernel, name in shown)
    advice = "faster or fewer kernels: fusion, another precision, larger batches"
    evidence = f"{percent(share)} of the time is computing. The longest kernels: {longest}."
    above = sum(max(rate.ns - rate.least_ns, 0) for rate in profile.rates if rate.least_ns is not None)
    if above:
        less = min(above, profile.sum_ns("compute_ns", "overlap_ns")) // len(profile.units)
        evidence += f" At the roofline of the device, operators of known work would take {in_ms(less)} less per unit."
    return model.Diagnosis("compute", "note", evidence, None, "exact", TITLES["compute"], advice, profile.source)


def _slow_rank(ranks: Sequence[model.Rank], *, exact: bool) -> model.Diagnosis | None:
    if len(ranks) < 2:
        return None
    waits = max(ranks, key=lambda rank: rank.waits_per_unit)
    per_unit = waits.waits_per_unit
    slow, second, *_ = sorted(ranks, key=lambda rank: -rank.awaited_per_unit)
    if not per_unit or per_unit < COPIES / 2 * waits.median_ns:
        return None
    last, other, first = (rank.source if rank.rank is None else f"rank {rank.rank}" for rank in (slow, second, waits))
    evidence = f"{first} waits longest, {in_ms(per_unit)} per unit"
    awaited, less = in_ms(slow.awaited_per_unit), in_ms(second.awaited_per_unit)
    if slow.awaited_per_unit and slow.awaited_per_unit >= BLAMED * second.awaited_per_unit:
        evidence += f", and {last} comes last in {slow.last} of {slow.collectives} collectives:"
        evidence += f" the others wait {awaited} per unit for it."
        advice = f"look at what {last} does before: its load, its host, its cores"
    else:
        whom = f"the others wait {awaited} per unit for {last}, {less} for {other}"
        evidence += f", and no rank is the slow one: {whom if slow.awaited_per_unit else 'several come last together'}."
        advice = "look at what differs between the ranks from one collective to the next: lengths, experts, stages"
    evidence = evidence[:1].upper() + evidence[1:]
    certainty = "exact" if exact else "heuristic: the trace names no groups"
    return model.Diagnosis("slow-rank", "warning", evidence, per_unit, certainty, TITLES["slow-rank"], advice)


# ---------------------------------------------------------------- the verdict


def _verdict(
    profiles: Sequence[model.RankProfile], diagnoses: Sequence[model.Diagnosis], whose: Mapping[str, str]
) -> model.Verdict:
    withdrawn = {diagnosis for profile in profiles if not profile.on_host for diagnosis in profile.withdrawn}
    first = next((diagnosis for diagnosis in diagnoses if diagnosis.severity == "problem"), None)
    if not profiles or set(DEVICE) <= withdrawn:
        title = "No verdict: the data does not support one"
    else:
        titles = (
            diagnosis.title
            for diagnosis in diagnoses
            if diagnosis is first or diagnosis.id in ("compute", "host-operators")
        )
        title = next(titles, "Nothing stands out")
    return model.Verdict(title, *_guide(profiles, first), tuple(_withdrawals(profiles, whose)))


def _withdrawals(profiles: Sequence[model.RankProfile], whose: Mapping[str, str]) -> Iterator[str]:
    """Yield what each check that failed withdraws."""
    for profile in profiles:
        for check in profile.failed:
            if not (profile.on_host and check.id == "kernels"):  # there is nothing that could launch one
                yield f"{whose[profile.source]}{_withdrawal(check)}"


def _withdrawal(check: model.Check) -> str:
    """Return the evidence of a failed check, and the diagnoses that it withdraws."""
    names = [name for name in check.withdraws if name in TITLES]
    rests = "every verdict" if set(EVERY) <= set(names) else ", ".join(names)
    return f"{check.evidence} (withdrawn: {rests})" if names else check.evidence


def _guide(profiles: Sequence[model.RankProfile], first: model.Diagnosis | None) -> tuple[str, str]:
    """Return what the guide's rule says of the rank that is free most, and why that is not what we say."""
    timed = [profile for profile in profiles if profile.total_ns]
    if not timed:
        return "", ""
    reasons = {**model.FREE, "copy_ns": model.PARTS["copy_ns"]}
    profile = max(timed, key=lambda candidate: candidate.free_share)
    free = profile.free_share
    rule = f"The guide's rule: Free{f' of {profile.label}' if len(profiles) > 1 else ''} is {percent(free)}, "
    if free <= NOTABLE:
        return f"{rule}not above 10 %: computing first, then communication.", ""
    rule += "above 10 %: dispatch."
    if first is not None and first.id == "dispatch":
        return rule, ""
    shares = ((reason, profile.share(part)) for part, reason in reasons.items())
    shown = ", ".join(f"{percent(share)} {reason}" for reason, share in shares if share >= 0.0005)
    difference = f"That Free counts copies and every wait: {shown}."
    if first is not None and first.saving_ns:
        difference += f" Something else weighs more: {first.title[0].lower()}{first.title[1:]}."
    return rule, difference
