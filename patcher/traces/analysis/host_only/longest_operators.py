"""The operators, families of operators and ranges that take most of the time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from patcher.messages import Text, sentences
from patcher.traces import model
from patcher.traces.analysis.host_only.idle_host import diagnose_scattered_places
from patcher.traces.analysis.host_only.large_ranges import (
    large_ranges,
    longest_ranges,
    names_with_shares,
    range_with_half,
    times_in,
)
from patcher.traces.analysis.host_only.measures import FREQUENT, MOST_NAMED, is_whole_trace, totals
from patcher.traces.analysis.host_only.trends import trend, with_trend
from patcher.traces.analysis.host_only.wording import GROWS
from patcher.traces.analysis.host_steps import SHORT_NS
from patcher.traces.families import ELEMENTWISE, FAMILIES, GEMM
from patcher.traces.operator_families import operator_family
from patcher.traces.words import host_name, in_ms, percent

_LARGE_OPERATOR = 0.2
"""Share of the time of all operators from which on a headline names an operator beside the longest one."""

_SCATTERED = 1000
"""Operators of a step from which on their number is in the headline if none of them has much of the time."""

_COUNTED = 100
"""Operators of a step from which on their number is in the headline at all."""

_COPIES = re.compile(r"::(?:copy_|_to_copy|clone|contiguous|cat)$")
"""Operators that copy tensors."""

_ALSO_THREADS = Text("{advice}; also check that the process has no more threads (OMP_NUM_THREADS) than cores")


def diagnose_longest_operators(profile: model.RankProfile) -> model.Diagnosis:
    """Diagnose the operators that take most time on the host, as a note without a saving.

    If operators run for less than half of the time, the note is on the places without operators instead.
    """
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    own = sum(call.host_ns for call in calls) or 1
    longest = names_with_shares([(call.name, call.host_ns) for call in calls[:MOST_NAMED]], own)
    ran = sum(sum(step.operators.values()) for step in profile.host_steps)
    whole = sum(step.ns for step in profile.host_steps) or 1
    if 2 * ran < whole:
        return diagnose_scattered_places(profile, whole, whole - ran)
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
    return model.Diagnosis(
        "host-operators",
        "note",
        sentences(evidence, longest_ranges(profile.host_steps, whole)),
        None,
        model.EXACT,
        _advice_on_operators(profile, whole),
        profile.source,
        headline=_steady_headline(profile, whole),
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
    has_half = bool(calls) and 2 * calls[0].host_ns >= whole
    _, inside = range_with_half(steps, whole)
    if inside and not has_half:
        if trend(times_in(steps, inside)):
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
    outermost = totals(step.operators for step in profile.host_steps)
    for name, ns in outermost.most_common(1):
        if 2 * ns >= whole:
            return _spent_in(Text("{operator} and the operators that it calls", host_name(name)), ns, whole)
    if names:
        return Text("No device data; on the host, operators take most of the time, mainly {operators}", names)
    return _scattered_operators_headline(profile, outermost, whole)


def _scattered_operators_headline(profile: model.RankProfile, outermost: Counter[str], whole: int) -> str:
    """Return a headline on steps without an operator or range that has half of ``whole`` ns, the time of all steps.

    It is on the longest ranges if these have half of it together, unless the step has many short operators. Else it has
    the number of operators, with the longest one. ``outermost`` has the ns of operators in no other one, by name: one
    with a fifth of their time is named with those that it calls.
    """
    count = sum(call.calls for call in profile.operators) // len(profile.host_steps)
    own = sum(call.host_ns for call in profile.operators)
    ranges = large_ranges(profile.host_steps, whole)
    are_many = count >= _SCATTERED and own <= SHORT_NS * count * len(profile.host_steps)
    if not are_many and 2 * sum(ns for _, ns in ranges) >= whole:
        return Text("No device data; the longest ranges: {ranges}", names_with_shares(ranges, whole))
    headline = Text("No device data; on the host, {count:,} operators per step take most of the time", count=count)
    if count < _COUNTED:
        headline = Text("No device data; on the host, operators take most of the time")
    elif is_whole_trace(profile):
        headline = Text("No device data; on the host, {count:,} operators take most of the time", count=count)
    for name, ns in outermost.most_common(1):
        if ns >= _LARGE_OPERATOR * outermost.total():
            return Text(
                "{headline}; the longest with those that it calls: {operator} ({share})",
                headline=headline, operator=host_name(name), share=percent(ns / whole, 0),
            )  # fmt: skip
    longest = sorted(((call.name, call.host_ns) for call in profile.operators), key=lambda pair: -pair[1])[:1]
    return Text("{headline}; the longest: {names}", headline=headline, names=names_with_shares(longest, whole))


def is_mixed(profile: model.RankProfile) -> bool:
    """Tell whether nothing has much of the time on the host: no operator a fifth, nothing else half of it.

    Matrix products and backward passes do not count: every training program has them.
    """
    whole = sum(step.ns for step in profile.host_steps)
    outermost = totals(step.operators for step in profile.host_steps)
    longest_ns = max(
        (ns for name, ns in outermost.items() if "Backward" not in name and operator_family(name) != GEMM), default=0
    )
    return (
        2 * outermost.total() >= whole
        and longest_ns < _LARGE_OPERATOR * outermost.total()
        and not _dominant_label(profile, whole)[0]
        and not range_with_half(profile.host_steps, whole)[1]
    )


def _range_headline(steps: Sequence[model.HostStep], whole: int) -> str:
    """Return a headline on the innermost range or function that takes half of ``whole`` ns, the time of all steps.

    It is "" without one. If the times of the range have a trend, the headline says so.
    """
    ns, name = range_with_half(steps, whole)
    return with_trend(_spent_in(host_name(name), ns, whole), times_in(steps, name)) if name else ""


def _two_longest_operators(profile: model.RankProfile, whole: int) -> str:
    """Return the two longest operators if they have half of the operators' time, and each a fifth of it; else "".

    With each comes its share of ``whole`` ns, the time of all steps.
    """
    calls = sorted(profile.operators, key=lambda operator: -operator.host_ns)
    longest, own = calls[:FREQUENT], sum(call.host_ns for call in calls)
    if 2 * sum(call.host_ns for call in longest) < own or any(call.host_ns < _LARGE_OPERATOR * own for call in longest):
        return ""
    return names_with_shares([(call.name, call.host_ns) for call in longest], whole)


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
        label, own = FAMILIES[family], [name for name, _ in times.most_common() if operator_family(name) == family]
        if 2 * times[own[0]] >= ns:
            label = Text("{operators} (mostly {operator})", operators=label, operator=host_name(own[0]))
        labels.append((label, ns))
    for label, ns in labels:
        if 2 * ns >= whole:
            return label, ns
    return "", 0
