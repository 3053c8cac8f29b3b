"""Recording a window of units, whatever a unit is and whichever profiler records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patches.probes.facts import Facts
from patches.probes.settled import Settled


class Recorder(Facts):
    """Opens a profiler shortly before the window, steps it with each unit, and saves it where the window ends.

    A counting class derives from it: it gives ``name`` and ``title`` of a recording, keeps ``unit`` (the number of
    the next one) and calls ``open``, ``tick``, ``pause`` and ``close``. The class of a backend builds the profiler.
    The texts that the user chose have the form of the environment variables that replace them.
    """

    WINDOW = "30:60"
    RANKS = "0"
    SAVE_PATH = "/nowhere/rlpatch_traces"
    MAX_TRACE_GB = "0"

    WINDOWED: Settled[bool] = True
    LIMITED: Settled[bool] = False  # in the size of a trace
    EVERY_RANK: Settled[bool] = False
    FIRST: Settled[int] = 0  # the number of the first unit
    WARMUP: Settled[int] = 1
    LOGGER: Settled[str] = "rlpatch"
    TRACES: Settled[str] = ""

    prof: Any
    name: str
    open_at: int | None
    first: int
    end: int
    window: str
    ranks: list[str]
    rank: int
    world: int
    there: set[str]
    request: str
    given: Mapping[str, Any]
    stamp: int
    coming: list[str]
    origin: int
    span: str
    meant: bool

    @classmethod
    def tell(cls, probe: Any, worker: Any, event: str, args: Any) -> Any:
        """The recorder of the worker, made at its first call, after an event; None once nothing is left."""
        try:
            probe = probe or cls(worker)  # type: ignore[call-arg]
            if not probe.done:
                getattr(probe, event)(*args)
            return None if probe.done else probe
        except Exception as e:  # profiling must not stop the run
            import contextlib

            cls.say(probe or worker, "%s: no profile, the run goes on" % cls.STAGE, type(e), e, e.__traceback__)
            with contextlib.suppress(Exception):
                probe.done = True
                probe.close("failed")
                if cls.FACTS:
                    probe.note("failed", repr(e))

    def say(self, text: str, *failure: Any) -> None:  # also where others have silenced the root logger
        import logging

        logger = node = logging.getLogger(self.LOGGER)
        while node and not any(h.level <= 30 and type(h) is not logging.NullHandler for h in node.handlers):
            node = node.parent if node.propagate else None  # type: ignore[assignment]
        line = "rlpatch: %s, %s" % (getattr(self, "name", "rank %s" % getattr(self, "rank", "unknown")), text)
        record = logger.makeRecord(logger.name, 40 if failure else 30, "rlpatch", 0, line, (), failure or None)
        (logger.callHandlers if node else logging.StreamHandler().handle)(record)

    def interrupt(self, why: str) -> None:
        self.tell(self, None, "close", [why])

    def identify(self) -> None:
        import os

        self.host = "".join(c if c.isalnum() else "_" for c in os.uname().nodename)
        self.pid, self.prof, self.open_at, self.unit = os.getpid(), None, None, self.FIRST
        if self.FACTS:
            import time

            self.clock, self.units = time.time_ns, []
            if self.ON_DEMAND:
                self.saved, self.given, self.stamp = [], {}, 0
            elif self.SEVERAL or self.REPEAT > 1:
                self.saved = []

    def configure(self) -> None:
        import os

        self.save_path = os.path.realpath(self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*"))
        if self.ON_DEMAND:
            self.done = self.setting("RLPATCH", "1", "[01]") == "0"
        if self.LIMITED:
            self.most_bytes = int(self.setting("RLPATCH_MAX_TRACE_GB", self.MAX_TRACE_GB, r"0*[1-9]\d*")) * 10**9
            self.bytes_of_unit = 0

    def choose(self) -> None:
        self.ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*").split(",")
        if self.ON_DEMAND:
            self.request = self.setting("RLPATCH_REQUEST", "", r"\w*")
        else:
            self.done = self.of_others() or self.setting("RLPATCH", "1", "[01]") == "0"
        self.expect()
        if self.WINDOWED:
            self.window = self.setting("RLPATCH_WINDOW", self.WINDOW, self.form())
            if self.SEVERAL or self.ON_DEMAND:
                ends = [int(text or 10**9) for text in self.window.replace(",", ":").split(":")]
                if ends[0] < self.lowest() or ends != sorted(set(ends)):
                    raise ValueError("the window %s is empty, too early or not in order" % self.window)
            else:
                self.first, self.end = (int(text or 10**9) for text in self.window.split(":"))
                if self.first >= self.end:
                    raise ValueError("RLPATCH_WINDOW=%s is empty" % self.window)
        else:
            self.first, self.end = 0, 1
        if self.ON_DEMAND:
            self.meant = bool(self.window) and not self.of_others()

    def of_others(self) -> bool:
        return {"all", str(self.rank)}.isdisjoint(self.ranks)

    def setting(self, name: str, default: str, pattern: str) -> str:
        import os
        import re

        text = os.environ.get(name.replace("RLPATCH_", self.prefix())) or os.environ.get(name) or default
        if self.ON_DEMAND:
            text = str(self.given.get(name, text))
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%.60r cannot be used where %s is the default" % (name, text, default))
        return text

    def look(self, number: int) -> None:
        """Take the request that lies in the folder, if it is a new one: settings, for a unit not yet begun."""
        import json
        import os

        path = "%s/.rlpatch/%s.request" % (self.save_path, self.STAGE)
        if not os.path.isfile(path):  # a pipe would block
            return
        try:
            stamp, self.stamp = self.stamp, os.stat(path).st_mtime_ns
            if self.stamp != stamp:
                with open(path) as file:
                    self.given = json.loads(file.read(9999))
                self.choose()
                if self.clock() > 1e9 * float(self.given["expires"]):
                    os.unlink(path)
                    raise ValueError("%s has expired" % self.request)
                if self.meant and self.last() < number:
                    raise ValueError("it was meant for %s, and this worker is at %s" % (self.last(), number))
        except Exception as e:  # whatever stands there, it is data
            self.meant = False
            self.finish("request refused: %s" % e)

    def aim(self, origin: int) -> None:
        """Take the window, or the next one of several; its numbers count from ``origin``."""
        if self.SEVERAL:
            self.span, self.origin = self.coming.pop(0), origin
            self.first, self.end = (origin + int(text or 10**9) for text in self.span.split(":"))
        else:
            self.first, self.end = (origin + int(text or 10**9) for text in self.window.split(":"))
        self.open_at = max(self.first - self.WARMUP, 0)

    def lowest(self) -> int:
        raise NotImplementedError

    def expect(self) -> None:
        raise NotImplementedError

    def last(self) -> int:
        raise NotImplementedError

    def open(self, at: int, batch: Any = None) -> None:  # not in __init__, where every rank is on device 0
        import atexit
        import os
        from contextlib import ExitStack
        from multiprocessing.util import Finalize
        from threading import get_ident

        import torch.profiler

        other = self.other()  # two at once lose data or crash
        why = other.name + " is recording" if getattr(other, "prof", None) else self.framework() or self.occupied()
        os.makedirs(self.save_path, exist_ok=True)
        if (disk := os.statvfs(self.save_path)).f_bavail * disk.f_frsize < 10**9:
            why = why or "less than 1 GB is free in %s" % self.save_path
        if self.LIMITED:
            why = why or self.too_large()
            self.there = self.files()
        if why:
            return self.finish("not recorded: %s" % why)
        self.units, self.uncounted, self.gap, self.old, self.thread = [], 0, ExitStack(), self.traces(), get_ident()
        self.synchronize()
        self.prof = self.build(at, self.first - at, self.end - self.first)
        torch.profiler._rlpatch_recording = self  # where all our patches of this process meet
        atexit.register(self.interrupt, "the process ends")  # before torch_npu shuts the device down
        Finalize(None, self.interrupt, ["the process ends"], exitpriority=100)  # in child processes
        self.prof.start()
        if self.WINDOWED:
            for _ in range(at):  # through WAIT, so that ProfilerStep#n carries the number of its unit
                self.prof.step()
        if self.FACTS:
            self.note("armed" if at < self.first else self.begin(batch) or "recording")  # type: ignore[func-returns-value]

    def tick(self, batch: Any) -> None:
        if self.LIMITED and self.unit == self.first + 1:
            self.bytes_of_unit = self.weigh()
            why = self.too_large()
            if why:
                return self.close(why)
        self.gap.close()
        if self.unit == self.first:
            if self.FACTS:
                self.note("recording")
            self.synchronize()  # kernels of the warm-up are not part of the first unit
        self.prof.step()
        if self.FACTS and (self.WARMUP <= 1 or self.unit >= self.first):
            self.begin(batch)
        self.unit += 1

    def pause(self) -> None:
        from torch.profiler import record_function

        if self.FACTS:
            self.units[-1].setdefault("end", self.clock())
        self.gap.close()
        self.uncounted += 1
        self.gap.enter_context(record_function("rlpatch:uncounted"))

    def close(self, why: str) -> None:
        import os

        prof, self.prof = self.prof, None
        if prof is None or self.pid != os.getpid():  # a child that was forked inside the window
            return
        try:
            if self.WINDOWED:
                self.gap.close()
            self.synchronize()  # torch_npu before 2.9.0.post9 does not, and cuts off the last kernels
            if self.FACTS:
                (self.units or [{}])[-1].setdefault("end", self.clock())
            if self.unit == self.end:
                prof.step()
        finally:
            prof.stop()
        count, found = max(self.unit - self.first, 0), sorted(self.traces() - self.old)
        if count and not found:
            raise RuntimeError("the profiler left no trace in %s" % self.save_path)
        if self.LIMITED and count:
            self.bytes_of_unit = self.weigh() // count
        if self.WINDOWED:
            of = " units" if self.end >= 10**9 else " of %s units" % (self.end - self.first)
            if self.RELATIVE:
                of += " from number %s on," % self.first
            seen = why, count, of, self.uncounted, self.between(), ", ".join(found) or "no trace"
            self.finish("%s, recorded %s%s with %s %s between them: %s" % seen, found)
        else:
            self.finish("%s, recorded: %s" % (why, ", ".join(found)), found)

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        self.say(self.title(report))
        if self.SEVERAL and self.coming:
            self.aim(self.origin)
        else:
            self.done, self.open_at = self.finished(), None
        if self.FACTS:
            if self.SEVERAL or self.ON_DEMAND or self.REPEAT > 1:
                self.saved = [*self.saved, *found][-16:]
            self.note("saved" if found else "not recorded", report, found)

    def too_large(self) -> str:
        import shutil

        most = min(self.most_bytes, shutil.disk_usage(self.save_path).free - 10**9)
        size = self.bytes_of_unit * (self.end - self.first)
        return "its trace would have %.1f GB, by the first unit's" % (size / 1e9) if size > most else ""

    def weigh(self) -> int:
        import os

        found = [path for path in self.files() - self.there if not path.endswith(".rlpatch.json")]
        folders = [
            os.path.join(folder, name) for path in found for folder, _, names in os.walk(path) for name in names
        ]
        return sum(os.path.getsize(path) for path in [*found, *folders])

    def files(self) -> set[str]:
        import glob

        return set(glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + "*"))

    def other(self) -> Any:
        import torch.profiler

        return getattr(torch.profiler, "_rlpatch_recording", None)

    def traces(self) -> set[str]:
        import glob

        found = glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + self.TRACES)
        return {path.partition("/profiler_info")[0] for path in found}

    def prefix(self) -> str:
        raise NotImplementedError

    def form(self) -> str:
        if self.SEVERAL:
            return r"\d+:\d*(,\d+:\d*)*"
        if self.ON_DEMAND:
            return r"(\d+:\d*)?"
        return r"0*[1-9]\d*:\d*" if self.FIRST == 1 and not self.RELATIVE else r"\d+:\d*"

    def title(self, report: str) -> str:
        raise NotImplementedError

    def finished(self) -> bool:
        raise NotImplementedError

    def between(self) -> str:
        raise NotImplementedError

    def framework(self) -> str:
        raise NotImplementedError

    def build(self, wait: int, warmup: int, active: int) -> Any:
        raise NotImplementedError

    def synchronize(self) -> None:
        raise NotImplementedError

    def occupied(self) -> str:
        raise NotImplementedError


class Placed(Recorder):
    """A recorder for a worker that is one of several, in one of several replicas.

    Replicas that know of each other number their ranks together. Those that verl starts do not: it makes an engine
    of each, and from 0.8.0 on tells vLLM which (``workers/rollout/vllm_rollout/vllm_async_server.py``).
    """

    REPLICAS = "0"

    BY_CONTEXT: Settled[bool] = False

    growth: int
    dp: int
    replica: str

    def told(self) -> str:
        import os

        return os.environ.get("VERL_REPLICA_RANK", "")

    def heed(self, told: str) -> None:
        replicas = self.setting("RLPATCH_REPLICAS", self.REPLICAS, r"all|\d+(,\d+)*").split(",")
        self.done = self.done or (bool(told) and {"all", told}.isdisjoint(replicas))

    def place(self, worker: Any) -> None:
        raise NotImplementedError
