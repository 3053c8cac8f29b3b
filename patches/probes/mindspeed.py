"""MindSpeed-RL: whose stage a worker runs, where Megatron's schedule ends, and vLLM's worker."""

from __future__ import annotations

from typing import Any


class StageOfWorker:
    """A worker of MindSpeed-RL (``workers/*_worker.py``): a stage is one call of its method.

    The method hands the batch to its engine, in as many parts as ``*_dispatch_size`` makes of it. An
    ``IntegratedWorker`` has the engines of several roles.
    """

    UNIT: str
    worker: Any
    engine: Any

    def whose(self, role: str) -> str:
        if role == "actor":
            self.engine = self.worker.actor_hybrid.train_actor
        else:
            self.engine = self.worker.reference if role == "ref" else self.worker.critic
        self.engine._rlpatch_stage_units = self.worker._rlpatch_stage_units
        return role

    def framework(self) -> str:
        stages = self.worker.parallel_state.get_pipeline_model_parallel_world_size()
        if self.UNIT == "micro-batch" and max(stages, len(self.engine.model)) > 1:
            return "a pipeline interleaves the micro-batches; in updates --mini-batch can be had"
        return ""


class ScheduledLoop:
    """MindSpeed-RL's ``BaseTrainingEngine``, whose micro-batches Megatron takes out of an iterator.

    The schedule never asks for one more than there are, so what ends the last one stands behind it.
    """

    def _rlpatch_stage_ended(self, units: Any) -> None:
        if hasattr(units, "close"):  # a generator of ours
            next(units, None)


class HostedRanks:
    """The replica and the global rank of the vLLM worker in MindSpeed-RL's ``VLLMInferEngine``.

    Its tensor-parallel groups divide the world of the training processes in the order of the ranks
    (``models/rollout/vllm_adapter/vllm_parallel_state.py``).
    """

    def place(self, engine: Any) -> tuple[int, int]:
        import os

        import torch.distributed as dist

        if os.environ["VLLM_USE_V1"] != "1":
            raise RuntimeError(
                "VLLM_USE_V1=%s: only vLLM's V1 engine can be recorded" % os.environ["VLLM_USE_V1"]
            )
        rank = dist.get_rank()
        return rank // engine._rlpatch_stage_worker.vllm_config.parallel_config.world_size, rank


class HostedWorker:
    """MindSpeed-RL's ``VLLMInferEngine``: it sees each iteration of its vLLM worker first."""

    _rlpatch_stage: Any
    _rlpatch_stage_worker: Any

    def _rlpatch_stage_attend(self, worker: Any) -> None:
        import functools

        self._rlpatch_stage_worker = worker
        worker.execute_model = functools.partial(self._rlpatch_stage_iteration, worker.execute_model)

    def _rlpatch_stage_iteration(self, execute_model: Any, *args: Any, **options: Any) -> Any:
        self._rlpatch_stage("step", *args[:1])
        return execute_model(*args, **options)
