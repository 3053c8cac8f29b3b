"""MindSpeed-RL: whose stage a worker runs, and where vLLM's worker lives."""

from __future__ import annotations

from typing import Any

from patches.probes.members import Calls, ForeignLoops, Schedule
from patches.probes.recorder import ReplicaRecorder
from patches.probes.training import TrainingSteps
from patches.probes.vllm import SchedulerOutputs


class StageOfWorker(TrainingSteps):
    """A worker of MindSpeed-RL (``workers/*_worker.py``): a stage is one call of its method.

    The method hands the batch to its engine, in as many parts as ``*_dispatch_size`` makes of it. An
    ``IntegratedWorker`` has the engines of several roles.
    """

    def role_of_call(self, role: str) -> str:
        """Have the loops in the engine of ``role`` report units to this worker's recorder; return ``role``."""
        if role == "actor":
            self.engine = self.worker.actor_hybrid.train_actor
        else:
            self.engine = self.worker.reference if role == "ref" else self.worker.critic
        self.engine._rlpatch_stage_units = self.worker._rlpatch_stage_units
        return role

    def framework_conflict(self) -> str:
        """Return why micro-batches cannot be counted: pipeline parallelism, or several chunks of the model.

        "" without these, or if the window counts something else.
        """
        stages = self.worker.parallel_state.get_pipeline_model_parallel_world_size()
        if self.UNIT == "micro-batch" and max(stages, len(self.engine.model)) > 1:
            return "pipeline parallelism interleaves the micro-batches; in updates, use --mini-batch"
        return ""


class HostedRanks(ReplicaRecorder):
    """The replica and the global rank of the vLLM worker in MindSpeed-RL's ``VLLMInferEngine``.

    Its tensor-parallel groups divide the world of the training processes in the order of the ranks
    (``models/rollout/vllm_adapter/vllm_parallel_state.py``).
    """

    def __init__(self, worker: Any) -> None:
        import os

        import torch.distributed as dist

        if os.environ["VLLM_USE_V1"] != "1":
            raise RuntimeError("VLLM_USE_V1=%s: only vLLM's V1 engine can be recorded" % os.environ["VLLM_USE_V1"])
        self.rank, config = dist.get_rank(), worker._rlpatch_stage_worker.vllm_config
        self.dp = self.rank // config.parallel_config.world_size
        super().__init__(worker)

    def count_ranks(self, worker: Any) -> int:  # noqa: ARG002
        """Return the number of training processes, on which the workers of vLLM live."""
        import torch.distributed as dist

        return dist.get_world_size()  # type: ignore[no-any-return]

    def context_growth(self, worker: Any) -> int:
        """Return the most tokens by which one iteration makes a context longer.

        It is one, plus the number of draft tokens with speculative decoding.
        """
        config = worker._rlpatch_stage_worker.vllm_config
        return 1 + int(getattr(config.speculative_config, "num_speculative_tokens", 0))


class HostedRollout(HostedRanks, SchedulerOutputs):
    """The rollouts of that worker."""


class ScheduledLoop(Schedule, ForeignLoops):
    """MindSpeed-RL's ``BaseTrainingEngine``."""


class HostedWorker(Calls):
    """MindSpeed-RL's ``VLLMInferEngine``: it sees each iteration of its vLLM worker first."""

    _rlpatch_stage_worker: Any

    def _rlpatch_stage_attend(self, worker: Any) -> None:
        """Wrap ``execute_model`` of vLLM's ``worker``, so that the recorder is told of each iteration first."""
        import functools

        self._rlpatch_stage_worker = worker
        worker.execute_model = functools.partial(self._rlpatch_stage_iteration, worker.execute_model)

    def _rlpatch_stage_iteration(self, execute_model: Any, *args: Any, **options: Any) -> Any:
        """Tell the recorder of an iteration, then run it and return what ``execute_model`` returns."""
        self._rlpatch_stage("step", *args[:1])
        return execute_model(*args, **options)
