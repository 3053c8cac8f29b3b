"""The diagnoses of a trace without a device: compilation, time outside of operators, small operators, an outlier."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.messages import COMMA, SEMICOLON, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import FUNCTION, NOTABLE
from patcher.traces.analysis.exposed import BLAMED
from patcher.traces.analysis.host_steps import BLOCKS, COLLECTION, IMPORTS, SHORT_NS, SMALL_NS, is_library
from patcher.traces.families import COLLECTIVE, ELEMENTWISE, FAMILIES, GEMM
from patcher.traces.operator_families import operator_family
from patcher.traces.words import duration, host_name, in_ms, percent
from patcher.traces.work import inputs_of

COMPILES = Text(
    "if this is the first compilation, run the step once before the recording window; otherwise, set"
    " TORCH_LOGS=recompiles to see why torch.compile compiles again, for example because a shape changes"
)
LOADS_DATA = Text("increase num_workers or prefetch_factor of the data loader, or do less work per sample")
WAITS_IN_CALL = Text(
    "the host waits in this call: find out which thread, process or machine it waits for, or let the host do other work"
    " in the meantime"
)
_STACKS = "rlpatch apply … --contents cpu,stack"
_SHAPES = "rlpatch apply … --contents cpu,shapes"
_NAMED = 3  # operators or places that a sentence names
_FREQUENT = 2  # operators that a headline names
_LARGER = 1.3  # times as many elements of inputs, from which on their size may be the cause
_MANY = 100  # operators of a unit, from which on their number may be the cause

_TIMED_UNITS, _STEADY = 5, 0.001
"""Steps from which on equal waits tell a timer, and the share by which at most the shorter half of them differs.

A timer returns some 0.1 ms late, however long it is; what computes varies with its length, by 0.5 % and more.
"""

_PAIRS = re.compile(r"send|recv")
"""Communication of two ranks, as between the stages of a pipeline."""

_TREND_STEPS, _TREND = 5, 1.5
"""Steps from which on they can have a trend, and how many times as long the longer third of them takes at least."""

_NOISY = 0.25
"""Share of the pairs of steps that may be out of order if the work has a trend, too: 10 % if only the times have."""

SIMILAR = 4
"""Part of the largest excess of a step from which on another one counts as slow, too."""

_FEW = 3
"""Steps from which on one of them can be an exception."""

_MOSTLY_LAST = 0.75
"""Share of the waiting for any rank that the others have to wait for a single one, to name that as the straggler."""

_LARGE_PLACE = 0.2
"""Share of the time without operators from which on a headline names a place beside the longest one."""

_COMPREHENSION = re.compile(r": <\w+>$")
"""End of the name of a frame that is part of a function, such as ``f.py(5): <listcomp>``."""

_LARGE_OPERATOR = 0.2
"""Share of the time of all operators from which on a headline names an operator beside the longest one."""

_SCATTERED = 1000
"""Operators of a step from which on their number is in the headline if none of them has much of the time."""

_NEARLY_WHOLE = 0.95
"""Share of all steps below which a range or function is a part of them that is worth a headline."""

_OF_TORCH = re.compile(r"DataLoader|^Optimizer\.")
"""Part of the name of a range that torch records by itself."""

_NOT_WHOLE = 0.99
"""Share of a step below which a range is not around all of it."""

_ALIKE = 2
"""Ratio up to which two factors by which operators slow down are about the same."""

_ALTERNATING = 3
"""Slow steps from which on equal distances between them are no accident."""

GROWS = Text("check what grows or shrinks from step to step: the inputs, a cache, a list")
"""Advice where steps have a trend."""

_CALLS_OPERATORS = re.compile(r"torch/(?:_ops|_tensor|functional|autograd|optim|nn/(?:functional|init|modules))\b")
"""Begin of the name of a frame of torch that only calls operators, and takes hardly any time by itself."""

_LINEAR = "aten::linear"
"""Operator whose second input is a weight of the model."""

MORE_WORK = Text(
    "this step does more work than the median step, for example validation, or another model: check whether the"
    " additional work is needed, and how often"
)
"""Advice on a step that does more work than others, without a trend."""

_COPIES = re.compile(r"::(?:copy_|_to_copy|clone|contiguous|cat)$")
"""Operators that copy tensors."""

_PYTHON_BACKWARD = re.compile(r"Backward$")
"""Operators of autograd that run Python; the names of torch's own end in a number, as ``AddmmBackward0``."""

_ALSO_THREADS = Text("{advice}; also check that the process has no more threads (OMP_NUM_THREADS) than cores")

_INNER = 0.8
"""Share of an outer frame's time from which on a frame within it is named instead."""

_COLLECTORS = (COLLECTION, "built-in function collect")
"""Names of Python's garbage collection in a trace: as a range of its own, and as a call."""


def diagnoses(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnoses of a profile without kernels; nothing if it has kernels, or no operator.

    There may be one on torch.compile, one on many small operators and one on a place without operators; there is always
    one on the longest operators. If the program has a device whose kernels were not recorded, there is at most the one
    on the longest operators.
    """
    if not profile.host_steps:
        return
    if not profile.on_host:
        yield from _diagnose_unrecorded_device(profile)
        return
    small, idle = _diagnose_small_operators(profile), _diagnose_idle_host(profile)
    if small and idle and (small.saving_ns or 0) >= (idle.saving_ns or 0):
        idle = None  # the pauses between the same small operators
    yield from filter(None, (_diagnose_compilation(profile), small, idle))
    yield _diagnose_longest_operators(profile)


def _diagnose_unrecorded_device(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnosis of the longest operators if one of them, or one family, has half of the time on the host.

    Its advice is to record the device, too. Nothing if events of unknown categories can be those of the device.
    """
    dominant = _dominant_operator(profile, sum(step.ns for step in profile.host_steps))
    if dominant and all(check.id != "events" for check in profile.failed):
        headline = Text("{headline}; the host may be waiting for the device, but the device was not recorded", dominant)
        advice = Text(
            "record the device, too: run `rlpatch apply` with --contents npu,cpu, or add ProfilerActivity.CUDA to"
            " your profiler"
        )
        yield dataclasses.replace(_diagnose_longest_operators(profile), headline=headline, advice=advice)


class _LateStep(NamedTuple):
    """Step of the rank that came last, the same step of the other ranks, and for how many ns these typically waited."""

    source: str
    step: model.HostStep
    others: Sequence[model.HostStep]
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
    waits = _typical_waits(profiles, collective)
    if len(waits) < 2:
        return None
    late_steps, count = _late_steps([profile for _, _, profile in waits], collective)
    if late_step := _diagnose_late_step(late_steps, profiles, count, collective):
        return late_step
    (least, _, slow), *others = waits
    usual, _, typical = others[(len(others) - 1) // 2]
    saving, name = usual - least, slow.name or slow.source
    of_slow = [late for late in late_steps if late.source == slow.source]
    if sum(late.ns for late in of_slow) < _MOSTLY_LAST * sum(late.ns for late in late_steps):
        return _diagnose_turns(late_steps, count)
    if usual < BLAMED * least or saving < NOTABLE * _median([step.ns for step in typical.host_steps]):
        return None
    if 2 * len(of_slow) <= count:
        return None
    evidence: str = Text(
        "In a typical step, {rank} runs no operator during {collective} for only {least}, a typical other rank for"
        " {usual}. {rank} waits least because it arrives last.",
        rank=name, collective=host_name(collective), least=in_ms(least), usual=in_ms(usual),
    )  # fmt: skip
    idle, disturbed = _idle_warning(slow), _is_disturbed(of_slow)
    advice: str = _advice_on_straggler(name, disturbed=disturbed)
    if idle is not None:
        evidence, advice = sentences(evidence, idle.evidence), idle.advice
    return model.Diagnosis(
        "slow-rank", "warning", evidence, saving,
        Text("upper bound of the saving, by a heuristic: the times in collectives include transfer as well as waiting"),
        advice, slow.source, culprit=name, headline=_straggler_headline(of_slow, name, disturbed=disturbed),
    )  # fmt: skip


def _longest_collective(profiles: Sequence[model.RankProfile]) -> str:
    """Return the kind of collective in which ranks without a device wait longest, such as ``gloo:broadcast``, or "".

    Ranks may come late to one kind and early to another.
    """
    times = Counter[str]()
    for step in (step for profile in profiles if profile.on_host for step in profile.host_steps):
        for place, ns in step.places.items():
            if _meets(place):
                times[place.inside] += ns
    return max(times, key=times.__getitem__, default="")


def _typical_waits(profiles: Sequence[model.RankProfile], collective: str) -> list[tuple[int, str, model.RankProfile]]:
    """Return (ns, source, profile) of each rank with steps without a device, shortest time first.

    The ns are the time of its median step in this kind of ``collective``.
    """
    return sorted(
        (_median([_communicating(step, collective) for step in profile.host_steps]), profile.source, profile)
        for profile in profiles
        if profile.on_host and profile.host_steps
    )


def _idle_warning(profile: model.RankProfile) -> model.Diagnosis | None:
    """Return the diagnosis of the places at which no operator runs if it is a warning; None otherwise."""
    idle = _diagnose_idle_host(profile)
    return idle if idle is not None and idle.severity == "warning" else None


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
            key=lambda item: _communicating(item[0], collective),
        )
        (last, source), *others = ranked
        typical, _ = others[(len(others) - 1) // 2]
        least, usual = _communicating(last, collective), _communicating(typical, collective)
        waiting, longer = usual - least, (last.ns - least) - (typical.ns - usual)
        if usual >= BLAMED * least and waiting >= NOTABLE * typical.ns > 0 and 2 * longer > waiting:
            late_steps.append(_LateStep(source, last, [step for step, _ in others], waiting))
    return late_steps, len(numbers)


def _diagnose_late_step(
    late_steps: Sequence[_LateStep], profiles: Sequence[model.RankProfile], count: int, collective: str
) -> model.Diagnosis | None:
    """Diagnose the rank that the others wait for in a single step, with over half of the waiting; None without one.

    None, too, if the waiting takes under 10 % of the time of all steps, or at most half of that in collectives, if
    another step of the rank is slow, too, or if ranks have under 3 of ``count`` steps. A step in which profilers start
    does not count: they start at different times.
    """
    worst = max(late_steps, key=operator.attrgetter("ns"), default=None)
    if worst is None or count < _FEW or 2 * worst.ns <= sum(late.ns for late in late_steps):
        return None
    slow = next(profile for profile in profiles if profile.source == worst.source)
    if any(worst.step.number in profile.cold for profile in profiles):
        return None
    in_collectives = _median(
        [_in_collectives(profile) for profile in profiles if profile.on_host and profile is not slow]
    )
    if worst.ns < NOTABLE * sum(step.ns for step in slow.host_steps) or 2 * worst.ns <= in_collectives:
        return None
    typical = model.lower_median(slow.host_steps, operator.attrgetter("ns"))
    if _has_similar_step(slow.host_steps, worst.step, typical):
        return None
    name, least = slow.name or slow.source, _communicating(worst.step, collective)
    values = {"number": worst.step.number, "rank": name}
    evidence = Text(
        "In step {number}, {rank} runs no operator during {collective} for only {least}, a typical other rank for"
        " {usual}. {rank} waits least because it arrives last.",
        collective=host_name(collective), least=in_ms(least), usual=in_ms(least + worst.ns), **values,
    )  # fmt: skip
    headline: str = Text("In step {number}, the other ranks wait {time} for {rank}", time=in_ms(worst.ns), **values)
    advice: str = _advice_on_straggler(name, disturbed=False)
    more = excess(slow, worst.step.number, typical.number)
    if more.cause:
        headline, advice = Text("{title}: {cause}", title=headline, cause=more.cause), more.advice or advice
    elif cause := _longer_on_last_rank([worst]):
        headline = Text("{title}, mostly while its host is in {call}", title=headline, call=host_name(cause))
    return model.Diagnosis(
        "slow-rank", "warning", evidence, worst.ns // count,
        Text("upper bound of the saving, by a heuristic: the times in collectives include transfer as well as waiting"),
        advice, slow.source, culprit=name, headline=headline, step=worst.step.number,
    )  # fmt: skip


def _has_similar_step(steps: Sequence[model.HostStep], slow: model.HostStep, typical: model.HostStep) -> bool:
    """Tell whether another step than ``slow`` is longer than ``typical`` by at least a quarter of its excess."""
    return any(SIMILAR * (step.ns - typical.ns) >= slow.ns - typical.ns for step in steps if step != slow)


def _diagnose_turns(late_steps: Sequence[_LateStep], count: int) -> model.Diagnosis | None:
    """Diagnose ranks that wait for another rank in different steps; None if that is so in at most half of ``count``."""
    if 2 * len(late_steps) <= count:
        return None
    times = Counter(late.source for late in late_steps)
    evidence = Text(
        "In {late} of {count} steps, one rank waits far less during collectives than a typical other one, because it"
        " arrives last. In these steps, {ranks} different ranks arrive last.",
        late=len(late_steps), count=count, ranks=len(times),
    )  # fmt: skip
    headline: str = Text("Ranks wait for each other: the straggler changes from step to step")
    if cause := _longer_on_last_rank(late_steps):
        headline = Text(
            "{headline}: the last one spends more time in {place}", headline=headline, place=host_name(cause)
        )
    return model.Diagnosis(
        "slow-rank", "warning", evidence, sum(late.ns for late in late_steps) // count,
        Text("upper bound of the saving, by a heuristic: the times in collectives include transfer as well as waiting"),
        Text("check what differs between ranks: sequence lengths, experts, pipeline stages"),
        headline=headline,
    )  # fmt: skip


def _longer_on_last_rank(late_steps: Sequence[_LateStep]) -> str:
    """Return the range, function or call in which the last rank spends over half of the time that the others wait.

    Counted is what it spends there beyond the typical other rank. Of several, the innermost one is returned. Without
    any it is an operator, or "".
    """
    waiting = sum(late.ns for late in late_steps)
    for times_by_name in (_times_by_name, _times_by_operator):
        longer = Counter[str]()
        for late in late_steps:
            spent = times_by_name(late.step)
            others = [times_by_name(step) for step in late.others]
            for name in {*spent, *itertools.chain(*others)}:
                longer[name] += spent[name] - _median([times[name] for times in others])
        if causes := [(ns, name) for name, ns in longer.items() if 2 * ns > waiting]:
            return min(causes)[1]
    return ""


def _is_disturbed(late_steps: Sequence[_LateStep]) -> bool:
    """Tell whether the last rank does the same as the others, and is longer at other operators or pauses in each step.

    No range, function, operator or pause may take it longest in over half of the steps, of which it needs three.
    Larger inputs, or code of its own, would be at the same place. Other processes on its CPU cores would not.
    """
    if len(late_steps) < _FEW:
        return False
    longest = Counter[str]()
    for late in late_steps:
        if any((late.step.calls, late.step.inputs) != (other.calls, other.inputs) for other in late.others):
            return False
        times, *others = ({**step.operators, **_times_without_operators(step)} for step in (late.step, *late.others))
        longer = {name: ns - _median([other.get(name, 0) for other in others]) for name, ns in times.items()}
        longest[max(longer, key=longer.__getitem__, default="")] += 1
    return 2 * max(longest.values()) <= len(late_steps)


def _times_without_operators(step: model.HostStep) -> dict[str, int]:
    """Return the ns of a step at each place without an operator, by its words, without collectives."""
    return {place_words(place): ns for place, ns in step.places.items() if not _communicates(place)}


def _longer_in_operators(late_steps: Sequence[_LateStep]) -> int:
    """Return for how many ns more operators run on the last rank than on the typical other one, without collectives."""

    def computing(step: model.HostStep) -> int:
        return sum(step.operators.values()) - _in_collective_operators(step)

    return sum(computing(late.step) - _median([computing(step) for step in late.others]) for late in late_steps)


def _times_by_name(step: model.HostStep) -> Counter[str]:
    """Return the ns of a step in its ranges, functions and calls by name, as far as these are of its main thread."""
    times = Counter[str]()
    for place, ns in step.places.items():
        if place.inside and not _communicates(place):
            times[place.inside] += ns
    return times | Counter(step.ranges) | Counter(step.functions)


def _times_by_operator(step: model.HostStep) -> Counter[str]:
    """Return the ns of a step in its operators by name."""
    return Counter(step.operators)


def idles_longer(profiles: Sequence[model.RankProfile], source: str, ns: int) -> bool:
    """Tell whether the rank with ``source`` is idle for longer than the typical other one, by over half of ``ns``.

    Waiting in collectives does not count as idle here.
    """
    idle = {
        profile.source: _median([step.idle_ns - _communicating(step) for step in profile.host_steps])
        for profile in profiles
        if profile.on_host
    }
    others = [other for name, other in idle.items() if name != source]
    return 2 * (idle.get(source, 0) - _median(others)) > ns


def waits_mostly(profile: model.RankProfile) -> bool:
    """Tell whether the host of a rank without a device waits in collectives for most of its idle time."""
    steps = profile.host_steps
    return 2 * _median([_communicating(step) for step in steps]) > _median([step.idle_ns for step in steps])


def is_most_of_idle_time(profile: model.RankProfile, ns: int) -> bool:
    """Tell whether ``ns`` is at least half of the idle time of all steps, and this at least half of their time.

    The host is idle while it runs no operator. False if the idle time of a typical step is a warning by itself, or if
    the steps ran on a device.
    """
    typical = _diagnose_idle_host(profile) if profile.host_steps else None
    if typical is not None and typical.severity == "warning":
        return False
    whole = sum(step.ns for step in profile.host_steps)
    idle = sum(step.idle_ns for step in profile.host_steps)
    return 2 * ns >= idle and 2 * idle >= whole > 0


def waits_longer(profile: model.RankProfile, slowest: int, usual: int) -> bool:
    """Tell whether collectives take most of the time by which the step ``slowest`` is longer than ``usual``.

    Both are numbers of steps. False for steps that ran on a device, and for unknown numbers.
    """
    steps = {step.number: step for step in profile.host_steps}
    if slowest not in steps or usual not in steps:
        return False
    slow, typical = steps[slowest], steps[usual]
    return 2 * (_communicating(slow) - _communicating(typical)) > slow.ns - typical.ns


def _communicating(step: model.HostStep, collective: str = "") -> int:
    """Return for how many ns of a step no operator runs during a collective of this kind; "" for any kind."""
    return sum(ns for place, ns in step.places.items() if _meets(place) and collective in ("", place.inside))


def _meets(place: model.HostPlace) -> bool:
    """Tell whether all ranks meet at a place, in a collective; sends and receives do not count."""
    return _communicates(place) and not _PAIRS.search(place.inside)


def _in_collectives(profile: model.RankProfile) -> int:
    """Return the ns of all steps of a rank in collectives, with and without their operators."""
    return sum(_communicating(step) + _in_collective_operators(step) for step in profile.host_steps)


def _in_collective_operators(step: model.HostStep) -> int:
    """Return for how many ns of a step operators of collectives run, such as ``c10d::broadcast_``."""
    return sum(ns for name, ns in step.operators.items() if operator_family(name) == COLLECTIVE)


class HostExcess(NamedTuple):
    """By what a step exceeds another one, in sentences; the cause for the headline, and advice, "" where unknown."""

    evidence: str
    cause: str = ""
    advice: str = ""


def excess(profile: model.RankProfile, slowest: int, usual: int) -> HostExcess:
    """Return why the step with number ``slowest`` takes longer than the step ``usual``.

    It is torch.compile or a place without operators, if that takes half of the additional time. Else it is a range or
    an operator if the steps ran different numbers of operators, or their inputs if not. All texts are "" if the profile
    does not have both steps, as for steps on a device.
    """
    steps = {step.number: step for step in profile.host_steps}
    if slowest not in steps or usual not in steps:
        return HostExcess("")
    slow, typical = steps[slowest], steps[usual]
    whole = slow.ns - typical.ns
    compiling = slow.compiling_ns - typical.compiling_ns
    if 2 * compiling >= whole:
        took = Text("torch.compile takes {time} of this step's additional time.", in_ms(compiling))
        return HostExcess(took, Text("torch.compile compiles during this step"), COMPILES)
    outside = Counter({place: ns - typical.places.get(place, 0) for place, ns in slow.places.items()})
    for place, ns in outside.most_common(1):
        if 2 * ns >= whole:
            return _excess_at_place(place, ns)
    longer_by_operator = Counter({name: ns - typical.operators.get(name, 0) for name, ns in slow.operators.items()})
    most = Counter({host_name(name): ns for name, ns in longer_by_operator.items()})
    most.update({place_words(place): ns for place, ns in outside.items()})
    sentence = _largest_parts(most, whole)
    if sum(slow.calls.values()) != sum(typical.calls.values()):
        return _excess_by_calls(slow, typical, longer_by_operator, sentence)
    more = _excess_by_inputs(slow, typical, longer_by_operator)
    if not more.evidence and slow.inputs and slow.inputs == typical.inputs:
        more = _excess_on_same_inputs(profile.host_steps, slow, longer_by_operator, whole)
    if not more.evidence:
        unknown = Text(
            "This step was longer but ran as many operators as the median step: either its inputs were larger, or"
            " another process held the CPU core."
        )
        see = Text("{command} also records the shapes of the operators' inputs.", _SHAPES)
        more = HostExcess(sentences(unknown, "" if slow.inputs or _records_shapes(profile) else see))
    return more._replace(evidence=sentences(sentence, more.evidence))


def _largest_parts(longer: Counter[str], whole: int) -> str:
    """Return the sentence on what takes most of the ``whole`` ns that a slow step takes longer; "" below a tenth each.

    ``longer`` maps the name of an operator or place to how many ns it takes longer.
    """
    named = [
        Text("{name} {time}", name=name, time=in_ms(ns))
        for name, ns in longer.most_common(_NAMED)
        if ns >= NOTABLE * whole
    ]
    return Text("Largest parts of this step's additional time: {names}.", joined(COMMA, named)) if named else ""


def causes_differ(profile: model.RankProfile, slow: Sequence[int], usual: int, cause: str) -> bool:
    """Tell whether a ``slow`` step takes longer than the step ``usual`` for another cause than ``cause``, or unknown.

    Steps are told by their numbers. False if ``cause`` is "", or if the steps ran on a device.
    """
    return bool(cause) and profile.on_host and any(excess(profile, number, usual).cause != cause for number in slow)


def alternation(profile: model.RankProfile, slow: Sequence[int], usual: int) -> str:
    """Return the headline on steps of two kinds that alternate; "" if they do not, or ran on a device.

    They do if at least three ``slow`` steps follow each other at equal distances of over 1. All have to run the same
    operators on inputs of the same sizes. These differ from those of the step ``usual`` and take most of the additional
    time. The headline is "", too, if a range around the operators explains it.
    """
    steps = {step.number: step for step in profile.host_steps}
    distances = {following - number for number, following in itertools.pairwise(slow)}
    if len(slow) < _ALTERNATING or len(distances) > 1 or distances == {1} or not steps:
        return ""
    typical, kind, *others = (steps[number] for number in (usual, *slow))
    longer = kind.ns - typical.ns
    running = sum(kind.operators.values()) - sum(typical.operators.values())
    work, usual_work, *other_work = ((step.calls, step.inputs) for step in (kind, typical, *others))
    is_another = work != usual_work and all(each == work for each in other_work)
    if not is_another or 2 * running < longer or _excess_in_range(kind, typical):
        return ""
    return Text(
        "Steps of two kinds alternate, and {count} of {total} take much longer than the others",
        count=len(slow),
        total=len(steps),
    )


def _excess_by_calls(
    slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str], largest_parts: str
) -> HostExcess:
    """Return why a ``slow`` step with more or fewer operators takes longer than ``typical``: a range, or an operator.

    The cause is "" if neither takes half of the additional time. ``longer_by_operator`` maps the name of an operator to
    the ns by which it took longer. ``largest_parts`` is a sentence on what took most of the additional time, told where
    no range did.
    """
    whole, calls, usual_calls = slow.ns - typical.ns, sum(slow.calls.values()), sum(typical.calls.values())
    counts = Text("This step ran {count:,} operators, the median step {median:,}.", count=calls, median=usual_calls)
    advice: str = ""
    if calls >= (1 + NOTABLE) * usual_calls and 2 * longer_by_operator.total() >= whole:
        advice = MORE_WORK
    if within := _excess_in_range(slow, typical):
        return within._replace(evidence=sentences(within.evidence, counts), advice=advice)
    (name, ns), *_ = longer_by_operator.most_common(1) or [("", 0)]
    cause = Text("most of the additional time is spent in {place}", host_name(name)) if 2 * ns >= whole else ""
    return HostExcess(sentences(largest_parts, counts), cause, advice)


def _excess_in_range(slow: model.HostStep, typical: model.HostStep) -> HostExcess | None:
    """Return the explanation of a step that is longer mainly in one range; None without one that tells anything.

    Ranges that take half of the ``typical`` step do not. Of ranges around each other, the innermost one is named.
    """
    longer = ((ns - typical.ranges.get(name, 0), name) for name, ns in slow.ranges.items())
    telling = [
        (ns, name) for ns, name in longer
        if 2 * ns >= slow.ns - typical.ns and 2 * typical.ranges.get(name, 0) < typical.ns
    ]  # fmt: skip
    if not telling:
        return None
    ns, name = min(telling)
    evidence = Text(
        "{time} of this step's additional time is spent in the range {name}.", time=in_ms(ns), name=host_name(name)
    )
    return HostExcess(evidence, Text("most of the additional time is spent in {place}", host_name(name)))


def _excess_at_place(place: model.HostPlace, ns: int) -> HostExcess:
    """Return the explanation of a step that is longer mainly by ``ns`` at one place without operators."""
    evidence: str = Text(
        "Outside of all operators, the host spends {time} more than in the median step: {place}.",
        time=in_ms(ns),
        place=place_words(place),
    )
    if _CALLS_OPERATORS.match(place.inside):
        short = Text(
            "This code of torch takes hardly any time by itself, so something probably interrupted it: another process"
            " on the CPU core, or Python's garbage collection."
        )
        advice = Text(
            "check whether other processes or threads need the CPU cores; if none does, call gc.freeze() after"
            " everything is loaded"
        )
        return HostExcess(sentences(evidence, short), Text("something probably interrupted the process"), advice)
    cause = Text("most of the additional time is spent {place}", place_words(place))
    if not _names_cause(place):
        see = Text("To see what Python does during this time, record again with {command}.", _STACKS)
        evidence, cause = sentences(evidence, see), Text("{headline}; what ran in this time was not recorded", cause)
    return HostExcess(evidence, cause, advice_on(place))


def _excess_by_inputs(slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str]) -> HostExcess:
    """Explain by their inputs why a ``slow`` step took longer than the ``typical`` one with as many operators.

    Larger inputs are the cause, with the range in which most of the additional time is spent. Other inputs that are not
    larger are evidence without a cause. All texts are "" if no sizes are known, or if no size is new in the slow step.
    ``longer_by_operator`` maps the name of an operator to the ns by which it took longer.
    """
    if other := _other_inputs(slow, typical, longer_by_operator):
        sizes = Text(
            "The inputs of {operator} have the shapes {shapes}; in the median step, they have {median_shapes}.",
            operator=host_name(other.name),
            shapes=host_name(other.shapes),
            median_shapes=host_name(other.usual_shapes),
        )
        return _excess_by_larger_inputs(slow, typical, other, sizes) if other.are_larger else HostExcess(sizes)
    return HostExcess("")


def _excess_on_same_inputs(
    steps: Sequence[model.HostStep], slow: model.HostStep, longer_by_operator: Counter[str], whole: int
) -> HostExcess:
    """Explain why a ``slow`` step took longer than others of the ``steps`` with inputs of the same sizes.

    An overload of the CPU slows all operators by about the same factor. It is suspected if this is so for the frequent
    operators and for the sum of the others. Otherwise the operators that took longer are the cause, for an unknown
    reason, if they have half of the ``whole`` additional time in ns. ``longer_by_operator`` maps the name of an
    operator to the ns by which it took longer than in the median step.
    """
    overload = Text(
        "check whether the busy threads of this process (see OMP_NUM_THREADS) and of other processes together"
        " outnumber the CPU cores"
    )
    factors = _slowdowns([step for step in steps if step.inputs == slow.inputs], slow)
    if len(factors) > 1 and max(factors.values()) <= _ALIKE * min(factors.values()):
        same = Text(
            "This step ran as many operators as the median step, on inputs of the same sizes:"
            " probably the CPU cores were overloaded, by another process or by more threads than cores."
        )
        return HostExcess(same, Text("the same operators on inputs of the same sizes took longer"), overload)
    least = NOTABLE * sum(ns for ns in longer_by_operator.values() if ns > 0)
    longer = [host_name(name) for name, ns in longer_by_operator.most_common(_NAMED) if ns > 0 and ns >= least]
    if not longer:
        return HostExcess("")
    evidence: str = Text(
        "This step ran as many operators as the median step, on inputs of the same sizes. Why some took longer was not"
        " recorded."
    )
    if len(factors) > 1:
        others = Text("the other operators together")
        times = (
            Text("{name} {times:.1f}x", name=host_name(name) if name else others, times=times)
            for name, times in factors.items()
        )
        unlike = Text(
            "Its operators did not slow down alike, as they usually do on overloaded CPU cores. As multiples of the"
            " median over the steps, they took: {operators}.",
            joined(COMMA, times),
        )
        evidence = sentences(evidence, unlike)
    cause: str = ""
    if 2 * sum(ns for _, ns in longer_by_operator.most_common(len(longer))) >= whole:
        cause = Text(
            "on inputs of the same sizes, these operators took longer: {operators}; the reason was not recorded",
            joined(COMMA, longer),
        )
    advice = Text(
        "compare what these operators compute in slow and in other steps, for example whether the values are very small"
        " (try torch.set_flush_denormal(True)); also {advice}",
        overload,
    )
    return HostExcess(evidence, cause, advice)


def _slowdowns(steps: Sequence[model.HostStep], slow: model.HostStep) -> dict[str, float]:
    """Return how many times its median over the ``steps`` an operator took in a ``slow`` step, by name.

    Operators with a tenth of the sum of these medians come first, the longest at the front. The name "" stands for the
    sum of the others.
    """
    usual = Counter({name: _median([step.operators.get(name, 0) for step in steps]) for name in slow.operators})
    least = NOTABLE * usual.total()
    factors = {name: slow.operators[name] / ns for name, ns in usual.most_common() if ns and ns >= least}
    others = sum(ns for name, ns in usual.items() if name not in factors)
    if others:
        factors[""] = sum(ns for name, ns in slow.operators.items() if name not in factors) / others
    return factors


class OtherInputs(NamedTuple):
    """An operator with the shapes of its largest inputs that only a slow step has, and of the largest in another one.

    Shapes are texts in JSON.
    """

    name: str
    shapes: str
    usual_shapes: str

    @property
    def are_larger(self) -> bool:
        """Whether the inputs have so many more elements that these may be why the step takes longer."""
        return _elements(self.shapes) >= _LARGER * _elements(self.usual_shapes)


def _other_inputs(
    slow: model.HostStep, typical: model.HostStep, longer_by_operator: Counter[str]
) -> OtherInputs | None:
    """Return the operator that took longer by most, of those with inputs of other shapes in a ``slow`` step; else None.

    ``longer_by_operator`` maps the name of an operator to the ns by which it took longer than in the ``typical`` step.
    """
    for name, _ in longer_by_operator.most_common():
        new, old = (set(step.inputs.get(name, ())) for step in (slow, typical))
        if old and new - old:
            return OtherInputs(name, max(new - old, key=_elements), max(old - new or old, key=_elements))
    return None


def does_more_work(profile: model.RankProfile, slowest: int, usual: int) -> bool:
    """Tell whether the step ``slowest`` runs more operators than ``usual``, or larger ones, which take its excess.

    That is at least half of the time by which it is longer. Another process on the CPU cores is not the reason then.
    Both are numbers of steps; False for steps that ran on a device, and for unknown numbers.
    """
    steps = {step.number: step for step in profile.host_steps}
    if slowest not in steps or usual not in steps:
        return False
    slow, typical = steps[slowest], steps[usual]
    longer = Counter({name: ns - typical.operators.get(name, 0) for name, ns in slow.operators.items()})
    if 2 * longer.total() < slow.ns - typical.ns:
        return False
    other = _other_inputs(slow, typical, longer)
    calls, usual_calls = sum(slow.calls.values()), sum(typical.calls.values())
    return calls >= (1 + NOTABLE) * usual_calls or (calls == usual_calls and other is not None and other.are_larger)


def _excess_by_larger_inputs(
    slow: model.HostStep, typical: model.HostStep, other: OtherInputs, sizes: str
) -> HostExcess:
    """Explain a ``slow`` step that runs an operator on larger inputs than the ``typical`` step.

    The sentence ``sizes`` tells the shapes of the ``other`` inputs. Larger weights are of another model, or of other
    layers, whatever the batch.
    """
    if other.name == _LINEAR and _shape_of_weight(other.shapes) != _shape_of_weight(other.usual_shapes):
        return HostExcess(sizes, Text("layers whose weights are larger than in the median step"), MORE_WORK)
    within = _excess_in_range(slow, typical)
    cause: str = Text("larger inputs than in the median step")
    if within:
        cause, sizes = joined(SEMICOLON, (cause, within.cause)), sentences(within.evidence, sizes)
    advice = Text("make the inputs of all steps similar in size: sort, split or pack them")
    return HostExcess(sizes, cause, advice)


def _shape_of_weight(shapes: str) -> tuple[int, ...] | None:
    """Return the shape of the second input of an operator, the weight of a linear layer; None if it is unknown."""
    inputs = inputs_of(shapes, "[]")
    return inputs.shapes[1] if inputs and len(inputs.shapes) > 1 else None


def _records_shapes(profile: model.RankProfile) -> bool:
    """Tell whether the trace has the sizes of inputs; rlpatch reads those of the operators whose work it knows."""
    return profile.setting("shapes").lower() in ("1", "true")


def _elements(shapes: str) -> int:
    """Return the number of elements of all inputs of an operator; 0 if their shapes are malformed."""
    inputs = inputs_of(shapes, "[]")
    return sum(math.prod(shape) for shape in inputs.shapes if shape) if inputs else 0


def _median(values: Sequence[int]) -> int:
    return model.lower_median(values) if values else 0


def place_words(place: model.HostPlace) -> str:
    """Return where a place without an operator is, in words with a preposition, such as "in loader.py(12): next".

    It is during a collective, in a frame or range, or before, after or between operators.
    """
    if _communicates(place):
        during = Text("during {collective}", host_name(place.inside))
        within = Text(
            "during {collective} (within {around})", collective=host_name(place.inside), around=host_name(place.around)
        )
        return within if place.around else during
    inside = Text("Python's garbage collection") if place.inside in _COLLECTORS else host_name(place.inside)
    if IMPORTS.match(place.inside):
        inside = Text("an import of Python modules")
    if _waits_for_gil(place):
        return Text(
            "in {inside}, which has not returned although the operator that it called has ended: another Python thread"
            " probably holds the GIL",
            inside,
        )
    if place.inside and place.around:
        return Text("in {inside} (within {around})", inside=inside, around=host_name(place.around))
    if place.inside:
        return Text("in {inside}", inside)
    if place.saving:
        return Text(
            "after {operator} has run once for each tensor, as state_dict() does: weights are probably being saved or"
            " sent here",
            place.before,
        )
    if place.before and place.after:
        return Text("between {before} and {after}", before=host_name(place.before), after=host_name(place.after))
    if place.before:
        return Text("after the last operator ({before})", host_name(place.before))
    return Text("before the first operator ({after})", host_name(place.after))


def _communicates(place: model.HostPlace) -> bool:
    """Tell whether a collective on the CPU runs at a place, for which the host waits."""
    return bool(place.inside) and operator_family(place.inside) == COLLECTIVE


def _waits_for_gil(place: model.HostPlace) -> bool:
    """Tell whether a function of torch goes on at a place after its operator, as if it waited for Python's GIL."""
    return bool(place.inside and place.before)


def _names_cause(place: model.HostPlace) -> bool:
    """Tell whether a place says what happens there, and not only between which operators it lies."""
    return bool(place.inside) or place.saving


def _diagnose_idle_host(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose the places at which no operator runs for at least 10 % of a typical step; None without any.

    A place counts with its median time over the steps; shares are those of the time of all steps. The longest place is
    the cause if it has half of the time without operators, and no other has a fifth of it; else up to three are. The
    diagnosis is a warning if they take half of the time without operators, and that is half of the step; else a note.
    If the longest place takes half of that time, and nearly the same time in half of the steps, the diagnosis calls it
    a wait for a fixed time. The saving in ns is per step.
    """
    steps = profile.host_steps
    whole, idle = (_median(values) for values in zip(*((step.ns, step.idle_ns) for step in steps), strict=True))
    places, parts = _places_or_frame(steps, least=NOTABLE * whole, half=idle / 2)
    if not places:
        return None
    first = places[0][0]
    idle_times = _idle_times(steps, [place for place, _ in places])
    evidence: str = _idle_evidence(profile, first, idle_times)
    if parts:
        evidence = sentences(evidence, _calls_within(parts))
    certainty: str = Text("upper bound of the saving; operators that the profiler did not record count as idle time")
    spread = "" if _names_cause(first) else _timer_spread(steps, first)
    if spread and 2 * places[0][1] >= idle:
        equal = Text(
            "At this place, the time without operators is nearly the same in half of the steps: it differs by at most"
            " {difference}. So the host probably waits for a fixed time (a sleep, a poll, a timeout).",
            spread,
        )
        evidence = sentences(evidence, equal)
        certainty = Text(
            "upper bound of the saving; rlpatch guesses that the host waits for a fixed time, because the time without"
            " operators is nearly the same in many steps"
        )
    headline, shown = _idle_headline(places, idle, idle_times, is_timer=bool(spread))
    saving, typical = sum(idle_times.per_step(place) for place, _ in shown), sum(ns for _, ns in shown)
    advice: str = _idle_advice(profile, first, parts)
    if trend(idle_times.of_places[first]) and 2 * typical >= idle and not _communicates(first):
        advice = joined(SEMICOLON, (GROWS, advice))
    evidence = sentences(evidence, _other_places(places[1:_NAMED], idle_times))
    severity = "warning" if 2 * idle >= whole and 2 * typical >= idle else "note"
    if severity == "warning" and places[0][1] < _INNER * idle:
        evidence = sentences(evidence, _longest_ranges(steps, sum(step.ns for step in steps)))
    culprit = first.inside if 2 * places[0][1] >= idle and not _communicates(first) else ""
    return model.Diagnosis(
        "host-idle", severity, evidence, saving, certainty, advice, profile.source, headline=headline, culprit=culprit
    )


def _idle_advice(profile: model.RankProfile, place: model.HostPlace, parts: Sequence[tuple[str, float]]) -> str:
    """Return what to do about the ``place`` with most time without operators, or about the longest of its ``parts``.

    Without parts, the advice on a range of the user is to record stacks, unless the profile has these.
    """
    if parts:
        return advice_on(model.HostPlace(parts[0][0]))
    if _is_only_range(place.inside) and not profile.has_stacks:
        return Text(
            "find out whether the host works or waits in {range}: record Python's stack frames, too: {command}",
            range=host_name(place.inside),
            command=_STACKS,
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
    is_torch = name in _COLLECTORS or _OF_TORCH.search(name) or operator_family(name) == COLLECTIVE
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
    if idle.is_exception(place):
        return Text(
            "On average, a step takes {step_time}, and no operator ran on the host for {time} of it ({share}). The main"
            " place: {place}, {longest} in a typical step.",
            **values,
        )
    return Text(
        "On average, a step takes {step_time}, and no operator ran on the host for {time} of it ({share}). The main"
        " place: {place}, {longest} on average.",
        **values,
    )


def is_whole_trace(profile: model.RankProfile) -> bool:
    """Tell whether nothing marks steps, and the whole trace counts as one."""
    unit = profile.metadata.unit if profile.metadata else ""
    return not profile.marks and not unit and len(profile.units) == 1


class _IdleTimes(NamedTuple):
    """The time without operators: its ``share`` of the time in words, its ns in all steps, and by place and step."""

    share: str
    ns: int
    of_places: Mapping[model.HostPlace, Sequence[int]]

    def is_exception(self, place: model.HostPlace) -> bool:
        """Tell whether a single step of several has over two thirds of the time at a place."""
        times = self.of_places[place]
        return len(times) > 1 and 3 * max(times) > 2 * sum(times)

    def per_step(self, place: model.HostPlace) -> int:
        """Return the mean ns at a place per step; the lower median if a single step has most of the time."""
        times = self.of_places[place]
        return _median(times) if self.is_exception(place) else sum(times) // len(times)


def _idle_times(steps: Sequence[model.HostStep], places: Sequence[model.HostPlace]) -> _IdleTimes:
    """Return the time without operators of all steps, and that at the ``places``.

    A place that names a frame has the time at other places in that frame, too, unless they are among the ``places``.
    """
    idle = sum(step.idle_ns for step in steps)
    share = percent(idle / (sum(step.ns for step in steps) or 1), 0)
    times: dict[model.HostPlace, list[int]] = {place: [] for place in places}
    for step, (place, of_steps) in itertools.product(steps, times.items()):
        within = step.frames.get(place.inside, {}).items()
        others = sum(ns for other, ns in within if other not in times and place.around in ("", other.around))
        of_steps.append(step.places.get(place, 0) + others)
    return _IdleTimes(share, idle, times)


class _IdleHeadline(NamedTuple):
    """A headline on the places without operators that it names, and their ns in a typical step."""

    text: str
    places: Sequence[tuple[model.HostPlace, int]]


def _idle_headline(
    places: Sequence[tuple[model.HostPlace, int]], typical_idle: float, idle: _IdleTimes, *, is_timer: bool
) -> _IdleHeadline:
    """Return the headline on the time without operators, ``typical_idle`` ns in the median step, mostly at ``places``.

    The longest place comes first. With ``is_timer``, it takes nearly the same time in many steps.
    """
    first, longest = places[0]
    has_half = 2 * longest >= typical_idle
    if has_half and is_timer:
        waits = Text("No device data; the host probably waits a fixed {time} in each step", in_ms(longest))
        return _IdleHeadline(waits, places[:1])
    large = [(place, ns) for place, ns in places[:_NAMED] if ns >= _LARGE_PLACE * typical_idle]
    if has_half and len(large) == 1 and 2 * sum(idle.of_places[first]) >= idle.ns:
        return _IdleHeadline(_mostly_at(first, idle), large)
    shown = large if has_half and len(large) > 1 else places[:_NAMED]
    headline = Text(
        "No device data; for {share} of the time, the host runs no operator: {places}",
        share=idle.share,
        places=_places_with_times((place, idle.per_step(place)) for place, _ in shown),
    )
    if has_half and not any(_names_cause(place) for place, _ in large):
        headline = Text("{headline}; what ran in this time was not recorded", headline)
    return _IdleHeadline(headline, shown)


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
    if _communicates(place):
        return headline  # a trend of the waiting would be one of another rank
    if _names_cause(place):
        return _with_trend(headline, times)
    return Text("{headline}; what ran in this time was not recorded", headline)


def _calls_within(parts: Sequence[tuple[str, float]]) -> Text:
    """Return a sentence on the calls within a frame: their names, and the mean ns of each per step."""
    longest = joined(COMMA, (Text("{place} {time}", place=host_name(name), time=in_ms(ns)) for name, ns in parts))
    return Text("The longest calls within this part, with their mean time per step: {places}.", longest)


def _places_or_frame(
    steps: Sequence[model.HostStep], least: float, half: float
) -> tuple[list[tuple[model.HostPlace, int]], list[tuple[str, float]]]:
    """Return the places without operators with their typical ns, longest first, or the frame around them.

    Places below ``least`` ns are left out. If no place has ``half`` ns, but a frame around several does, that frame is
    the only place. So is one whose own code and calls of libraries are the large places. Then the second list has what
    runs in the frame, with its mean ns; otherwise it is empty.
    """
    places = [(place, ns) for place, ns in _typical_places(steps) if ns >= least]
    frame, ns, parts = _typical_frame(steps)
    if places and places[0][1] >= half:
        large = [place.inside for place, place_ns in places if place_ns >= _LARGE_PLACE * 2 * half]
        are_parts = set(large) <= {name for name, _ in parts} and not any(map(_is_function, large))
        return ([(model.HostPlace(frame), ns)], parts) if len(large) > 1 and are_parts else (places, [])
    return ([(model.HostPlace(frame), ns)], parts) if frame and ns >= max(least, half) else (places, [])


def _is_function(name: str) -> bool:
    """Tell whether a frame or range is a named part of the program's own: no comprehension, and of no library."""
    return not is_library(name) and not _COMPREHENSION.search(name)


def _typical_frame(steps: Sequence[model.HostStep]) -> tuple[str, int, list[tuple[str, float]]]:
    """Return the frame in which a step spends most time without operators, its ns, and (name, mean ns) of calls in it.

    Frames with at least 80 % of the longest one's time are candidates. The innermost one counts, in the program's own
    code if there is one. The ns of the frame are the lower median over the steps. Of the calls, the three longest are
    returned. Without any frame, the result is ("", 0, []).
    """
    times = {
        frame: _median([sum(step.frames.get(frame, {}).values()) for step in steps])
        for frame in dict.fromkeys(frame for step in steps for frame in step.frames)
    }
    longest_ns = max(times.values(), default=0)
    if not longest_ns:
        return "", 0, []
    _, ns, frame = min((is_library(frame), ns, frame) for frame, ns in times.items() if ns >= _INNER * longest_ns)
    parts = Counter[str]()
    for step in steps:
        for place, part_ns in step.frames.get(frame, {}).items():
            if place.inside != frame:
                parts[place.inside] += part_ns
    return frame, ns, [(name, part_ns / len(steps)) for name, part_ns in parts.most_common(_NAMED)]


def _places_with_times(places: Iterable[tuple[model.HostPlace, int]]) -> str:
    """Return places with their ns in words."""
    return joined(COMMA, (Text("{place} {time}", place=place_words(place), time=in_ms(ns)) for place, ns in places))


def _timer_spread(steps: Sequence[model.HostStep], place: model.HostPlace) -> str:
    """Return how little the times at a place differ if the host waits there for a timer, as a duration; else "".

    Only the shorter half of the times counts. A timer is assumed if these differ far less than the time of the
    operators in the same steps, and if there are enough steps.
    """
    times = sorted(step.places[place] for step in steps if place in step.places)
    ran = sorted(sum(step.operators.values()) for step in steps)
    if len(times) < _TIMED_UNITS or not ran[0]:
        return ""
    spread = _median(times) - times[0]
    varies = (_median(ran) - ran[0]) / ran[0]
    return duration(spread) if spread <= min(_STEADY, varies / 10 or _STEADY) * times[0] else ""


def _typical_places(steps: Sequence[model.HostStep]) -> list[tuple[model.HostPlace, int]]:
    """Return (place, ns) for each place at which no operator runs, longest first.

    The ns are the lower median over the steps; a step without the place counts 0.
    """
    times = Counter(
        {
            place: _median([step.places.get(place, 0) for step in steps])
            for place in dict.fromkeys(place for step in steps for place in step.places)
        }
    )
    return times.most_common()


def advice_on(place: model.HostPlace) -> str:
    """Return what to do about a place at which no operator runs, by what runs there; if unknown, how to record that."""
    if "DataLoader" in f"{place.inside} {place.around}":
        return LOADS_DATA
    if _communicates(place):
        return Text(
            "find out which rank enters collectives last, because the others wait for it; then send fewer and larger"
            " messages, or overlap communication with computing"
        )
    if place.saving:
        return Text("save or send weights less often, or in another thread or process")
    if _waits_for_gil(place):
        return Text("find the other Python thread that holds the GIL, and move its work to another process")
    if place.inside in _COLLECTORS:
        return Text("call gc.freeze() after everything is loaded, or gc.collect() between the steps")
    if IMPORTS.match(place.inside):
        return Text("import the modules before the first step")
    if BLOCKS.search(place.inside):
        return WAITS_IN_CALL
    if place.inside:
        return Text("make this code faster, or move it to another process or thread")
    return Text("to see what Python does during this time, record Python's stack frames, too: {command}", _STACKS)


def _diagnose_small_operators(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose many small operators if a typical step has at least 100, and takes at most 20 µs for each; else None.

    The saving in ns is the time of the operators and pauses below 0.1 ms in a typical step, or that of the function of
    the program in which they run. If the steps take longer and longer, or less and less time, headline and advice are
    about that. Raises ValueError without host steps.
    """
    steps = profile.host_steps
    whole, small, usual_calls = (
        _median(values)
        for values in zip(*((step.ns, step.small_ns, sum(step.calls.values())) for step in steps), strict=True)
    )
    if usual_calls < _MANY or whole > SMALL_NS * usual_calls:
        return None
    calls = sum((Counter(step.calls) for step in steps), Counter[str]())
    frequent = calls.most_common(_NAMED)
    most = joined(
        COMMA,
        (Text("{name} ({count:,.0f})", name=host_name(name), count=total / len(steps)) for name, total in frequent),
    )
    evidence: str = Text(
        "A step of {step_time} runs {count:,.0f} operators. In total, operators and pauses that are each shorter than"
        " 0.1 ms take {time}. Most frequent: {operators}.",
        step_time=in_ms(whole), count=calls.total() / len(steps), time=in_ms(small), operators=most,
    )  # fmt: skip
    if is_whole_trace(profile):
        evidence = Text(
            "The trace of {step_time} has {count:,} operators. In total, operators and pauses that are each shorter"
            " than 0.1 ms take {time}. Most frequent: {operators}.",
            step_time=in_ms(whole), count=calls.total(), time=in_ms(small), operators=most,
        )  # fmt: skip
    advice: str = Text(
        "use fewer and larger operators: vectorise the loop, avoid .item() in the loop, or use torch.compile"
    )
    saving = small
    inside, inside_ns = _range_of_small_operators(steps, whole, small)
    function, function_ns = _function_of_small_operators(steps, whole, small)
    if function and not 0 < inside_ns < function_ns:
        inside, saving = function, function_ns
        in_function = Text(
            "{time} of the step passes in the function {name}.", time=in_ms(function_ns), name=host_name(function)
        )
        evidence = sentences(evidence, in_function)
        advice = Text(
            "call this function less often, or use fewer and larger operators in it: vectorise the loop, avoid .item()"
            " in the loop, or use torch.compile"
        )
    elif inside:
        in_range = Text("{time} of the step passes in the range {name}.", time=in_ms(inside_ns), name=host_name(inside))
        evidence = sentences(evidence, in_range)
    headline = _trend_headline(steps)
    if headline:
        advice = GROWS
    elif 2 * small >= whole:
        headline = _small_operators_headline(steps, small / (whole or 1), inside, is_function=inside == function)
    return model.Diagnosis(
        "host-small", "warning", evidence, saving, Text("upper bound of the saving"), advice, profile.source,
        headline=headline,
    )  # fmt: skip


def _range_of_small_operators(steps: Sequence[model.HostStep], whole: int, small: int) -> tuple[str, int]:
    """Return the range in which most small operators of a typical step run, and its median ns; ("", 0) without any.

    The step takes ``whole`` ns, its small operators ``small`` ns, of which over half lie in the range. Ranges around
    the whole step do not count. Of several, the shortest is the inner one.
    """
    names = dict.fromkeys(name for step in steps for name in step.small_ranges)
    times = [
        (_median([step.ranges.get(name, 0) for step in steps]), name)
        for name in names
        if 2 * _median([step.small_ranges.get(name, 0) for step in steps]) > small
    ]
    telling = [(ns, name) for ns, name in times if ns < _NOT_WHOLE * whole]
    ns, name = min(telling, default=(0, ""))
    return name, ns


def _function_of_small_operators(steps: Sequence[model.HostStep], whole: int, small: int) -> tuple[str, int]:
    """Return the function of the program that calls most small operators of a typical step, and its median ns.

    The step takes ``whole`` ns, its small operators ``small`` ns. The function has over half of both, and mostly
    consists of small operators. Of several, the shortest is the inner one. The result is ("", 0) without any.
    """
    names = dict.fromkeys(name for step in steps for name in step.small_functions if _is_function(name))
    times = []
    for name in names:
        ns = _median([step.functions.get(name, 0) for step in steps])
        small_ns = _median([step.small_functions.get(name, 0) for step in steps])
        if whole < 2 * ns < 2 * _NOT_WHOLE * whole and 2 * small_ns > max(small, ns):
            times.append((ns, name))
    ns, name = min(times, default=(0, ""))
    return name, ns


def _small_operators_headline(steps: Sequence[model.HostStep], share: float, inside: str, *, is_function: bool) -> str:
    """Return a headline on small operators that, with the pauses between them, take ``share`` of the time.

    It names up to two with the most calls, if these have half of all calls and half of the time of all operators;
    otherwise the range ``inside`` in which most of them run, or the function, with ``is_function``. It is "" without
    either.
    """
    calls = sum((Counter(step.calls) for step in steps), Counter[str]())
    times = sum((Counter(step.operators) for step in steps), Counter[str]())
    frequent = [name for name, count in calls.most_common(_FREQUENT) if count >= NOTABLE * calls.total()]
    if any(2 * sum(sums[name] for name in frequent) < sums.total() for sums in (calls, times)):
        if not inside:
            return ""
        if is_function:
            return Text(
                "No device data; many small operators and the pauses between them take {share} of the time, mostly in"
                " the function {name}",
                share=percent(share, 0), name=host_name(inside),
            )  # fmt: skip
        return Text(
            "No device data; many small operators and the pauses between them take {share} of the time, mostly in the"
            " range {name}",
            share=percent(share, 0), name=host_name(inside),
        )  # fmt: skip
    return Text(
        "No device data; {share} of the time goes to many small operators (mostly {operators}) and the pauses between"
        " them",
        share=percent(share, 0), operators=joined(COMMA, map(host_name, frequent)),
    )  # fmt: skip


def _diagnose_compilation(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose torch.compile if it works for at least 10 % of the steps' time; else None.

    The saving in ns is the mean per step.
    """
    steps = profile.host_steps
    whole, compiling = sum(step.ns for step in steps), sum(step.compiling_ns for step in steps)
    if not compiling or compiling < NOTABLE * whole:
        return None
    affected = sum(2 * step.compiling_ns * len(steps) >= compiling for step in steps)
    evidence = Text(
        "torch.compile takes {time} in total, in {affected} of {count} steps: {share} of the time of all steps.",
        time=in_ms(compiling), affected=affected, count=len(steps), share=percent(compiling / whole, 0),
    )  # fmt: skip
    saving = compiling // len(steps)
    return model.Diagnosis(
        "host-compile", "warning", evidence, saving, Text("upper bound of the saving"), COMPILES, profile.source
    )


def _diagnose_longest_operators(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose the operators that take most time on the host, as a note without a saving.

    If operators run for less than half of the time, the note is on the places without operators instead. If the steps
    take longer and longer, or less and less time, the headline says that.
    """
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    own = sum(call.host_ns for call in calls) or 1
    longest = _names_with_shares([(call.name, call.host_ns) for call in calls[:_NAMED]], own)
    ran = sum(sum(step.operators.values()) for step in profile.host_steps)
    whole = sum(step.ns for step in profile.host_steps) or 1
    if 2 * ran < whole:
        return _diagnose_scattered_places(profile, whole, whole - ran)
    evidence: str = Text(
        "The trace has no device data. Operators ran on the host for {share} of the time, {time} per step. The longest:"
        " {longest}.",
        share=percent(ran / whole, 0), time=in_ms(ran / len(profile.units)), longest=longest,
    )  # fmt: skip
    if is_whole_trace(profile):
        evidence = Text(
            "The trace has no device data. Operators ran on the host for {share} of the time, {time} in total. The"
            " longest: {longest}.",
            share=percent(ran / whole, 0), time=in_ms(ran), longest=longest,
        )  # fmt: skip
    evidence = sentences(evidence, _outermost_operator(profile, whole), _longest_ranges(profile.host_steps, whole))
    advice = _advice_on_operators(profile, whole)
    headline = _trend_headline(profile.host_steps)
    if headline and not calls_with_trend(profile.host_steps) and _range_with_trend(profile.host_steps, whole):
        headline = ""
    elif headline:
        usual = model.lower_median(profile.host_steps, operator.attrgetter("ns"))
        slowest = max(profile.host_steps, key=operator.attrgetter("ns"))
        more = excess(profile, slowest.number, usual.number)
        evidence, advice = sentences(evidence, more.evidence), advice_on_trend(more.advice)
    return model.Diagnosis(
        "host-operators",
        "note",
        evidence,
        None,
        model.EXACT,
        advice,
        profile.source,
        headline=headline or _steady_headline(profile, whole),
    )


def _advice_on_operators(profile: model.RankProfile, whole: int) -> str:
    """Return what to do about steps that mostly run operators, by what has half of ``whole`` ns, the time of all steps.

    It is on the operator, range or number of operators that `_steady_headline` names, too.
    """
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    own, steps = sum(call.host_ns for call in calls) or 1, profile.host_steps
    count = sum(call.calls for call in calls)
    are_short = own <= SHORT_NS * count
    dominant = calls[0].name if calls and 2 * calls[0].host_ns >= own else ""
    if _COPIES.search(dominant):
        return Text("avoid copies and conversions of tensors: contiguous(), clone(), to() and cat()")
    if _PYTHON_BACKWARD.search(dominant):
        return Text(
            "look at the Python code that {operator} runs: a backward hook, or backward() of an autograd.Function",
            host_name(dominant),
        )
    has_half = bool(calls) and 2 * calls[0].host_ns >= whole
    _, inside = _range_with_half(steps, whole)
    if inside and not has_half:
        if trend(_times_in(steps, inside)):
            return GROWS
        less = Text("look at {range} first: run it less often, or on smaller inputs", range=host_name(inside))
        if are_short:
            less = Text(
                "look at {range} first: run it less often, or use fewer and larger operators in it",
                range=host_name(inside),
            )
        return _ALSO_THREADS.filled(less)
    if has_half and "Backward" not in dominant and operator_family(dominant) not in (ELEMENTWISE, GEMM):
        less = Text("call {operator} less often, or on smaller inputs", operator=host_name(dominant))
        return _ALSO_THREADS.filled(less)
    if are_short and count >= _SCATTERED * len(steps) and not _dominant_label(profile, whole)[0]:
        return Text("use fewer and larger operators: vectorise loops in Python, or use torch.compile")
    return Text(
        "check that the process has no more threads (OMP_NUM_THREADS) than cores; if that does not help, try smaller"
        " inputs or another precision"
    )


def _outermost_operator(profile: model.RankProfile, whole: int) -> str:
    """Return a sentence on the longest operator with those that it calls; "" if that adds little to its own time.

    It has to take 10 % of ``whole`` ns, the time of all steps, and twice its own time.
    """
    outermost = sum((Counter(step.operators) for step in profile.host_steps), Counter[str]())
    own = {call.name: call.host_ns for call in profile.operators}
    for name, ns in outermost.most_common(1):
        if ns >= max(NOTABLE * whole, _ALIKE * own.get(name, 0)):
            return Text(
                "{operator} and the operators that it calls take {share} of the whole time.",
                operator=host_name(name),
                share=percent(ns / whole, 0),
            )
    return ""


def _longest_ranges(steps: Sequence[model.HostStep], whole: int) -> str:
    """Return a sentence on the longest ranges, as shares of ``whole`` ns, the time of all steps; "" without any."""
    ranges = _large_ranges(steps, whole)
    if not ranges:
        return ""
    return Text("Longest ranges, as shares of the whole time: {ranges}.", _names_with_shares(ranges, whole))


def _large_ranges(steps: Sequence[model.HostStep], whole: int) -> list[tuple[str, int]]:
    """Return up to three ranges with 10 % of ``whole`` ns, the time of all steps, and their ns, longest first.

    Ranges around whole steps do not count.
    """
    times = sum((Counter(step.ranges) for step in steps), Counter[str]())
    return [(name, ns) for name, ns in times.most_common() if NOTABLE * whole <= ns < _NOT_WHOLE * whole][:_NAMED]


def _names_with_shares(times: Iterable[tuple[str, int]], whole: int) -> str:
    """Return names with their times in words, as shares of ``whole``; both are in ns."""
    return joined(
        COMMA, (Text("{name} ({share})", name=host_name(name), share=percent(ns / whole, 0)) for name, ns in times)
    )


def _steady_headline(profile: model.RankProfile, whole: int) -> str:
    """Return a headline on what has half of ``whole`` ns, the time of all steps; "" if nothing has.

    That is an operator, else a family of operators, a range or a function, an operator with those that it calls, or
    else the two longest operators together.
    """
    longest_ns = max((call.host_ns for call in profile.operators), default=0)
    dominant, dominant_ns = _dominant_label(profile, whole)
    within, names = _range_headline(profile.host_steps, whole), _two_longest_operators(profile, whole)
    if dominant and within and 2 * longest_ns < whole:
        share = percent(dominant_ns / whole, 0)
        return Text("{headline}; {share} in {operators}", headline=within, share=share, operators=dominant)
    if dominant:
        return _spent_in(dominant, dominant_ns, whole)
    if within:
        return Text("{headline}; longest operators: {operators}", headline=within, operators=names) if names else within
    outermost = sum((Counter(step.operators) for step in profile.host_steps), Counter[str]())
    for name, ns in outermost.most_common(1):
        if 2 * ns >= whole:
            return _spent_in(Text("{operator} and the operators that it calls", host_name(name)), ns, whole)
    if names:
        return Text("No device data; on the host, operators take most of the time, mainly {operators}", names)
    return _scattered_operators_headline(profile, outermost, whole)


def _scattered_operators_headline(profile: model.RankProfile, outermost: Counter[str], whole: int) -> str:
    """Return a headline on at least 1,000 operators per step of which none has a fifth of their time; else "".

    If one has a fifth with those that it calls, the headline has its share of ``whole`` ns, the time of all steps. Else
    it is on the longest ranges, if the operators are long. ``outermost`` has the ns of operators in no other one, by
    name.
    """
    count = sum(call.calls for call in profile.operators) // len(profile.host_steps)
    longest = max((call.host_ns for call in profile.operators), default=0)
    own = sum(call.host_ns for call in profile.operators)
    if count < _SCATTERED or longest >= _LARGE_OPERATOR * own:
        return ""
    headline = Text("No device data; on the host, {count:,} operators per step take most of the time", count=count)
    if is_whole_trace(profile):
        headline = Text("No device data; on the host, {count:,} operators take most of the time", count=count)
    for name, ns in outermost.most_common(1):
        if ns >= _LARGE_OPERATOR * outermost.total():
            return Text(
                "{headline}; the longest with those that it calls: {operator} ({share})",
                headline=headline, operator=host_name(name), share=percent(ns / whole, 0),
            )  # fmt: skip
    ranges = _large_ranges(profile.host_steps, whole)
    if own > SHORT_NS * count * len(profile.host_steps) and 2 * sum(ns for _, ns in ranges) >= whole:
        return Text("No device data; the longest ranges: {ranges}", _names_with_shares(ranges, whole))
    return Text(
        "{headline}; no kind of operator has over {share} of it",
        headline=headline,
        share=percent(math.ceil(100 * longest / own) / 100, 0),
    )


def _range_headline(steps: Sequence[model.HostStep], whole: int) -> str:
    """Return a headline on the innermost range or function that takes half of ``whole`` ns, the time of all steps.

    It is "" without one. If the times of the range have a trend, the headline says so.
    """
    ns, name = _range_with_half(steps, whole)
    return _with_trend(_spent_in(host_name(name), ns, whole), _times_in(steps, name)) if name else ""


def _range_with_trend(steps: Sequence[model.HostStep], whole: int) -> bool:
    """Tell whether the headline on a range with half of ``whole`` ns, the time of all steps, says that it has a trend.

    The range has to have at least half of the change of the steps, too.
    """
    _, name = _range_with_half(steps, whole)
    change, of_steps = trend(_times_in(steps, name)), trend_of_steps(steps)
    if change is None or of_steps is None:
        return False
    return 2 * abs(change[1] - change[0]) >= abs(of_steps[1] - of_steps[0])


def _range_with_half(steps: Sequence[model.HostStep], whole: int) -> tuple[int, str]:
    """Return the ns and name of the innermost range or function with half of ``whole`` ns; (0, "") without one.

    Those around nearly all of the time say nothing.
    """
    times = sum((Counter(step.ranges) | Counter(step.functions) for step in steps), Counter[str]())
    half = [
        (ns, name) for name, ns in times.items() if whole <= 2 * ns < 2 * _NEARLY_WHOLE * whole and _is_function(name)
    ]
    return min(half, default=(0, ""))


def _times_in(steps: Sequence[model.HostStep], name: str) -> list[int]:
    """Return for how many ns each step is in a range or function."""
    return [step.ranges.get(name, step.functions.get(name, 0)) for step in steps]


def _with_trend(headline: str, times: Sequence[int]) -> str:
    """Return the headline on a part of the steps, with the trend of its ``times`` (ns by step) if they have one."""
    change = trend(times)
    if change is None:
        return headline
    values = {"headline": headline, "first_time": in_ms(change[0]), "last_time": in_ms(change[1])}
    if change[0] > change[1]:
        return Text(
            "{headline}, which gets shorter: from {first_time} in the first third to {last_time} in the last", **values
        )
    return Text(
        "{headline}, which gets longer: from {first_time} in the first third to {last_time} in the last", **values
    )


def _two_longest_operators(profile: model.RankProfile, whole: int) -> str:
    """Return the two longest operators if they have half of the operators' time, and each a fifth of it; else "".

    With each comes its share of ``whole`` ns, the time of all steps.
    """
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    longest, own = calls[:_FREQUENT], sum(call.host_ns for call in calls)
    if 2 * sum(call.host_ns for call in longest) < own or any(call.host_ns < _LARGE_OPERATOR * own for call in longest):
        return ""
    return _names_with_shares([(call.name, call.host_ns) for call in longest], whole)


def _trend_headline(steps: Sequence[model.HostStep]) -> str:
    """Return a headline on steps whose times rise or fall throughout; "" if they do not.

    If all steps run the same operators on the same inputs, as far as recorded, the change has to be twofold. Less can
    come from other processes on the machine.
    """
    change = trend_of_steps(steps)
    same = all((step.calls, step.inputs) == (steps[0].calls, steps[0].inputs) for step in steps)
    if change is None or (same and max(change) < 2 * min(change)):
        return ""
    times = {"first_time": in_ms(change[0]), "last_time": in_ms(change[1])}
    headline: str = Text(
        "No device data; the step time keeps growing, from {first_time} in the first third to {last_time} in the"
        " last third",
        **times,
    )
    if change[0] > change[1]:
        headline = Text(
            "No device data; the step time keeps falling, from {first_time} in the first third to {last_time} in the"
            " last third",
            **times,
        )
    calls = calls_with_trend(steps)
    return Text("{title}: {cause}", title=headline, cause=calls) if calls else headline


def trend(times: Sequence[int], noise: float = NOTABLE) -> tuple[int, int] | None:
    """Return the median of the first and of the last third of ``times`` (ns by step) if they rise or fall throughout.

    Both have to differ by a factor of at least 1.5, and at most the share ``noise`` of pairs of steps may be out of
    order. At least a tenth of the change has to lie on each side of the middle third. No step may exceed the median
    step by over twice the change. None otherwise, and for under five steps.
    """
    if len(times) < _TREND_STEPS:
        return None
    third = len(times) // 3
    first, last = _median(times[:third]), _median(times[-third:])
    if first == last or max(first, last) < _TREND * min(first, last):
        return None
    middle = _median(times[third:-third])
    at_once = min(abs(middle - first), abs(last - middle)) < NOTABLE * abs(last - first)
    stands_out = max(times) - _median(times) > 2 * abs(last - first)
    if at_once or stands_out:
        return None
    pairs = [(before, after) for before, after in itertools.combinations(times, 2) if before != after]
    in_order = sum((before < after) == (first < last) for before, after in pairs)
    return (first, last) if in_order >= (1 - noise) * len(pairs) else None


def trend_of_steps(steps: Sequence[model.HostStep]) -> tuple[int, int] | None:
    """Return the trend of the steps' times. More of them may be out of order if the work has the same trend.

    The work is the calls of operators, or the elements of their inputs. Those of them that have this trend take at
    least half of the change. Other processes on the machine disturb the times, but not the work.
    """
    times = [step.ns for step in steps]
    change = trend(times)
    noisy = trend(times, _NOISY)
    if change or noisy is None:
        return change
    first, last = noisy
    work = (_calls_of, _elements_of)
    explained = {
        name: ns for work_of in work for name, ns in _operators_with_trend(steps, work_of, rises=first < last).items()
    }
    return noisy if 2 * sum(explained.values()) >= abs(last - first) else None


def calls_with_trend(steps: Sequence[model.HostStep]) -> str:
    """Return in words how the calls of an operator rise or fall from step to step as the times do; "" without one.

    Of several, it is that whose time changes most. All of them together take at least half of the change.
    """
    change = trend_of_steps(steps)
    if change is None:
        return ""
    changes = _operators_with_trend(steps, _calls_of, rises=change[0] < change[1])
    if not changes or 2 * sum(changes.values()) < abs(change[1] - change[0]):
        return ""
    name = max(changes, key=changes.__getitem__)
    first, last = steps[0], steps[-1]
    return Text(
        "{operator} runs {first_count:,} times in step {first}, but {last_count:,} times in step {last}",
        operator=host_name(name), first_count=first.calls.get(name, 0), first=first.number,
        last_count=last.calls.get(name, 0), last=last.number,
    )  # fmt: skip


def advice_on_trend(advice: str) -> str:
    """Return what to do about steps with a trend; ``advice`` is that on the slowest of them, "" if unknown."""
    return GROWS if advice in ("", MORE_WORK) else advice


def _operators_with_trend(
    steps: Sequence[model.HostStep], work_of: Callable[[model.HostStep, str], int], *, rises: bool
) -> dict[str, int]:
    """Return the operators whose work ``rises`` throughout, or else falls, by name, with the change of their time.

    ``work_of`` returns the work of an operator in a step. The change in ns is that from the first to the last third of
    the steps, or if the work falls, from the last to the first.
    """
    third, changes = len(steps) // 3, {}
    for name in dict.fromkeys(name for step in steps for name in step.operators):
        change = trend([work_of(step, name) for step in steps])
        if change and (change[0] < change[1]) == rises:
            times = [step.operators.get(name, 0) for step in steps]
            longer = _median(times[-third:]) - _median(times[:third])
            changes[name] = longer if rises else -longer
    return changes


def _calls_of(step: model.HostStep, name: str) -> int:
    """Return how often an operator runs in a step, outside of other ones."""
    return step.calls.get(name, 0)


def _elements_of(step: model.HostStep, name: str) -> int:
    """Return the number of elements of all inputs of an operator in a step, as far as recorded."""
    return sum(count * _elements(shapes) for shapes, count in step.inputs.get(name, {}).items())


def _dominant_operator(profile: model.RankProfile, whole: int) -> str:
    """Return a headline on the operator that takes half of ``whole`` (ns), else on the family that does; else ""."""
    label, ns = _dominant_label(profile, whole)
    return _spent_in(label, ns, whole) if label else ""


def _spent_in(label: str, ns: int, whole: int) -> Text:
    """Return the headline on ``ns`` of ``whole`` ns that are spent in a range or in operators."""
    return Text(
        "No device data; {share} of the time is spent in {operators}", share=percent(ns / whole, 0), operators=label
    )


def _dominant_label(profile: model.RankProfile, whole: int) -> tuple[str, int]:
    """Return the operator that takes half of ``whole`` (ns), else the family that does, and its ns; else ("", 0).

    Elementwise operators and those that no pattern fits count as no family.
    """
    times = Counter({call.name: call.host_ns for call in profile.operators})
    families = Counter[str]()
    for name, ns in times.items():
        families[operator_family(name)] += ns
    del families[ELEMENTWISE]  # also the family of operators that no pattern fits
    labels = [(host_name(name), ns) for name, ns in times.most_common(1)]
    for family, ns in families.most_common(1):
        label, own = FAMILIES[family], [name for name, _ in times.most_common() if operator_family(name) == family]
        if 2 * times[own[0]] >= ns:
            label = Text("{operators} (mostly {operator})", operators=label, operator=host_name(own[0]))
        labels.append((label, ns))
    for label, ns in labels:
        if 2 * ns >= whole:
            return label, ns
    return "", 0


def _diagnose_scattered_places(profile: model.RankProfile, whole: int, idle: int) -> model.Diagnosis:
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
