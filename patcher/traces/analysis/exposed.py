"""The exposed communication of a rank as one finding: what of it is a pipeline's bubble, waiting, idle, transfer."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import COMMA, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis import collectives
from patcher.traces.analysis.pipelines import (
    UNEQUAL,
    PipelineStage,
    between_two,
    excess,
    excess_words,
    longer_computing,
    per_unit,
    transfer_rate,
    waits_for_stages,
)
from patcher.traces.analysis.ranks import Meetings, lacks_ranks
from patcher.traces.words import in_ms, listed, percent, short

NOTABLE = 0.10
"""The share of the time from which on exposed communication is worth a finding."""

WAITS = 0.025
"""The share of the time from which on waiting for other ranks is worth one."""

BLAMED = 1.5
"""The others wait so many times as long for the straggler as for any other rank."""

_NAMED = 8
"""Steps whose stragglers are named at most."""

PIPELINE, WAITING, IDLE, TRANSFER = "pipeline", "waiting", "idle", "transfer"
PARTS: Mapping[str, str] = {
    PIPELINE: "pipeline-bubble",
    WAITING: "slow-rank",
    IDLE: "collective-idle",
    TRANSFER: "communication",
}
"""Part of exposed communication → the id of the finding if it is the largest."""

IDS = ("collective-outlier", *PARTS.values())
"""Ids of the findings that are about exposed communication: a report has one of them."""

_UPPER = Text("upper bound of the saving")
STRAGGLER_CHANGES = Text("Ranks wait for each other: the straggler changes from step to step")
WAIT_IN_STEP = Text("In step {number}, the other ranks wait {time} for {rank}")
COMPARE_RANKS = Text("check what differs between ranks: sequence lengths, experts, pipeline stages")


class FindingText(NamedTuple):
    """Text of a finding on the largest part."""

    evidence: str
    advice: str
    certainty: str
    culprit: str = ""
    headline: str = ""
    step: int | None = None


def parts_of(profile: model.RankProfile, meetings: Meetings) -> dict[str, int]:
    """Return the ns of each part of the exposed communication of all steps; they add up to the exposed communication.

    The parts are the bubble of the pipeline, waiting, idle time and transfer. Nothing tells which part of a collective
    is hidden behind computing, so the exposed time is given to the bubble first, then to waiting, idle time and
    transfer. Sends and receives are transfer if they are steady and fast.
    """
    exposed = {unit.number: unit.communication_ns for unit in profile.units}
    sums = dict.fromkeys(PARTS, 0)
    raw = {unit: dict.fromkeys(PARTS, 0) for unit in exposed}
    only_transfer = transfer_rate(profile) is not None
    for collective in profile.collectives:
        if collective.unit in raw and not (only_transfer and between_two(collective)):
            for part, ns in _parts_of_collective(profile, collective, meetings).items():
                raw[collective.unit][part] += ns
    for unit, budget in exposed.items():
        remaining = budget
        for part in (PIPELINE, WAITING, IDLE):
            ns = min(raw[unit][part], remaining)
            sums[part] += ns
            remaining -= ns
        sums[TRANSFER] += remaining
    return sums


def _parts_of_collective(
    profile: model.RankProfile, collective: model.Collective, meetings: Meetings
) -> dict[str, int]:
    """Return the ns of one collective by part: the pipeline's bubble or waiting for ranks, and idle time.

    What remains of the collective is transfer, without an entry. A send or receive is bubble throughout. Waiting counts
    as bubble, too, if ranks of several stages meet in the collective.
    """
    if between_two(collective):
        return {PIPELINE: collective.ns}
    key = profile.source, collective.unit, collective.group, collective.index
    ranks_wait = meetings.waits.get(key)
    vendor_wait = collective.wait_ns or 0
    waits = min(vendor_wait if ranks_wait is None else ranks_wait, collective.ns)
    # The vendor calls it idle, too, where a rank waits without a notify: what the ranks tell is waiting.
    idle = min(max((collective.idle_ns or 0) - max(waits - vendor_wait, 0), 0), collective.ns - waits)
    return {PIPELINE if key in meetings.across else WAITING: waits, IDLE: idle}


def diagnose_communication(
    profile: model.RankProfile, profiles: Sequence[model.RankProfile], meetings: Meetings
) -> model.Diagnosis | None:
    """Diagnose the exposed communication of a profile by its largest part; None if there is little of it.

    Little is under 10 % of the time, with under 2.5 % waiting for ranks, and without a collective that takes much
    longer than usual. If such collectives make up most of the transfer, the diagnosis is on them. ``profiles`` are all
    ranks of the stage; the saving in ns is per step.
    """
    sums, total = parts_of(profile, meetings), profile.total_ns or 1
    exposed = sum(sums.values())
    outlier = collectives.diagnose_slow_collectives(profile, profiles)
    if exposed < NOTABLE * total and sums[WAITING] < WAITS * total and outlier is None:
        return None
    largest = max(sums, key=lambda part: sums[part])
    if exposed < NOTABLE * total and sums[WAITING] >= WAITS * total:
        largest = WAITING
    count = len(profile.units)
    saving, name = sums[largest] // count, PARTS[largest]
    text = _finding_text(largest, profile, profiles, meetings)
    by_outlier = ""
    unsaved, certainty = exposed - sums[largest], text.certainty
    if largest == TRANSFER and unsaved >= NOTABLE / 10 * total:
        time = in_ms(unsaved / count)
        certainty = Text("{certainty}, without {time} of waiting or idle time", certainty=certainty, time=time)
        text = text._replace(certainty=certainty)
    if outlier is not None:
        by_outlier = outlier.evidence
        if largest == TRANSFER and 2 * (outlier.saving_ns or 0) > saving:
            name, saving = outlier.id, min(saving, outlier.saving_ns or 0)
            text = FindingText(outlier.evidence, outlier.advice, outlier.certainty, headline=outlier.headline)
            by_outlier = ""
    ranks_evidence = ""
    if largest not in (WAITING, PIPELINE) and sums[WAITING] >= WAITS * total and straggler(meetings) is not None:
        ranks_evidence = _straggler_text(profile, profiles, meetings).evidence
    evidence = sentences(_breakdown(profile, profiles, sums), text.evidence, ranks_evidence, by_outlier)
    return model.Diagnosis(
        name, "warning", evidence, saving, text.certainty, text.advice, profile.source,
        parts={part: ns // count for part, ns in sums.items() if ns}, culprit=text.culprit, headline=text.headline,
        step=text.step,
    )  # fmt: skip


def _breakdown(profile: model.RankProfile, profiles: Sequence[model.RankProfile], sums: Mapping[str, int]) -> Text:
    """Return a sentence with the shares of exposed and hidden communication, and each exposed part's time per step.

    ``sums`` has the ns of each exposed part over all steps, ``profiles`` are all ranks of the stage.
    """
    count = len(profile.units)
    tells_waiting = _tells_waiting(profile, profiles)
    times = joined(COMMA, (_part_words(part, in_ms(ns / count), tells_waiting) for part, ns in sums.items() if ns))
    return Text(
        "{share} of the time is exposed communication ({times}). For another {hidden} of the time, communication is"
        " hidden behind computing.",
        share=percent(sum(sums.values()) / (profile.total_ns or 1)),
        times=times,
        hidden=percent(profile.share("overlap_ns")),
    )


def _part_words(part: str, time: str, tells_waiting: bool) -> Text:
    """Return the ``time`` of a part of exposed communication with its name, such as "1.20 ms waiting for other ranks".

    ``tells_waiting`` is False if nothing separates waiting from transfer; then transfer is called "transfer or
    waiting".
    """
    if part == PIPELINE:
        return Text("{time} pipeline bubble or transfer", time)
    if part == WAITING:
        return Text("{time} waiting for other ranks", time)
    if part == IDLE:
        return Text("{time} idle", time)
    return Text("{time} transfer", time) if tells_waiting else Text("{time} transfer or waiting", time)


def _tells_waiting(profile: model.RankProfile, profiles: Sequence[model.RankProfile]) -> bool:
    """Tell whether waiting in collectives is known: by the vendor, or by other ranks if none is known to be missing."""
    return any(
        collective.transit_ns is not None or (collective.waits_ns is not None and not lacks_ranks(collective, profiles))
        for collective in profile.collectives
    )


def _finding_text(
    largest: str, profile: model.RankProfile, profiles: Sequence[model.RankProfile], meetings: Meetings
) -> FindingText:
    """Return evidence and advice on ``largest``, the largest part of the exposed communication of ``profile``.

    ``profiles`` are all ranks of the stage.
    """
    if largest == PIPELINE:
        return _bubble_text(profile, meetings)
    if largest == WAITING:
        return _straggler_text(profile, profiles, meetings)
    if largest == IDLE:
        return FindingText(
            Text("torch_npu counts this time as idle time within collectives."),
            Text("the network is not the cause: check what the device and the other ranks do during collectives"),
            Text("upper bound of the saving, from torch_npu's own breakdown"),
            headline=_idle_headline(profile, profiles),
        )
    rate = transfer_rate(profile)
    if rate is not None and _is_mostly_between_two(profile):
        evidence = Text("Sends and receives of the same size take about equally long: they hardly wait.")
        advice = Text("overlap sends and receives with computing, or send less; then check message sizes and links")
        headline = Text("Exposed sends and receives: mostly transfer, at {rate:,.1f} GB/s", rate)
        return FindingText(evidence, advice, _UPPER, headline=headline)
    if _tells_waiting(profile, profiles):
        advice = Text("overlap communication with computing; then check message sizes and links")
        return FindingText("", advice, _UPPER, headline=_transfer_headline(profile))
    every = Text("all {world:,} ranks", profile.world) if profile.world else Text("all ranks")
    unknown = Text(
        "The trace of one rank does not show whether its communication is transfer or waiting for a straggler."
    )
    if any(collective.waits_ns is not None for collective in profile.collectives):
        unknown = Text(
            "The report does not cover all ranks, so transfer may include waiting for a straggler that is not reported."
        )
    return FindingText(
        unknown,
        Text("run the report on {ranks} before you blame the network", every),
        _UPPER,
        headline=_transfer_headline(profile),
    )


def _idle_headline(profile: model.RankProfile, profiles: Sequence[model.RankProfile]) -> str:
    """Return a headline with the kind of collective that has over half of the idle time; "" without one.

    It says so if ranks may be waited for that are not in ``profiles``.
    """
    kind = _main_kind(profile, lambda collective: collective.idle_ns or 0)
    if not kind:
        return ""
    headline = Text("{title}, mostly in {collective}", title=model.TITLES["collective-idle"], collective=kind)
    if any(collective.idle_ns and lacks_ranks(collective, profiles) is not False for collective in profile.collectives):
        headline = Text("{title}; it may wait for ranks that the report does not cover", headline)
    return headline


def _is_mostly_between_two(profile: model.RankProfile) -> bool:
    """Tell whether sends and receives take over half of the time of all collectives."""
    times = Counter[bool]()
    for collective in profile.collectives:
        times[between_two(collective)] += collective.ns
    return 2 * times[True] > times.total()


def _transfer_headline(profile: model.RankProfile) -> str:
    """Return a headline with the kind of collective that takes over half of the communication time; "" without one."""
    kind = _main_kind(profile, lambda collective: collective.ns)
    return Text("Exposed communication; collective with the most time: {collective}", kind) if kind else ""


def _main_kind(profile: model.RankProfile, time: Callable[[model.Collective], int]) -> str:
    """Return the kind of collective that has over half of their ``time`` (ns), or its kernel's name; "" without one."""
    times = Counter[str]()
    for collective in profile.collectives:
        times[collective.kind or short(collective.name)] += time(collective)
    return next((kind for kind, ns in times.most_common(1) if 2 * ns > times.total()), "")


# ---------------------------------------------------------------- pipelines


def _bubble_text(profile: model.RankProfile, meetings: Meetings) -> FindingText:
    """Return evidence and advice on the bubble of a pipeline.

    If the stages take different times, evidence and advice name the slowest stage, and the part of its time that
    exceeds the fastest stage most. Waiting is claimed only if the times of sends and receives tell it, and a bubble
    only then, or by the name of the group.
    """
    count = sum(map(between_two, profile.collectives)) / (len(profile.units) or 1)
    evidence: str = Text("This rank sends or receives data {count:,.0f} times per step.", count)
    advice = Text("use more micro-batches or an interleaved schedule: most of this time is waiting, not transfer")
    certainty = Text("upper bound of the saving: the time of the transfers themselves is included")
    slowest, fastest = _slowest_and_fastest(meetings)
    if slowest is None or fastest is None:
        if waits_for_stages(profile):
            return FindingText(evidence, advice, certainty)
        advice = Text(
            "find out whether this time is transfer or waiting for another rank: run the report on all ranks, and"
            " compare the times of sends and receives of the same size"
        )
        headline = Text("Exposed sends and receives: transfer, or waiting for another rank")
        return FindingText(evidence, advice, certainty, headline=headline)
    computing = Text(
        "{slow_stage} computes for {longest} per step, {fast_stage} for {shortest}.",
        slow_stage=slowest.name,
        longest=in_ms(slowest.computing_ns),
        fast_stage=fastest.name,
        shortest=in_ms(fastest.computing_ns),
    )
    evidence = sentences(evidence, computing)
    more = excess(slowest.profiles, fastest.profiles)
    if more is not None and more.part == "compute_ns":
        advice = Text("first give {stage} fewer layers, then use more micro-batches", slowest.name)
    elif more is not None:
        advice = Text(
            "check first whether the host (CPU) limits {stage}; if it does not, use more micro-batches", slowest.name
        )
    headline = Text("Pipeline bubble: {stage} takes longest", slowest.name)
    return FindingText(evidence, advice, certainty, slowest.name, headline)


def _slowest_and_fastest(meetings: Meetings) -> tuple[PipelineStage | None, PipelineStage | None]:
    """Return the stages of the pipeline that take longest and shortest without the bubble.

    Both are None if there are fewer than two stages, or if these take about equally long.
    """
    pipeline = meetings.pipeline
    times = {
        stage.number: statistics.fmean(
            profile.total_ns - parts_of(profile, meetings)[PIPELINE] for profile in stage.profiles
        )
        for stage in pipeline
    }
    if len(times) < 2:
        return None, None
    slowest = max(pipeline, key=lambda stage: times[stage.number])
    fastest = min(pipeline, key=lambda stage: times[stage.number])
    if times[slowest.number] <= UNEQUAL * times[fastest.number]:
        return None, None
    return slowest, fastest


# ---------------------------------------------------------------- ranks


def straggler(meetings: Meetings) -> model.Rank | None:
    """Return the rank that the others wait for at least 1.5 times as long as for any other rank; None without one.

    None, too, if the straggler changes from step to step, or if another rank comes hardly earlier.
    """
    if len(meetings.ranks) < 2 or _stragglers_in_turn(meetings):
        return None
    slow, second, *_ = sorted(meetings.ranks, key=lambda rank: -rank.awaited_ns)
    is_late = bool(slow.awaited_ns) and slow.awaited_ns >= BLAMED * second.awaited_ns
    return slow if is_late and slow.is_alone else None


def _stragglers_in_turn(meetings: Meetings) -> dict[int, model.Rank]:
    """Return number of a step → its straggler, if the straggler changes from step to step; else an empty dict.

    A step has a straggler if the others wait for it at least 1.5 times as long as for any other rank, and for over half
    of the mean waiting in a step. These steps must have over half of all waiting, but none of them alone, unless
    another one has over half as much. No rank may be the straggler in two thirds of them, or have two thirds of their
    waiting. Ranks that another one follows closely do not count.
    """
    ranks = [rank for rank in meetings.ranks if rank.is_alone]
    steps = {step for rank in meetings.ranks for step in rank.awaited_in}
    whole = sum(rank.awaited_ns for rank in meetings.ranks)
    if len(ranks) < 2:
        return {}
    stragglers: dict[int, model.Rank] = {}
    steps_of, waiting_for = Counter[str](), Counter[str]()
    for step in sorted(steps):
        waits = [(rank.awaited_in.get(step, 0), rank) for rank in ranks]
        (most, slow), (second, _), *_ = sorted(waits, key=lambda pair: -pair[0])
        if most >= BLAMED * second and 2 * most * len(steps) > whole:
            stragglers[step] = slow
            steps_of[slow.source] += 1
            waiting_for[slow.source] += most
    longest = sorted((slow.awaited_in[step] for step, slow in stragglers.items()), reverse=True)
    if longest and 2 * longest[0] > whole and 2 * sum(longest[1:2]) <= longest[0]:
        return {}
    is_most = 2 * waiting_for.total() > whole
    changes = all(3 * max(counts.values(), default=0) < 2 * counts.total() for counts in (steps_of, waiting_for))
    return stragglers if is_most and changes else {}


def _text_on_stragglers_in_turn(
    stragglers: Mapping[int, model.Rank], profiles: Sequence[model.RankProfile], certainty: str
) -> FindingText:
    """Return evidence and advice on ``stragglers``, one for each step: on computing, if that takes them longer."""
    longer = waiting = 0
    for step, slow in stragglers.items():
        units = {profile.source: unit for profile in profiles for unit in profile.units if unit.number == step}
        computing = {source: unit.compute_ns + unit.overlap_ns for source, unit in units.items()}
        other_times = [ns for source, ns in computing.items() if source != slow.source]
        longer += computing.get(slow.source, 0) - round(statistics.median(other_times)) if other_times else 0
        waiting += slow.awaited_in[step] // (len(profiles) - 1)
    first = list(stragglers.items())[:_NAMED]
    last = (Text("{rank} in step {number}", rank=rank_words(slow), number=step) for step, slow in first)
    evidence: str = Text(
        "No single straggler: it changes from step to step ({stragglers}). In each of these {count} steps, the others"
        " wait {time} for it on average.",
        stragglers=joined(COMMA, last), count=len(stragglers), time=in_ms(waiting / len(stragglers)),
    )  # fmt: skip
    headline = STRAGGLER_CHANGES
    if 2 * longer <= waiting:
        advice = Text("check what differs between ranks in a step: sequence lengths, experts, pauses of the host")
        return FindingText(evidence, advice, certainty, headline=headline)
    evidence = sentences(
        evidence,
        Text("In its step, the straggler computes {time} longer than the others.", in_ms(longer / len(stragglers))),
    )
    headline = Text("Ranks wait for each other: the rank that computes longest changes from step to step")
    advice = Text("give all ranks equally much work in each step: sort or pack sequences by their length")
    return FindingText(evidence, advice, certainty, headline=headline)


def _text_on_several_stragglers(meetings: Meetings, certainty: str) -> FindingText:
    """Return evidence and advice where no single rank is the straggler: up to two for which the others wait most."""
    awaited = sorted((rank for rank in meetings.ranks if rank.awaited_ns), key=lambda rank: -rank.awaited_ns)[:2]
    if not awaited:
        evidence = Text("No single straggler: several ranks together arrive last at the collectives.")
        return FindingText(evidence, COMPARE_RANKS, certainty)
    waits = ((in_ms(rank.awaited_per_unit), rank_words(rank)) for rank in awaited)
    times = joined(COMMA, (Text("{time} waiting for {rank}", time=time, rank=rank) for time, rank in waits))
    evidence = Text("No single straggler. Waiting time per step, summed over the waiting ranks: {times}.", times)
    headline = Text("Ranks wait for each other: the straggler changes from collective to collective")
    changes = len(awaited) > 1 and all(rank.is_alone for rank in awaited)
    return FindingText(evidence, COMPARE_RANKS, certainty, headline=headline if changes else "")


def _straggler_text(
    profile: model.RankProfile, profiles: Sequence[model.RankProfile], meetings: Meetings
) -> FindingText:
    """Return evidence and advice on the straggler: how long the others wait for it, and what takes it longer.

    Without a single straggler, the text names up to two ranks for which the others wait most.
    """
    certainty: str = (
        model.EXACT if meetings.exact else Text("heuristic, because the trace does not name the process groups")
    )
    if stragglers := _stragglers_in_turn(meetings):
        return _text_on_stragglers_in_turn(stragglers, profiles, certainty)
    slow = straggler(meetings)
    if slow is None:
        return _text_on_several_stragglers(meetings, certainty)
    last, other_profiles = rank_words(slow), [other for other in profiles if other.source != slow.source]
    evidence: str = Text(
        "{rank} arrives last in {count} of {total} collectives; on average, each of the other ranks waits {time} per"
        " step for it.",
        rank=last,
        count=slow.last,
        total=slow.collectives,
        time=in_ms(slow.awaited_per_unit / (len(meetings.ranks) - 1)),
    )
    if 2 * slow.at_first_ns > slow.awaited_ns and slow.units == 1:
        share = percent(slow.at_first_ns / slow.awaited_ns, 0)
        start = Text(
            "{share} of this waiting is at the first collective of the only recorded step, perhaps because the"
            " profilers started at different times.",
            share,
        )
        evidence = sentences(evidence, start)
        certainty = Text(
            "{certainty}; part of the waiting may come from the profilers' different start times: record several steps",
            certainty,
        )
    advice = Text(
        "check what {rank} does before the collectives: its workload, its host, its device's clock frequency", last
    )
    blamed = [candidate for candidate in profiles if candidate.source == slow.source]
    more = excess(blamed, other_profiles)
    if more is not None and per_unit(profile, "communication_ns") and more.ns >= WAITS * blamed[0].median_ns:
        longer = Text(
            "Per step, {rank} spends {time} more than the other ranks on this part: {part}.",
            rank=last, time=in_ms(more.ns), part=excess_words(more),
        )  # fmt: skip
        evidence = sentences(evidence, longer)
    headline: str = Text("Ranks wait for {rank}", last)
    if slow.late_steps:
        headline = Text("Ranks wait for {rank} in steps {numbers}", rank=last, numbers=listed(slow.late_steps))
    if slow.late_in is not None:
        time = in_ms(slow.awaited_in[slow.late_in] / (len(meetings.ranks) - 1))
        headline = WAIT_IN_STEP.filled(number=slow.late_in, time=time, rank=last)
        share = percent(slow.awaited_in[slow.late_in] / slow.awaited_ns, 0)
        evidence = sentences(
            evidence, Text("{share} of this waiting is in step {number}.", share=share, number=slow.late_in)
        )
        return FindingText(evidence, advice, certainty, last, headline, slow.late_in)
    waiting = min(slow.awaited_per_unit // (len(meetings.ranks) - 1), per_unit(profile, "communication_ns"))
    if more is not None and 2 * more.ns > waiting:
        cause: str = Text("most of its additional time is in this part of the step: {part}", excess_words(more))
        if more.part == "compute_ns":
            cause = longer_computing(blamed[0], other_profiles, more.ns)
            advice = Text(
                "compare the inputs of {rank} with those of the other ranks; if they are alike, check its device's"
                " clock frequency and power limit",
                rank=last,
            )
        elif more.part == "free_host_late_ns":
            cause = Text(
                "its host launches kernels later: on average {time} more host-bound time per step", in_ms(more.ns)
            )
            advice = Text(
                "compare the host of {rank} with those of the other ranks: CPU cores, other processes on them, how many"
                " kernels it launches, and what its Python code does in between",
                last,
            )
        headline = Text("{title}: {cause}", title=headline, cause=cause)
    return FindingText(evidence, advice, certainty, last, headline)


def rank_words(rank: model.Rank) -> str:
    """Return a rank in words: its number, else its source."""
    return rank.source if rank.rank is None else Text("rank {rank}", rank.rank)
