"""Counting the micro-batches or mini-batches of a training stage, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import CountedUnits


class TrainingSteps(CountedUnits):
    """Counts the units of a stage in each of its calls; a call is a training step, or a part of one.

    ``enter`` and ``leave`` frame a call, ``start`` and ``stop`` a unit, ``loop`` tells that a loop over units has
    ended. The numbering of the units goes on from loop to loop within a call: an update runs one loop of
    micro-batches per mini-batch, and one of mini-batches per epoch. A class of the worker gives ``whose`` and
    ``framework``.
    """

    STAGE = "update-policy"
    UNIT = "micro-batch"
    ROLES: tuple[str, ...] = ("actor",)
    STEPS = "1"

    FIRST: CompileTime[int] = 0
    BY_STEP: CompileTime[bool] = True
    VERSIONED: CompileTime[bool] = False  # the worker is told of the steps of the log

    role: str
    step: int
    whose: Callable[..., str]
    follow_log: Callable[[str], None]
    resume_step: Callable[[], None]
    goes_on: bool  # the training step of the call before
    parameter_version: Any

    def __init__(self, worker: Any) -> None:
        import os

        import torch.distributed as dist

        in_a_world = dist.is_available() and dist.is_initialized()
        self.worker, self.rank = worker, dist.get_rank() if in_a_world else int(os.environ.get("RANK", 0))
        if self.EVERY_RANK:
            self.world = dist.get_world_size() if in_a_world else int(os.environ.get("WORLD_SIZE", 1))
        self.name = "rank%s" % self.rank
        super().__init__(worker)
        self.calls: dict[str, int] = {}
        if self.VERSIONED:
            self.reached: dict[str, int] = {}
        if self.LIVE and not self.done:
            self.show()

    def read_settings(self) -> None:
        steps = self.setting("RLPATCH_TRAINING_STEPS", self.STEPS, r"[1-9]\d*(,[1-9]\d*)*").split(",")
        if self.REPEAT == 1:
            self.steps = {int(step) for step in steps}
        else:
            self.steps = {int(step) + more for step in steps for more in range(self.REPEAT)}
        super().read_settings()

    def enter(self, *call: Any) -> None:
        import threading

        import torch.profiler

        self.close("the call before did not end")
        self.open_at = None
        rollout = getattr(torch.profiler, "_rlpatch_recording", None)
        if rollout and rollout.prof and rollout.STAGE == "rollout" and rollout.thread == threading.get_ident():
            rollout.interrupt("%s starts" % self.STAGE)
        role = self.whose(*call)
        if role not in self.ROLES:
            return
        if self.VERSIONED:
            first = not self.calls
            self.follow_log(role)
        step = self.calls[role] = self.calls.get(role, 0) + 1
        self.role, self.step, self.unit = role, step, 0
        stage = self.STAGE.replace("-", "_")
        self.name = "%s_%s_%s_step%s_rank%s_%s" % (self.host, stage, role, step, self.rank, self.pid)
        if self.METADATA:
            who = role, self.host, self.rank, self.pid
            self.watched = "%s/.rlpatch/%s_%s_%s_rank%s_%s.json" % (self.save_path, self.STAGE, *who)
        if self.VERSIONED and self.goes_on:
            self.resume_step()
        else:
            self.schedule_call(step)
        if self.VERSIONED and not self.ON_DEMAND and first and step > self.last():
            self.finish("not recorded: the first call is in training step %s already, as verl's log counts" % step)

    def schedule_call(self, step: int) -> None:
        if self.ON_DEMAND:
            self.note("installed")
            self.poll_request(step)  # if it refuses what lies there, that is how it stands
            requested = self.is_addressed and step in self.steps
        else:
            requested = step in self.steps
        if self.SEVERAL:
            self.next_windows, self.window = self.windows.split(",") if requested else [], self.windows
        if requested:
            self.schedule_window(0)
        if not self.ON_DEMAND:
            # The other role of this object, if it has two, may still have its last step before it.
            self.done = step > max(self.steps) and min(self.calls.values()) >= max(self.steps)
        if self.ON_DEMAND:
            if self.open_at is not None:
                self.note("waiting")
        elif self.METADATA and step <= max(self.steps):
            self.note("installed" if self.open_at is None else "waiting")

    def leave(self, why: str = "the call ends", last: bool = False) -> None:
        if self.SEVERAL:
            self.next_windows = []
        if self.prof is not None:
            self.close(why)
        elif self.open_at is not None:
            self.finish("not recorded: %s after %s units" % (why, self.unit))
        if last and self.calls:  # of a role that was chosen
            if self.ON_DEMAND:
                self.poll_request(self.step + 1)
            following = [step for step in sorted(self.steps) if step > self.step]
            if following and (self.is_addressed if self.ON_DEMAND else True):
                self.is_over = lambda: True  # type: ignore[method-assign]
                self.finish("not recorded: %s before training step %s" % (why, following[0]))

    def start(self, unit: str, batch: Any) -> None:
        if unit != self.UNIT or self.open_at is None:
            return
        if self.prof is not None:
            self.tick(batch)
        else:
            if self.unit >= self.open_at:
                self.open(self.unit, batch)
            self.unit += 1
        if self.LIVE:
            self.shown[0] = self.unit

    def stop(self, unit: str) -> None:
        if unit == self.UNIT and self.prof is not None and self.unit == self.end:
            self.close("complete")

    def loop(self, unit: str, last: bool, complete: bool) -> None:
        if not complete:
            self.close("the loop was left")
        elif last:
            self.leave()
        elif unit == self.UNIT and self.prof is not None and self.unit > self.first:
            self.pause()

    class Loop:
        """The units of a loop, ``call`` hears of their beginnings and ends."""

        def __init__(self, call: Any, unit: str, units: Any, last: bool) -> None:
            self.call, self.unit, self.ends = call, unit, last
            wrapped = isinstance(units, type(self)) and units.call == call  # by this stage, in the epoch before
            self.units: Any = units.units if wrapped else units

        def __len__(self) -> int:
            return len(self.units)

        def __iter__(self) -> Any:
            complete = False
            try:
                for one in self.units:
                    self.call("start", self.unit, one)
                    yield one
                    self.call("stop", self.unit)
                complete = True
            finally:  # also where the body of the loop raises, or breaks it
                self.call("loop", self.unit, self.ends, complete)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        what = "%s, %s, %s %s" % (self.STAGE, self.role, self.UNIT, self.window)
        if self.VERSIONED:
            version = self.parameter_version
            by = "calls counted" if version is None else "parameter version %s" % version
            self.say("%s of training step %s (%s): %s" % (what, self.step, by, report))
        else:
            self.say("%s of training step %s: %s" % (what, self.step, report))
        super().finish(report, found)

    def between(self) -> str:
        return "optimizer steps" if self.STAGE.startswith("update") else "pauses"

    def is_over(self) -> bool:
        if self.ON_DEMAND:
            return False
        return self.step >= self.last() and self.open_at is None

    def last(self) -> int:
        return max(self.steps)

    def contents(self, batch: Any) -> Mapping[str, object]:
        import contextlib

        held: dict[str, object] = {}
        with contextlib.suppress(Exception):  # a batch of another form, which stops nothing
            tokens = getattr(batch, "batch", batch)["input_ids"]
            held["sequences"] = tokens.size(0)
            held.update({"tokens": tokens.values().size(0)} if tokens.is_nested else {"padded": list(tokens.shape)})
        return held

    def lowest(self) -> int:
        return 0


class WholeCall(TrainingSteps):
    """A unit is the call itself, from its beginning to its end."""

    def enter(self, *call: Any) -> None:
        super().enter(*call)
        self.start("call", call[0] if call else None)

    def leave(self, why: str = "the call ends", last: bool = False) -> None:
        if not last:
            self.stop("call")
        super().leave(why, last)


class OneRole(TrainingSteps):
    """A class that works for one role only."""

    def whose(self) -> str:
        return self.ROLES[0]

    def framework(self) -> str:
        return ""


class DataParallelActor(TrainingSteps):
    """verl's ``DataParallelPPOActor`` (``workers/actor/dp_actor.py``): the reference has no optimizer.

    With LoRA the actor's object computes the reference, too, its adapters switched off
    (``workers/fsdp_workers.py``, from 0.4.0).
    """

    def whose(self) -> str:
        if self.worker.actor_optimizer is None:
            return "ref"
        modules = self.worker.actor_module.modules()
        without = any(getattr(module, "_disable_adapters", False) is True for module in modules)
        return "ref" if without else "actor"

    def framework(self) -> str:
        return ""


class MegatronActor(TrainingSteps):
    """verl's ``MegatronPPOActor`` (``workers/actor/megatron_actor.py``), which from 0.4.0 to 0.7.0 starts a
    profiler of its own around the loop.
    """

    def whose(self) -> str:
        return "actor"

    def framework(self) -> str:
        own = getattr(self.worker, "prof", None)
        return "verl's own torch profiler is switched on" if own is not None and own.check() else ""


class MegatronLogProb(TrainingSteps):
    """The same actor where it only goes forward: the reference has no optimizer.

    With LoRA (0.7.1) the actor's object computes the reference, too, and Megatron-Bridge switches its adapters off
    (``megatron/bridge/peft/adapter_wrapper.py``).
    """

    def whose(self) -> str:
        if self.worker.actor_optimizer is None:
            return "ref"
        modules = (module for chunk in self.worker.actor_module for module in chunk.modules())
        without = any(getattr(module, "_adapter_enabled", True) is False for module in modules)
        return "ref" if without else "actor"

    def framework(self) -> str:
        return ""


class Trainer(TrainingSteps):
    """verl's ``TrainingWorker`` (``workers/engine_workers.py``, from 0.7.0).

    The reference is an engine that only goes forward; with LoRA the actor's engine with ``no_lora_adapter`` in the
    batch (from 0.7.1).

    From 0.8.0 on ``update_weights`` says which training step it ends: the next one of the log is one more. An
    asynchronous trainer calls a stage several times in between: then the numbers of its units go on, and a window
    that reaches over several calls has a trace of each.
    """

    parameter_version = None  # of the weights that the rollout has, where this process knows of it

    def follow_log(self, role: str) -> None:
        version = self.parameter_version = getattr(self.worker, "_rlpatch_parameter_version", None)
        if self.calls:
            self.reached[self.role] = self.unit
        self.goes_on = version is not None and self.calls.get(role) == version + 1
        if version is not None:
            self.calls[role] = version

    def resume_step(self) -> None:  # a request is looked for where a step begins
        self.unit = self.reached[self.role]
        if self.step in self.steps and (self.is_addressed if self.ON_DEMAND else True):
            if self.SEVERAL:
                self.next_windows, self.window = self.windows.split(","), self.windows
            self.schedule_window(0)
            if self.METADATA and self.open_at is not None:
                self.note("waiting")

    def schedule_window(self, origin: int) -> None:
        super().schedule_window(origin)
        if self.VERSIONED:
            if self.unit < self.end:
                self.first = max(self.first, self.unit)
            elif self.SEVERAL and self.next_windows:
                self.schedule_window(origin)
            else:
                self.open_at = None

    def whose(self, data: Any) -> str:
        if self.worker.config.model_type == "value_model":
            return "critic"
        bare = data.get("no_lora_adapter", None)
        return "ref" if self.worker.engine_config.forward_only or getattr(bare, "data", bare) else "actor"

    def framework(self) -> str:
        import sys

        # Shared by all workers of the process, and warming up it is seen nowhere else (from 0.9.0).
        profiler = getattr(sys.modules.get("verl.utils.profiler.torch_profile"), "Profiler", None)
        running = getattr(profiler, "_active_prof", None) is not None
        return "verl's own torch profiler is running" if running else ""


class WorkerUpdate(Trainer):
    """An update: the mini-batches of a loop, or one that comes by itself.

    Supervised fine-tuning calls ``train_batch`` in each training step. Tinker's worker (from 0.9.0) goes forward
    and backward as often as its client likes, until the optimizer steps.
    """

    looped = False  # the mini-batches come out of train_mini_batch
    begun = False

    def enter(self, *call: Any) -> None:
        super().enter(*call)
        self.looped = True

    def begin_batch(self, data: Any, goes_on: bool = False) -> None:
        if not (self.looped or (self.begun and goes_on)):
            self.enter(data)
            self.looped, self.begun = False, True
            self.start("mini-batch", data)

    def end_batch(self) -> None:
        if not self.looped:
            self.begun = False
            self.stop("mini-batch")
            self.leave()

    def loop(self, unit: str, last: bool, complete: bool) -> None:
        super().loop(unit, last, complete)
        self.looped = self.looped and unit != "mini-batch"
