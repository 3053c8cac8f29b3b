"""Recording a window of units, whatever a unit is and whichever profiler records it."""

from __future__ import annotations

from typing import Any


class Recorder:
    """Opens a profiler shortly before the window, steps it with each unit, and saves it where the
    window ends.

    A counting part decides what a unit is: it gives ``name`` and ``title`` of a recording, keeps
    ``unit`` (the number of the next one) and calls ``open``, ``tick``, ``pause`` and ``close``. The
    part of the backend builds the profiler. The text constants have the form of the environment
    variables that replace them.
    """

    STAGE = "rollout"
    WINDOW = "30:60"
    LOWEST = 0
    WARMUP = 1
    REPEAT = 1
    RANKS = "0"
    SAVE_PATH = "/nowhere/rlpatch_traces"
    LOGGER = "rlpatch"
    STEERED = True
    on = True

    BETWEEN: str
    TRACES: str
    build: Any
    synchronize: Any
    occupied: Any
    framework: Any
    finished: Any
    title: Any
    prof: Any
    name: str
    unit: int
    uncounted: int
    open_at: Any

    def configure(self, rank: int) -> None:
        import contextlib
        import os

        self.on = self.setting("RLPATCH", "1", "[01]") == "1"
        steered = self.setting("RLPATCH_WINDOW", self.WINDOW, r"\d+:\d*") if self.STEERED else ""
        self.window = steered or self.WINDOW
        first, _, end = self.window.partition(":")
        self.first, self.end = int(first), int(end or 10**9)
        ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*")
        self.save_path = os.path.realpath(self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*"))
        if not self.LOWEST <= self.first < self.end:
            raise ValueError("RLPATCH_WINDOW=%s is empty or too early" % self.window)
        self.host = "".join(c if c.isalnum() else "_" for c in os.uname().nodename)
        self.pid = os.getpid()
        self.prof = self.open_at = None
        self.uncounted_range = contextlib.ExitStack()
        self.done = not self.on or (ranks != "all" and str(rank) not in ranks.split(","))

    def setting(self, name: str, default: str, pattern: str) -> str:
        import os
        import re

        stage = name.replace("RLPATCH_", "RLPATCH_%s_" % self.STAGE.upper().replace("-", "_"))
        text = (os.environ.get(stage) or os.environ.get(name) or default) if self.on else default
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%s cannot be used where %s is the default" % (name, text, default))
        return text

    def open(self, at: int) -> None:  # not in the worker's __init__, where every rank is still on device 0
        import atexit
        import threading
        from multiprocessing.util import Finalize

        import torch.profiler

        other = self.other()
        reason = "%s is recording" % other.name if other else self.framework() or self.occupied()
        if reason:
            self.finish("not recorded: %s" % reason)
            return
        self.earlier = self.traces()
        self.synchronize()
        self.prof = self.build(at, self.first - at, self.end - self.first)
        self.thread = threading.get_ident()
        torch.profiler._rlpatch_recording = self  # where all our patches of this process meet
        # At exit before torch_npu shuts the device down; multiprocessing's children run only finalizers.
        atexit.register(self.exit)
        Finalize(None, self.exit, exitpriority=100)
        self.prof.start()
        for _ in range(at):  # through WAIT, so that ProfilerStep#n carries the number of its unit
            self.prof.step()

    def other(self) -> Any:
        import sys

        # Its profiler is ours, too: two at once lose data or crash.
        other = getattr(sys.modules.get("torch.profiler"), "_rlpatch_recording", None)
        return other if other not in (None, self) and other.prof is not None else None

    def exit(self) -> None:
        import os

        if self.pid == os.getpid():  # not in a child that was forked inside the window
            self.interrupt("the process ends")

    def interrupt(self, why: str) -> None:
        import logging

        try:
            self.close(why)
        except Exception:
            logging.getLogger(self.LOGGER).exception("rlpatch: no profile")

    def tick(self) -> None:
        self.uncounted_range.close()
        if self.unit == self.first:
            self.synchronize()  # kernels of the warm-up are not part of the first unit
        self.prof.step()
        self.unit += 1

    def pause(self) -> None:
        from torch.profiler import record_function

        if self.unit > self.first:
            self.uncounted_range.close()
            self.uncounted += 1
            self.uncounted_range.enter_context(record_function("rlpatch:uncounted"))

    def close(self, why: str) -> None:
        prof, self.prof = self.prof, None
        if prof is None:
            return
        try:
            self.uncounted_range.close()
            self.synchronize()  # torch_npu before 2.9.0.post9 does not, and cuts off the last kernels
            if self.unit == self.end:
                prof.step()
        finally:
            prof.stop()
        count, found = max(self.unit - self.first, 0), sorted(self.traces() - self.earlier)
        if count and not found:
            raise RuntimeError("the profiler left no trace in %s" % self.save_path)
        asked = "" if self.window.endswith(":") else " of %s" % (self.end - self.first)
        units = " %s%s units with %s %s between them" % (count, asked, self.uncounted, self.BETWEEN)
        text = "%s, recorded%s: %s"
        self.finish(text % (why, units if self.STEERED else "", ", ".join(found) or "no trace"))

    def finish(self, report: str) -> None:
        import logging

        self.open_at = None
        self.done = self.finished()
        logging.getLogger(self.LOGGER).warning("rlpatch: %s, %s: %s", self.name, self.title(), report)

    def traces(self) -> set[str]:
        import glob

        found = glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + self.TRACES)  # noqa: PTH207
        return {path.partition("/profiler_info")[0] for path in found}


class Calls:
    """What the patched class gets beside the probe: the one method that its call sites use."""

    _RlpatchStage: Any
    _rlpatch_stage_probe: Any = False  # False: not called yet, None: nothing more to record

    def _rlpatch_stage(self, event: str, *args: Any) -> None:
        probe = self._rlpatch_stage_probe
        if probe is None:
            return
        try:
            if probe is False:
                probe = self._rlpatch_stage_probe = self._RlpatchStage(self)
            if not probe.done:
                getattr(probe, event)(*args)
            if probe.done:
                self._rlpatch_stage_probe = None
        except Exception:  # profiling must not stop the run
            import contextlib
            import logging

            self._rlpatch_stage_probe = None
            logging.getLogger(self._RlpatchStage.LOGGER).exception("rlpatch: no profile, the run goes on")
            with contextlib.suppress(Exception):
                probe.close("failed")
