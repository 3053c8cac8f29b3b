"""What torch_npu.profiler leaves as tables, of which a folder may hold nothing else: no task, and no launch, has a row.

The parts of a step are those of ``step_trace_time.csv``, where copies count as free. Kernels are those of
``kernel_details.csv``, else of ``op_statistic.csv``; collectives those of ``communication.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from patcher.messages.errors import Kind, Problem
from patcher.traces.formats import ascend, ascend_kernels
from patcher.traces.formats.chrome import nanoseconds
from patcher.traces.model import COMMUNICATION, COMPUTE, Collective, Kernel, RankProfile, RecordedUnit

STEPS = "step_trace_time.csv"
"""The table without which nothing is known of a step."""


def read(file: Path) -> RankProfile:
    """The profile of the rank in the folder of the ``step_trace_time.csv``; Problem (TRACE) if it has no step."""
    output = file.parent
    folder = output.parent
    vendor = ascend.vendor_steps(output) or {}
    collectives = tuple(_collectives(output))
    kernels = _kernels(output, collectives)
    calls = _calls(output) or ({} if len(vendor) > 1 else {step: sum(one.calls for one in kernels) for step in vendor})
    spare = count()  # without steps the column is empty
    units = [
        _unit(int(step) if step.isdigit() else next(spare), row, calls.get(step, 0))
        for step, row in vendor.items()
        if row
    ]
    if not units:
        raise Problem(Kind.TRACE, f"{file.name} holds no step", str(file), "parse the folder again, if PROF_… is there")
    units.sort(key=lambda unit: unit.number)
    return RankProfile(
        str(folder), "ascend-tables", ascend.rank_of(folder), "Ascend NPU", tuple(units), kernels=kernels,
        world=ascend.world_of(folder), settings=ascend.settings_of(folder), vendor=vendor, marks="ProfilerStep#",
        collectives=collectives, kernel_uses=ascend_kernels.uses(output, None),
    )  # fmt: skip


def _unit(number: int, row: Mapping[str, int], calls: int) -> RecordedUnit:
    computing, overlap = row.get("computing_ns", 0), row.get("overlapped_ns", 0)
    return RecordedUnit(
        number=number, host_ns=0, kernels=calls, compute_ns=max(computing - overlap, 0), overlap_ns=overlap,
        communication_ns=row.get("communication_not_overlapped_ns", 0), free_unknown_ns=row.get("free_ns", 0),
        lead_in_ns=row.get("preparing_ns", 0), name=f"ProfilerStep#{number}",
    )  # fmt: skip


def _calls(output: Path) -> dict[str, int]:
    """Step → its kernels and collectives."""
    calls: dict[str, int] = {}
    for row in ascend.rows(output / ascend.DETAILS):
        step = row.get("Step Id") or ""
        calls[step] = calls.get(step, 0) + 1
    return calls


def _kernels(output: Path, collectives: Sequence[Collective]) -> tuple[Kernel, ...]:
    """All calls of each type, with the longest one; what takes longest first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for name, kind, calls, ns, longest in (*_computing(output), *_communicating(collectives)):
        known = sums.setdefault((name, kind), [0, 0, 0])
        known[:] = known[0] + calls, known[1] + ns, max(known[2], longest)
    rows = (Kernel(name, kind, *values) for (name, kind), values in sums.items())
    return tuple(sorted(rows, key=lambda one: (-one.ns, one.name)))


_Row = tuple[str, str, int, int, int]


def _computing(output: Path) -> Iterator[_Row]:
    if (output / ascend.DETAILS).is_file():
        for row in ascend.rows(output / ascend.DETAILS):
            if not (row.get("Name") or "").startswith("hcom_"):
                ns = _ns(row.get("Duration(us)"))
                yield row.get("Type") or row.get("Name") or "?", COMPUTE, 1, ns, ns
        return
    for row in ascend.rows(output / "op_statistic.csv"):
        calls, total, longest = row.get("Count") or "", row.get("Total Time(us)"), row.get("Max Time(us)")
        if calls.isdigit() and row.get("Core Type") != "HCCL":
            yield row.get("OP Type") or "?", COMPUTE, int(calls), _ns(total), _ns(longest)


def _communicating(collectives: Sequence[Collective]) -> Iterator[_Row]:
    for one in collectives:
        yield one.name, COMMUNICATION, 1, one.ns, one.ns


def _collectives(output: Path) -> Iterator[Collective]:
    """The collectives in the order of their begin, numbered within their step and group."""
    numbers: dict[tuple[int, str], Iterator[int]] = {}
    for one in sorted(ascend.timed(output), key=lambda one: one.begin):
        operator, group = ascend.parted(one.name)
        index = next(numbers.setdefault((one.step, group), count()))
        yield Collective(
            group, index, operator, one.ns, *one.parts, unit=one.step, sent_bytes=one.sent, pieces=one.pieces
        )


def _ns(microseconds: str | None) -> int:
    try:
        return nanoseconds((microseconds or "0").strip())
    except ValueError:
        return 0
