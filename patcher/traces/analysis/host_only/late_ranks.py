"""The rank for which the others wait in collectives on the CPU."""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis import exposed
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.idle_host import diagnose_idle_host
from patcher.traces.analysis.host_only.measures import (
    FEW_STEPS,
    MOST_NAMED,
    between_two,
    communicates,
    communicating,
    in_collective_operators,
    in_collectives,
    median,
    meets,
    steps_numbered,
)
from patcher.traces.analysis.host_only.step_excess import SIMILAR, excess
from patcher.traces.analysis.host_only.wording import LAST_RANK, place_words
from patcher.traces.analysis.host_steps import LARGE
from patcher.traces.words import host_name, in_ms, listed, percent

_MOSTLY_LAST = 0.75
"""Share of the waiting for any rank that the others have to wait for a single one, to name that as the straggler."""

_HEURISTIC = Text(
    "upper bound of the saving, by a heuristic: the times in collectives include transfer as well as waiting"
)


_WAITS_LEAST = Text(
    "In a typical step, {rank} runs no operator during {collective} for only {least}, a typical other rank for {usual}."
    " {rank} waits least because it arrives last."
)


class _LateStep(NamedTuple):
    """Step of the rank that came last, the same step of the other ranks, and for how many ns these typically waited."""

    source: str
    step: model.HostStep
    other_steps: Sequence[model.HostStep]
    ns: int


def diagnose_straggler(profiles: Sequence[model.RankProfile]) -> model.Diagnosis | None:
    """Diagnose the rank for which the others wait in collectives on the CPU: it spends least time in these itself.

    None unless the typical other rank spends at least 1.5 times as long there, and longer by 10 % of its step. None,
    too, for fewer than two ranks without a device, and if several profiles are of one rank. If the last rank changes
    from step to step, the diagnosis names none. The saving in ns is per step.
    """
    if len({profile.rank for profile in profiles}) < len(profiles):
        return None  # they did not meet
    collective = _longest_collective(profiles)
    ranks = sorted(
        (profile for profile in profiles if profile.on_host and profile.host_steps),
        key=lambda profile: (_typical_wait(profile, collective), profile.source),
    )
    return next(filter(None, _diagnoses_of_waiting(ranks, profiles, collective)), None) if len(ranks) > 1 else None


def _diagnoses_of_waiting(
    ranks: Sequence[model.RankProfile], profiles: Sequence[model.RankProfile], collective: str
) -> Iterator[model.Diagnosis | None]:
    """Yield the diagnoses of ``ranks`` that wait, the more specific first; None for one that does not fit.

    The ranks are those of the ``profiles`` without a device, and sorted by their waiting in the kind of ``collective``.
    """
    yield _diagnose_alternating_groups(ranks)
    yield _diagnose_longest_stage(ranks)
    late_steps, count = _late_steps(ranks, collective)
    yield _diagnose_late_step(late_steps, profiles, count, collective)
    yield _diagnose_shared(ranks)
    of_slow = [late for late in late_steps if late.source == ranks[0].source]
    if sum(late.ns for late in of_slow) < _MOSTLY_LAST * sum(late.ns for late in late_steps):
        yield _diagnose_turns(late_steps, profiles, count)
    elif 2 * len(of_slow) > count:
        yield _diagnose_usual_straggler(ranks, of_slow, collective)


def _diagnose_usual_straggler(
    ranks: Sequence[model.RankProfile], late_steps: Sequence[_LateStep], collective: str
) -> model.Diagnosis | None:
    """Diagnose the first of the ``ranks``, which are sorted by their waiting: it is the last one in ``late_steps``.

    None unless the typical other rank waits at least 1.5 times as long, and longer by 10 % of its step.
    """
    slow, *other_ranks = ranks
    typical = other_ranks[(len(other_ranks) - 1) // 2]
    least, usual = _typical_wait(slow, collective), _typical_wait(typical, collective)
    saving, name = usual - least, slow.name or slow.source
    if usual < exposed.BLAMED * least or saving < NOTABLE * median([step.ns for step in typical.host_steps]):
        return None
    evidence: str = _WAITS_LEAST.filled(
        rank=name, collective=host_name(collective), least=in_ms(least), usual=in_ms(usual)
    )
    idle, disturbed = _idle_warning(slow), _is_disturbed(late_steps)
    advice: str = _advice_on_straggler(name, disturbed=disturbed)
    if idle is not None:
        evidence, advice = sentences(evidence, idle.evidence), idle.advice
    return model.Diagnosis(
        "slow-rank", "warning", evidence, saving, _HEURISTIC, advice, slow.source, culprit=name,
        headline=_straggler_headline(late_steps, name, disturbed=disturbed),
    )  # fmt: skip


def _diagnose_alternating_groups(profiles: Sequence[model.RankProfile]) -> model.Diagnosis | None:
    """Diagnose two groups of ranks that wait for each other in turn, in sends and receives; None without these.

    The ranks of a group run operators of the same names. Each waits for a fifth of the time, both together for three
    quarters. Transfer takes both sides as long, so it is no waiting. The saving in ns is per step.
    """
    groups: dict[frozenset[str], list[model.RankProfile]] = defaultdict(list)
    for profile in profiles:
        groups[frozenset(name for step in profile.host_steps for name in step.operators)].append(profile)
    if len(groups) != 2:
        return None
    waits: dict[str, float] = {}
    parts, whole = [], sum(step.ns for step in profiles[0].host_steps) or 1
    for ranks, other_ranks in itertools.permutations(groups.values()):
        names, other_names = (listed([rank.name for rank in group]) for group in (ranks, other_ranks))
        (received, sent), (other_received, other_sent) = map(_in_pairs, (ranks, other_ranks))
        waits[names] = max(received - other_sent, 0) + max(sent - other_received, 0)
        part = Text("{ranks} for {share} of the time", ranks=names, share=percent(waits[names] / whole, 0))
        times = sum((_times_by_name(step) for rank in other_ranks for step in rank.host_steps), Counter[str]())
        for name, _ in times.most_common(1):
            part = Text("{part}, mostly while {ranks} is in {name}", part=part, ranks=other_names, name=host_name(name))
        parts.append(part)
    if min(waits.values()) < LARGE * whole or sum(waits.values()) < _MOSTLY_LAST * whole:
        return None
    evidence = Text(
        "Times in sends and receives, beyond those of the other side, in which the transfer takes as long: {times}.",
        joined(COMMA, (Text("{name} {time}", name=name, time=in_ms(ns)) for name, ns in waits.items())),
    )
    advice = Text("let both work at the same time, for example each on the results of the other one's step before")
    headline = Text("Ranks wait for each other in turn: {waits}", joined(SEMICOLON, parts))
    saving = round(min(waits.values()) / len(profiles[0].host_steps))
    return model.Diagnosis("slow-rank", "warning", evidence, saving, _HEURISTIC, advice, headline=headline)


def _in_pairs(ranks: Sequence[model.RankProfile]) -> list[float]:
    """Return the mean ns of ``ranks`` in receives, and in sends."""
    calls = [call for rank in ranks for step in rank.host_steps for call in step.collectives.items()]
    return [sum(sum(times) for name, times in calls if part in name) / len(ranks) for part in ("recv", "send")]


def _diagnose_longest_stage(profiles: Sequence[model.RankProfile]) -> model.Diagnosis | None:
    """Diagnose the rank that computes longest, if the others wait for it in sends and receives; None otherwise.

    In a typical step, it computes longer than any other one, by over half of what a typical other one waits longer.
    """
    times = [
        (median([*map(_computing, profile.host_steps)]), median([*map(between_two, profile.host_steps)]), profile)
        for profile in profiles
    ]
    (usual, _, _), (computing, least, slow) = sorted(times, key=operator.itemgetter(0))[-2:]
    waits = median([ns for _, ns, profile in times if profile is not slow])
    if (
        waits - least < NOTABLE * median([step.ns for step in slow.host_steps])
        or 2 * (computing - usual) <= waits - least
    ):
        return None
    name = slow.name or slow.source
    evidence = _WAITS_LEAST.filled(
        rank=name, collective=Text("sends and receives"), least=in_ms(least), usual=in_ms(waits)
    )
    longer = in_ms(computing - usual)
    headline = Text("Ranks wait for {rank}: its operators take {time} longer per step", rank=name, time=longer)
    return model.Diagnosis(
        "slow-rank", "warning", evidence, waits - least, _HEURISTIC,
        Text("give {rank} less work (in a pipeline, fewer layers), or use more micro-batches", name),
        slow.source, culprit=name, headline=headline,
    )  # fmt: skip


def _diagnose_shared(profiles: Sequence[model.RankProfile]) -> model.Diagnosis | None:
    """Diagnose collectives that take all ranks longer than a rank waits in them for others; None otherwise.

    All ranks have the shortest of their times in common. The hosts have to wait in collectives for a fifth of the time.
    Autograd may run meanwhile, but the share has no time in which ranks compute. The saving in ns is per step.
    """
    every = [step for profile in profiles for step in profile.host_steps]
    times: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    kinds, places = Counter[str](), Counter[model.HostPlace]()
    for step in every:
        places.update(step.places)
        for kind, of_kind in step.collectives.items():
            kinds[kind] += sum(of_kind) if meets(model.HostPlace(kind)) else 0
            for at, ns in enumerate(of_kind):
                times[kind, step.number, at].append(ns)
    common = [of_ranks for (kind, *_), of_ranks in times.items() if len(of_ranks) == len(profiles) and kinds[kind]]
    shared, spent = sum(map(min, common)), sum(map(sum, common)) / len(profiles)
    communication, whole = sum(map(in_collectives, profiles)), sum(step.ns for step in every)
    if 2 * shared <= spent or communication < LARGE * whole:
        return None
    operators = Counter[str]()
    for profile in profiles:
        operators.update({call.name: call.host_ns for call in profile.operators if call.name.startswith("aten::")})
    share = max(communication, min(kinds.total(), whole - operators.total())) / whole
    count = len(every) / len(profiles)
    evidence = Text(
        "The shortest of the ranks' times in each collective is what all have in common: {time} per step. Beyond that,"
        " a rank waits for others for {waiting} per step.",
        time=in_ms(shared / count), waiting=in_ms((spent - shared) / count),
    )  # fmt: skip
    numbers = Counter(kind for kind, *_ in times)
    large = [
        Text("{place}, {count:,.0f} per step", place=_place_of_collective(kind, places), count=numbers[kind] / count)
        for kind, ns in kinds.most_common(MOST_NAMED)
        if ns >= LARGE * kinds.total()
    ]
    headline = Text(
        "Communication takes {share} of the time on all ranks alike, mostly {places}",
        share=percent(share, 0), places=joined(SEMICOLON, large),
    )  # fmt: skip
    advice = Text(
        "send fewer and larger messages (with gradient accumulation, only after the last micro-batch), or overlap"
        " communication with computing"
    )
    severity = "warning" if max(operators.values(), default=0) <= share * whole else "note"  # an operator leads
    return model.Diagnosis(
        "communication", severity, evidence, round(shared / count), _HEURISTIC, advice, headline=headline
    )


def _place_of_collective(kind: str, places: Counter[model.HostPlace]) -> str:
    """Return a ``kind`` of collective in words, with the range in which over half of its time in ``places`` lies."""
    of_kind = {place: ns for place, ns in places.items() if place.inside == kind}
    place = max(of_kind, key=of_kind.__getitem__, default=model.HostPlace(kind))
    return place_words(place if 2 * of_kind.get(place, 0) > sum(of_kind.values()) else model.HostPlace(kind))


def _longest_collective(profiles: Sequence[model.RankProfile]) -> str:
    """Return the kind of collective in which ranks without a device wait longest, such as ``gloo:broadcast``, or "".

    Ranks may come late to one kind and early to another.
    """
    times = Counter[str]()
    for step in (step for profile in profiles if profile.on_host for step in profile.host_steps):
        for place, ns in step.places.items():
            if meets(place):
                times[place.inside] += ns
    return max(times, key=times.__getitem__, default="")


def _typical_wait(profile: model.RankProfile, collective: str) -> int:
    """Return for how many ns the median step of a rank is in this kind of ``collective``, without its operators."""
    return median([communicating(step, collective) for step in profile.host_steps])


def _idle_warning(profile: model.RankProfile) -> model.Diagnosis | None:
    """Return the diagnosis of the places at which no operator runs if it is a warning, and not on a collective."""
    idle = diagnose_idle_host(profile)
    return idle if idle is not None and idle.severity == "warning" and idle.advice != LAST_RANK else None


def _advice_on_straggler(name: str, *, disturbed: bool) -> Text:
    """Return what to check on the rank that the others wait for, first its CPU cores if it seems ``disturbed``."""
    if disturbed:
        return Text(
            "check whether {rank} gets its CPU cores: other processes, its own threads (OMP_NUM_THREADS, threads of"
            " Python), binding to cores; if it does, check its inputs",
            rank=name,
        )
    return Text("check what {rank} does before the collectives: its workload, its host, its CPU cores", name)


def _straggler_headline(late_steps: Sequence[_LateStep], name: str, *, disturbed: bool) -> Text:
    """Return the headline on the rank that the others wait for in ``late_steps``, with the cause if there is one.

    The cause is that the rank seems ``disturbed``, or the place or the operators that take it longer.
    """
    if disturbed:
        return Text(
            "Ranks wait for {rank}: it runs the same operators as the others, but takes longer, at another place in"
            " each step",
            rank=name,
        )
    if cause := _longer_on_last_rank(late_steps):
        return Text("Ranks wait for {rank}, mostly while its host is in {call}", rank=name, call=host_name(cause))
    longer = _longer_in_operators(late_steps)
    if 2 * longer > sum(late.ns for late in late_steps):
        time = in_ms(longer / len(late_steps))
        return Text("Ranks wait for {rank}: its operators take {time} longer per step", rank=name, time=time)
    return Text("Ranks wait for {rank}", name)


def _late_steps(profiles: Sequence[model.RankProfile], collective: str) -> tuple[list[_LateStep], int]:
    """Return the steps in which one of the ranks came last at a kind of ``collective``, and how many steps all have.

    In such a step the last rank spends least time in it. The typical other one spends at least 1.5 times as long, and
    longer by 10 % of the step. The last rank spends most of this time elsewhere.
    """
    steps = [{step.number: step for step in profile.host_steps} for profile in profiles]
    numbers = sorted(set.intersection(*map(set, steps)))
    late_steps = []
    for number in numbers:
        ranked = sorted(
            ((of_rank[number], profile.source) for of_rank, profile in zip(steps, profiles, strict=True)),
            key=lambda item: communicating(item[0], collective),
        )
        (last, source), *earlier = ranked
        typical, _ = earlier[(len(earlier) - 1) // 2]
        least, usual = communicating(last, collective), communicating(typical, collective)
        waiting, longer = usual - least, (last.ns - least) - (typical.ns - usual)
        if usual >= exposed.BLAMED * least and waiting >= NOTABLE * typical.ns > 0 and 2 * longer > waiting:
            late_steps.append(_LateStep(source, last, [step for step, _ in earlier], waiting))
    return late_steps, len(numbers)


def _profile_of(late: _LateStep, profiles: Sequence[model.RankProfile]) -> model.RankProfile:
    return next(profile for profile in profiles if profile.source == late.source)


def _single_late_step(
    late_steps: Sequence[_LateStep], profiles: Sequence[model.RankProfile], count: int
) -> _LateStep | None:
    """Return the late step with over half of the waiting; None without one, and for ranks with a ``count`` under 3.

    None, too, if the waiting takes under 10 % of the time of all steps, or at most half of that in collectives, or if
    another step of the rank is slow, too. A step in which profilers start does not count: they start at different
    times. ``count`` is the number of steps that all ranks have.
    """
    worst = max(late_steps, key=operator.attrgetter("ns"), default=None)
    if worst is None or count < FEW_STEPS or 2 * worst.ns <= sum(late.ns for late in late_steps):
        return None
    if any(worst.step.number in profile.cold for profile in profiles):
        return None
    slow = _profile_of(worst, profiles)
    collectives_ns = median(
        [in_collectives(profile) for profile in profiles if profile.on_host and profile is not slow]
    )
    if worst.ns < NOTABLE * sum(step.ns for step in slow.host_steps) or 2 * worst.ns <= collectives_ns:
        return None
    usual_ns = median([step.ns for step in slow.host_steps])
    other_steps = (step for step in slow.host_steps if step != worst.step)
    is_slow = any(SIMILAR * (step.ns - usual_ns) >= worst.step.ns - usual_ns for step in other_steps)
    return None if is_slow else worst


def _diagnose_late_step(
    late_steps: Sequence[_LateStep], profiles: Sequence[model.RankProfile], count: int, collective: str
) -> model.Diagnosis | None:
    """Diagnose the rank that the others wait for in a single step, see `_single_late_step`; None without one."""
    worst = _single_late_step(late_steps, profiles, count)
    if worst is None:
        return None
    slow = _profile_of(worst, profiles)
    name, least = slow.name or slow.source, communicating(worst.step, collective)
    values = {"number": worst.step.number, "rank": name}
    evidence = Text(
        "In step {number}, {rank} runs no operator during {collective} for only {least}, a typical other rank for"
        " {usual}. {rank} waits least because it arrives last.",
        collective=host_name(collective), least=in_ms(least), usual=in_ms(least + worst.ns), **values,
    )  # fmt: skip
    headline: str = exposed.WAIT_IN_STEP.filled(time=in_ms(worst.ns), **values)
    advice: str = _advice_on_straggler(name, disturbed=False)
    typical = model.lower_median(slow.host_steps, operator.attrgetter("ns"))
    more = excess(slow, worst.step.number, typical.number)
    if more.cause:
        headline, advice = Text("{title}: {cause}", title=headline, cause=more.cause), more.advice or advice
    elif cause := _longer_on_last_rank([worst]):
        headline = Text("{title}, mostly while its host is in {call}", title=headline, call=host_name(cause))
    return model.Diagnosis(
        "slow-rank", "warning", evidence, worst.ns // count, _HEURISTIC, advice, slow.source, culprit=name,
        headline=headline, step=worst.step.number,
    )  # fmt: skip


def _diagnose_turns(
    late_steps: Sequence[_LateStep], profiles: Sequence[model.RankProfile], count: int
) -> model.Diagnosis | None:
    """Diagnose ranks that wait for another rank in different steps; None if that is so in at most half of ``count``.

    If the steps with much waiting have the same last rank, longer in one place, the headline names both.
    """
    if 2 * len(late_steps) <= count:
        return None
    names = {profile.source: profile.name or profile.source for profile in profiles}
    worst = [
        late
        for late in sorted(late_steps, key=lambda late: -late.ns)
        if 2 * late.ns >= max(late.ns for late in late_steps)
    ]
    stragglers = [Text("{rank} in step {number}", rank=names[late.source], number=late.step.number) for late in worst]
    evidence = Text(
        "In {late} of {count} steps, one rank waits far less during collectives than a typical other one, because it"
        " arrives last. The others wait most for {stragglers}.",
        late=len(late_steps), count=count, stragglers=joined(COMMA, stragglers[:MOST_NAMED]),
    )  # fmt: skip
    headline, advice, culprit = exposed.STRAGGLER_CHANGES, exposed.COMPARE_RANKS, ""
    if (cause := _longer_on_last_rank(worst)) and len(worst) > 1 and len({late.source for late in worst}) == 1:
        culprit = names[worst[0].source]
        headline = Text(
            "The other ranks wait for {rank} in steps {numbers}, mostly while its host is in {call}",
            numbers=listed(sorted(late.step.number for late in worst)), rank=culprit, call=host_name(cause),
        )  # fmt: skip
        advice = _advice_on_straggler(culprit, disturbed=False)
    elif cause := _longer_on_last_rank(late_steps):
        headline = Text(
            "{headline}: the last one spends more time in {place}", headline=headline, place=host_name(cause)
        )
    return model.Diagnosis(
        "slow-rank", "warning", evidence, sum(late.ns for late in late_steps) // count, _HEURISTIC, advice,
        worst[0].source if culprit else "", culprit=culprit, headline=headline,
    )  # fmt: skip


def _longer_on_last_rank(late_steps: Sequence[_LateStep]) -> str:
    """Return the range, function or call in which the last rank spends over half of the time that the others wait.

    Counted is what it spends there beyond the typical other rank. Of several, the innermost one is returned; "" without
    any.
    """
    waiting = sum(late.ns for late in late_steps)
    longer = Counter[str]()
    for late in late_steps:
        spent = _times_by_name(late.step)
        other_times = [_times_by_name(step) for step in late.other_steps]
        for name in {*spent, *itertools.chain(*other_times)}:
            longer[name] += spent[name] - median([times[name] for times in other_times])
    _, cause = min(((ns, name) for name, ns in longer.items() if 2 * ns > waiting), default=(0, ""))
    return cause


def _is_disturbed(late_steps: Sequence[_LateStep]) -> bool:
    """Tell whether the last rank does the same as the others, and is longer at other operators or pauses in each step.

    No range, function, operator or pause may take it longest in over half of the steps, of which it needs three.
    Larger inputs, or code of its own, would be at the same place. Other processes on its CPU cores would not.
    """
    if len(late_steps) < FEW_STEPS:
        return False
    longest = Counter[str]()
    for late in late_steps:
        if any((late.step.calls, late.step.inputs) != (other.calls, other.inputs) for other in late.other_steps):
            return False
        times, *other_times = (
            {**step.operators, **_times_without_operators(step)} for step in (late.step, *late.other_steps)
        )
        longer = {name: ns - median([other.get(name, 0) for other in other_times]) for name, ns in times.items()}
        longest[max(longer, key=longer.__getitem__, default="")] += 1
    return 2 * max(longest.values()) <= len(late_steps)


def _times_without_operators(step: model.HostStep) -> dict[str, int]:
    """Return the ns of a step at each place without an operator, by its words, without collectives."""
    return {place_words(place): ns for place, ns in step.places.items() if not communicates(place)}


def _longer_in_operators(late_steps: Sequence[_LateStep]) -> int:
    """Return for how many ns more operators run on the last rank than on the typical other one, without collectives."""
    return sum(_computing(late.step) - median([_computing(step) for step in late.other_steps]) for late in late_steps)


def _computing(step: model.HostStep) -> int:
    """Return for how many ns of a step operators run, without those of collectives."""
    return sum(step.operators.values()) - in_collective_operators(step)


def _times_by_name(step: model.HostStep) -> Counter[str]:
    """Return the ns of a step in its ranges, functions and calls by name, as far as these are of its main thread.

    Time during collectives in them does not count.
    """
    times = Counter[str]()
    for place, ns in step.places.items():
        if place.inside and not communicates(place):
            times[place.inside] += ns
    ranges = Counter(step.ranges) | Counter(step.functions)
    for name in ranges:
        ranges[name] -= sum(ns for place, ns in step.frames.get(name, {}).items() if communicates(place))
    return times | ranges


def idles_longer(profiles: Sequence[model.RankProfile], source: str, ns: int) -> bool:
    """Tell whether the rank with ``source`` is idle for longer than the typical other one, by over half of ``ns``.

    Waiting in collectives, sends and receives does not count as idle here.
    """
    idle = {
        profile.source: median([step.idle_ns - communicating(step) - between_two(step) for step in profile.host_steps])
        for profile in profiles
        if profile.on_host
    }
    other_idle = [idle_ns for name, idle_ns in idle.items() if name != source]
    return 2 * (idle.get(source, 0) - median(other_idle)) > ns


def waits_mostly(profile: model.RankProfile) -> bool:
    """Tell whether the host of a rank without a device waits in collectives for most of its idle time."""
    steps = profile.host_steps
    waits = [communicating(step) + between_two(step) for step in steps]
    return 2 * median(waits) > median([step.idle_ns for step in steps])


def waits_longer(profile: model.RankProfile, slowest: int, usual: int) -> bool:
    """Tell whether collectives take most of the time by which the step ``slowest`` is longer than ``usual``.

    Both are numbers of steps. False for steps that ran on a device, and for unknown numbers.
    """
    both = steps_numbered(profile, slowest, usual)
    if not both:
        return False
    slow, typical = both
    return 2 * (communicating(slow) - communicating(typical)) > slow.ns - typical.ns
