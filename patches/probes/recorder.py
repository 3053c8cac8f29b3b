"""Recording a window of units, whatever a unit is and whichever profiler records it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.metadata import StepMetadata


class Recorder(StepMetadata):
    """Opens a profiler shortly before the window, steps it with each unit, and saves it where the window ends.

    A counting class derives from it: it gives ``name`` and ``title`` of a recording, keeps ``unit`` (the number of
    the next one) and calls ``open``, ``tick``, ``pause`` and ``close``. The class of a backend builds the profiler.
    The texts that the user chose have the form of the environment variables that replace them.
    """

    WINDOW = "30:60"
    RANKS = "0"
    SAVE_PATH = "/nowhere/rlpatch_traces"

    LAST_EVENT: CompileTime[str] = "leave"  # of a process
    WINDOWED: CompileTime[bool] = True
    EVERY_RANK: CompileTime[bool] = False
    LONGEST: CompileTime[int] = 0  # units that are recorded where they are saved at once, 0 for any number
    LONG_SAVE_S: CompileTime[float] = 2.0
    CAN_BE_TAKEN: CompileTime[bool] = False  # by another profiler, unseen
    FIRST: CompileTime[int] = 0  # the number of the first unit
    WARMUP: CompileTime[int] = 1
    TRACES: CompileTime[str] = ""

    prof: Any
    closing: bool
    exits: bool  # the process, which leaves no time to compress
    stopping: Any  # these two are of ExitStack
    watching: Any
    name: str
    open_at: int | None
    first: int
    end: int
    until: int  # the end of what the profiler records: ``end``, or less for a part of the window
    window: str
    ranks: list[str]
    rank: int
    world: int
    request: str
    request_time: int
    windows: str
    next_windows: list[str]
    is_addressed: bool
    refused: bool

    # A counting class gives these,
    schedule_window: Callable[[int], None]
    between: Callable[[], str]
    is_finished: Callable[[], bool]
    framework: Callable[[], str]

    # and the class of a backend these.
    build: Callable[[int, int, int], Any]
    synchronize: Callable[[], None]
    occupied: Callable[[], str]
    is_taken: Callable[[], bool]
    compress: Callable[[Sequence[str]], None]

    @classmethod
    def dispatch(cls, probe: Any, worker: Any, event: str, args: Any) -> Any:
        try:
            if not probe:
                import atexit  # what is registered last runs first: before torch_npu shuts the device down
                from multiprocessing.util import Finalize  # once, and in child processes, too

                probe, end = cls(worker), (None, cls.LAST_EVENT, ("the process ends", True))
                atexit.register(Finalize(None, cls.dispatch, [probe, *end], exitpriority=100))
            if not probe.done:
                getattr(probe, event)(*args)
            return None if probe.done else probe
        except Exception as e:  # profiling must not stop the run
            import contextlib

            with contextlib.suppress(Exception):
                probe.done = True
                probe.close("failed")
            cls.say(probe or worker, "%s: no profile, the run goes on" % cls.STAGE, type(e), e, e.__traceback__)
            with contextlib.suppress(Exception):
                probe.prof = None
                if cls.METADATA:
                    probe.note("failed", repr(e))

    def interrupt(self, why: str) -> None:
        self.dispatch(self, None, "close", [why])

    def __init__(self, worker: Any) -> None:  # noqa: ARG002
        import os
        import time

        self.host = "".join(c if c.isalnum() else "_" for c in os.uname().nodename)
        self.pid, self.unit, self.prof, self.open_at, self.foreign = os.getpid(), self.FIRST, None, None, ""
        self.name = "%s_%s_%s" % (self.host, self.name, self.pid)
        if self.METADATA:
            self.clock, self.units = time.time_ns, []
            if self.COMPRESSED:
                self.noted = {}
            if self.ON_DEMAND:
                self.saved, self.request_settings, self.request_time, self.refused = [], {}, 0, False
            elif self.SEVERAL or self.REPEAT > 1 or self.PIECES:
                self.saved = []
        self.save_path = os.path.realpath(self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*"))
        if self.ON_DEMAND:
            self.done = self.setting("RLPATCH", "1", "[01]") == "0"
        self.read_settings()

    def read_settings(self) -> None:
        self.ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*").split(",")
        if not self.WINDOWED:
            self.first, self.end = 0, 1
        if not self.ON_DEMAND:
            self.done = self.setting("RLPATCH", "1", "[01]") == "0" or not {"all", str(self.rank)} & {*self.ranks}

    def open(self, at: int, batch: Any = None) -> None:  # not in __init__, where every rank is on device 0
        import os
        from contextlib import ExitStack
        from threading import get_ident

        import torch.profiler

        if self.BY_STEP:
            self.foreign = self.framework()
        os.makedirs(self.save_path, exist_ok=True)
        obstacle = self.obstacle()
        if obstacle:
            return self.finish("not recorded: %s" % obstacle)
        self.units, self.uncounted, self.uncounted_range = [], 0, ExitStack()
        self.stopping, self.watching = ExitStack(), ExitStack()
        if self.CAN_BE_TAKEN:
            self.closing = False
        self.traces_before, self.thread = self.traces(), get_ident()
        self.until = min(self.end, self.first + self.LONGEST) if self.LONGEST else self.end
        self.synchronize()
        self.prof = self.build(at, self.first - at, self.end - self.first)
        torch.profiler._rlpatch_recording = self  # where all our patches of this process meet
        self.stopping.callback(self.prof.stop)
        self.prof.step_num = max(at - 1, 0)  # as after so many steps: ProfilerStep#n carries the number of its unit
        self.prof.start()
        if at:
            self.prof.step()  # out of WAIT
        profile, start = type(self.prof), type(self.prof).start

        def close_and_start(profiler: Any) -> Any:  # a second profiler takes the data, or ends the process
            self.interrupt("another profiler starts")
            return start(profiler)

        profile.start = close_and_start
        self.watching.callback(setattr, profile, "start", start)
        if self.METADATA:
            if at >= self.first:
                self.begin(batch)
            self.note("armed" if at < self.first else "recording")

    def obstacle(self) -> str:
        import os

        import torch.profiler

        other: Any = getattr(torch.profiler, "_rlpatch_recording", None)  # two at once lose data or crash
        why = other.name + " is recording" if getattr(other, "prof", None) else self.foreign or self.occupied()
        disk = os.statvfs(self.save_path)
        if disk.f_bavail * disk.f_frsize < 10**9:
            why = why or "less than 1 GB is free in %s" % self.save_path
        return why

    def close(self, why: str) -> None:
        import os
        import time

        if self.pid != os.getpid():  # a child that was forked inside the window
            self.prof = None
        if self.prof is None:
            return
        began = time.monotonic()
        if self.COMPRESSED:
            self.exits = why.startswith("the process ends")
        if self.CAN_BE_TAKEN:
            if not self.closing and self.is_taken():
                self.stopping.pop_all()  # to step or to stop it would end the process
                why, self.until = "another profiler took its data", 0
            self.closing = True  # once it is stopped it looks the same
        try:
            if self.METADATA:
                self.note("saving")
            self.uncounted_range.close()
            self.synchronize()  # torch_npu before 2.9.0.post9 does not, and cuts off the last kernels
            if self.METADATA:
                (self.units or [{}])[-1].setdefault("end", self.clock())
            if self.unit == self.until:
                self.prof.step()
        finally:
            self.stopping.close()  # once, whatever has failed
            self.watching.close()
            self.prof = None
        self.saving_s = round(time.monotonic() - began, 3)
        if self.saving_s > self.LONG_SAVE_S:
            self.say("saving took %s s, longer than --max-stall %s" % (self.saving_s, self.LONG_SAVE_S))
        count, found = max(self.unit - self.first, 0), sorted(self.traces() - self.traces_before)
        if count and not found:
            raise RuntimeError("%s, and the profiler left no trace in %s" % (why, self.save_path))
        if self.WINDOWED:
            of = " units" if self.end >= 10**9 else " of %s units" % (self.end - self.first)
            if self.RELATIVE:
                of += " from number %s on," % self.first
            between = self.between() if self.BY_STEP else "uncounted iterations"
            result = why, count, of, self.uncounted, between, ", ".join(found) or "no trace"
            self.finish("%s, recorded %s%s with %s %s between them: %s" % result, found)
        else:
            self.finish("%s, recorded: %s" % (why, ", ".join(found)), found)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        if not (self.SEVERAL and self.next_windows):
            if self.BY_STEP or self.ON_DEMAND:
                self.done, self.open_at = False, None
            elif self.REPEAT == 1:
                self.done, self.open_at = True, None
            else:
                self.done, self.open_at = self.is_finished(), None
        if self.METADATA:
            if self.SEVERAL or self.ON_DEMAND or self.REPEAT > 1 or self.PIECES:
                self.saved = [*self.saved, *found][-16:]
            saved = ("saved" if self.exits else "saving") if self.COMPRESSED else "saved"
            self.note(saved if found else "not recorded", report, found)
        if self.COMPRESSED and found and not self.exits:
            self.compress(found)
        if self.SEVERAL and self.next_windows:
            self.schedule_window(self.origin or 0)

    def traces(self) -> set[str]:
        import glob

        found = glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + self.TRACES)
        return {path.partition("/profiler_info")[0] for path in found}


class CountedUnits(Recorder):
    """A recorder of a window of units that are counted."""

    lowest: Callable[[], int]
    last: Callable[[], int]

    def read_settings(self) -> None:
        super().read_settings()
        if self.SEVERAL:
            self.window = self.windows = self.setting("RLPATCH_WINDOW", self.WINDOW, r"\d+:\d*(,\d+:\d*)*")
            self.next_windows = []
        elif self.ON_DEMAND:
            self.window = self.setting("RLPATCH_WINDOW", self.WINDOW, r"(\d+:\d*)?")
        elif self.FIRST == 1 and not self.RELATIVE:
            self.window = self.setting("RLPATCH_WINDOW", self.WINDOW, r"0*[1-9]\d*:\d*")
        else:
            self.window = self.setting("RLPATCH_WINDOW", self.WINDOW, r"\d+:\d*")
        if self.SEVERAL or self.ON_DEMAND:
            self.check_windows()
        else:
            self.first, self.end = (int(text or 10**9) for text in self.window.split(":"))
            if self.first >= self.end:
                raise ValueError("RLPATCH_WINDOW=%s is empty" % self.window)
        if self.ON_DEMAND:
            self.request = self.setting("RLPATCH_REQUEST", "", r"\w*")
            self.is_addressed = bool(self.window) and not {"all", str(self.rank)}.isdisjoint(self.ranks)

    def check_windows(self) -> None:
        ends = [int(text or 10**9) for text in self.window.replace(",", ":").split(":")]
        if ends[0] < self.lowest() or ends != sorted(set(ends)):
            raise ValueError("the window %s is empty, too early or not in order" % self.window)

    def poll_request(self, number: int) -> None:
        """Take the request that lies in the folder, if it is a new one: settings, for a unit not yet begun."""
        import json
        import os

        path = "%s/.rlpatch/%s.request" % (self.save_path, self.STAGE)
        if not os.path.isfile(path):  # a pipe would block
            return
        try:
            before, self.request_time = self.request_time, os.stat(path).st_mtime_ns
            if self.request_time != before:
                if os.path.islink(os.path.dirname(path)):
                    raise ValueError("%s is a link, and none is followed" % os.path.dirname(path))
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)) as file:
                    self.request_settings = json.loads(file.read(9999))
                self.read_settings()
                if self.clock() > 1e9 * float(self.request_settings["expires"]):
                    os.unlink(path)
                    raise ValueError("%s has expired" % self.request)
                if self.is_addressed and self.last() < number:
                    raise ValueError("it was meant for %s, and this worker is at %s" % (self.last(), number))
        except BlockingIOError:  # under a lease of somebody else it is not there yet
            self.request_time = before
        except Exception as e:  # whatever stands there, it is data
            self.is_addressed, self.refused = False, True
            self.finish("request refused: %s" % e)
            self.refused = False

    def schedule_window(self, origin: int) -> None:
        """Take the window, or the next one of several; its numbers count from ``origin``."""
        self.origin = origin
        if self.SEVERAL:
            self.window = self.next_windows.pop(0)
        self.first, self.end = (origin + int(text or 10**9) for text in self.window.split(":"))
        self.open_at = max(self.first - self.WARMUP, 0)

    def tick(self, batch: Any) -> None:
        if self.LONGEST and self.unit == self.until:
            self.close("this patch saves at most %s units: apply the longer window" % self.LONGEST)
        elif self.CAN_BE_TAKEN and self.is_taken():
            self.close("")
        else:
            self.uncounted_range.close()
            if self.unit == self.first:
                if self.METADATA:
                    self.note("recording")
                self.synchronize()  # kernels of the warm-up are not part of the first unit
            self.prof.step()
            if self.METADATA and (self.WARMUP <= 1 or self.unit >= self.first):
                self.begin(batch)
        self.unit += 1

    def pause(self) -> None:
        from torch.profiler import record_function

        if self.METADATA:
            self.units[-1].setdefault("end", self.clock())
        self.uncounted_range.close()
        self.uncounted += 1
        self.uncounted_range.enter_context(record_function("rlpatch:uncounted"))


class ReplicaRecorder(Recorder):
    """A recorder for a worker that is one of several, in one of several replicas.

    Replicas that know of each other number their ranks together. Those that verl starts do not: it makes an engine
    of each, and from 0.8.0 on tells vLLM which (``workers/rollout/vllm_rollout/vllm_async_server.py``). A class of
    the worker finds ``dp`` and ``rank`` before anything else.
    """

    REPLICAS = "0"

    BY_CONTEXT: CompileTime[bool] = False
    BY_SERVER: CompileTime[bool] = False  # which is one of several that a replica has

    growth: int
    dp: int
    replica: str
    serves: Callable[[Any], str]  # "prefill", "decode", or anything else

    def __init__(self, worker: Any) -> None:
        import os

        replica = self.replica = os.environ.get("VERL_REPLICA_RANK", "")
        self.name = "%sdp%s_rank%s" % (replica and "replica%s_" % replica, self.dp, self.rank)
        if not self.WINDOWED:
            self.name = "graph_capture_" + self.name
        super().__init__(worker)
        if self.BY_SERVER:
            one = r"(prefill|decode|\d+)"
            replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, "all|%s(,%s)*" % (one, one)).split(",")
            self.done = self.done or {"all", replica, self.serves(worker)}.isdisjoint(replicas)
        else:
            replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, r"all|\d+(,\d+)*").split(",")
            self.done = self.done or (bool(replica) and {"all", replica}.isdisjoint(replicas))
        if self.METADATA:
            self.watched = "%s/.rlpatch/%s_%s.json" % (self.save_path, self.STAGE, self.name)
