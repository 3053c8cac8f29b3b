"""Counting the micro-batches or mini-batches of a training stage, call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.recorder import CountedUnits, OneWorld


class TrainingSteps(CountedUnits, OneWorld):
    """Counts the units of a stage in each of its calls; a call is a training step, or a part of one.

    ``enter`` and ``leave`` frame a call, ``start`` and ``stop`` a unit, ``end_loop`` ends a loop over units. The
    numbering of the units goes on from loop to loop within a call: an update runs one loop of micro-batches per
    mini-batch, and one of mini-batches per epoch. A class of the worker gives ``role_of_call`` and
    ``framework_conflict``.
    """

    STAGE = "update-policy"
    UNIT = "micro-batch"
    UNITS = "micro-batches"
    BETWEEN = "pauses"  # what runs between two units without being one
    ROLES: tuple[str, ...] = ("actor",)
    STEPS = "1"

    step = 0  # no call yet
    exits = False  # the process
    counted_by = ""

    role: str
    units: list[dict[str, Any]]
    steps: set[int]
    role_of_call: Callable[..., str]
    framework_conflict: Callable[[], str]  # what of the framework's own would record, too

    def __init__(self, worker: Any) -> None:
        import os

        import torch.distributed as dist

        in_a_world = dist.is_available() and dist.is_initialized()
        self.worker, self.rank = worker, dist.get_rank() if in_a_world else int(os.environ.get("RANK", 0))
        self.name = "rank%s" % self.rank
        self.unit = 0
        super().__init__(worker)
        self.calls: dict[str, int] = {}

    def read_settings(self) -> None:
        """Read the chosen training steps, then the window."""
        steps = self.setting("RLPATCH_TRAINING_STEPS", self.STEPS, r"[1-9]\d*(,[1-9]\d*)*").split(",")
        self.steps = {int(step) for step in steps}
        super().read_settings()

    def enter(self, *call: Any) -> None:
        """Begin a call of the stage, such as update-policy, if its role was chosen.

        ``call`` are the arguments by which ``role_of_call`` tells the role. In any case, first close a window of
        the call before, or of a rollout in the same thread.
        """
        import sys
        import threading

        self.close("the previous call did not end")
        self.open_at = None
        rollout: Any = getattr(sys, "_rlpatch_recording", None)
        if rollout and rollout.STAGE == "rollout" and rollout.thread == threading.get_ident():
            rollout.dispatch(rollout, None, "close", ["%s starts" % self.STAGE])
        role = self.role_of_call(*call)
        if role in self.ROLES:
            self.begin_call(role)

    def begin_call(self, role: str) -> None:
        """Count a call of ``role`` as its next training step, number its units from 0, and call ``begin_step``.

        If the first call is already after the last chosen training step, report that nothing was recorded.
        """
        is_first_call = not self.step
        step = self.calls[role] = self.calls.get(role, 0) + 1
        self.role, self.step, self.unit = role, step, 0
        stage = self.STAGE.replace("-", "_")
        self.name = "%s_%s_%s_step%s_rank%s_%s" % (self.host, stage, role, step, self.rank, self.pid)
        self.begin_step()
        if is_first_call and self.done:  # a run that was resumed
            self.finish("not recorded: the first call is already in training step %s" % step)

    def begin_step(self) -> None:
        """Read a trigger request; if this training step is chosen, set at which unit the window opens.

        Write the state file. Set ``done`` after the last chosen training step of all roles.
        """
        if self.step <= max(self.steps):
            self.write_state("installed")
        self.poll(self.step)
        if self.is_chosen():
            self.place_window()
            self.write_state("waiting")
        # The other role of this object, if it has two, may still have its last step before it.
        self.done = self.step > max(self.steps) and min(self.calls.values()) >= max(self.steps)

    def is_chosen(self) -> bool:
        """Tell whether this training step is one of those to record."""
        return self.step in self.steps

    def watched(self) -> str:
        """Return the path of this recorder's state file: stage, role, host, rank and process id."""
        who = self.STAGE, self.role, self.host, self.rank, self.pid
        return "%s/.rlpatch/%s_%s_%s_rank%s_%s.json" % (self.save_path, *who)

    def leave(self, why: str = "the call ends") -> None:
        """End a call of the stage."""
        self.end_call(why)

    def end_call(self, why: str) -> None:
        """Close the window because the call of the stage has ended; if it was never opened, report that instead.

        ``why`` says what ended the call. Do nothing if no window was placed, or if it is closed already.
        """
        if self.prof is not None:
            self.close(why)
        elif self.open_at is not None:
            self.finish("not recorded: %s after %s %s" % (why, self.unit, self.UNITS))

    def exit(self) -> None:
        """End the call because the process ends; if a chosen training step is still to come, report that.

        Do nothing if no call of a chosen role began.
        """
        if not self.step:  # no call of a role that was chosen
            return
        self.end_call("the process ends")
        self.exits = True
        self.poll(self.step + 1)
        following = [step for step in sorted(self.steps) if step > self.step]
        if following and self.awaits_steps():
            self.finish("not recorded: the process ends before training step %s" % following[0])

    def awaits_steps(self) -> bool:
        """Tell whether a training step that never came is worth a report."""
        return True

    def open(self, unit: int, batch: Any = None) -> None:
        """Open the window before unit number ``unit``, whose input is ``batch``.

        If the framework keeps units from being recorded (``framework_conflict``), report that and end the window.
        """
        self.units = []  # of the trace: each call has one of its own
        obstacle = self.framework_conflict()
        if obstacle:
            return self.finish("not recorded: %s" % obstacle)
        super().open(unit, batch)

    def start(self, unit: str, batch: Any) -> None:
        """Begin a unit with the input ``batch``: open the window if it starts here, or go on inside an open one.

        ``unit`` is "micro-batch", "mini-batch" or "call". Do nothing if the window counts something else, or if
        this call has no window.
        """
        if unit != self.UNIT or self.open_at is None:
            return
        if self.prof is not None:
            self.tick(batch)
        else:
            if self.unit >= self.open_at:
                self.open(self.unit, batch)
            self.unit += 1

    def stop(self, unit: str) -> None:
        """Close the window if the unit that ends is its last one."""
        if unit == self.UNIT and self.prof is not None and self.unit == self.end:
            self.close("complete")

    def end_loop(self, unit: str, ends_call: bool, complete: bool) -> None:
        """End a loop over units: close the window if the loop was not ``complete``.

        Otherwise end the call of the stage if the loop ``ends_call``, or pause until the next loop if an open
        window counts ``unit``. Do nothing in a process that was forked inside the window.
        """
        import os

        if self.pid != os.getpid():  # a child, forked inside the window, which ends within the loop
            return
        if not complete:
            self.close("the loop ended early")
        elif ends_call:
            self.leave()
        elif unit == self.UNIT and self.prof is not None and self.unit > self.first:
            self.pause()

    class Loop:
        """The units of a loop, ``call`` hears of their beginnings and ends."""

        def __init__(self, call: Any, unit: str, units: Any, ends_call: bool) -> None:
            self.call, self.unit, self.ends = call, unit, ends_call
            wrapped = isinstance(units, type(self)) and units.call == call  # by this stage, in the epoch before
            self.units: Any = units.units if wrapped else units

        def __len__(self) -> int:
            return len(self.units)

        def __iter__(self) -> Any:
            complete = False
            try:
                for item in self.units:
                    self.call("start", self.unit, item)
                    yield item
                    self.call("stop", self.unit)
                complete = True
            finally:  # also where the body of the loop raises, or breaks it
                self.call("end_loop", self.unit, self.ends, complete)

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """End the window with a report: how many units were recorded, what ran between them, and the ``traces``.

        ``why`` says why it ended.
        """
        count = max(self.unit - self.first, 0)
        values = why, count, self.end - self.first, self.UNITS, self.uncounted, self.BETWEEN
        report = "%s, recorded %s of %s %s with %s %s between them: " % values
        self.finish(report + (", ".join(traces) or "no trace"), traces)

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """Print ``report``, headed by stage, role, window and training step, and end the window."""
        what = "%s, %s, %s %s" % (self.STAGE, self.role, self.UNIT, self.window)
        self.say("%s of training step %s%s: %s" % (what, self.step, self.counted_by, report))
        super().finish(report, traces)

    def reopen(self) -> None:
        """Stay ready for the next training step."""
        self.done = False

    def add_metadata(self, data: dict[str, Any]) -> None:  # docstring goes in
        """Note as ``done`` if the process ends, or if the last chosen training step has no window left."""
        data["done"] = self.exits or (self.step >= max(self.steps) and self.open_at is None)

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return the number of "sequences" in a batch, and that of "tokens" (nested ids) or the "padded" shape.

        Return {} for a batch without "input_ids".
        """
        import contextlib

        contents: dict[str, object] = {}
        with contextlib.suppress(Exception):  # a batch of another form, which stops nothing
            tokens = getattr(batch, "batch", batch)["input_ids"]
            contents["sequences"] = tokens.size(0)
            contents.update(
                {"tokens": tokens.values().size(0)} if tokens.is_nested else {"padded": list(tokens.shape)}
            )
        return contents


class WholeCall(TrainingSteps):
    """A unit is the call itself, from its beginning to its end."""

    def enter(self, *call: Any) -> None:
        """Begin a call, which is a unit, too."""
        super().enter(*call)
        self.start("call", call[0] if call else None)

    def leave(self, why: str = "the call ends") -> None:
        """End the unit, then the call."""
        self.stop("call")
        super().leave(why)


class WithoutProfiler(TrainingSteps):
    """A class of a framework without a profiler of its own."""

    def framework_conflict(self) -> str:
        """Return "": no profiler of the framework, and nothing else of it, keeps units from being recorded."""
        return ""


class OneRole(WithoutProfiler):
    """A class that works for one role only."""

    def role_of_call(self) -> str:
        """Return the only role."""
        return self.ROLES[0]
