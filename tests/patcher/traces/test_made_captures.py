"""Captures of whole runs with one known cause each, written as torch.profiler does: headline, culprit, seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports import reporting
from patcher.traces import model

STEP = 100_000
"""Length of a made step, in µs."""

DISPATCH = "void deep_ep::intranode::dispatch<8, 768>(int4*, float*)"
COMBINE = "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*, float*)"


class Rank:
    """One rank of a run: ``busy`` appends a kernel with its launch, at µs within a step of `STEP`."""

    def __init__(self, rank: int, world: int, steps: int = 4) -> None:
        self.rank, self.world, self.steps = rank, world, steps
        self.events: list[dict[str, Any]] = [
            self._event("user_annotation", f"ProfilerStep#{number}", number * STEP, STEP)
            for number in range(1, steps + 1)
        ]
        self.count = 0

    @staticmethod
    def _event(cat: str, name: str, ts: int, dur: int, **args: object) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}

    def busy(
        self, step: int, begin: int, end: int, name: str = "gemm", *, stream: int = 7, ahead: int = 5, **args: object
    ) -> None:
        self.count += 1
        at = step * STEP + begin
        self.events += [
            self._event("cuda_runtime", "cudaLaunchKernel", at - ahead, 3, correlation=self.count),
            self._event("kernel", name, at, end - begin, device=0, stream=stream, correlation=self.count, **args),
        ]

    def collective(
        self, step: int, begin: int, end: int, group: str = "tp", kind: str = "allreduce", *, stream: int = 7
    ) -> None:
        name = (
            "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            if kind in ("send", "recv")
            else ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
        )
        names = {"Process Group Name": group, "Collective name": kind}
        self.busy(step, begin, end, name, stream=stream, ahead=begin, **names)

    def write(self, folder: Path) -> None:
        text = {
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "schemaVersion": 1,
            "distributedInfo": {"rank": self.rank, "world_size": self.world}, "traceEvents": self.events,
        }  # fmt: skip
        (folder / f"rank{self.rank}.pt.trace.json").write_text(json.dumps(text))


def report(folder: Path, ranks: list[Rank]) -> model.TraceReport:
    for rank in ranks:
        rank.write(folder)
    data = reporting.report([folder], reporting.ReadOptions()).data
    assert isinstance(data, model.TraceReport)
    return data


def late_ranks(late: int, world: int = 8, *, at: int = 1, steps: int = 4) -> list[Rank]:
    """Ranks that meet twice a step; one comes 30 ms late to one of the collectives, for its kernels take longer."""
    ranks = [Rank(rank, world, steps) for rank in range(world)]
    for rank in ranks:
        for step in range(1, steps + 1):
            for number in range(2):
                begin = number * 49_000 + 5
                meet = 45_000
                work = meet - 30_000 if number == at and rank.rank != late else meet
                rank.busy(step, begin, begin + work)
                rank.collective(step, begin + work, begin + meet + 2000)
    return ranks


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("late", [0, 3, 7])
def test_the_late_rank_of_eight_is_named_at_either_collective(tmp_path: Path, late: int, at: int) -> None:
    made = report(tmp_path, late_ranks(late, at=at))
    first = made.findings[0]
    assert (first.id, first.culprit) == ("slow-rank", f"rank {late}")
    assert first.saving_ns == pytest.approx(30e6, rel=0.05)
    assert "skew" not in first.evidence


def test_the_first_collective_of_a_single_step_may_be_skew(tmp_path: Path) -> None:
    first = report(tmp_path, late_ranks(5, at=0, steps=1)).findings[0]
    assert (first.id, first.culprit) == ("slow-rank", "rank 5")
    assert "skew of the profilers' start" in first.evidence
    assert "record several units" in first.certainty


def pipeline(times: list[int], micro: int = 2, replicas: int = 1) -> list[Rank]:
    """Stages that compute so many µs for each micro-batch, one after the other; the longest one never waits."""
    slowest, ranks = max(times), []
    for stage, work in enumerate(times):
        for replica in range(replicas):
            rank = Rank(stage * replicas + replica, len(times) * replicas)
            for step in range(1, 5):
                for number in range(micro):
                    begin = number * slowest + 5
                    rank.busy(step, begin, begin + work - 500)
                    rank.collective(step, begin + work - 500, begin + slowest - 5, f"pp{replica}", "recv")
            ranks.append(rank)
    return ranks


@pytest.mark.parametrize(
    ("times", "replicas", "culprit"),
    [
        ([20_000, 45_000], 1, "stage 1 (rank 1)"), ([45_000, 20_000], 2, "stage 0 (ranks 0, 1)"),
        ([20_000, 20_000, 45_000, 20_000], 1, "stage 2 (rank 2)"), ([20_000, 20_000, 20_000, 45_000], 2, "stage 3 (ranks 6, 7)"),
    ],
)  # fmt: skip
def test_the_bubble_comes_first_and_the_long_stage_is_blamed(
    tmp_path: Path, times: list[int], replicas: int, culprit: str
) -> None:
    first = report(tmp_path, pipeline(times, replicas=replicas)).findings[0]
    assert (first.id, first.culprit) == ("pipeline-bubble", culprit)
    assert first.saving_ns == pytest.approx(2 * 25_500 * 1000, rel=0.05)


def test_experts_on_a_side_stream_communicate(tmp_path: Path) -> None:
    """Dispatch runs beside a matmul, combine does not: half of the communication is exposed."""
    rank = Rank(0, 8)
    for step in range(1, 5):
        rank.busy(step, 5, 40_000)
        rank.busy(step, 10_000, 40_000, DISPATCH, stream=27)
        rank.busy(step, 40_000, 70_000, COMBINE, stream=27, ahead=35_000)
        rank.busy(step, 70_000, 99_990, ahead=60_000)
    made = report(tmp_path, [rank])
    (profile,) = made.captures
    assert profile.sum_ns("overlap_ns") == 4 * 30_000_000
    assert profile.sum_ns("communication_ns") == 4 * 30_000_000
    first = made.findings[0]
    assert (first.id, first.saving_ns) == ("communication", 30_000_000)
    assert "all 8 ranks" in first.advice


def test_the_rank_whose_experts_are_late_is_named_without_groups(tmp_path: Path) -> None:
    ranks = [Rank(rank, 4) for rank in range(4)]
    for rank in ranks:
        for step in range(1, 5):
            work = 40_000 if rank.rank == 2 else 15_000
            rank.busy(step, 5, work)
            rank.busy(step, work, 45_000, DISPATCH, stream=27, ahead=work - 10)
            rank.busy(step, 45_000, 95_000, ahead=30_000)
    first = report(tmp_path, ranks).findings[0]
    assert (first.id, first.culprit) == ("slow-rank", "rank 2")
    assert first.saving_ns == pytest.approx(25e6, rel=0.05)
    assert first.certainty.startswith("heuristic")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "to device"), ("Memcpy DtoH (Device -> Pageable)", "to host"),
        ("Memcpy DtoD (Device -> Device)", "within the device"),
    ],
)  # fmt: skip
def test_copies_get_the_advice_of_their_direction(tmp_path: Path, name: str, way: str) -> None:
    rank = Rank(0, 1)
    for step in range(1, 5):
        rank.busy(step, 5, 60_000)
        rank.busy(step, 60_000, 99_995, name, ahead=40_000)
        rank.events[-1]["cat"] = "gpu_memcpy"
    first = report(tmp_path, [rank]).findings[0]
    assert first.id == "copies"
    assert first.saving_ns == pytest.approx(40e6, rel=0.02)
    assert first.culprit.endswith(way.split()[-1])
    assert ("pinned" in first.advice) == (way == "to device")
