"""A worker that captures graphs with a rendered recorder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.vllm_ascend import recipes as vllm_ascend
from tests.patches.standin import Profiler, host


class Worker:
    """Calls what goes in around its capture, as the patched compile_or_warm_up_model() does."""

    _rlpatch_stage: Any
    _rlpatch_stage_probe: Any
    _RlpatchStage: Any

    def __init__(self, made: list[Profiler], rank: int = 0, **constants: Any) -> None:
        self.rank, self.made = rank, made
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=2, data_parallel_rank=0, data_parallel_index=0)
        )
        host(self, vllm_ascend.CAPTURE, {"STAGE": "graph-capture", **constants, "made": made})

    def start(self, label: str, *, fails: bool = False) -> None:
        self.run(f"before {label}")
        self._rlpatch_stage("enter", "capture_model")
        self.run(label)
        if not fails:
            self._rlpatch_stage("leave")
            self.run(f"after {label}")

    def run(self, label: str) -> None:
        for profiler in self.made:
            profiler.run(label)
