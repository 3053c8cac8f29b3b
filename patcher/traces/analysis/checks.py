"""Whether the data can be trusted: what fails withdraws the diagnoses that rest on it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.traces.analysis.attribution import EARLY_NS, Attribution, Launches
from patcher.traces.analysis.nested import covered_ns
from patcher.traces.analysis.segments import Segment
from patcher.traces.model import COMPUTE, KINDS, Check, RankProfile, RecordedUnit
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN
from patcher.traces.words import in_ms, percent, short

ROUNDED_NS, OVERLAPPING = 1_000, 0.001
"""Nanoseconds by which marks may overlap: a Chrome trace rounds begin and length, at worst to microseconds.
And the share of a step: what lies there tells nothing wrong about the step.
"""

NOTABLE = 0.10
"""The share of a step from which on something is worth a verdict; the guides take it for Free."""

LINKED, FEW, MANY, EARLY, LONGER, APART = 0.95, 0.5, 2.0, 0.01, 2.0, 0.02
"""Limits of the checks: kernels with a launch, kernels of a step to the median, early kernels,
a step's time on the host to that on the device, and the computing time to the vendor's."""

_REPEATED = 3
"""Ranges of one name from which on they may be steps."""

FUNCTION = re.compile(r"\(\d+\): |^built-in ")
"""Part of the name of a Python frame, or of a function in C or C++."""

HOST = {
    "dispatch": ("free_host_late_ns", "free_latency_ns"),
    "launch-blocked": ("free_blocked_ns",),
    "waiting": ("free_waiting_ns",),
}
_COMMUNICATION = ("communication", "collective-idle", "collective-outlier", "pipeline-bubble", "slow-rank")
DEVICE = (*_COMMUNICATION, "copies", "compute", "waiting")
EVERY = ("dispatch", "launch-blocked", "idle-unknown", "outlier", "lead-in", *DEVICE)
ON_DEVICE = tuple(name for name in EVERY if name != "outlier")
"""The diagnoses that rest on the host's times, with their parts of a step, those on a device's, all that a check
withdraws, and of it what needs one."""


def checked(trace: RankTrace, attribution: Attribution) -> RankProfile:
    """Return the profile of the attribution with the results of all checks."""
    return dataclasses.replace(attribution.profile, checks=tuple(_checks(trace, attribution)))


def check_tables(profile: RankProfile, doubts: Sequence[str], only: tuple[int, int] | None = None) -> RankProfile:
    """Return ``profile``, which was read from torch_npu's own tables, with the results of its checks.

    Only the steps with a number in the half-open range ``only`` stay; None keeps all. If steps are left out, kernels
    are, too, because the tables sum them over all steps. ``doubts`` are contradictions between step metadata and trace,
    which fail a check. The check of launches always fails, because the tables have none.
    """
    chosen = [unit for unit in profile.units if only is None or only[0] <= unit.number < only[1]]
    numbers = {unit.number for unit in chosen}
    collectives = tuple(collective for collective in profile.collectives if collective.unit in numbers)
    chosen_profile = dataclasses.replace(profile, units=tuple(chosen), collectives=collectives)
    if len(chosen) < len(profile.units):
        chosen_profile = dataclasses.replace(chosen_profile, kernels=(), kernel_uses=())
    unknown = Text(
        "torch_npu's tables do not tell when kernels were launched, and their Free time includes copies, so it is"
        " unknown why the device was idle"
    )
    checks = [Check("launches", False, unknown, tuple(HOST)), _exposed_communication_check(chosen_profile)]
    if chosen_profile.facts or doubts:
        checks.append(_check("facts", joined(SEMICOLON, doubts), Text("the step metadata agrees with the trace")))
    return dataclasses.replace(chosen_profile, checks=tuple(checks))


def _checks(trace: RankTrace, attribution: Attribution) -> Iterator[Check]:
    """Yield the checks of a trace, ok or failed, each with its evidence and the diagnoses that a failure withdraws.

    A check of something that the trace does not have may be left out.
    """
    profile, units = attribution.profile, attribution.profile.units
    unread = Text("{lost:,} events could not be read", trace.lost) if trace.lost else ""
    lost = joined(SEMICOLON, (trace.cut, unread))
    yield _check(
        "whole",
        lost and Text("{damage}; all other events were read", lost),
        Text("the whole file was read"),
        ("outlier",),
    )
    missing = "" if profile.marks else _missing_marks(trace)
    yield _check("marks", missing, Text("steps are marked by {mark_name}", mark_name(profile.marks)), ("outlier",))
    idle = [unit.number for unit in units if not unit.kernels]
    wrong = "" if units else Text("the trace has no steps")
    if idle:
        wrong = Text(
            "no kernel was recorded for {count} of {total} steps: {step_numbers}",
            count=len(idle),
            total=len(units),
            step_numbers=_numbers(idle),
        )
    yield _check(
        "kernels", wrong, Text("each step launched at least one kernel"), ON_DEVICE if profile.on_host else EVERY
    )
    yield _kernel_count_check(units)
    yield _launches_check(attribution.launches)
    lost_kernels = list(_lost_kernels_check(trace))
    yield from lost_kernels
    yield _clock_check(attribution)
    if not lost_kernels:  # without all kernels, a step's time on the device is unknown
        yield _host_time_check(profile)
    yield _exposed_communication_check(profile)
    yield _overlap_check(attribution.segments)
    yield from _computing_time_check(trace)
    yield from _unknown_events_check(trace)
    if profile.facts or trace.doubts:
        yield _check("facts", joined(SEMICOLON, trace.doubts), Text("the step metadata agrees with the trace"))
    if trace.unknown:
        types = joined(COMMA, map(short, sorted(trace.unknown)[:5]))
        yield Check("types", False, Text("tasks of these unknown types were counted as computing: {types}", types), ())


def _missing_marks(trace: RankTrace) -> str:
    """Return that no range marks a step, and how to take as steps the repeated ranges that cover the trace, if any."""
    missing = Text("no step marks (ProfilerStep, execute_context_…, step[…]): the whole trace counts as one step")
    if name := _repeated_range(trace):
        pattern = shlex.quote(f"^{re.escape(name)}$")
        return Text(
            "{missing}; to take each {name} as a step, add --marks {pattern}",
            missing=missing,
            name=name,
            pattern=pattern,
        )
    return Text("{missing}; --marks names other ranges as steps", missing)


def _repeated_range(trace: RankTrace) -> str:
    """Return the name of ranges of the user that repeat on a thread, and cover nearly all of it from first to last.

    Of several names, the first one is returned; "" without any.
    """
    for ranges in trace.frames.values():
        count = Counter(ranges.name)
        spans: dict[int, list[tuple[int, int]]] = {
            number: []
            for number, times in count.items()
            if times >= _REPEATED and not FUNCTION.search(trace.names.texts[number])
        }
        for begin, end, number in zip(ranges.begin, ranges.end, ranges.name, strict=True):
            if number in spans:
                spans[number].append((begin, end))
        for number, of_name in spans.items():
            covered = sum(end - begin for begin, end in of_name)
            whole = max(end for _, end in of_name) - min(begin for begin, _ in of_name)
            if (1 - NOTABLE) * whole <= covered <= whole:
                return trace.names.texts[number]
    return ""


def _check(name: str, wrong: str, fine: str, withdraws: tuple[str, ...] = ()) -> Check:
    """Return a check named ``name`` that fails if ``wrong`` is not empty; the evidence is ``wrong``, else ``fine``.

    ``withdraws`` has the ids of the diagnoses that a failure withdraws.
    """
    return Check(name, not wrong, wrong or fine, withdraws)


def mark_name(family: str) -> str:
    """Return a family of marks without its last punctuation: ``ProfilerStep`` for ``ProfilerStep#``."""
    return family.rstrip("#_[")


def _kernel_count_check(units: Sequence[RecordedUnit]) -> Check:
    """Check that each step launched 0.5 to 2 times the median number of kernels; always ok for at most two steps.

    A failure withdraws nothing: the diagnosis of the slowest step compares the numbers of kernels itself.
    """
    median = statistics.median(unit.kernels for unit in units) if units else 0
    far = [unit.number for unit in units if not FEW * median <= unit.kernels <= MANY * median]
    wrong = Text(
        "{count} of {total} steps have far more or fewer kernels than the median of {median:,.0f}: {step_numbers}",
        count=len(far),
        total=len(units),
        median=median,
        step_numbers=_numbers(far),
    )
    return _check(
        "count",
        wrong if far and len(units) > 2 else "",
        Text("the median number of kernels launched per step is {median:,.0f}", median),
    )


def _launches_check(launches: Launches) -> Check:
    """Check that at least 95 % of the tasks are linked to a launch; ok without tasks.

    A failure withdraws the diagnoses of the host: host-bound, blocked launch calls and stream waits.
    """
    share = launches.linked / launches.tasks if launches.tasks else 1.0
    evidence = Text(
        "launches were recorded for {share} of {tasks:,} kernels and copies", share=percent(share), tasks=launches.tasks
    )
    return Check(
        "launches",
        share >= LINKED,
        evidence if launches.tasks else Text("the trace has no kernels or copies"),
        tuple(HOST),
    )


def _lost_kernels_check(trace: RankTrace) -> Iterator[Check]:
    """Yield a failed check if more than 5 % of the calls that launch a kernel have none in the trace; else nothing.

    It withdraws all diagnoses: the device was busy where it seems idle, and computed for longer. If no task is linked
    with a launch, and there are as many tasks, they are not lost.
    """
    if trace.lost_kernels <= (1 - LINKED) * trace.kernel_launches:
        return
    if trace.lost_kernels == trace.kernel_launches <= len(trace.tasks) and set(trace.tasks.launched) == {UNKNOWN}:
        return  # the trace has the kernels, but no link to any launch
    evidence = Text(
        "{lost:,} of {launches:,} launches have no kernel in the trace, so the device was busy for longer than"
        " recorded",
        lost=trace.lost_kernels,
        launches=trace.kernel_launches,
    )
    yield Check("lost", False, evidence, EVERY)


def _clock_check(attribution: Attribution) -> Check:
    """Check that the clocks of host and device agree: that few kernels begin more than 10 µs before their launch.

    Some µs are normal on NPUs. The check fails if at least 1 % of the tasks begin that early, and the doubtful time is
    at least 5 % of the steps' time. The doubtful time is the mean lead of these tasks, times the number of all tasks. A
    failure withdraws each diagnosis of the host whose parts take less than twice the doubtful time.
    """
    tasks, _, early, lead = attribution.launches
    if not early:
        return Check(
            "clocks",
            True,
            Text("no kernel begins more than {limit} µs before its launch", EARLY_NS // 1000),
            tuple(HOST),
        )
    moved = lead / early * tasks / max(attribution.profile.total_ns, 1)
    evidence = Text(
        "{early:,} of {tasks:,} kernels begin more than {limit} µs before their launch: the clocks of host and device"
        " differ by about {difference:.0f} µs, so up to {share} of the recorded time may be attributed wrongly",
        early=early,
        tasks=tasks,
        limit=EARLY_NS // 1000,
        difference=lead / early / 1000,
        share=percent(min(moved, 1)),
    )
    withdraws = tuple(name for name, parts in HOST.items() if attribution.profile.share(*parts) < 2 * moved)
    return Check("clocks", early < EARLY * tasks or moved < NOTABLE / 2, evidence, withdraws)


def _host_time_check(profile: RankProfile) -> Check:
    """Check that steps do not take much longer on the host than on the device.

    The excess of a step is its host time beyond its device time and its time before the first kernel. The check fails
    if the steps whose excess is longer than their device time exceed it by over 10 % of all device time in sum. Steps
    without device time do not count. Neither does a last step of a window of rlpatch, whose mark may last until the
    next rollout, nor one that only lacks the gap before each step. A failure withdraws the diagnoses of computing and
    of the time before the first kernel.
    """
    units = profile.units[:-1] if profile.metadata or profile.cut_ns else profile.units
    longer = [unit for unit in units if unit.device_ns and _host_excess(unit) > (LONGER - 1) * unit.device_ns]
    beside = sum(map(_host_excess, longer))
    wrong = ""
    if longer and beside > NOTABLE * sum(unit.device_ns for unit in units):
        unit = max(longer, key=_host_excess)
        wrong = Text(
            "steps that took much longer on the host than on the device: {step_numbers}; step #{number} took"
            " {host_time} on the host, but {device_time} on the device (from the step's first kernel on)",
            step_numbers=_numbers([candidate.number for candidate in longer]),
            number=unit.number,
            host_time=in_ms(unit.host_ns),
            device_time=in_ms(unit.device_ns),
        )
    return _check(
        "host",
        wrong,
        Text(
            "little of the total time is spent in steps that take more than {times:.0f} times as long on the host as"
            " on the device",
            LONGER,
        ),
        ("compute", "lead-in"),
    )


def _host_excess(unit: RecordedUnit) -> int:
    """Return by how much a step is longer on the host than on the device, with the time before its first kernel."""
    return unit.host_ns - unit.device_ns - unit.lead_in_ns


def _exposed_communication_check(profile: RankProfile) -> Check:
    """Check that no step of torch_npu's own table has more exposed than total communication; ok without the table.

    A failure withdraws the diagnoses of communication.
    """
    for step, row in (profile.vendor or {}).items():
        exposed, whole = row.get("communication_not_overlapped_ns", 0), row.get("communication_ns", 0)
        if exposed > whole:
            evidence = Text(
                "in step {step} of torch_npu's table, exposed communication ({exposed}) exceeds total communication"
                " ({total})",
                step=step or "?",
                exposed=in_ms(exposed),
                total=in_ms(whole),
            )
            return Check("exposed", False, evidence, _COMMUNICATION)
    fine = Text("torch_npu's table is consistent: in no step is exposed communication longer than total communication")
    if not profile.vendor:
        fine = Text("exposed communication was not checked, because torch_npu's step table is missing")
    return Check("exposed", True, fine, ("communication",))


def _unknown_events_check(trace: RankTrace) -> Iterator[Check]:
    """Yield a failed check if the trace has events of categories that rlpatch does not know; else nothing.

    It withdraws all diagnoses if the trace has no tasks of a device besides these, else none.
    """
    if not trace.unread:
        return
    most = trace.unread.most_common(3)
    counts = joined(
        COMMA, (Text("{category} ({count:,})", category=short(category), count=count) for category, count in most)
    )
    if len(trace.tasks):
        evidence = Text("rlpatch left out events of unknown categories: {categories}", counts)
        yield Check("events", False, evidence, ())
        return
    evidence = Text("rlpatch found no device events, but events of unknown categories: {categories}", counts)
    yield Check("events", False, evidence, EVERY)


def _computing_time_check(trace: RankTrace) -> Iterator[Check]:
    """Check that computing time agrees within 2 % with the Overlap Analysis that torch_npu wrote into the trace.

    The times are those of the whole trace. Yields one check, which withdraws all diagnoses if it fails; nothing if the
    trace has no Overlap Analysis.
    """
    vendor_ns = trace.vendor_computing_ns
    if vendor_ns is None:
        return
    tasks, compute = trace.tasks, KINDS.index(COMPUTE)
    spans = ((tasks.begin[task], tasks.end[task]) for task in tasks.in_order() if tasks.kind[task] == compute)
    computing_ns = covered_ns(spans, 0, max(tasks.end, default=0))
    times = {"kernel_time": in_ms(computing_ns), "vendor_time": in_ms(vendor_ns)}
    wrong = Text(
        "computing time is {kernel_time} according to the kernels, but {vendor_time} according to torch_npu's Overlap"
        " Analysis",
        **times,
    )
    fine = Text(
        "computing time is {kernel_time} according to the kernels, and {vendor_time} according to torch_npu's Overlap"
        " Analysis",
        **times,
    )
    apart = abs(computing_ns - vendor_ns) > APART * max(computing_ns, vendor_ns)
    yield _check("computing", wrong if apart else "", fine, EVERY)


def _overlap_check(segments: Sequence[Segment]) -> Check:
    """Check that marks of consecutive steps do not overlap on the host, and that steps begin on the device in order.

    Marks may overlap by up to a microsecond, or a thousandth of the step. A failure withdraws all diagnoses.
    """
    marks = device = 0
    for segment, following in itertools.pairwise(segments):
        most = max(ROUNDED_NS, OVERLAPPING * (following.begin - segment.begin))
        marks += segment.mark is not None and segment.mark.end > following.begin + most
        device += bool(segment.tasks and following.tasks) and following.first < segment.first
    wrong: str = ""
    if device:
        wrong = Text("steps out of order on the device (a step begins before the one in front of it): {count}", device)
    elif marks:
        wrong = Text("number of step marks that overlap the next mark on the host: {count}", marks)
    return _check("overlap", wrong, Text("no steps overlap"), EVERY)


def _numbers(numbers: Sequence[int]) -> str:
    """Return the first five step numbers in words, as ``#3, #4``, and how many more there are; "" without any."""
    first_numbers = joined(COMMA, (f"#{number}" for number in numbers[:5]))
    return (
        Text("{step_numbers} and {count} more", step_numbers=first_numbers, count=len(numbers) - 5)
        if len(numbers) > 5
        else first_numbers
    )
