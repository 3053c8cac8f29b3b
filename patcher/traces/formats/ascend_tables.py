"""The tables of torch_npu.profiler, of which a folder may hold nothing else: no task, and no launch, has a row.

The parts of a step are those of ``step_trace_time.csv``, where copies count as free. Kernels are those of
``kernel_details.csv``, else of ``op_statistic.csv``; collectives those of ``communication.json``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

from patcher.messages import Kind, Problem, Text
from patcher.traces.formats import ascend
from patcher.traces.formats.ascend_kernels import KernelSums, KernelTable, nanoseconds_in
from patcher.traces.formats.csv_tables import rows
from patcher.traces.model import COMMUNICATION, COMPUTE, Collective, Kernel, RankProfile, RecordedUnit

STEPS = "step_trace_time.csv"
"""Name of the table without which nothing is known of a step."""


def read(file: Path) -> RankProfile:
    """Return the profile of a rank from its ``step_trace_time.csv`` and the tables beside it.

    Steps are sorted by number; a step without one gets the next free number from 0. Rows without times are skipped.
    Raises Problem (TRACE) if the table has no step, or if two ranks share the folder.
    """
    output = file.parent
    folder = output.parent
    vendor = ascend.vendor_steps(output) or {}
    table = KernelTable(output)
    collectives = tuple(_collectives(output))
    kernels = _kernels(table.kernels or _sums_by_type(output), collectives)
    calls: Mapping[str, int] = table.steps
    if not calls and len(vendor) == 1:
        calls = dict.fromkeys(vendor, sum(kernel.calls for kernel in kernels))
    spare = count()  # without steps the column is empty
    units = [
        _recorded_unit(int(step) if step.isdigit() else next(spare), row, calls.get(step, 0))
        for step, row in vendor.items()
        if row
    ]
    if not units:
        raise Problem(
            Kind.TRACE,
            Text("{file} has no steps", file.name),
            str(file),
            Text("if the folder PROF_… still exists, parse the trace again with `rlpatch analyse`"),
        )
    units.sort(key=lambda unit: unit.number)
    rank, world, settings = ascend.rank_folder(folder)
    return RankProfile(
        str(folder), "ascend-tables", rank, "Ascend NPU", tuple(units), kernels=kernels, world=world, settings=settings,
        vendor=vendor, marks="ProfilerStep#", collectives=collectives, kernel_uses=table.uses(None),
    )  # fmt: skip


def _recorded_unit(number: int, row: Mapping[str, int], calls: int) -> RecordedUnit:
    """Build the record of step ``number`` from its row in the vendor's table; it launched ``calls`` kernels.

    ``row`` maps columns to ns; a missing column counts as 0. The vendor's table counts copies as free time, and gives
    no reason for free time. It has no time on the host, so that is 0.
    """
    computing, overlap = row.get("computing_ns", 0), row.get("overlapped_ns", 0)
    return RecordedUnit(
        number=number, host_ns=0, kernels=calls, compute_ns=max(computing - overlap, 0), overlap_ns=overlap,
        communication_ns=row.get("communication_not_overlapped_ns", 0), free_unknown_ns=row.get("free_ns", 0),
        lead_in_ns=row.get("preparing_ns", 0), name=f"ProfilerStep#{number}",
    )  # fmt: skip


def _sums_by_type(output: Path) -> dict[str, KernelSums]:
    """Return type of kernel → its sums in ``op_statistic.csv``, without collectives; empty without the file."""
    kernels: dict[str, KernelSums] = {}
    for row in rows(output / "op_statistic.csv"):
        calls, name = row.get("Count") or "", row.get("OP Type") or ""
        if calls.isdigit() and row.get("Core Type") != "HCCL":
            total, longest = nanoseconds_in(row.get("Total Time(us)")), nanoseconds_in(row.get("Max Time(us)"))
            kernels[name] = kernels.get(name, KernelSums()).plus(int(calls), total, longest)
    return kernels


def _kernels(computing: Mapping[str, KernelSums], collectives: Iterable[Collective]) -> tuple[Kernel, ...]:
    """Return types of kernels and collectives with their calls and ns, longest first."""
    kernels = [Kernel(name or "?", COMPUTE, *sums) for name, sums in computing.items()]
    times = defaultdict[str, list[int]](list)
    for collective in collectives:
        times[collective.name].append(collective.ns)
    kernels += [Kernel(name, COMMUNICATION, len(ns), sum(ns), max(ns)) for name, ns in times.items()]
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.ns, kernel.name)))


def _collectives(output: Path) -> Iterator[Collective]:
    """Yield the collectives of ``communication.json`` by begin, numbered from 0 within their step and group."""
    numbers = Counter[tuple[int, str]]()
    for collective in sorted(ascend.timed_collectives(output), key=lambda collective: collective.begin):
        operator, group = ascend.parted(collective.name)
        parts, sent, pieces = collective.times
        index = numbers[collective.step, group]
        numbers[collective.step, group] += 1
        yield Collective(
            group, index, operator, collective.ns, *parts, unit=collective.step, sent_bytes=sent, pieces=pieces
        )
