"""NeMo-RL: what its policy workers train on and compute, and for which model."""

from __future__ import annotations

from patches.probes.training import WithoutProfiler


class PolicyUpdate(WithoutProfiler):
    """``train`` of a policy worker (``models/policy/workers``): a training step is a call; a validation is none."""

    def role_of_call(self, evaluates: bool) -> str:
        """Return "actor", or "" for a validation."""
        return "" if evaluates else self.ROLES[0]

    def begin(self, evaluates: bool) -> None:
        """Begin the call and its first mini-batch."""
        self.enter(evaluates)
        self.start("mini-batch", None)

    def go_on(self, more: bool) -> None:
        """Begin the next mini-batch of this call of ``train`` if there is ``more``; otherwise end the call."""
        if more:
            self.start("mini-batch", None)
        else:
            self.leave()


class PolicyLogProbs(WithoutProfiler):
    """``get_logprobs`` of a policy worker, which has the reference's weights for a while."""

    is_reference = False  # in the call that comes next

    def reference(self) -> None:
        """Note that the worker takes the reference's weights for the call that comes next."""
        self.is_reference = True

    def role_of_call(self) -> str:
        """Return "ref" if ``reference`` was called since the last call of the stage, "actor" otherwise."""
        is_reference, self.is_reference = self.is_reference, False
        return "ref" if is_reference else "actor"
