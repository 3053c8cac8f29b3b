"""What the patched class itself gets beside a recorder: the methods that the lines at its call sites use.

``_rlpatch_stage`` and ``_RlpatchStage`` stand for the names of the patch.
"""

from __future__ import annotations

from typing import Any


class Calls:
    """The one method through which a class dispatches what happens to its recorder."""

    _RlpatchStage: Any
    _rlpatch_stage_probe: Any = False  # False: not called yet, None: nothing more to record

    def _rlpatch_stage(self, event: str, *args: Any) -> None:
        probe = self._rlpatch_stage_probe
        if probe is not None:
            self._rlpatch_stage_probe = self._RlpatchStage.dispatch(probe, self, event, args)


class Loops(Calls):
    """For loops over units: it rebinds their iterables."""

    def _rlpatch_stage_units(self, unit: str, units: Any, last: bool = False) -> Any:
        if self._rlpatch_stage_probe is None:
            return units
        return self._RlpatchStage.Loop(self._rlpatch_stage, unit, units, last)


class ForeignLoops:
    """For a class whose loops belong to a stage of another object, which replaces this method."""

    def _rlpatch_stage_units(self, unit: str, units: Any, last: bool = False) -> Any:  # noqa: ARG002
        return units


class TransformersLoop(Calls):
    """TRL: what the loop of transformers' ``Trainer`` calls between the methods that its trainers have themselves.

    It counts the operations of each micro-batch behind its backward, and logs behind each optimizer step.
    """

    def floating_point_ops(self, inputs: Any) -> Any:
        self._rlpatch_stage("computed")
        return super().floating_point_ops(inputs)  # type: ignore[misc]

    def _maybe_log_save_evaluate(self, *args: Any, **options: Any) -> None:
        self._rlpatch_stage("updated")
        super()._maybe_log_save_evaluate(*args, **options)  # type: ignore[misc]


class Inherited:
    """For a worker whose base class has the rest of the patch."""

    _rlpatch_stage_probe: Any = False


class PreparedInputs(Calls):
    """vLLM V0: shows the recorder what ``execute_worker`` is about to run."""

    def prepare_input(self, execute_model_req: Any = None) -> Any:
        inputs = super().prepare_input(execute_model_req)  # type: ignore[misc]
        self._rlpatch_stage("prepare", inputs)
        return inputs


class ForwardThread:
    """SGLang up to 0.5.3, overlapped: what the recorder does goes with the batches to the forward's thread.

    A profiler sees the operators of the thread that started it, and must be stopped there.
    """

    input_queue: Any
    _rlpatch_stage_put: Any
    _rlpatch_stage_replica: Any

    def _rlpatch_stage_listen(self, replica: Any) -> None:
        import functools

        self._rlpatch_stage_replica = replica
        self._rlpatch_stage_put = self.input_queue.put
        self.input_queue.get = functools.partial(self._rlpatch_stage_next, self.input_queue.get)

    def _rlpatch_stage_next(self, take: Any) -> Any:
        item = take()
        while callable(item):  # a batch is a tuple
            item()
            item = take()
        return item


class NamedReplica:
    """SGLang: for its package, which a server of verl imports before it starts the schedulers.

    verl tells vLLM's workers by a variable which replica they are, and SGLang's schedulers by nothing. But the
    server is an actor, whose name has the number (``workers/rollout/sglang_rollout/async_sglang_server.py``, from
    0.6.1).
    """

    class _RlpatchStageReplica:
        """Which replica of verl this process starts, for the processes that inherit its environment."""

        def __init__(self) -> None:
            import contextlib
            import os
            import re
            import sys

            ray = sys.modules.get("ray")
            with contextlib.suppress(Exception):
                if ray and ray.is_initialized():
                    context = ray.get_runtime_context()
                    name = context.get_actor_name() if context.worker.mode == ray.WORKER_MODE else ""
                    number = re.match(r"sglang_server_(?:[a-z]+_)*(\d+)_", name or "")
                    if number:
                        os.environ["VERL_REPLICA_RANK"] = number[1]


class Schedule:
    """For micro-batches that Megatron's schedule takes out of an iterator.

    It never asks for one more than there are, so what ends the last one stands behind it.
    """

    def _rlpatch_stage_ended(self, units: Any) -> None:
        if hasattr(units, "close"):  # a generator of ours
            next(units, None)


class ScheduledLoop(Schedule, ForeignLoops):
    """MindSpeed-RL's ``BaseTrainingEngine``."""


class MegatronSchedule(Schedule):
    """verl, whose engine or worker makes that iterator itself.

    In a pipeline, and where the experts' communication overlaps with computing, forward and backward of several
    micro-batches are interleaved, so none of them has a beginning and an end (``megatron/core/pipeline_parallel``).
    """

    _rlpatch_stage_units: Any

    def _rlpatch_stage_scheduled(self, unit: str, units: Any, mpu: Any, chunks: Any, last: bool = False) -> Any:
        loop = self._rlpatch_stage_units(unit, units, last)
        if loop is units:
            return units
        overlaps = getattr(getattr(self, "tf_config", None), "overlap_moe_expert_parallel_comm", False)
        if max(mpu.get_pipeline_model_parallel_world_size(), len(chunks)) == 1 and (last or not overlaps):
            return iter(loop)
        probe = loop.call.__self__._rlpatch_stage_probe
        if probe and unit == probe.UNIT:
            instead = "--call can be had" if last else "--mini-batch or --call can be had"
            loop.call("leave", "Megatron's schedule interleaves the %ses, %s," % (unit, instead))
        return units


class HostedWorker(Calls):
    """MindSpeed-RL's ``VLLMInferEngine``: it sees each iteration of its vLLM worker first."""

    _rlpatch_stage_worker: Any

    def _rlpatch_stage_attend(self, worker: Any) -> None:
        import functools

        self._rlpatch_stage_worker = worker
        worker.execute_model = functools.partial(self._rlpatch_stage_iteration, worker.execute_model)

    def _rlpatch_stage_iteration(self, execute_model: Any, *args: Any, **options: Any) -> Any:
        self._rlpatch_stage("step", *args[:1])
        return execute_model(*args, **options)
