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

    KINDS: CompileTime[tuple[str, ...]] = ("decode",)  # of iterations that are counted
    FIRST: CompileTime[int] = 1
    LOWEST: CompileTime[int] = 1

    observe: Callable[[Any], str | None]  # the kind of an iteration, None for what is none

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.rollout = -1
        self.forget()

    def read_settings(self) -> None:
        self.chosen_rollout = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))
        super().read_settings()

    def begin_rollout(self) -> None:
        self.rollout += 1
        self.unit = self.FIRST
        self.open_at = None
        self.note("installed")
        self.poll(self.rollout)
        if self.rollout == self.chosen_rollout:
            self.place_window()
            self.note("waiting")

    def step(self, batch: Any) -> None:
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
        if self.prof is not None:
            self.close(why)
        elif self.open_at is not None:
            values = why, self.unit - self.FIRST
            self.finish("not recorded: %s after %s units; try another RLPATCH_WINDOW" % values)
        self.forget()

    def forget(self) -> None:
        """Hook: no request of the rollout is left."""

    def exit(self) -> None:
        self.end_rollout("the process ends")
        if not self.done:
            following = max(self.rollout + 1, self.chosen_rollout)
            self.finish("not recorded: the process ends before rollout %s" % following)

    def yield_to(self, start: bool) -> None:
        self.foreign = "the framework's own profiler was started and not stopped" if start else ""
        if start:
            self.close("the framework's own profiler starts")

    def measure(self, count: int) -> str:
        of = "" if self.end >= 10**9 else "of %s " % (self.end - self.first)
        return " %s %sunits with %s uncounted iterations between them" % (count, of, self.uncounted)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        self.say("%s %s of rollout %s: %s" % (self.UNIT, self.window, self.rollout, report))
        super().finish(report, traces)
