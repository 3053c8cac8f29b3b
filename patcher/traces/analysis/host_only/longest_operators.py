"""The operators, families of operators and ranges that take most of the time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from patcher.messages import COMMA, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import FUNCTION, NOTABLE
from patcher.traces.analysis.host_only.idle_host import diagnose_scattered_places
from patcher.traces.analysis.host_only.large_ranges import (
    PASS,
    longest_ranges,
    main_parts,
    names_with_shares,
    range_with_half,
    times_in,
)
from patcher.traces.analysis.host_only.measures import MOST_NAMED, is_whole_trace, median, totals
from patcher.traces.analysis.host_only.trends import trend, with_trend
from patcher.traces.analysis.host_only.wording import GROWS, LOADS_DATA, WITH_SHAPES, WITH_STACKS
from patcher.traces.analysis.host_steps import BACKWARD, SHORT_NS
from patcher.traces.families import ELEMENTWISE, FAMILIES, GEMM
from patcher.traces.operator_families import operator_family
from patcher.traces.words import host_name, in_ms, percent

_LARGE_OPERATOR = 0.2
"""Share of the time of all operators from which on a headline names an operator beside the longest one."""

_SCATTERED = 1000
"""Operators of a step from which on their number is in the headline if none of them has much of the time."""

_COPIES = re.compile(r"::(?:copy_|_to_copy|clone|contiguous|cat)$")
"""Operators that copy tensors."""

_NODE = re.compile(rf"{BACKWARD}(\w+)Backward\d*")
"""Operator of autograd, with the name of the operator whose gradient it computes, such as ``LogSoftmax``."""

_THIRD = 1 / 3
"""Share of the time from which on the longest operator tells more than the number of all."""


def diagnose_longest_operators(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose the operators that take most time on the host, as a note without a saving.

    If operators run for less than half of the time, the note is on the places without operators instead.
    """
    ran = sum(sum(step.operators.values()) for step in profile.host_steps)
    whole = sum(step.ns for step in profile.host_steps) or 1
    if 2 * ran < whole:
        return diagnose_scattered_places(profile, whole, whole - ran)
    longest = names_with_shares([(call.name, call.host_ns) for call in _longest_first(profile)[:MOST_NAMED]], whole)
    evidence: str = Text(
        "The trace has no device data. Operators ran on the host for {share} of the time, {time} per step. The longest,"
        " as shares of the whole time: {longest}.",
        share=percent(ran / whole, 0), time=in_ms(ran / len(profile.units)), longest=longest,
    )  # fmt: skip
    if is_whole_trace(profile):
        evidence = Text(
            "The trace has no device data. Operators ran on the host for {share} of the time, {time} in total. The"
            " longest, as shares of the whole time: {longest}.",
            share=percent(ran / whole, 0), time=in_ms(ran), longest=longest,
        )  # fmt: skip
    evidence = sentences(evidence, longest_ranges(profile.host_steps, whole))
    advice, headline = _advice_on_operators(profile, whole), _steady_headline(profile, whole)
    return model.Diagnosis(
        "host-operators", "note", evidence, None, model.EXACT, advice, profile.source, headline=headline
    )


def _longest_first(profile: model.RankProfile) -> list[model.CallSums]:
    return sorted(profile.operators, key=lambda operator: -operator.host_ns)


def _operators_ns(profile: model.RankProfile) -> int:
    return sum(operator.host_ns for operator in profile.operators)


def _advice_on_operators(profile: model.RankProfile, whole: int) -> str:
    """Return what to do about steps that mostly run operators, by what has half of ``whole`` ns, the time of all steps.

    It is on the operator, range or number of operators that `_steady_headline` names, too.
    """
    longest = max(profile.operators, key=lambda operator: operator.host_ns, default=None)
    dominant = longest if longest and 2 * longest.host_ns >= (_operators_ns(profile) or 1) else None
    if dominant and _COPIES.search(dominant.name):
        return Text("avoid copies and conversions of tensors: contiguous(), clone(), to() and cat()")
    if _backward(profile, whole)[1] > 1:
        return Text("run backward less often: add up the losses first, or vectorise it with torch.func.vmap")
    parts = main_parts(profile.host_steps, whole)
    if not all(map(PASS.search, parts)):
        return _advice_on_ranges(profile, parts)
    is_large = longest is not None and longest.host_ns >= NOTABLE * whole
    if dominant and 2 * dominant.host_ns >= whole and not _is_usual(dominant.name):
        advice = Text("call {operator} less often, or on smaller inputs", operator=host_name(dominant.name))
    elif _are_many_and_short(profile) and not _dominant_label(profile, whole)[0] and not (parts and is_large):
        return Text("use fewer and larger operators: vectorise loops in Python, or use torch.compile")
    else:
        advice = _advice_on_settings(profile)
    if parts:
        return advice
    return Text("{advice}; also check that the process has no more threads (OMP_NUM_THREADS) than cores", advice)


def _advice_on_ranges(profile: model.RankProfile, parts: Collection[str]) -> str:
    """Return what to do about ``parts``, the ranges or functions that have half of the time."""
    names = joined(COMMA, map(host_name, parts))
    if "DataLoader" in names:
        return LOADS_DATA
    if len(parts) == 1 and trend(times_in(profile.host_steps, *parts)):
        return GROWS
    if _are_short(profile):
        return Text("start with {range}: run less often, or use fewer and larger operators", range=names)
    return Text("start with {range}: run less often, or on smaller inputs", range=names)


def _advice_on_settings(profile: model.RankProfile) -> Text:
    """Return the advice to try other settings of the run, and how to record what a profile lacks for more than that."""
    advice = Text("try another precision or batch size")
    if profile.has_stacks and any(step.inputs for step in profile.host_steps):
        return advice
    command = WITH_SHAPES if profile.has_stacks else WITH_STACKS
    return Text("{advice}; to see more, record again with {command}", advice=advice, command=command)


def _is_usual(operator: str) -> bool:
    """Tell whether most programs run an operator: an elementwise one, a matrix product, or a backward pass."""
    return "Backward" in operator or operator_family(operator) in (ELEMENTWISE, GEMM)


def _are_short(profile: model.RankProfile) -> bool:
    return (_operators_ns(profile) or 1) <= SHORT_NS * sum(call.calls for call in profile.operators)


def _are_many_and_short(profile: model.RankProfile) -> bool:
    count = sum(call.calls for call in profile.operators)
    return count >= _SCATTERED * len(profile.host_steps) and _are_short(profile)


def _backward(profile: model.RankProfile, whole: int) -> tuple[int, int]:
    """Return the ns of autograd if it, but nothing else, has half of ``whole`` ns, and how often it runs; else (0, 0).

    It runs that many times for each forward pass if two kinds of its operators do, compared with the calls of those
    whose gradients they compute. Otherwise, the number is 0: backward calls many operators of forward, too.
    """
    ns = sum(step.backward_ns for step in profile.host_steps)
    if 2 * ns < whole or main_parts(profile.host_steps, whole) or _dominant_label(profile, whole)[0]:
        return 0, 0
    calls, kinds = {call.name: call.calls for call in profile.operators}, Counter[int]()
    for node in filter(None, map(_NODE.fullmatch, calls)):
        forward = calls.get("aten::" + re.sub(r"(?<!^)(?=[A-Z])", "_", node[1]).lower())
        if forward and calls[node[0]] % forward == 0:
            kinds[calls[node[0]] // forward] += 1
    return ns, max((times for times, count in kinds.items() if count > 1), default=0)


def _is_balanced(profile: model.RankProfile, parts: Collection[str]) -> bool:
    """Tell whether nothing stands out in steps whose ``parts`` are forward and backward passes of the user.

    The steps are alike. The longest operator is a matrix product, and no other operator has much of their time.
    """
    longest, *smaller = _longest_first(profile)
    operators_ns, times = _operators_ns(profile), [step.ns for step in profile.host_steps]
    are_passes = all(PASS.search(name) and not FUNCTION.search(name) for name in parts)
    has_most = operator_family(longest.name) == GEMM and longest.host_ns >= _THIRD * operators_ns
    are_small = all(
        call.host_ns < _LARGE_OPERATOR * operators_ns or operator_family(call.name) == GEMM for call in smaller
    )
    return len(parts) > 1 and are_passes and has_most and are_small and max(times) <= model.SLOW * median(times)


def _steady_headline(profile: model.RankProfile, whole: int) -> str:
    """Return a headline on what has half of ``whole`` ns, the time of all steps; "" if nothing has.

    That is a range or function, or several, with the operators that have much of the time or the number of short ones.
    Else it is an operator, or a family of operators.
    """
    dominant, dominant_ns = _dominant_label(profile, whole)
    backward_ns, passes = _backward(profile, whole)
    parts = {"backward": backward_ns} if backward_ns else main_parts(profile.host_steps, whole)
    if not parts:
        return _spent_in(dominant, dominant_ns, whole) if dominant else _scattered_operators_headline(profile, whole)
    label = names_with_shares(parts.items(), whole) if len(parts) > 1 else host_name(*parts)
    headline: str = _spent_in(label, sum(parts.values()), whole)
    if _is_balanced(profile, parts):
        headline = Text("No device data; nothing stands out: the steps mostly consist of {passes}", label)
    elif len(parts) == 1:
        headline = with_trend(headline, times_in(profile.host_steps, *parts))
    if passes > 1:
        headline = Text("{headline}, which runs {count} times for each forward pass", headline=headline, count=passes)
    if dominant and dominant not in map(host_name, parts):
        share = percent(dominant_ns / whole, 0)
        return Text("{headline}; {share} in {operators}", headline=headline, share=share, operators=dominant)
    calls = _longest_first(profile)
    large = [(call.name, call.host_ns) for call in calls[:MOST_NAMED] if call.host_ns >= NOTABLE * whole]
    if large and not dominant:
        names = names_with_shares(large, whole)
        headline = Text("{headline}; longest operators: {operators}", headline=headline, operators=names)
    if not _are_many_and_short(profile) or calls[0].host_ns >= _THIRD * whole:
        return headline
    count = sum(call.calls for call in calls) // len(profile.host_steps)
    if is_whole_trace(profile):
        return Text("{headline}; {count:,} operators", headline=headline, count=count)
    return Text("{headline}; {count:,} operators per step", headline=headline, count=count)


def _scattered_operators_headline(profile: model.RankProfile, whole: int) -> str:
    """Return a headline on steps without an operator or ranges that have half of ``whole`` ns, the time of all steps.

    It has the number of operators, with the longest one. An operator in no other one that has a fifth of the time of
    all such operators is named with those that it calls.
    """
    outermost = totals(step.operators for step in profile.host_steps)
    count = sum(call.calls for call in profile.operators) // len(profile.host_steps)
    headline = Text("No device data; on the host, {count:,} operators per step take most of the time", count=count)
    if is_whole_trace(profile):
        headline = Text("No device data; on the host, {count:,} operators take most of the time", count=count)
    for name, ns in outermost.most_common(1):
        if ns >= _LARGE_OPERATOR * outermost.total():
            return Text(
                "{headline}; the longest with those that it calls: {operator} ({share})",
                headline=headline, operator=host_name(name), share=percent(ns / whole, 0),
            )  # fmt: skip
    longest = [(call.name, call.host_ns) for call in _longest_first(profile)[:1]]
    return Text("{headline}; the longest: {names}", headline=headline, names=names_with_shares(longest, whole))


def is_mixed(profile: model.RankProfile) -> bool:
    """Tell whether nothing has much of the time on the host: no operator a fifth, nothing else half of it.

    Matrix products and backward passes do not count: every training program has them. If few steps take longer than the
    median step by a quarter of all time, mostly in operators, nothing counts: it may be long because of them.
    """
    steps = profile.host_steps
    whole, usual = sum(step.ns for step in steps), model.lower_median(steps, lambda step: step.ns)
    slow = [step for step in steps if step.ns > model.SLOW * usual.ns]
    lost = sum(step.ns - usual.ns for step in slow)
    idle = sum(step.idle_ns - usual.idle_ns for step in slow)
    if 2 * len(slow) < len(steps) and 4 * lost >= whole and 2 * idle < lost:
        return True
    outermost = totals(step.operators for step in steps)
    longest_ns = max(
        (ns for name, ns in outermost.items() if "Backward" not in name and operator_family(name) != GEMM), default=0
    )
    return (
        2 * outermost.total() >= whole
        and longest_ns < _LARGE_OPERATOR * outermost.total()
        and not _dominant_label(profile, whole)[0]
        and not range_with_half(steps, whole)[1]
    )


def dominant_operator(profile: model.RankProfile, whole: int) -> str:
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
        label: str = FAMILIES[family]
        longest = next(name for name, _ in times.most_common() if operator_family(name) == family)
        if 2 * times[longest] >= ns:
            label = Text("{operators} (mostly {operator})", operators=label, operator=host_name(longest))
        labels.append((label, ns))
    for label, ns in labels:
        if 2 * ns >= whole:
            return label, ns
    return "", 0
