"""Recording a window of units, whatever a unit is and whichever tool records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.steering import Steerable


class WindowTool(Steerable):
    """A tool that records a window, such as a profiler: the seam between it and a recorder.

    ``prof`` is None as long as nothing records. The recorder gives ``name`` and ``save_path``, from which the tool
    makes the paths of its files, and the numbers of the units.
    """

    prof: Any
    name: str
    save_path: str
    unit: int  # the number of the next unit
    first: int
    end: int
    thread: int  # that opened the window
    pid: int

    dispatch: Callable[..., Any]

    def open_window(self, unit: int) -> None:
        """Start before unit number ``unit``, to record the units ``first`` to ``end - 1``; warm up until ``first``.

        A unit is what the window counts, such as a decode step or a micro-batch.
        """

    def next_unit(self) -> None:
        """Go on from a unit to the next one, or out of the last one."""

    def close_window(self) -> list[str]:
        """Stop, and return the paths of the files, or folders, that were written."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device."""

    def conflict(self) -> str:
        """Return what keeps the tool from recording in this process; "" if nothing does."""
        raise NotImplementedError


class Recorder(WindowTool):
    """Opens its tool shortly before the window, tells it of each unit, and closes it where the window ends.

    A counting class derives from it: it gives the ``name`` of a recording, keeps ``unit`` and calls
    ``open``, ``tick``, ``pause`` and ``close``. The texts that the user chose have the form of the environment
    variables that replace them. ``dispatch`` tells a recorder of an event, which is the name of a method; with
    "close" a recorder ends the window of another one in its process. What a child may call that was forked inside
    the window compares ``pid``: the window is its parent's.
    """

    WINDOW = "30:60"
    RANKS = "0"
    SAVE_PATH = "/nowhere/rlpatch_traces"

    WARMUP: CompileTime[int] = 1

    open_at: int | None  # the unit before which the tool starts
    window: str
    ranks: list[str]
    rank: int
    world: int  # of ranks, where all of them record
    done: bool
    uncounted: int
    uncounted_range: Any  # an ExitStack

    count_ranks: Callable[[Any], int]
    watched: Callable[[], str]  # the path of the file for ``rlpatch watch``
    contents: Callable[[Any], Mapping[str, object]]

    @classmethod
    def dispatch(cls, probe: Any, worker: Any, event: str, args: Any) -> Any:
        """Call the method ``event`` of a recorder with ``args``.

        Return the recorder, or None when it has nothing more to record. A false ``probe`` means that there is no
        recorder yet: one is made for ``worker``, and gets "exit" when the process ends. An exception is printed,
        not raised: the recorder is closed, its state becomes "failed", and None is returned.
        """
        try:
            if not probe:
                import atexit  # last in, first out: before torch_npu shuts down
                from multiprocessing.util import Finalize  # once, and in child processes, too

                probe = cls(worker)
                atexit.register(Finalize(None, cls.dispatch, [probe, None, "exit", ()], exitpriority=100))
            if not probe.done:
                getattr(probe, event)(*args)
            return None if probe.done else probe
        except Exception as e:  # profiling must not stop the run
            import contextlib
            from traceback import format_exc

            cls.say(probe or worker, "%s: recording failed, the run goes on: %r\n%s" % (cls.STAGE, e, format_exc()))
            with contextlib.suppress(Exception):
                probe.done = True
                probe.close("failed")
            with contextlib.suppress(Exception):
                probe.prof = None
                probe.write_state("failed", repr(e))

    def __init__(self, worker: Any) -> None:  # noqa: ARG002
        import os

        self.host, self.pid = "".join(c if c.isalnum() else "_" for c in os.uname().nodename), os.getpid()
        self.name = "%s_%s_%s" % (self.host, self.name, self.pid)
        self.prof = self.open_at = None
        self.save_path = os.path.realpath(self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*"))
        self.read_settings()

    def read_settings(self) -> None:
        """Read the chosen ranks, and whether RLPATCH=0 switches recording off.

        ``done`` becomes True if it does, or if this rank was not chosen.
        """
        self.ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*").split(",")
        self.done = self.setting("RLPATCH", "1", "[01]") == "0" or {"all", str(self.rank)}.isdisjoint(self.ranks)

    def open(self, unit: int, batch: Any = None) -> None:  # not in __init__, where every rank is on device 0
        """Start recording before unit number ``unit``, whose input is ``batch``.

        A unit is what the window counts, such as a decode step. If something prevents the recording, report it and
        end the window.
        """
        import sys
        import threading
        from contextlib import ExitStack

        obstacle = self.obstacle()
        if obstacle:
            return self.finish("not recorded: %s" % obstacle)
        sys._rlpatch_recording = self  # type: ignore[attr-defined]
        self.thread = threading.get_ident()
        self.uncounted, self.uncounted_range = 0, ExitStack()
        self.open_window(unit)
        self.begin_unit(unit, batch)
        self.write_state("armed" if unit < self.first else "recording")

    def obstacle(self) -> str:
        """Return why nothing can be recorded now, "" if it can.

        Reasons are a conflict that the tool finds, another recorder in this process whose window is open, and
        less than 1 GB of free disk space for the traces.
        """
        import os
        import sys

        obstacle = self.conflict()
        if getattr(getattr(sys, "_rlpatch_recording", None), "prof", None):  # two at once lose data or crash
            obstacle = "this process is already recording: %s" % sys._rlpatch_recording.name  # type: ignore[attr-defined]
        disk = os.statvfs(self.save_path)
        if disk.f_bavail * disk.f_frsize < 10**9:
            obstacle = "less than 1 GB is free in %s" % self.save_path
        return obstacle

    def close(self, why: str) -> None:
        """Stop the tool, which saves the window, and report it; ``why`` tells the user the reason.

        Do nothing if no window is open. An exception on the way is raised after the tool has stopped.
        """
        if self.prof is None:
            return
        try:
            self.write_state("saving")
            self.uncounted_range.close()
            self.synchronize()  # torch_npu before 2.9.0.post9 does not, and cuts off the last kernels
            self.end_unit()
            if self.unit == self.end and not self.done:  # else it has failed, perhaps in this very step
                self.next_unit()
        finally:
            traces = self.close_window()
        self.conclude(why, traces)

    def conclude(self, why: str, traces: Sequence[str]) -> None:
        """Finish a window that was open, and say how much of it was recorded."""
        raise NotImplementedError

    def finish(self, report: str, traces: Sequence[str] = ()) -> None:
        """End the window, and write ``report``, a sentence for the user, to the state file.

        ``traces`` are the paths that were saved (none: the state is "not recorded"). Nothing more is recorded,
        unless ``reopen`` of a subclass has further windows.
        """
        self.done, self.open_at = True, None
        self.reopen()
        self.write_state("saved" if traces else "not recorded", report, traces)
        self.after_saving(traces)

    def reopen(self) -> None:
        """Hook: take ``done`` back where more is to be recorded."""

    def poll(self, number: int) -> None:
        """Hook: rollout, or training step, ``number`` begins, for which a window may have been requested."""

    def begin_unit(self, number: int, batch: Any) -> None:
        """Hook: unit ``number`` begins."""

    def end_unit(self) -> None:
        """Hook: the last unit that was begun has ended, if it had not before."""

    def mark_start(self) -> None:
        """Hook: the first unit of this trace carries the start of the tool."""

    def after_saving(self, traces: Sequence[str]) -> None:
        """Hook: ``traces`` have been written, if any."""

    def write_state(self, state: str, why: str = "", traces: Sequence[str] = ()) -> None:
        """Hook: the recorder has come to ``state``."""

    def exit(self) -> None:
        """Hook: the process ends."""


class CountedUnits(Recorder):
    """A recorder of a window of units that are counted."""

    WINDOWS: CompileTime[str] = r"\d+:\d*"  # the form of what may be chosen
    LOWEST: CompileTime[int] = 0  # where a window may begin
    LONGEST: CompileTime[int] = 10**9  # units that may be saved at once

    UNITS: str  # the name of several units

    def read_settings(self) -> None:
        """Read the chosen window, which must have the form of ``WINDOWS``, after the chosen ranks.

        Raises ValueError for another form, or a window that cannot exist.
        """
        super().read_settings()
        self.window = self.setting("RLPATCH_WINDOW", self.WINDOW, self.WINDOWS)
        self.read_windows()

    def read_windows(self) -> None:
        """Read the one window that was chosen; a layer may read several."""
        self.read_window()

    def read_window(self) -> None:
        """Set ``first`` and ``end`` from the text "A:B" of the window; "A:" has no end.

        Cut it to ``LONGEST`` units. Raises ValueError if it is no such text, is empty or begins before ``LOWEST``.
        """
        self.first, self.end = (int(text or 10**9) for text in self.window.split(":"))
        if not self.LOWEST <= self.first < self.end:
            raise ValueError("RLPATCH_WINDOW=%s is empty, or begins before %s" % (self.window, self.LOWEST))
        self.end = min(self.end, self.first + self.LONGEST)  # more are saved in pieces, which this patch cannot

    def place_window(self) -> None:
        """Set the unit before which the tool opens: the warm-up before the first one."""
        self.open_at = max(self.first - self.WARMUP, 0)

    def tick(self, batch: Any) -> None:
        """Begin the next unit of an open window, whose input is ``batch``: tell the tool, and count the unit.

        A unit is a decode step, a micro-batch or what else the window counts. This ends the range of uncounted
        iterations. Before the first recorded unit, wait for the device.
        """
        self.uncounted_range.close()
        if self.unit == self.first:
            self.write_state("recording")
            self.synchronize()  # kernels of the warm-up are not part of the first unit
        self.next_unit()
        self.begin_unit(self.unit, batch)
        self.unit += 1

    def pause(self) -> None:
        """End the unit; mark what follows in the trace as "rlpatch:uncounted", since it belongs to no unit.

        Count these pauses in ``uncounted``.
        """
        from torch.profiler import record_function

        self.end_unit()
        self.uncounted_range.close()
        self.uncounted += 1
        self.uncounted_range.enter_context(record_function("rlpatch:uncounted"))


class MovedWindow(CountedUnits):
    """Reads its window anew where it is placed, because it may have been moved or cut before."""

    def place_window(self) -> None:
        self.read_window()
        super().place_window()


class OneWorld(Recorder):
    """Counts the ranks of a process that ``torchrun``, or whatever sets the same variables, has started."""

    def count_ranks(self, worker: Any) -> int:  # noqa: ARG002
        """Return the size of torch.distributed's world, or WORLD_SIZE (1 without it) before that is set up."""
        import os

        import torch.distributed as dist

        in_a_world = dist.is_available() and dist.is_initialized()
        return dist.get_world_size() if in_a_world else int(os.environ.get("WORLD_SIZE", 1))


class ReplicaRecorder(Recorder):
    """A recorder for a worker that is one of several, in one of several replicas.

    Replicas that know of each other number their ranks together. Those that verl starts do not: it makes an engine
    of each, and from 0.8.0 on tells vLLM which (``workers/rollout/vllm_rollout/vllm_async_server.py``). A class of
    the worker finds ``dp`` and ``rank`` before anything else.
    """

    REPLICAS = "0"

    dp: int
    replica: str

    def __init__(self, worker: Any) -> None:
        import os

        self.replica = os.environ.get("VERL_REPLICA_RANK", "")
        self.name = "%sdp%s_rank%s" % (self.replica and "replica%s_" % self.replica, self.dp, self.rank)
        super().__init__(worker)

    def watched(self) -> str:
        """Return the path of the state file of this rank in this replica."""
        return "%s/.rlpatch/%s_%s.json" % (self.save_path, self.STAGE, self.name)


class NumberedReplicas(ReplicaRecorder):
    """Replicas are chosen by their numbers; an engine that is not told its number records."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, r"all|\d+(,\d+)*").split(",")
        self.done = self.done or (bool(self.replica) and {"all", self.replica}.isdisjoint(replicas))


class ServingReplicas(ReplicaRecorder):
    """Replicas are chosen by what they serve, too, where each has a server for prefill and one for decode."""

    serves: Callable[[Any], str]  # "prefill", "decode", or anything else

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        replica = r"(prefill|decode|\d+)"
        replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, "all|%s(,%s)*" % (replica, replica)).split(",")
        self.done = self.done or {"all", self.replica, self.serves(worker)}.isdisjoint(replicas)


class Unnoted(Recorder):
    """Makes the folder of the traces itself, which step metadata would have made."""

    def open(self, unit: int, batch: Any = None) -> None:
        """Make the folder of the traces, then open the window before unit number ``unit`` with input ``batch``."""
        import os

        os.makedirs(self.save_path, exist_ok=True)
        super().open(unit, batch)


class EveryRank(Recorder):
    """Notes how many ranks there are, where all of them record."""

    def __init__(self, worker: Any) -> None:
        self.world = self.count_ranks(worker)
        super().__init__(worker)
