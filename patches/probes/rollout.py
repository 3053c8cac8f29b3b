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
    MISSED: CompileTime[str] = "not recorded: %s after %s decode steps; lower RLPATCH_WINDOW"
    RECORDED: CompileTime[str] = "%s, recorded %s of %s decode steps with %s uncounted iterations between them: "
    UNITS: CompileTime[str] = "decode steps"
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
        """Count the rollout and start its units at ``FIRST``.

        Read a trigger request, place the window if this rollout is the chosen one, and write the state file.
        """
        self.rollout, self.unit = self.rollout + 1, self.FIRST
        self.poll(self.rollout)
        if self.rollout == self.chosen:
            self.place_window()
        self.write_state("installed" if self.open_at is None else "waiting")

    def step(self, batch: Any) -> None:
        """Tell the recorder that an engine iteration begins, with ``batch`` as its input.

        Close a window whose last unit has ended, open one that starts here (or whose warm-up does), and go on
        inside an open one. Only iterations of the kinds in ``KINDS`` are counted; inside a window, others are
        marked as uncounted.
        """
        kind = self.observe(batch)
        is_counted = kind in self.KINDS
        if self.prof is not None and self.unit == self.end:
            self.close("complete")
        if self.prof is None:
            number = self.unit if is_counted else self.unit - 1  # the warm-up of decode step 1 is the prefill
            if kind is not None and self.open_at is not None and number >= self.open_at:
                self.open(number, batch)
            self.unit += is_counted
        elif is_counted:
            self.tick(batch)
        elif kind is not None and self.unit > self.first:
            self.pause()

    def check_state(self, kind: str | None, load: int, batch: Any) -> None:
        """Hook: called for each iteration of ``kind`` (None: no iteration) with ``load`` requests.

        May place a window after it.
        """

    def end_rollout(self, why: str) -> None:
        """Close the window because the rollout has ended; if the window was not reached, report that instead.

        ``why`` says what ended the rollout.
        """
        self.close(why)
        if self.open_at is not None:
            self.finish(self.MISSED % (why, self.unit - self.FIRST))
        self.forget()

    def forget(self) -> None:
        """Hook: no request of the rollout is left."""

    def exit(self) -> None:
        """End the rollout because the process ends.

        If the chosen rollout was not recorded, report that it never came.
        """
        self.end_rollout("the process ends")
        if not self.done:
            self.finish("not recorded: the process ends before rollout %s" % max(self.rollout + 1, self.chosen))

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """End the window with a report: how many units were recorded, the uncounted iterations and the ``traces``.

        ``why`` says why it ended.
        """
        values = why, max(self.unit - self.first, 0), self.end - self.first, self.uncounted
        report = self.RECORDED % values
        self.finish(report + (", ".join(traces) or "no trace"), traces)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Print ``report``, headed by the window and its rollout, which may be to come, and end the window."""
        self.say(self.REPORT % (self.window, max(self.rollout, self.chosen), report))
        super().finish(report, traces)
