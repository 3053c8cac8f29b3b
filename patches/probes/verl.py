"""verl's workers: whose call a stage is, which training step of the log it belongs to, and Megatron's schedule."""

from __future__ import annotations

from typing import Any

from patches.probes.members import Schedule
from patches.probes.recorder import MovedWindow
from patches.probes.training import TrainingSteps, WithoutProfiler


class DataParallelActor(WithoutProfiler):
    """verl's ``DataParallelPPOActor`` (``workers/actor/dp_actor.py``): the reference has no optimizer.

    With LoRA the actor's object computes the reference, too, its adapters switched off
    (``workers/fsdp_workers.py``, from 0.4.0).
    """

    def role_of_call(self) -> str:
        """Return "ref" if the worker has no optimizer or its LoRA adapters are off, "actor" otherwise."""
        if self.worker.actor_optimizer is None:
            return "ref"
        modules = self.worker.actor_module.modules()
        without = any(getattr(module, "_disable_adapters", False) is True for module in modules)
        return "ref" if without else "actor"


class MegatronActor(TrainingSteps):
    """verl's ``MegatronPPOActor`` (``workers/actor/megatron_actor.py``), which from 0.4.0 to 0.7.0 starts a
    profiler of its own around the loop.
    """

    def role_of_call(self) -> str:
        """Return "actor", whose update this is."""
        return "actor"

    def framework_conflict(self) -> str:
        """Return "verl's own torch profiler is switched on" if that keeps this recorder from recording; else ""."""
        profiler = getattr(self.worker, "prof", None)
        return "verl's own torch profiler is switched on" if profiler is not None and profiler.check() else ""


class MegatronLogProb(WithoutProfiler):
    """The same actor where it only goes forward: the reference has no optimizer.

    With LoRA (0.7.1) the actor's object computes the reference, too, and Megatron-Bridge switches its adapters off
    (``megatron/bridge/peft/adapter_wrapper.py``).
    """

    def role_of_call(self) -> str:
        """Return "ref" if the worker has no optimizer or its LoRA adapters are off, "actor" otherwise."""
        if self.worker.actor_optimizer is None:
            return "ref"
        modules = (module for chunk in self.worker.actor_module for module in chunk.modules())
        without = any(getattr(module, "_adapter_enabled", True) is False for module in modules)
        return "ref" if without else "actor"


class Trainer(TrainingSteps):
    """verl's ``TrainingWorker`` (``workers/engine_workers.py``, from 0.7.0).

    The reference is an engine that only goes forward; with LoRA the actor's engine with ``no_lora_adapter`` in the
    batch (from 0.7.1).
    """

    parameter_version: Any = None  # of the weights that the rollout has, where this process knows of it

    def role_of_call(self, data: Any) -> str:
        """Return the role for which the worker computes the batch ``data``: "critic", "ref" or "actor".

        It is "ref" for an engine that only goes forward, or if ``data`` asks for the model without its LoRA
        adapter.
        """
        if self.worker.config.model_type == "value_model":
            return "critic"
        bare = data.get("no_lora_adapter", None)
        return "ref" if self.worker.engine_config.forward_only or getattr(bare, "data", bare) else "actor"

    def framework_conflict(self) -> str:
        """Return "verl's own torch profiler is running" if it keeps this recorder from recording; "" otherwise."""
        import sys

        # Shared by all workers of the process, and warming up it is seen nowhere else (from 0.9.0).
        profiler = getattr(sys.modules.get("verl.utils.profiler.torch_profile"), "Profiler", None)
        running = getattr(profiler, "_active_prof", None) is not None
        return "verl's own torch profiler is running" if running else ""


class LoggedSteps(MovedWindow, Trainer):
    """The same worker from 0.8.0 on, where ``update_weights`` says which training step of the log it ends.

    The next one is one more. An asynchronous trainer calls a stage several times in between: then the numbers of
    its units go on, and a window that reaches over several calls has a trace of each.
    """

    goes_on = False  # the training step of the call before

    reached: dict[str, int]  # the units of a role's last call

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.reached = {}

    def begin_call(self, role: str) -> None:
        """Begin a call of ``role``; its training step is the version of the worker's weights plus 1.

        Without a version, calls are counted. A call in the same training step as the one before goes on with the
        numbers of its units.
        """
        version = self.parameter_version = getattr(self.worker, "_rlpatch_parameter_version", None)
        if self.step:
            self.reached[self.role] = self.unit
        self.goes_on = version is not None and self.calls.get(role) == version + 1
        if version is not None:
            self.calls[role] = version
        self.counted_by = " (calls counted)" if version is None else " (parameter version %s)" % version
        super().begin_call(role)

    def begin_step(self) -> None:
        """Begin a step; if ``goes_on``, go on in it: units count from where the role's last call ended."""
        if self.goes_on:  # a request is looked for where a step begins
            self.unit = self.reached[self.role]
            if self.is_chosen():
                self.place_window()
            if self.open_at is not None:
                self.write_state("waiting")
        else:
            super().begin_step()

    def place_window(self) -> None:
        """Set where the recording window begins and opens, at the present unit at the earliest.

        Unit numbers may go on from the call before. ``open_at`` becomes None if the window is over by now.
        """
        super().place_window()
        if self.unit < self.end:
            self.first = max(self.first, self.unit)
        else:
            self.open_at = None


class WorkerUpdate(Trainer):
    """An update: the mini-batches of a loop, or one that comes by itself.

    Supervised fine-tuning calls ``train_batch`` in each training step. Tinker's worker (from 0.9.0) goes forward
    and backward as often as its client likes, until the optimizer steps.
    """

    looped = False  # the mini-batches come out of train_mini_batch
    begun = False

    def enter(self, *call: Any) -> None:
        """Begin an update whose mini-batches come out of a loop."""
        super().enter(*call)
        self.looped = True

    def begin_batch(self, data: Any, goes_on: bool = False) -> None:
        """Begin a call and its only mini-batch, with the input ``data``; do nothing in a loop over mini-batches.

        With ``goes_on``, do nothing, either, if a mini-batch has begun: ``data`` belongs to it.
        """
        if not (self.looped or (self.begun and goes_on)):
            self.enter(data)
            self.looped, self.begun = False, True
            self.start("mini-batch", data)

    def end_batch(self) -> None:
        """End the mini-batch that ``begin_batch`` began, and its call; do nothing in a loop over mini-batches."""
        if not self.looped:
            self.begun = False
            self.stop("mini-batch")
            self.leave()

    def end_loop(self, unit: str, ends_call: bool, complete: bool) -> None:
        """End a loop over units as the base class does.

        After a loop over mini-batches, ``begin_batch`` begins calls again.
        """
        super().end_loop(unit, ends_call, complete)
        self.looped = self.looped and unit != "mini-batch"


class MegatronSchedule(Schedule):
    """verl, whose engine or worker makes that iterator itself.

    In a pipeline, and where the experts' communication overlaps with computing, forward and backward of several
    micro-batches are interleaved, so none of them has a beginning and an end (``megatron/core/pipeline_parallel``).
    """

    _rlpatch_stage_units: Any

    def _rlpatch_stage_scheduled(self, unit: str, units: Any, mpu: Any, chunks: Any, last: bool = False) -> Any:
        """Return an iterator that counts ``units``; ``units`` if nothing counts them or Megatron interleaves them.

        ``unit`` names them, ``mpu`` is Megatron's ``parallel_state``, ``chunks`` are those of the model. With
        ``last`` the call of the stage ends with them. Where they interleave and the window counts them, end the
        call with a report.
        """
        loop = self._rlpatch_stage_units(unit, units, last)
        if loop is units:
            return units
        overlaps = getattr(getattr(self, "tf_config", None), "overlap_moe_expert_parallel_comm", False)
        if max(mpu.get_pipeline_model_parallel_world_size(), len(chunks)) == 1 and (last or not overlaps):
            return iter(loop)
        probe = loop.call.__self__._rlpatch_stage_probe
        if probe and unit == probe.UNIT:
            instead = "use --call" if last else "use --mini-batch or --call"
            loop.call("leave", "Megatron's schedule interleaves the %ses (%s)" % (unit, instead))
        return units
