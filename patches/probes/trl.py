"""TRL: which training step of its log a trainer is at, and what its micro-batches are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.members import Calls
from patches.probes.training import TrainingSteps, WithoutProfiler


class TrainerSteps(TrainingSteps):
    """A trainer of TRL (``trl/trainer/*_trainer.py``), whose loop is that of transformers' ``Trainer``.

    A training step is what its log counts: the micro-batches up to an optimizer step, which are one mini-batch.
    """

    def role_of_call(self, role: str) -> str:
        """Return the role that the trainer has named."""
        return role

    def enter_step(self, role: str) -> bool:  # docstring goes in
        """Begin the call of ``role`` in training step ``global_step`` + 1; return False if it was begun before."""
        step: int = self.worker.state.global_step + 1  # of those that a checkpoint has, too
        if self.calls.get(role) == step:
            return False
        self.calls[role] = step - 1
        self.enter(role)
        return True


class TrainerUpdate(TrainerSteps):
    """The update: forward and backward of each micro-batch once it is there, and the optimizer step of them all."""

    def framework_conflict(self) -> str:
        """Return why mini-batches cannot be counted: TRL would generate within a mini-batch.

        "" if they can, or if the window counts something else.
        """
        args = self.worker.args
        turns = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
        if self.UNIT == "mini-batch" and turns < args.gradient_accumulation_steps:
            return "with steps_per_generation below gradient_accumulation_steps, TRL generates within a mini-batch"
        return ""

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return "sequences" and "padded" shape [sequences, tokens] of a batch, prompt and completion together.

        Any other batch is described by its "input_ids", or by {} if it has none.
        """
        import contextlib

        contents = dict(super().contents(batch))
        with contextlib.suppress(Exception):  # a batch without a rollout
            rows, prompt = batch["prompt_ids"].shape
            contents.update(sequences=rows, padded=[rows, prompt + batch["completion_ids"].size(1)])
        return contents

    def prepared(self, batch: Any = None, training: bool = True) -> None:
        """Begin the micro-batch of ``batch``; the first one of a training step begins that and its mini-batch, too.

        Do nothing if ``training`` is false: then it belongs to an evaluation.
        """
        if not training:  # an evaluation, which prepares its batches in the same place
            return
        if self.enter_step("actor"):
            self.start("mini-batch", None)  # the batch is that of its first part
        self.start("micro-batch", batch)

    def computed(self) -> None:
        """End a micro-batch after its backward.

        If micro-batches are counted, the last one before the optimizer's step ends the training step, too. After
        others in the window, what follows is marked as uncounted.
        """
        self.stop("micro-batch")
        if self.UNIT == "micro-batch":
            if self.worker.accelerator.sync_gradients:  # the last one before the optimizer steps
                self.leave("the training step ends")
            elif self.prof is not None and self.unit > self.first:
                self.pause()

    def updated(self) -> None:
        """End the mini-batch and the training step: the optimizer has stepped."""
        self.stop("mini-batch")
        self.leave("the training step ends")


class LogProbs(WithoutProfiler, TrainerSteps):
    """The log-probabilities of a rollout, by the model that is trained or by the reference, in parts.

    The loss calls the same method, with gradients, and an evaluation does so, too.
    """

    def role_of(self, model: Any) -> str:
        """Return "ref" if ``model`` is the reference, or the trained model with its adapter off or set to "ref".

        Else "actor".
        """
        trained = self.worker.model
        if model is self.worker.ref_model or getattr(trained, "active_adapter", "") == "ref":
            return "ref"
        without = any(getattr(module, "_disable_adapters", False) is True for module in trained.modules())
        return "ref" if without else "actor"

    def exit(self) -> None:
        """End a recorded call that is still open because the process exits.

        If no log-probabilities were computed at all, report that nothing was recorded.
        """
        if self.step:
            super().exit()
        else:  # as that of the reference where beta is 0
            self.role, self.step = self.ROLES[0], min(self.steps)
            self.finish("not recorded: the process ends, and %s computed no log-probs" % " and ".join(self.ROLES))

    def parts(self, model: Any) -> None:
        """Begin a call that computes log-probabilities by ``model``, and its first part, a micro-batch.

        Do nothing if a loss or an evaluation computes them, or for a second rollout of the same training step.
        """
        import torch

        # What a second rollout of the same training step computes is not counted.
        if not torch.is_grad_enabled() and self.worker.model.training and self.enter_step(self.role_of(model)):
            self.start("micro-batch", None)

    def go_on(self, more: bool) -> None:
        """Begin the next micro-batch of a log-prob computation if there is ``more``, otherwise end the call."""
        if more:
            self.start("micro-batch", None)
        else:
            self.leave()


class TransformersLoop(Calls):
    """TRL: what the loop of transformers' ``Trainer`` calls between the methods that its trainers have themselves.

    It counts the operations of each micro-batch after its backward, and logs after each optimizer step.
    """

    def floating_point_ops(self, inputs: Any) -> Any:
        """Tell the recorder that a micro-batch was computed."""
        self._rlpatch_stage("computed")
        return super().floating_point_ops(inputs)  # type: ignore[misc]

    def _maybe_log_save_evaluate(self, *args: Any, **options: Any) -> None:
        """Tell the recorder that the optimizer has stepped."""
        self._rlpatch_stage("updated")
        super()._maybe_log_save_evaluate(*args, **options)  # type: ignore[misc]
