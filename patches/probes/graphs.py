"""Recording the capture of a worker's graphs, which has no units to count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patches.probes.recorder import ReplicaRecorder
from patches.probes.sglang import TargetModel
from patches.probes.vllm import VllmWorker


class GraphCapture(ReplicaRecorder):
    """Records what runs between two lines around the call that captures, or compiles.

    There is nothing before it that could be a warm-up, so the profiler starts at once.
    """

    UNIT = "call"

    call: str

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.name = "%s_graph_capture_%s" % (self.host, self.name[len(self.host) + 1 :])
        self.first, self.end, self.unit = 0, 1, 0
        if not self.done:
            self.write_state("waiting")

    def enter(self, call: str) -> None:
        """Start recording before the call of ``call``, the name of the function that captures or compiles.

        A recording that is still open, of this worker or of another one in this process, is saved first. Start
        nothing if this worker is not to record, or has recorded already.
        """
        import sys

        self.close("the function did not return")
        running: Any = getattr(sys, "_rlpatch_recording", None)
        if running and running.prof and running.STAGE == self.STAGE:  # of an engine here that did not start
            running.dispatch(running, None, "close", ["the function did not return"])
        if self.done:
            return
        self.call, self.unit = call, 0
        self.open(0)
        self.unit = 1

    def leave(self) -> None:
        """Save the trace: the function that captures has returned."""
        self.close("complete")

    def exit(self) -> None:
        """Save what is still recorded when the process ends."""
        self.close("the process ends")

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """Report the traces of the capture, and ``why`` it ended."""
        self.finish("%s, recorded: %s" % (why, ", ".join(traces) or "no trace"), traces)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Print ``report``, headed by the name of the function, and end recording."""
        self.say("%s(): %s" % (self.call, report))
        super().finish(report, traces)

    def contents(self, batch: Any) -> Mapping[str, object]:  # noqa: ARG002
        """Return no step metadata: a capture has no batch."""
        return {}


class VllmGraphCapture(GraphCapture, VllmWorker):
    """The capture of a worker of vLLM or vllm-ascend."""


class SglangGraphCapture(GraphCapture, TargetModel):
    """The capture of a model runner of SGLang."""
