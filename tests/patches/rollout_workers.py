"""Workers of vLLM that run a rendered recorder, and what is handed to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from patches.vllm_ascend import recipes as vllm_ascend
from tests.patches.standin import Profiler, host


class V1Worker:
    """Calls what goes in at the head of an iteration, as the patched execute_model() does."""

    recipe = vllm_ascend.V1
    _rlpatch_stage: Any
    _rlpatch_stage_probe: Any
    _RlpatchStage: Any

    def __init__(
        self,
        rank: int = 0,
        replica: int = 0,
        size: int = 1,
        release: str = "",
        layers: Any = (),
        parts: Any = (),
        drafts: int = 0,
        **constants: Any,
    ) -> None:
        self.rank = rank
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
            parallel_config=SimpleNamespace(world_size=size, data_parallel_rank=replica, data_parallel_index=replica),
        )
        self.made: list[Profiler] = []
        host(self, self.recipe, {**constants, "made": self.made}, *parts, layers=layers, release=release)

    def iterate(self, batch: Any, label: str) -> None:
        self._rlpatch_stage("step", batch)
        for profiler in self.made:
            profiler.run(label)


def batch(
    counts: dict[str, int],
    new: dict[str, int] | None = None,
    done: tuple[str, ...] = (),
    drafts: Any = None,
    cached: Any = (),
) -> Any:
    """A SchedulerOutput: tokens per request, prompt lengths of the new ones, ids that have finished."""
    requests = [
        SimpleNamespace(req_id=name, prompt_token_ids=[0] * length, num_computed_tokens=0)
        for name, length in (new or {}).items()
    ]
    return SimpleNamespace(
        num_scheduled_tokens=counts, scheduled_new_reqs=requests, finished_req_ids=set(done),
        total_num_scheduled_tokens=sum(counts.values()), scheduled_spec_decode_tokens=drafts or {}, scheduled_cached_reqs=cached or [],
    )  # fmt: skip


def rollout(worker: V1Worker, steps: int, prompt: int = 1, done: tuple[str, ...] = (), name: str = "a") -> None:
    """One request from its prefill to decode step ``steps``."""
    worker.iterate(batch({name: prompt}, {name: prompt}, done), "prefill")
    for n in range(1, steps + 1):
        worker.iterate(batch({name: 1}), f"decode {n}")


def recorded(worker: V1Worker) -> list[dict[int, list[str]]]:
    return [profiler.recorded for profiler in worker.made]


def steps(first: int, end: int) -> dict[int, list[str]]:
    return {n: [f"decode {n}"] for n in range(first, end)}


class V0Base:
    def prepare_input(self, request: Any = None) -> Any:
        return request


class V0Worker(V1Worker, V0Base):
    """As vLLM V0 runs a worker: prepare_input(), then execute_worker(), then the model runner."""

    recipe = vllm_ascend.V0
    prepare_input: Any

    def execute(self, request: Any, label: str, groups: int = 1) -> None:
        inputs = self.prepare_input(request)
        if inputs is not None:
            self.iterate(SimpleNamespace(num_seq_groups=groups), label)
