"""Whether the data can be trusted: what fails withdraws the findings that rest on it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

from patcher.traces.attribution import EARLY_NS, Attribution
from patcher.traces.model import Capture, Check, Unit
from patcher.traces.timeline import Timeline
from patcher.traces.words import in_ms, percent, short

NOTABLE = 0.10
"""The share of a unit from which on something is worth a verdict; the guides take it for Free."""

LINKED, ALONE, FEW, MANY, EARLY = 0.95, 0.90, 0.5, 2.0, 0.01
"""Limits of the checks: kernels with a launch, one task in its unit, kernels of a unit to the median, early kernels."""

HOST = ("dispatch", "waiting")
DEVICE = ("communication", "copies", "compute", "waiting", "slow-rank")
EVERY = ("dispatch", "outlier", *DEVICE)
"""The findings that rest on the host's times, on the device's, and all that a check can withdraw."""


def checked(found: Timeline, made: Attribution) -> Capture:
    """The capture with its checks."""
    return dataclasses.replace(made.capture, checks=tuple(_checks(found, made)))


def _checks(found: Timeline, made: Attribution) -> Iterator[Check]:
    units = made.capture.units
    lost = [found.cut] if found.cut else []
    lost += [f"{found.lost:,} events could not be read"] if found.lost else []
    said = "; ".join(lost)
    yield Check("whole", not lost, f"{said}: what came before was read" if lost else "read to its end", ("outlier",))
    named = bool(made.capture.marks)
    yield Check(
        "marks", named, f"marked by {made.capture.marks.rstrip('#_[')}" if named
        else "no ProfilerStep, execute_… or step[…] marks units: the whole trace is taken for one", ("outlier",),
    )  # fmt: skip
    idle = [unit.number for unit in units if not unit.kernels]
    evidence = (
        f"{len(idle)} of {len(units)} units launched no kernel: {_numbers(idle)}" if idle else "every unit has some"
    )
    yield Check("kernels", bool(units) and not idle, evidence if units else "there is no unit", EVERY)
    yield _count_check(units)
    launches = made.launches
    share = launches.linked / launches.tasks if launches.tasks else 1.0
    evidence = f"{percent(share)} of {launches.tasks:,} kernels and copies have a launch"
    evidence = evidence if launches.tasks else "there is no kernel and no copy"
    yield Check("launches", share >= LINKED, evidence, HOST)
    yield _clock_check(made)
    yield _alone_check(units, made)
    yield _exposed_check(made.capture)
    yield _overlap_check(made)
    if found.facts or found.doubts:
        yield Check("facts", not found.doubts, "; ".join(found.doubts) or "they agree with the trace")
    if found.unknown:
        types = ", ".join(map(short, sorted(found.unknown)[:5]))
        yield Check("types", False, f"tasks of unknown type were taken for computing: {types}", ())


def _clock_check(made: Attribution) -> Check:
    """Some µs are normal on NPUs; it matters where that could move a notable share from one kind of free to another."""
    tasks, _, early, lead = made.launches
    if not early:
        return Check("clocks", True, f"no kernel begins more than {EARLY_NS // 1000} µs before its launch", HOST)
    moved = lead / early * tasks / max(made.capture.total_ns, 1)
    evidence = (
        f"{early:,} of {tasks:,} kernels begin more than {EARLY_NS // 1000} µs before their launch: the clocks of host"
        f" and device differ by some {lead / early / 1000:.0f} µs, which moves at most {percent(min(moved, 1))}"
        " of the time"
    )
    return Check("clocks", early < EARLY * tasks or moved < NOTABLE / 2, evidence, HOST)


def _count_check(units: Sequence[Unit]) -> Check:
    counts = [unit.kernels for unit in units]
    median = statistics.median(counts) if counts else 0
    far = [unit.number for unit in units if not FEW * median <= unit.kernels <= MANY * median]
    evidence = f"the median unit launched {median:,.0f}"
    if far:
        evidence = f"{len(far)} of {len(units)} units are far off the median of {median:,.0f} kernels: {_numbers(far)}"
    return Check("count", len(units) < 3 or not far, evidence, ("outlier",))


def _alone_check(units: Sequence[Unit], made: Attribution) -> Check:
    alone = [
        (unit.number, window.longest) for unit, window in zip(units, made.windows, strict=True)
        if unit.device_ns and window.longest_ns > ALONE * unit.device_ns
    ]  # fmt: skip
    evidence = "no kernel takes most of its unit"
    if alone:
        numbers = _numbers([number for number, _ in alone])
        evidence = f"one kernel takes over {percent(ALONE, 0)} of its unit in {numbers}: {short(alone[0][1])}"
    return Check("alone", not alone, evidence, DEVICE)


def _exposed_check(capture: Capture) -> Check:
    for step, row in (capture.vendor or {}).items():
        exposed, whole = row.get("communication_not_overlapped_ns", 0), row.get("communication_ns", 0)
        if exposed > whole:
            evidence = f"the vendor's step {step or '?'} has more communication not overlapped ({in_ms(exposed)}) than"
            return Check("exposed", False, f"{evidence} communication ({in_ms(whole)})", ("communication", "slow-rank"))
    told = "" if capture.vendor else ": the vendor does not say"
    return Check("exposed", True, f"exposed communication is not above communication{told}", ("communication",))


def _overlap_check(made: Attribution) -> Check:
    following = list(zip(made.windows, made.windows[1:], strict=False))
    marks = [b for a, b in following if _end(a.segment.mark) > b.segment.begin]
    device = [b for a, b in following if None not in (a.first, b.first) and (b.first or 0) < (a.first or 0)]
    evidence = f"{len(marks)} marks overlap on the host" if marks else ""
    if device:
        evidence = f"{len(device)} units begin on the device before the one in front of them"
    return Check("overlap", not evidence, evidence or "no unit overlaps another one", EVERY)


def _end(mark: object) -> int:
    end = getattr(mark, "end", 0)
    assert isinstance(end, int)  # noqa: S101
    return end


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(f"#{number}" for number in numbers[:5])
    return shown + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
