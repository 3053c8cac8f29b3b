"""Recording the capture of a worker's graphs, which has no units to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.rollout import VllmWorker


class GraphCapture(VllmWorker):
    """Records what runs between two lines around the call that captures, or compiles.

    There is nothing before it that could be a warm-up, so the profiler starts at once.
    """

    WINDOWED: CompileTime[bool] = False

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        if self.REPEAT > 1:
            self.captures = 0
        if self.METADATA and not self.done:
            self.note("waiting")

    def enter(self, call: str) -> None:
        self.close("it did not return")
        import torch.profiler

        before = getattr(torch.profiler, "_rlpatch_recording", None)
        if before and before.prof and before.STAGE == self.STAGE:
            before.interrupt("it did not return")  # in an engine of this process, which did not start
        if self.done:
            return
        if self.REPEAT > 1:
            self.captures += 1
        self.call, self.unit = call, 0
        self.open(0)
        self.unit = 1

    def leave(self, why: str = "complete", last: bool = False) -> None:  # noqa: ARG002
        self.close(why)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        self.say("%s(): %s" % (self.call, report))
        super().finish(report, found)

    def is_finished(self) -> bool:
        return self.captures >= self.REPEAT

    def contents(self, batch: Any) -> Mapping[str, object]:  # noqa: ARG002
        return {}
