"""Meta's HolisticTraceAnalysis as an oracle: what it counts of units is what our parts say, to the microsecond.

It knows no unit, so each is a span of the trace for it, and its times are whole microseconds: so are those here.
"""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures import environments
from patcher.traces import analysis, formats
from patcher.traces.model import PARTS, RankProfile, RecordedUnit
from tests.patcher.traces.recorded import MS, SHARED, Range, Run, Task, free_ns, shared

pytestmark = pytest.mark.matrix

COUNTS = Path(__file__).with_name("hta_counts.py")
US = 1000
STREAMS = {"compute": (7, 8), "communication": (20,), "copy": (30,)}
NAMES = {
    "compute": ("gemm", "softmax"),
    "communication": ("DevKernel_AllReduce_Sum",),
    "copy": ("Memcpy HtoD", "Memset"),
}


def made(seed: int) -> Run:
    """Five units whose kernels run on four streams, over each other and over the ends of units, or leave gaps."""
    choice = random.Random(seed)
    tasks = []
    for kind, streams in STREAMS.items():
        for stream in streams:
            free = 0
            for launch in sorted(choice.randrange(50 * 1000) * US for _ in range(60)):
                begin = max(free, launch + choice.randrange(5, 900) * US)
                free = begin + choice.randrange(1, 700) * US
                tasks.append(Task(begin, free, kind, choice.choice(NAMES[kind]), stream, launch))
    marks = tuple(Range(f"ProfilerStep#{number}", number * 10 * MS, (number + 1) * 10 * MS) for number in range(5))
    return Run(tuple(sorted(tasks, key=lambda task: task.begin)), marks)


def counted(path: Path, units: tuple[RecordedUnit, ...]) -> list[dict[str, Any]]:
    """What HTA says of the whole trace, and then of each unit."""
    begins = [(unit.begin_ns + unit.lead_in_ns, unit.device_ns) for unit in units]  # nobody else has a lead-in
    spans = [(begin // US, (begin + length) // US) for begin, length in begins]
    python = environments.environment(environments.HTA)
    done = subprocess.run([python, COUNTS, path], input=json.dumps(spans), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def check(path: Path) -> RankProfile:
    (read,) = formats.read(path)
    capture = analysis.attributed(read).profile
    whole, *spans = counted(path, capture.units)
    for unit, span in zip(capture.units, spans, strict=True):
        agrees(unit, span)
    sums: dict[str, int] = {}
    for kernel in capture.kernels:
        sums[kernel.name] = sums.get(kernel.name, 0) + kernel.ns
    assert sums == {name: us * US for name, us in whole["kernels"].items()}
    return capture


def agrees(unit: RecordedUnit, span: dict[str, Any]) -> None:
    """HTA's parts overlap, and ours do not: a copy beside anything else is no part of its own."""
    us: dict[frozenset[str], int] = {frozenset(name.split(" overlapping ")): us for name, us in span["types"].items()}

    def together(*types: str) -> int:
        return US * (us.get(frozenset(types), 0) + us.get(frozenset((*types, "MEMORY")), 0))

    assert unit.compute_ns == together("COMPUTATION")
    assert unit.overlap_ns == together("COMPUTATION", "COMMUNICATION")
    assert unit.communication_ns == together("COMMUNICATION")
    assert unit.copy_ns == US * us.get(frozenset({"MEMORY"}), 0)
    parts = span["parts"]
    assert unit.compute_ns + unit.overlap_ns == US * parts["compute_time(us)"]
    assert unit.communication_ns + unit.copy_ns == US * parts["non_compute_time(us)"]
    # It ends where the last kernel does, and a unit where the next one begins: the gap between both is ours alone.
    assert unit.device_ns - free_ns(unit) == US * (parts["kernel_time(us)"] - parts["idle_time(us)"])
    gap = unit.device_ns - US * parts["kernel_time(us)"]
    assert free_ns(unit) == US * parts["idle_time(us)"] + gap
    assert gap >= 0
    communication = unit.overlap_ns + unit.communication_ns
    assert span["hidden"] == pytest.approx(unit.overlap_ns / communication * 100, abs=0.006), "it has two digits"


@pytest.mark.parametrize("seed", range(3))
def test_units_that_were_made(seed: int, tmp_path: Path) -> None:
    units = check(made(seed).torch(tmp_path / "host_dp0_rank0_1.1.pt.trace.json.gz")).units
    assert len(units) == 5
    assert all(
        sum(getattr(unit, part) for unit in units)
        for part in list(PARTS)
        if part not in ("free_unknown_ns", "free_blocked_ns")
    )


@shared
@pytest.mark.parametrize("name", ["hta-trace_diff-control.json.gz", "hta-trace_diff-test.json.gz"])
def test_units_of_real_devices(name: str) -> None:
    """A100s with NCCL. Of traces in nanoseconds HTA rounds each time by itself, so those are no oracle."""
    assert len(check(SHARED / "gpu" / name).units) == 6
