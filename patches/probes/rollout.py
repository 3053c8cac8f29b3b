"""Counting the iterations of a rollout, whatever the engine: where they begin to be recorded, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import CountedUnits, ReplicaRecorder


class RolloutUnits(ReplicaRecorder, CountedUnits):
    """Counts the iterations of an engine, rollout by rollout.

    Every step comes from the head of an engine iteration, which ends the iteration before it: in all releases the
    forward and the sampling of an iteration lie between two heads. A class of the engine gives ``observe``.
    """

    UNIT = "decode"
    ROLLOUT = "0"

    REPORT: CompileTime[str] = "decode %s of rollout %s: %s"
    KINDS: CompileTime[tuple[str, ...]] = ("decode",)  # of iterations that are counted
    FIRST: CompileTime[int] = 1  # the number of the first unit
    LOWEST: CompileTime[int] = 1

    chosen: int  # the number of a rollout
    observe: Callable[[Any], str | None]  # the kind of an iteration, None for what is none

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.rollout, self.unit = -1, self.FIRST
        self.forget()

    def read_settings(self) -> None:
        """Read the number of the chosen rollout, then the window."""
        self.chosen = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))
        super().read_settings()

    def begin_rollout(self) -> None:
        """Number the rollout, look for a request, and place the window if this rollout is chosen."""
        self.rollout, self.unit = self.rollout + 1, self.FIRST
        self.poll(self.rollout)
        if self.rollout == self.chosen:
            self.place_window()
        self.note("installed" if self.open_at is None else "waiting")

    def step(self, batch: Any) -> None:
        """Count an iteration that begins: it opens, continues, pauses or closes the window."""
        kind = self.observe(batch)
        counted = kind in self.KINDS
        if self.prof is not None and self.unit == self.end:
            self.close("complete")
        if self.prof is None:
            at = self.unit if counted else self.unit - 1  # the warm-up of decode step 1 is the prefill
            if kind is not None and self.open_at is not None and at >= self.open_at:
                self.open(at, batch)
            self.unit += counted
        elif counted:
            self.tick(batch)
        elif kind is not None and self.unit > self.first:
            self.pause()

    def wait_for(self, kind: str | None, load: int, batch: Any) -> None:
        """Hook: an iteration of ``load`` requests is observed, behind which a window may be placed."""

    def end_rollout(self, why: str) -> None:
        """Close the window, or report that it was not reached, because the rollout has ended."""
        self.close(why)
        if self.open_at is not None:
            self.finish("not recorded: %s after %s units; adjust RLPATCH_WINDOW" % (why, self.unit - self.FIRST))
        self.forget()

    def forget(self) -> None:
        """Hook: no request of the rollout is left."""

    def exit(self) -> None:
        """End the rollout when the process ends, and report a chosen rollout that never came."""
        self.end_rollout("the process ends")
        if not self.done:
            self.finish("not recorded: the process ends before rollout %s" % max(self.rollout + 1, self.chosen))

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """Report how many units of the window were recorded, and ``why`` it ended."""
        values = why, max(self.unit - self.first, 0), self.end - self.first, self.uncounted
        report = "%s, recorded %s of %s units with %s uncounted iterations between them: " % values
        self.finish(report + (", ".join(traces) or "no trace"), traces)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Say on the console what became of the window of this rollout, and end it."""
        self.say(self.REPORT % (self.window, self.rollout, report))
        super().finish(report, traces)
