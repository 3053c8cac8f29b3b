"""A scheduler of SGLang that runs a rendered recorder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.sglang import recipes as sglang
from tests.patches.standin import Profiler, host


class Scheduler:
    """Calls what goes in over a profiler that writes down what it is told."""

    _rlpatch_stage: Any
    _rlpatch_stage_probe: Any
    _RlpatchStage: Any

    def __init__(self, worker: Any = None, **constants: Any) -> None:
        self.made: list[Profiler] = []
        host(self, sglang.SCHEDULER, {"made": self.made, **constants})
        self.tp_worker = worker or SimpleNamespace()
        self.server_args = SimpleNamespace(enable_dp_attention=False)
        self.waiting_queue: list[Any] = []

    def run(self, mode: str, label: str, *rids: str, tokens: int | None = 9) -> None:
        requests = [SimpleNamespace(rid=rid) for rid in rids or ("a", "b")]
        batch = SimpleNamespace(forward_mode=SimpleNamespace(name=mode), reqs=requests, extend_num_tokens=tokens)
        self._rlpatch_stage("schedule", batch)
        for profiler in self.made:
            profiler.run(label)

    def rollout(self, steps: int) -> None:
        self.run("EXTEND", "prefill")
        for n in range(1, steps + 1):
            self.run("DECODE", f"decode {n}", tokens=None)

    def recorded(self) -> list[dict[int, list[str]]]:
        return [profiler.recorded for profiler in self.made]
