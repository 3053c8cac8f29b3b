"""Recording the capture of a worker's graphs, which has no units to count."""

from __future__ import annotations

from typing import Any

from patches.probes.rollout import VllmWorker
from patches.probes.settled import Settled


class GraphCapture(VllmWorker):
    """Records what runs between two lines around the call that captures, or compiles.

    There is nothing before it that could be a warm-up, so the profiler starts at once.
    """

    WINDOWED: Settled[bool] = False

    def __init__(self, worker: Any) -> None:
        self.place(worker)
        self.identify()
        told = self.replica = self.told()
        where = "%sdp%s_rank%s" % (told and "replica%s_" % told, self.dp, self.rank)
        self.name = "%s_graph_capture_%s_%s" % (self.host, where, self.pid)
        self.configure()
        self.choose()
        self.heed(told)
        if self.REPEAT > 1:
            self.captures = 0
        if self.FACTS:
            self.watched = "%s/.rlpatch/%s_%s.json" % (self.save_path, self.STAGE, self.name)
            if not self.done:
                self.note("waiting")

    def enter(self, call: str) -> None:
        self.close("it did not return")
        before = self.other()
        if before and before.prof and before.STAGE == self.STAGE:
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

    def title(self, report: str) -> str:
        return "%s(): %s" % (self.call, report)

    def finished(self) -> bool:
        return self.REPEAT == 1 or self.captures >= self.REPEAT

    def between(self) -> str:
        return ""

    def expect(self) -> None:
        pass

    def over(self) -> bool:
        return self.done

    def begin(self, batch: Any) -> None:  # noqa: ARG002
        self.units.append(self.begun())

    def framework(self) -> str:
        return ""
