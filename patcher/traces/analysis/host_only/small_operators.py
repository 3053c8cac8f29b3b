"""Many small operators, and the range or function in which most of them run."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.messages import COMMA, Text, joined, sentences
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.large_ranges import NOT_WHOLE
from patcher.traces.analysis.host_only.measures import (
    FREQUENT,
    MOST_NAMED,
    is_function,
    is_whole_trace,
    median,
    totals,
    typical,
)
from patcher.traces.analysis.host_steps import SMALL_NS
from patcher.traces.words import host_name, in_ms, percent

_MANY = 100  # operators of a unit, from which on their number may be the cause


def diagnose_small_operators(profile: model.RankProfile) -> model.Diagnosis | None:
    """Diagnose many small operators if a typical step has at least 100, and takes at most 20 µs for each; else None.

    The saving in ns is the time of the operators and pauses below 0.1 ms in a typical step, or that of the function of
    the program in which they run. Raises ValueError without host steps.
    """
    steps = profile.host_steps
    whole, small, usual_calls = (
        median(values)
        for values in zip(*((step.ns, step.small_ns, sum(step.calls.values())) for step in steps), strict=True)
    )
    if usual_calls < _MANY or whole > SMALL_NS * usual_calls:
        return None
    calls = totals(step.calls for step in steps)
    frequent = calls.most_common(MOST_NAMED)
    most = joined(
        COMMA,
        (Text("{name} ({count:,.0f})", name=host_name(name), count=total / len(steps)) for name, total in frequent),
    )
    values = {"step_time": in_ms(whole), "time": in_ms(small), "operators": most}
    evidence: str = Text(
        "A step of {step_time} runs {count:,.0f} operators. In total, operators and pauses that are each shorter than"
        " 0.1 ms take {time}. Most frequent: {operators}.",
        count=calls.total() / len(steps), **values,
    )  # fmt: skip
    if is_whole_trace(profile):
        evidence = Text(
            "The trace of {step_time} has {count:,} operators. In total, operators and pauses that are each shorter"
            " than 0.1 ms take {time}. Most frequent: {operators}.",
            count=calls.total(), **values,
        )  # fmt: skip
    advice: str = Text(
        "use fewer and larger operators: vectorise the loop, avoid .item() in the loop, or use torch.compile"
    )
    saving, headline = small, ""
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
    if 2 * small >= whole:
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
    times = typical([step.ranges for step in steps])
    inside = [name for name, ns in typical([step.small_ranges for step in steps]).items() if 2 * ns > small]
    ns, name = min(((times[name], name) for name in inside if times[name] < NOT_WHOLE * whole), default=(0, ""))
    return name, ns


def _function_of_small_operators(steps: Sequence[model.HostStep], whole: int, small: int) -> tuple[str, int]:
    """Return the function of the program that calls most small operators of a typical step, and its median ns.

    The step takes ``whole`` ns, its small operators ``small`` ns. The function has over half of both, and mostly
    consists of small operators. Of several, the shortest is the inner one. The result is ("", 0) without any.
    """
    times, small_times = typical([step.functions for step in steps]), typical([step.small_functions for step in steps])
    main = [name for name, ns in times.items() if is_function(name) and whole < 2 * ns < 2 * NOT_WHOLE * whole]
    inside = ((times[name], name) for name in main if 2 * small_times[name] > max(small, times[name]))
    ns, name = min(inside, default=(0, ""))
    return name, ns


def _small_operators_headline(steps: Sequence[model.HostStep], share: float, inside: str, *, is_function: bool) -> str:
    """Return a headline on small operators that, with the pauses between them, take ``share`` of the time.

    It names up to two with the most calls, if these have half of all calls and half of the time of all operators;
    otherwise the range ``inside`` in which most of them run, or the function, with ``is_function``. It is "" without
    either.
    """
    calls = totals(step.calls for step in steps)
    times = totals(step.operators for step in steps)
    frequent = [name for name, count in calls.most_common(FREQUENT) if count >= NOTABLE * calls.total()]
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
