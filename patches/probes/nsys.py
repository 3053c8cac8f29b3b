"""Windows for Nsight Systems, which records from outside: where it starts and stops, and the ranges that it shows.

``nsys profile --capture-range=cudaProfilerApi`` writes its report when a window has ended; the run saves nothing.
"""

from __future__ import annotations

from typing import Any

from patches.probes.facts import StepMetadata
from patches.probes.ranges import Recorded
from patches.probes.recorder import WindowTool
from patches.probes.weight_sync import WeightSync


class NsysCapture(WindowTool):
    """Starts and stops the capture of the nsys that started this process; ``prof`` is the name of the window."""

    depth: int  # of the ranges that are open

    def open_window(self, unit: int) -> None:  # noqa: ARG002
        """Wait for the GPU, start the capture, and open the NVTX range "rlpatch:STAGE NUMBER NAME" for the window.

        NUMBER is that of the rollout, the training step or the weight sync (0: of none), NAME that of the recording
        with the time in milliseconds since 1970. NAME is also stored as ``prof``.
        """
        import time

        import torch

        self.prof, self.depth = "%s_%d" % (self.name, time.time_ns() // 10**6), 0
        self.synchronize()
        torch.cuda.profiler.start()
        turn = getattr(self, "rollout", getattr(self, "step", getattr(self, "sync", 0)))
        self.push("rlpatch:%s %s %s" % (self.STAGE, turn, self.prof))

    def push(self, name: str) -> None:
        """Open an NVTX range ``name`` in this thread, inside those that are open."""
        import torch

        torch.cuda.nvtx.range_push(name)
        self.depth += 1

    def pop(self, depth: int) -> None:  # docstring goes in
        """Close the innermost NVTX ranges until only ``depth`` are open."""
        import torch

        while self.depth > depth:
            self.depth -= 1
            torch.cuda.nvtx.range_pop()

    def close_window(self) -> list[str]:
        """Close all ranges, stop the capture, and return ["SAVE_PATH/NAME.nsys"], a label: no such file exists."""
        import torch

        name, self.prof = self.prof, None
        try:
            self.pop(0)
        finally:
            torch.cuda.profiler.stop()
        return ["%s/%s.nsys" % (self.save_path, name)]

    def synchronize(self) -> None:
        """Wait until the current GPU has done all queued work; do nothing if this process uses no GPU."""
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def conflict(self) -> str:
        """Return why nothing can be recorded if nsys did not start this process; "" otherwise."""
        import os

        started = os.environ.get("NSYS_PROFILING_SESSION_ID")
        return "" if started else "nsys did not start this process (NSYS_PROFILING_SESSION_ID is not set)"


class NsysMetadata(StepMetadata, NsysCapture):
    """Puts what a unit holds into the name of its range, too: ``decode 30, 64 requests, 64 tokens``."""

    UNIT: str

    def begin_unit(self, number: int, batch: Any) -> None:
        """Close the range of the unit before, and open one for unit ``number``, whose input is ``batch``.

        Its name has the kind of unit, the number and what the batch holds, such as "decode 30, 64 requests, 64
        tokens". In the warm-up it begins with "warm-up".
        """
        super().begin_unit(number, batch)
        contents = self.units[-1] if number >= self.first else self.contents(batch)
        counts = ("requests", "tokens", "drafts", "longest", "context", "sequences")
        name = ", ".join("%s %s" % (contents[count], count) for count in counts if count in contents)
        unit = "%s%s %s" % ("" if number >= self.first else "warm-up ", self.UNIT.rstrip("s"), number)
        self.pop(1)
        self.push("%s, %s" % (unit, name) if name else unit)

    def end_unit(self) -> None:
        """Close the unit's range; if the window goes on, open a range "rlpatch:uncounted"."""
        super().end_unit()
        self.pop(1)
        if self.unit < self.end:
            self.push("rlpatch:uncounted")


class NvtxRanges(Recorded):
    """Ranges of NVTX, which are of a thread; domains are for tools that know them."""

    def begin_range(self, name: str, *domain: str) -> Any:  # noqa: ARG002
        """Open a range of this thread, and return its name as its handle; ``domain`` is ignored."""
        import torch

        torch.cuda.nvtx.range_push(name)
        return name

    def end_range(self, handle: Any, *domain: str) -> None:  # noqa: ARG002
        """Close the innermost range of this thread."""
        import torch

        torch.cuda.nvtx.range_pop()

    def domain_obstacle(self) -> str:
        """Return "": nothing is lost, since no range here needs a domain."""
        return ""


class NvtxPhases(WeightSync):
    """The phases of a weight sync as ranges of the process, for one may begin before another has ended."""

    class Range:
        """Lasts until the last name of it is gone."""

        leave_call: Any = None

        def __init__(self, name: str) -> None:
            self.mark: Any = None
            if name:
                import torch

                self.mark = torch.cuda.nvtx.range_start("rlpatch:%s" % name)

        def __del__(self) -> None:
            if self.mark is not None:
                import torch

                torch.cuda.nvtx.range_end(self.mark)
            if self.leave_call:
                self.leave_call()
