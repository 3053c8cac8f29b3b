"""Several windows, and the same window several times: layers that go in where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.graphs import GraphCapture
from patches.probes.recorder import MovedWindow, Recorder
from patches.probes.rollout import RolloutUnits
from patches.probes.training import TrainingSteps
from patches.probes.weight_sync import WeightSync


class SeveralWindows(MovedWindow):
    """Windows one after the other; ``next_windows`` are those that were not opened yet."""

    windows = ""
    next_windows: Sequence[str] = ()

    def read_windows(self) -> None:
        """Check the list of windows in ``window``, such as "A:B,C:D", and keep it as ``windows``.

        Raise ValueError if one is empty, begins too early, or does not begin after the end of the one before.
        """
        self.windows = self.window
        ends = [int(text or 10**9) for text in self.window.replace(",", ":").split(":")]
        if ends[0] < self.LOWEST or ends != sorted(set(ends)):
            raise ValueError(
                "RLPATCH_WINDOW=%s has a window that is empty, too early or out of order" % self.window
            )

    def place_window(self) -> None:
        """Place the next window of the list that can still be reached, if any, and drop those before it.

        Begin with the whole list again if none is left.
        """
        self.next_windows = self.next_windows or self.windows.split(",")
        self.open_at = None
        while self.open_at is None and self.next_windows:  # one that is over is left out
            self.window, *self.next_windows = self.next_windows
            super().place_window()

    def reopen(self) -> None:
        """Go on recording while windows of the list are left."""
        super().reopen()
        self.done = self.done and not self.next_windows

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """End a window as the base class does, and place the next one of the list, if any."""
        super().finish(report, traces)
        if self.next_windows:
            self.place_window()


class SeveralInRollout(SeveralWindows, RolloutUnits):
    """Several windows of each rollout."""

    def begin_rollout(self) -> None:
        """Begin a rollout with the whole list of windows."""
        self.window = self.windows
        super().begin_rollout()

    def end_rollout(self, why: str) -> None:
        """End the rollout for the reason ``why``.

        Windows that it did not reach are dropped, and the report names them beside the reason.
        """
        if self.next_windows:
            why, self.next_windows = "%s before %s" % (why, ",".join(self.next_windows)), ()
        super().end_rollout(why)


class SeveralInCall(SeveralWindows, TrainingSteps):
    """Several windows of each call of a stage."""

    def enter(self, *call: Any) -> None:
        """Begin a call of the stage with the whole list of windows."""
        self.window = self.windows
        super().enter(*call)

    def end_call(self, why: str) -> None:
        """End a call, and drop the windows that it did not reach."""
        self.next_windows = ()
        super().end_call(why)


class Repeated(Recorder):
    """The same in several rollouts, captures or syncs."""

    REPEAT: CompileTime[int] = 1

    exits = False

    is_last: Callable[[], bool]

    def reopen(self) -> None:
        """Go on recording until the last repetition, or the end of the process."""
        super().reopen()
        self.done = self.exits or self.is_last()

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Add the number of repetitions to the step metadata."""
        super().add_metadata(data)  # type: ignore[misc]
        data["repeat"] = self.REPEAT


class RepeatedRollouts(Repeated, RolloutUnits):
    """The same window in several rollouts, one after the other."""

    rollouts_end: int

    def read_settings(self) -> None:
        """Read the chosen rollout, and derive the end of the repetitions."""
        super().read_settings()
        self.rollouts_end = self.chosen + self.REPEAT

    def begin_rollout(self) -> None:
        """Choose the rollout that begins, if it is one of the repetitions."""
        self.chosen = max(self.chosen, min(self.rollout + 1, self.rollouts_end - 1))
        super().begin_rollout()

    def is_last(self) -> bool:
        """Tell whether this rollout is the last repetition."""
        return self.rollout + 1 >= self.rollouts_end

    def exit(self) -> None:
        """End the rollout, and all repetitions, when the process ends."""
        self.end_rollout("the process ends")
        self.exits = True
        super().exit()


class RepeatedSteps(TrainingSteps):
    """The same window in the training steps after each chosen one, too."""

    REPEAT: CompileTime[int] = 1

    def read_settings(self) -> None:
        """Read the settings, and add to each chosen training step those that follow it, ``REPEAT`` steps in all."""
        super().read_settings()
        self.steps = {step + more for step in self.steps for more in range(self.REPEAT)}

    def add_metadata(self, data: dict[str, Any]) -> None:
        """Add the number of repetitions to the step metadata."""
        super().add_metadata(data)
        data["repeat"] = self.REPEAT


class RepeatedCaptures(Repeated, GraphCapture):
    """The first captures of a worker, and not the first one alone."""

    captures = 0

    def open(self, unit: int, batch: Any = None) -> None:
        """Count the capture, and record it."""
        self.captures += 1
        super().open(unit, batch)

    def is_last(self) -> bool:
        """Tell whether this capture is the last one to record."""
        return self.captures >= self.REPEAT


class RepeatedSyncs(Repeated, WeightSync):
    """Several weight syncs, one after the other."""

    def is_chosen(self) -> bool:
        """Tell whether this weight sync is the chosen one or a repetition."""
        return 0 <= self.sync - self.chosen_sync < self.REPEAT

    def is_last(self) -> bool:
        """Tell whether this weight sync is the last repetition."""
        return self.sync + 1 >= self.chosen_sync + self.REPEAT

    def exit(self) -> None:
        """Save what is still recorded, and end all repetitions, when the process ends."""
        self.close("the process ends")
        self.exits = True
        super().exit()
