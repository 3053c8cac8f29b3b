"""AReaL: whose batches an actor or a critic computes, and which training step of its log they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.training import TrainingSteps


class VersionedSteps(TrainingSteps):
    """An actor or a critic (``trainer/ppo/*.py``), whose engine is at the version that its last update made.

    The first version is 0, and the log counts its steps from 1. A reference, which has no optimizer, stays at 0:
    there, and where nobody sets versions, calls are counted.
    """

    def role_of_call(self) -> str:
        """Return the role for which the worker computes: "actor", "ref" or "critic".

        An actor without an optimizer is a "ref".
        """
        if self.ROLES[0] == "critic":
            return "critic"
        return "ref" if self.worker.config.optimizer is None else "actor"

    def framework_conflict(self) -> str:
        """Return "AReaL's own torch profiler is running" if it keeps this recorder from recording; "" otherwise."""
        import sys

        tracer = sys.modules.get("areal.utils.perf_tracer")
        running = tracer and tracer._profiler_active.get(False)
        return "AReaL's own torch profiler is running" if running else ""

    def begin_call(self, role: str) -> None:
        """Begin a call of ``role``; its training step is the version of the engine's weights plus 1.

        If no newer version was set since the last call, calls are counted.
        """
        self.calls[role] = max(self.worker.engine.get_version(), self.calls.get(role, 0))
        super().begin_call(role)

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return the numbers of "sequences" and "tokens" in a packed micro-batch.

        Any other batch is described by its "input_ids", or by {} if it has none.
        """
        import contextlib

        contents: dict[str, object] = {}
        with contextlib.suppress(Exception):  # a batch of another form, or several of them
            packed = batch.orig_mb
            contents.update(sequences=len(packed["cu_seqlens"]) - 1, tokens=packed["input_ids"].numel())
        return contents or super().contents(batch)
