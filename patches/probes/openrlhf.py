"""OpenRLHF: whose batches a worker computes, and after which of them the optimizer steps."""

from __future__ import annotations

from typing import Any

from patches.probes.training import OneRole, WithoutProfiler


class ReplayUpdate(OneRole):
    """The trainers of actor and critic (``trainer/ray/ppo_*.py``): a training step is one call of ``ppo_train``.

    It takes micro-batches out of the replay buffer. The optimizer steps after ``accumulated_gradient`` of them, or
    where a dynamic batch says so: up to there they are a mini-batch.
    """

    taken: int

    def begins_mini_batch(self) -> bool:  # docstring goes in
        """Tell whether the next micro-batch is the first one after an optimizer step."""
        steps = getattr(self.worker.replay_buffer, "dynamic_optimizer_step", None)
        if steps:  # of one epoch
            return bool(steps[self.taken % len(steps) - 1])
        accumulated: int = max(self.worker.strategy.accumulated_gradient, 1)
        return self.taken % accumulated == 0

    def enter(self, *call: Any) -> None:
        """Begin a training step, of which no micro-batch was taken yet."""
        self.taken = 0
        super().enter(*call)

    def start(self, unit: str, batch: Any) -> None:
        """Begin a unit ("micro-batch" or "mini-batch"); the first micro-batch of a mini-batch begins that, too."""
        if unit == "micro-batch" and self.begins_mini_batch():
            self.start("mini-batch", None)  # the batch is that of its first part
        super().start(unit, batch)

    def stop(self, unit: str) -> None:
        """End a unit ("micro-batch" or "mini-batch").

        The last micro-batch before the optimizer's step ends the mini-batch, too.
        """
        super().stop(unit)
        if unit == "micro-batch":
            self.taken += 1
            if self.begins_mini_batch():
                self.stop("mini-batch")


class Batches(WithoutProfiler):
    """A worker (``trainer/ray/launcher.py``) that runs one of its methods over the parts of a rollout."""

    def role_of_call(self, method: str) -> str:
        """Return "actor", "ref" or "critic" by the class of the worker if ``method`` is "forward"; "" otherwise."""
        name = type(self.worker).__name__ if method == "forward" else ""
        return {"PolicyModelActor": "actor", "ReferenceModelActor": "ref", "CriticModelActor": "critic"}.get(
            name, ""
        )
