"""The diagnoses of a trace without a device: compilation, time outside of operators, small operators, a late rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from patcher.messages import Text
from patcher.traces import model
from patcher.traces.analysis.checks import NOTABLE
from patcher.traces.analysis.host_only.idle_host import diagnose_idle_host
from patcher.traces.analysis.host_only.late_ranks import diagnose_straggler, idles_longer, waits_longer, waits_mostly
from patcher.traces.analysis.host_only.longest_operators import (
    diagnose_longest_operators,
    dominant_operator,
    is_mixed,
)
from patcher.traces.analysis.host_only.measures import is_whole_trace
from patcher.traces.analysis.host_only.small_operators import diagnose_small_operators
from patcher.traces.analysis.host_only.step_excess import SIMILAR, alternation, causes_differ, does_more_work, excess
from patcher.traces.analysis.host_only.trends import advice_on_trend, trend, trend_of_steps
from patcher.traces.analysis.host_only.wording import COMPILES, LOADS_DATA, WAITS_IN_CALL
from patcher.traces.words import in_ms, percent

__all__ = (
    "COMPILES",
    "LOADS_DATA",
    "SIMILAR",
    "WAITS_IN_CALL",
    "advice_on_trend",
    "alternation",
    "causes_differ",
    "diagnose_straggler",
    "diagnoses",
    "does_more_work",
    "excess",
    "idles_longer",
    "is_mixed",
    "is_whole_trace",
    "trend",
    "trend_of_steps",
    "waits_longer",
    "waits_mostly",
)


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
    small, idle = diagnose_small_operators(profile), diagnose_idle_host(profile)
    if small and idle and (small.saving_ns or 0) >= (idle.saving_ns or 0):
        idle = None  # the pauses between the same small operators
    yield from filter(None, (_diagnose_compilation(profile), small, idle))
    yield diagnose_longest_operators(profile)


def _diagnose_unrecorded_device(profile: model.RankProfile) -> Iterator[model.Diagnosis]:
    """Yield the diagnosis of the longest operators if one of them, or one family, has half of the time on the host.

    Its advice is to record the device, too. Nothing if events of unknown categories can be those of the device.
    """
    dominant = dominant_operator(profile, sum(step.ns for step in profile.host_steps))
    if dominant and all(check.id != "events" for check in profile.failed):
        headline = Text("{headline}; the host may be waiting for the device, but the device was not recorded", dominant)
        advice = Text(
            "record the device, too: run `rlpatch apply` with --contents npu,cpu, or add ProfilerActivity.CUDA to"
            " your profiler"
        )
        yield dataclasses.replace(diagnose_longest_operators(profile), headline=headline, advice=advice)


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
