"""Ranks of made runs, written as torch.profiler does: some come late, or are the stages of a pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STEP = 100_000
"""Length of a made step, in µs."""


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
