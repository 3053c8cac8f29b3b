"""Recording the capture of a worker's graphs, which has no units to count."""

from __future__ import annotations

from typing import Any

from patches.probes.recorder import Settled
from patches.probes.rollout import VllmWorker


class GraphCapture(VllmWorker):
    """Records what runs between two lines around the call that captures, or compiles.

    There is nothing before it that could be a warm-up, so the profiler starts at once.
    """

    WINDOWED: Settled[bool] = False

    def __init__(self, worker: Any) -> None:
        replica, rank = self.place(worker)
        self.configure(rank)
        if not self.done:
            self.name = "%s_graph_capture_dp%s_rank%s_%s" % (self.host, replica, rank, self.pid)
            if self.REPEAT > 1:
                self.captures = 0

    def enter(self, call: str) -> None:
        self.close("it did not return")
        before = self.other()
        if before and before.STAGE == self.STAGE:
            before.interrupt("it did not return")  # in an engine of this process, which did not start
        if self.done:
            return
        if self.REPEAT > 1:
            self.captures += 1
        self.call, self.unit = call, 0
        self.open(0)
        self.unit = 1

    def leave(self) -> None:
        self.close("complete")

    def prefix(self) -> str:
        return "RLPATCH_GRAPH_CAPTURE_"

    def title(self) -> str:
        return "%s()" % self.call

    def finished(self) -> bool:
        return self.REPEAT == 1 or self.captures >= self.REPEAT

    def between(self) -> str:
        return ""

    def framework(self) -> str:
        return ""
