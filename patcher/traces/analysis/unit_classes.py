"""The time of each step by class of work, in parts that add up to the step.

On a device the classes divide the parts of a step: computing among the families of the kernels that the step launched,
the rest as communication, copies and idle time. Without a device they divide the step's time on the host among the
outermost operators of the thread that runs it, and what lies between these.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from patcher.traces.analysis.nested import HostThread, NestedRanges
from patcher.traces.analysis.segments import Segment, Split
from patcher.traces.families import (
    COLLECTIVE,
    COPIES,
    ELEMENTWISE,
    GEMM,
    HOST_BOUND,
    OTHER,
    OUTSIDE_FORWARD,
    SAMPLING,
    family_of,
)
from patcher.traces.model import COMPUTE, KINDS, RecordedUnit
from patcher.traces.operator_families import operator_family
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN

_COMPUTE = KINDS.index(COMPUTE)

TRANSPARENT = re.compile(
    r"Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction"
    r"|autograd::engine::evaluate_function|\w+Backward\w*$"
)
"""Operators that only stand around those of compiled code, or of a backward."""


def classes_by_segment(
    trace: RankTrace, cuts: Split, units: Mapping[int, RecordedUnit], threads: Sequence[HostThread]
) -> dict[int, dict[str, int]]:
    """Return segment → class of work → ns for each step; the classes of a step add up to its time.

    A class is a family of kernels or operators, such as "attention", or the name of idle time, such as `HOST_BOUND`.
    ``units`` maps segments (stretches of the trace) to steps. The time is that on the device, or on the host if nothing
    ran on a device in any step.
    """
    if any(unit.device_ns for unit in units.values()):
        return _classes_on_device(trace, cuts, units)
    return {
        segment: _classes_on_host(trace, cuts.segments[segment], threads, has_sampling=unit.sequences is None)
        for segment, unit in units.items()
    }


def _classes_on_device(trace: RankTrace, cuts: Split, units: Mapping[int, RecordedUnit]) -> dict[int, dict[str, int]]:
    """Return number of a step's segment → class of work → ns on the device, for each step in ``units``.

    Classes are the kernel families, collectives, copies, host-bound time, time outside of the forward pass, and the
    rest. Host-bound time after the last kernel of a step counts as outside of the forward pass.
    """
    tasks, texts = trace.tasks, trace.names.texts
    kernels = defaultdict[int, Counter[str]](Counter)
    families: dict[int, str] = {}
    launched = {cuts.segments[number].ends: UNKNOWN for number in units}
    for segment, name, kind, begin, end, launch in zip(
        cuts.owner, tasks.name, tasks.kind, tasks.begin, tasks.end, tasks.launched, strict=True
    ):
        if begin in launched:
            launched[begin] = launch
        if segment in units and kind == _COMPUTE:
            if name not in families:
                families[name] = family_of(texts[name], COMPUTE)
            kernels[segment][families[name]] += end - begin
    return {
        number: _divide_device_time(unit, kernels[number], _late_at_end(cuts.segments[number], launched))
        for number, unit in units.items()
    }


def _late_at_end(segment: Segment, launched: Mapping[int, int]) -> int:
    """Return the ns from a segment's last kernel to the next launch; ``launched`` maps begin to launch."""
    return max(min(launched[segment.ends], segment.ends) - max(segment.last, segment.starts), 0)


def _divide_device_time(unit: RecordedUnit, kernels: Counter[str], late_at_end: int) -> dict[str, int]:
    """Return class of work → ns of a step on the device; they add up to its time, and empty classes are left out.

    ``kernels`` has the ns of its compute kernels by family. Kernels may overlap, so its computing time is divided in
    proportion. ``late_at_end`` is the host-bound time in ns after its last kernel.
    """
    computing = unit.compute_ns + unit.overlap_ns
    late_at_end = min(late_at_end, unit.free_host_late_ns)
    classes = Counter(_divide_proportionally(computing, kernels or Counter({OTHER: 1})))
    classes[COLLECTIVE] += unit.communication_ns
    classes[COPIES] += unit.copy_ns
    classes[HOST_BOUND] += unit.free_host_late_ns - late_at_end + unit.free_latency_ns + unit.free_blocked_ns
    classes[OUTSIDE_FORWARD] += late_at_end
    classes[OTHER] += unit.device_ns - sum(classes.values())
    return {name: ns for name, ns in classes.items() if ns}


def _divide_proportionally(total: int, amounts: Counter[str]) -> dict[str, int]:
    """Divide ``total`` in proportion to ``amounts``, which has at least one name, into whole numbers with that sum."""
    whole = sum(amounts.values()) or 1
    parts = {name: total * amount // whole for name, amount in amounts.items()}
    parts[max(amounts, key=lambda name: amounts[name])] += total - sum(parts.values())
    return parts


class OutermostOperator(NamedTuple):
    """An operator that no other one called: its family, and its begin and end in ns."""

    family: str
    begin: int
    end: int


def _classes_on_host(
    trace: RankTrace, segment: Segment, threads: Sequence[HostThread], *, has_sampling: bool
) -> dict[str, int]:
    """Return class of work → ns of a step that ran on the host.

    The forward pass, with its backward, reaches from the first to the last operator that multiplies matrices. What
    follows, up to the last operator that samples, is sampling. Time between operators of the forward is host-bound;
    time before it and after the sampling is "outside". ``has_sampling`` is False for a micro-batch, where what follows
    the forward is elementwise instead of sampling.
    """
    begin, end = segment.begin, segment.step.end
    thread = next((thread for thread, mark in trace.marks if mark.begin == begin), UNKNOWN)
    operators = list(_outermost(trace, threads[thread].operators, begin, end)) if thread != UNKNOWN else []
    first, last, sampled = _forward_bounds(operators)
    classes, before = Counter[str](), begin
    for place, operator in enumerate(operators):
        if place < first or place > sampled:
            around = name = OUTSIDE_FORWARD
        elif place > last:
            around = name = SAMPLING if has_sampling else ELEMENTWISE
        else:
            around, name = HOST_BOUND if place > first else OUTSIDE_FORWARD, operator.family
            name = ELEMENTWISE if name == SAMPLING else name
        classes[around] += operator.begin - before
        classes[name] += operator.end - operator.begin
        before = operator.end
    classes[OUTSIDE_FORWARD] += end - before
    return {name: ns for name, ns in classes.items() if ns}


def _forward_bounds(operators: Sequence[OutermostOperator]) -> tuple[int, int, int]:
    """Return the indices of the first and last operator of the forward pass, and of the last one of sampling.

    The forward pass reaches from the first to the last matrix multiplication; without any, it has all operators.
    Without sampling, the third index equals the second. ``operators`` are those of a step by begin; without any, the
    result is (0, -1, -1).
    """
    matmuls = [place for place, operator in enumerate(operators) if operator.family == GEMM]
    first, last = (matmuls[0], matmuls[-1]) if matmuls else (0, len(operators) - 1)
    sampling = [place for place, operator in enumerate(operators) if operator.family == SAMPLING and place > last]
    return first, last, max(sampling, default=last)


def _outermost(trace: RankTrace, operators: NestedRanges, begin: int, end: int) -> Iterator[OutermostOperator]:
    """Yield the operators that begin between ``begin`` and ``end`` (ns) and lie in no other operator, cut at ``end``.

    Operators that only surround others do not count.
    """
    texts, until = trace.names.texts, begin
    for index in range(bisect_left(operators.begin, begin), bisect_left(operators.begin, end)):
        name = texts[operators.name[index]]
        if operators.begin[index] >= until and not TRANSPARENT.match(name):
            until = min(operators.end[index], end)
            yield OutermostOperator(operator_family(name), operators.begin[index], until)
