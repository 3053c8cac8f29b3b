"""Keeping what a process does and when: the timeline, which needs no profiler.

A line at a call site keeps a ``Span`` in a local name: it begins where the line stands and ends with the frame,
also where that is of a generator or of a coroutine, and where it raises. The records go into a queue, and a thread
writes what lies there to a file of the process, about once a second: ``docs/reference/timeline.md`` has its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.memory_use import MemoryUse


class TimelineRecorder(MemoryUse):
    """Keeps what this process does and when, in a file of its own."""

    STAGE = "timeline"
    SAVE_PATH = "/nowhere/rlpatch_traces"
    RANKS = "0"
    MAX_TIMELINE_MB = "50"
    ABOUT: Mapping[str, object] = {}

    name = "timeline"
    state = ""  # then "starting", "on", and "off" where nothing is recorded (any more)

    first: Any
    rows: Any
    open: dict[int, list[Any]]
    ids: Any
    current: Any
    lock: Any
    wake: Any
    stream: Any
    file: int | None
    path: str
    written: int  # bytes, into the file
    who: dict[str, int]
    who_written: dict[str, int]
    reported: set[int]
    blocked: dict[int, int]  # nanoseconds in collectives, by thread
    waits_before: dict[Any, int]  # nanoseconds without a CPU, by thread, as last read
    waits_read: int  # when that was
    cpu_waits: Any  # rows of microseconds: clock, time since the waits were read before, longest wait in it
    measured: bool | None = None  # whether these are measured; None: not decided yet
    collecting: int | None = None  # when the last garbage collection began

    def __init__(self) -> None:
        import itertools
        import os
        import sys
        import time
        from collections import deque
        from contextvars import ContextVar
        from threading import get_ident

        self.clock, self.thread = time.monotonic_ns, get_ident
        # Where all patched packages of a process meet: what they record goes into one file.
        self.first = first = sys.__dict__.setdefault("_rlpatch_timeline_1", self)
        if first is self:
            self.rows, self.open, self.ids, self.blocked = deque(maxlen=131072), {}, itertools.count(1), {}
            self.current = ContextVar("_rlpatch_timeline", default=0)
            self.begin()
            os.register_at_fork(after_in_child=self.begin)
        else:
            self.rows, self.open, self.ids, self.current = first.rows, first.open, first.ids, first.current

    def begin(self) -> None:  # docstring goes in
        """Begin anew in a new or forked process: drop the spans, the notes and the file of its parent."""
        from threading import Event, Lock

        self.rows.clear()
        self.open.clear()
        self.clear_notes()
        self.waits_before, self.waits_read, self.cpu_waits = {}, self.clock(), []
        self.state, self.file, self.lock, self.wake, self.who, self.reported = "", None, Lock(), Event(), {}, set()
        self.before = next(self.ids)

    class Span:
        """Lasts until the last name of it is gone: that is the end of the frame that has it."""

        __slots__ = ("row", "timeline", "token")

        row: Any
        timeline: Any
        token: Any

        def __del__(self) -> None:
            """End the span: put its row into the queue, and note the memory."""
            try:
                row, timeline = self.row, self.timeline
            except AttributeError:  # an exception came before it had begun
                return
            if timeline.open.pop(row[0], None) is row:  # else it began in the process of which this is a fork
                if row[8] is not None:
                    row[8] = timeline.waited() - row[8]
                row[5] = timeline.clock()
                timeline.rows.append(row)
                if row[2] in ("phase", "call", "work", "unit", "sync", "sleep"):
                    timeline.first.note_memory(row[2] == "unit")
                if row[2] == "work" and not timeline.first.wake.is_set():
                    timeline.first.wake.set()  # the last one of a run is followed by the end of its process
                try:  # noqa: SIM105
                    timeline.current.reset(self.token)
                except ValueError:  # it ends in another context than that in which it began
                    pass

    def span(self, kind: str, name: str, key: Any = None, amount: Any = None) -> Any:
        """Begin and return a span of ``kind``, such as "phase" or "unit"; it ends when its last reference is gone.

        ``key`` is the id of a request, ``amount`` what the kind counts. Return None if nothing is recorded; an
        exception stops the timeline and not the run.
        """
        try:
            if self.first.state != "on" and not self.first.start():
                return None
            if kind in ("phase", "call", "work", "unit", "sync", "sleep"):
                self.first.note_memory(kind == "unit")
            number, span = next(self.ids), self.Span()
            waited = None if kind == "iteration" else self.waited()
            span.row = row = [number, self.current.get(), kind, name, self.clock(), None, key, amount, waited]
            span.timeline, span.token = self, self.current.set(number)
            self.open[number] = row
            if kind == "step":
                self.first.wake.set()
            return span
        except Exception as e:  # nothing here may stop the run
            self.first.stop(e)

    def waited(self) -> int | None:  # docstring goes in
        """Measure from the first call on; return ns that collectives blocked this thread, None if unknown."""
        first = self.first
        if first.measured is None:
            first.measure_waits()
        return first.blocked.get(self.thread(), 0) if first.measured else None

    def measure_waits(self) -> None:  # docstring goes in
        """Begin to measure waits in collectives, if torch's world has several ranks, and only gloo or mpi."""
        import sys

        dist: Any = sys.modules.get("torch.distributed")
        try:
            if not (dist and dist.is_available() and dist.is_initialized()):
                return
            self.measured = False
            backends = {part.rpartition(":")[2] for part in dist.get_backend_config().split(",")}
            if dist.get_world_size() > 1 and backends <= {"gloo", "mpi"}:
                tensor = sys.modules.get("torch.distributed.tensor")
                if tensor:  # it waits in C++
                    self.measure_method(tensor.DTensor, "full_tensor")
                self.measure_method(dist.Work, "wait")
                self.measured = True
        except Exception:  # noqa: S110  (a torch that is imported right now, or of another kind)
            pass

    def measure_method(self, class_: Any, name: str) -> None:  # docstring goes in
        """Replace the method ``name`` of ``class_`` by one that adds each call's ns to its thread's ``blocked``."""
        import functools

        call, blocked, clock, thread = getattr(class_, name), self.blocked, self.clock, self.thread

        @functools.wraps(call)
        def measured(*args: Any, **options: Any) -> Any:
            """Call the measured method, and add its time to that for which collectives have blocked this thread."""
            start, before = clock(), blocked.get(thread(), 0)
            try:
                return call(*args, **options)
            finally:
                blocked[thread()] = before + clock() - start

        setattr(class_, name, measured)

    def step(self, number: Any, metrics: Any = None, stale: str = "", log: str = "log") -> Any:  # docstring goes in
        """Mark the end of training step ``number``, and return the span of what follows it, a phase called ``log``.

        If ``metrics`` has a metric named ``stale``, note it: how many steps older the weights of the trajectories
        were.
        """
        try:
            amount = number
            if metrics and stale in metrics:
                amount = [number, int(float(metrics[stale]) * 1000) / 1000]  # no infinity: JSON has none
        except Exception:  # metrics of any kind: they are the framework's
            amount = number
        self.span("step", "", None, amount)
        return self.span("phase", log)

    def requested(self, kind: str, name: str, key: Any, prompt: Any) -> Any:
        """Begin a span of ``kind``, called ``name``, for the request with id ``key``, and return it.

        Its amount is the number of tokens of ``prompt`` (None: unknown).
        """
        try:
            tokens = len(prompt)
        except Exception:  # a prompt of any kind
            tokens = None
        return self.span(kind, name, key, tokens)

    class Units:
        """The units of a loop, each a span."""

        def __init__(self, timeline: Any, name: str, units: Any) -> None:
            wrapped = isinstance(units, type(self))  # in the epoch before
            self.timeline, self.name, self.units = timeline, name, units.units if wrapped else units

        def __len__(self) -> int:
            return len(self.units)

        def __iter__(self) -> Any:
            import time

            for item in self.units:
                span = self.timeline.span("unit", self.name, None, self.timeline.token_counts(item))
                begin = time.thread_time_ns()
                yield item
                if span:
                    span.row[7].append((time.thread_time_ns() - begin) // 1000)
                del span

    def units(self, name: str, units: Any) -> Any:
        """Return ``units`` so that each is a span of that name."""
        return self.Units(self, name, units)

    def token_counts(self, batch: Any) -> Any:  # docstring goes in
        """Return [tokens of a batch, tokens with padding]; a count is None if unknown or known to a device only."""
        try:
            batch = getattr(batch, "batch", batch)
            ids = batch["input_ids"]
            if ids.is_nested:
                lengths = ids.offsets().diff()
                return [ids.values().size(0), len(lengths) * int(lengths.max()) if lengths.is_cpu else None]
            mask = batch["attention_mask"]
            return [int(mask.sum()) if mask.is_cpu else None, ids.numel()]
        except Exception:  # a batch of another form
            return [None, None]

    def start(self) -> bool:  # docstring goes in
        """Read the settings and start the writing thread in the first call; return False if the timeline is off."""
        if self.state == "" and self.lock.acquire(False):
            self.state = "starting"
            try:
                import gc
                import json  # noqa: F401  (not first in the thread: a fork during that would hang)
                import os
                import zlib  # noqa: F401
                from multiprocessing.util import Finalize
                from threading import Thread

                if self.setting("RLPATCH", "1", "[01]") == "0":
                    self.state = "off"
                else:
                    self.pid = os.getpid()
                    self.folder = self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*") + "/timeline"
                    most = self.setting("RLPATCH_MAX_TIMELINE_MB", self.MAX_TIMELINE_MB, r"0*[1-9]\d*")
                    self.most_bytes, self.state = int(most) * 10**6, "on"
                    if self.collected not in gc.callbacks:  # a fork has that of its parent
                        gc.callbacks.append(self.collected)
                    Thread(target=self.write_regularly, name="rlpatch-timeline", daemon=True).start()
                    self.register(Finalize(None, self.write, [True], exitpriority=100))
            except Exception as e:
                self.stop(e)
            finally:
                self.lock.release()
        return self.state != "off"

    def collected(self, moment: str, info: Any) -> None:  # docstring goes in
        """Keep a garbage collection of over 50 ms as a span; Python calls this when one starts and stops."""
        now, since = self.clock(), self.collecting
        self.collecting = now if moment == "start" else None
        if since and moment == "stop" and now - since > 50000000 and self.state == "on":
            values = ("gc", "garbage collection", since, now, None, info["generation"], None)
            self.rows.append([next(self.ids), self.current.get(), *values])

    def register(self, end: Any) -> None:  # once, and in child processes, too
        """Have ``end`` called when this process ends."""
        import atexit

        atexit.register(end)

    def stop(self, error: Any) -> None:
        """Stop recording because of an exception, and print that, if it had not stopped before."""
        if self.state != "off":
            self.state = "off"
            self.say("recording ended: %s: %s; the run goes on" % (type(error).__name__, error))

    def write_regularly(self) -> None:
        """Note memory and waits for a CPU, and write records, until the timeline is off; a thread runs this.

        Do so every half second, or at once when ``wake`` is set.
        """
        import gc
        import time

        while self.state == "on":
            self.wake.wait(0.5)
            time.sleep(0.02)  # for what ends together
            self.wake.clear()
            self.note_change()
            self.note_cpu_wait()
            self.write()
        if self.collected in gc.callbacks:
            gc.callbacks.remove(self.collected)

    def note_cpu_wait(self) -> None:  # docstring goes in
        """Note how long a thread was ready to run but had no CPU since the last reading, if over 2 % of the time.

        The thread that waited longest counts. Skip calls within a quarter of a second: a reading takes 0.2 ms.
        """
        before, since = self.waits_before, self.waits_read
        if self.clock() - since < 250000000:
            return
        self.waits_before, self.waits_read = self.thread_waits(), self.clock()
        waits = [waited - before.get(thread, waited) for thread, waited in self.waits_before.items()]
        longest, elapsed = max([0, *waits]), self.waits_read - since
        if 50 * longest > elapsed:
            self.cpu_waits.append([self.waits_read // 1000, elapsed // 1000, min(longest, elapsed) // 1000])

    def thread_waits(self) -> dict[Any, int]:
        """Return the nanoseconds for which Python's threads have waited for a CPU so far, by native thread id.

        Threads for which they are unknown are left out.
        """
        import os
        import threading

        waits = {}
        for thread in {os.getpid(), *(thread.native_id for thread in threading.enumerate())}:
            try:
                file = os.open("/proc/self/task/%s/schedstat" % thread, os.O_RDONLY)
                try:
                    waits[thread] = int(os.read(file, 99).split()[1])
                finally:
                    os.close(file)
            except (OSError, ValueError, IndexError):  # no such file, or a thread that has ended
                pass
        return waits

    def write(self, last: bool = False) -> None:
        """Append what is new to the compressed file as a line of JSON: spans, memory, and waits for a CPU.

        Write nothing if another thread is still writing after 2 seconds. With ``last`` end the file and stop
        recording. An error stops the timeline, too.
        """
        import json
        import time
        import zlib

        if not self.lock.acquire(timeout=2):  # the folder hangs: a process must be able to end
            return
        try:
            now = self.clock()
            rows, begun = self.new_rows(now)
            noted = self.changed or self.in_use or self.cpu_waits
            if self.state == "on" and (rows or begun or noted or (last and self.file is not None)):
                self.open_file(time.time_ns() // 10**6)
                line = {"at": [now // 1000, time.time_ns() // 1000], **self.span_record(rows, begun, now // 1000)}
                line.update(self.memory_record(now // 1000))
                line.update(self.cpu_wait_record(now // 1000))
                if last:
                    line["end"] = "off"
                self.put(self.stream.compress(json.dumps(line, separators=(",", ":")).encode() + b"\n"))
                self.put(self.stream.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH))
                if last:
                    self.state = "off"
        except Exception as e:  # a full disk, a folder that cannot be written
            self.stop(e)
        finally:
            self.lock.release()

    def new_rows(self, now: int) -> tuple[list[Any], list[Any]]:
        """Return the spans that ended since the last call, and those newly open for over 1 s at ``now`` (ns)."""
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        lasting = [row for row in list(self.open.values()) if row[4] < now - 10**9]
        begun = [row for row in lasting if row[0] not in self.reported]
        self.reported.update(row[0] for row in begun)
        self.reported.difference_update(row[0] for row in rows)
        return rows, begun

    def cpu_wait_record(self, origin_us: int) -> dict[str, Any]:
        """Remove the noted waits for a CPU and return them, at microseconds after ``origin_us``; {} without any."""
        waits, self.cpu_waits = self.cpu_waits, []
        return {"cpu_waits": [[at - origin_us, *lengths] for at, *lengths in waits]} if waits else {}

    def put(self, data: bytes) -> None:
        """Append all of ``data`` to the file, and count its bytes."""
        import os

        self.written += len(data)
        while data:
            data = data[os.write(self.file or 0, data) :]

    def open_file(self, now_ms: int) -> None:  # docstring goes in
        """Open a file with a header, if none is open, or in place of one over half the limit, now PATH.old."""
        import json
        import os
        import zlib

        if self.file is not None:
            if self.written <= self.most_bytes // 2:
                return
            self.put(self.stream.flush())
            os.close(self.file)
            os.replace(self.path, self.path + ".old")
        else:
            os.makedirs(self.folder, exist_ok=True)
            self.path = "%s/%s_%s_%s.jsonl.gz" % (self.folder, self.host_name(), self.pid, now_ms)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        self.file, self.stream = os.open(self.path, flags, 0o644), zlib.compressobj(6, zlib.DEFLATED, 31)
        about, names = self.ABOUT, ("RANK", "WORLD_SIZE", "LOCAL_RANK", "VERL_REPLICA_RANK", "WG_PREFIX")
        header: dict[str, Any] = {"rlpatch timeline": 1, "tool": about.get("rlpatch")}
        header.update({"package": about.get("target"), "release": about.get("release")})
        header.update({"host": os.uname().nodename, "boot": self.boot(), "pid": self.pid, "parent": os.getppid()})
        header.update({"command": self.command_line(), "run": self.run_name(), "before": self.before})
        header["environ"] = {name: os.environ[name] for name in names if name in os.environ}
        self.written, self.who_written, self.device_written = 0, {}, None
        self.put(self.stream.compress(json.dumps(header, separators=(",", ":")).encode() + b"\n"))

    def host_name(self) -> str:
        """Return the name of the host, with "_" for all but letters and digits."""
        import os

        return "".join(c if c.isalnum() else "_" for c in os.uname().nodename)

    def boot(self) -> str:
        """Return the id of the kernel's boot, which tells hosts apart and clocks that started anew."""
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()

    def command_line(self) -> str:
        """Return the first 80 characters of this process's command line."""
        with open("/proc/self/cmdline", errors="replace") as file:
            return file.read(4096).replace("\0", " ").strip()[:80]

    def run_name(self) -> str:  # docstring goes in
        """Return the name of the run, the same on all hosts: of Ray's job, or RLPATCH_RUN; "" if unknown."""
        import contextlib
        import os
        import sys

        ray = sys.modules.get("ray")
        with contextlib.suppress(Exception):
            if ray and ray.is_initialized():
                context = ray.get_runtime_context()
                return "%s %s" % (context.gcs_address, context.get_job_id())
        return "" if "RAY_RAYLET_PID" in os.environ else os.environ.get("RLPATCH_RUN", "")

    def span_record(self, rows: Any, begun: Any, origin_us: int) -> dict[str, Any]:  # docstring goes in
        """Return spans as a record of the file: those that have ended (``rows``) and open ones (``begun``), in ns.

        Times in the record are in microseconds after ``origin_us``. "spans" has rows. "iterations" has columns of
        those that have ended, as differences but for the lengths. "who" has rank and data-parallel rank if they
        have changed.
        """
        record: dict[str, Any] = {}
        if self.who != self.who_written:
            record["who"] = self.who_written = dict(self.who)
        spans, iterations = [], []
        for row in [*rows, *begun]:
            number, parent, kind, name, start, end, key, amount, waited = row
            start, length = start // 1000, None if end is None else end // 1000 - start // 1000
            if kind == "iteration" and length is not None:
                iterations.append((number, start, length, *amount))
            elif kind != "iteration":
                waited = None if length is None or waited is None else waited // 1000
                spans.append([number, parent, kind, name, start - origin_us, length, key, amount, waited])
                while spans[-1][-1] is None and len(spans[-1]) > 6:
                    spans[-1].pop()
        if spans:
            record["spans"] = spans
        if iterations:
            columns = [list(column) for column in zip(*iterations)]  # noqa: B905
            for position, column in enumerate(columns):
                if position != 2:  # lengths stay as they are
                    before = origin_us if position == 1 else 0
                    column[:] = [value - earlier for value, earlier in zip(column, [before, *column])]  # noqa: B905
            record["iterations"] = columns
        return record


class EngineTimeline(TimelineRecorder):
    """Keeps the iterations of an engine, too, on the ranks that were chosen."""

    counted: bool | None = None  # None: no iteration was seen yet
    requests = context = longest = rollout = 0
    cached = True  # False: the KV cache of this engine cannot be read
    cpu_clock: Any  # of the calling thread, in nanoseconds
    iterating: Any  # row of the newest iteration

    def records_rank(self, rank: int, dp: int) -> bool:
        """Note ``rank`` and data-parallel rank ``dp``, and tell whether RLPATCH_RANKS has ``rank`` or is "all".

        Only then are iterations recorded. Call it before the first one, as it sets their CPU clock. Raises
        ValueError if RLPATCH_RANKS is invalid.
        """
        import time

        self.cpu_clock = time.thread_time_ns
        ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*").split(",")
        self.first.who = {"rank": rank, "dp": dp}
        return bool({"all", str(rank)} & {*ranks})

    def begin_iteration(self, begins_rollout: bool, *amount: int) -> Any:  # docstring goes in
        """Begin an iteration and return its span (None: not recorded).

        ``amount`` is requests, tokens, sum and maximum of contexts; with ``begins_rollout``, a rollout is counted.
        """
        self.rollout += begins_rollout
        span = self.span("iteration", "", None, (*amount, self.cpu_clock() // 1000, self.rollout))
        if begins_rollout:
            self.first.note_memory(False)  # without a trainer, no other span does
        self.first.iterating = span and span.row  # for a window that is recorded in this process
        return span

    def blocks(self, scheduler: Any) -> None:  # docstring goes in
        """Note the KV-cache blocks of ``scheduler`` in use; if they cannot be read, print that and note no more."""
        try:
            first = self.first
            if self.cached and (first.state == "on" or first.start()):
                used, first.cache_size = self.read_cache(scheduler)
                first.in_use.append((self.clock(), used))
        except Exception as e:
            self.cached = False
            self.say("the use of the KV cache is not recorded: %s: %s" % (type(e).__name__, e))

    def read_cache(self, scheduler: Any) -> Any:
        """Return the blocks in use, and how many there are."""
        raise NotImplementedError


class VllmTimeline(EngineTimeline):
    """Keeps the iterations of vLLM's V1 engine (``SchedulerOutput`` of ``vllm/v1/core/sched/output.py``)."""

    def read_cache(self, scheduler: Any) -> Any:
        """Return the KV-cache blocks in use, and all of them, without the null block."""
        pool = scheduler.kv_cache_manager.block_pool  # one of its blocks, the null block, is never free
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(), pool.num_gpu_blocks - 1

    def iteration(self, worker: Any, batch: Any) -> Any:
        """Begin and return the span of an iteration: requests, tokens, sum and maximum of contexts of ``batch``.

        Speculative draft tokens are not counted. Return None without tokens, on a rank that was not chosen, and
        after an error, which stops the timeline.
        """
        try:
            if self.counted is None:
                parallel = worker.vllm_config.parallel_config
                dp = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
                self.counted = self.records_rank(worker.rank, dp)
            tokens, requests = batch.total_num_scheduled_tokens, len(batch.num_scheduled_tokens)
            drafts = getattr(batch, "scheduled_spec_decode_tokens", None)
            if drafts:  # with its drafts a decode step would look like a prefill
                tokens -= sum(map(len, drafts.values()))
            if not (tokens and self.counted):
                return None
            new = batch.scheduled_new_reqs
            if tokens == requests == self.requests and not new and not drafts and not batch.finished_req_ids:
                self.context += tokens  # nobody came or went: to add all of them up takes longer than all the rest
                self.longest += 1
            else:
                cached = batch.scheduled_cached_reqs
                if isinstance(cached, list):  # before vLLM 0.9.2
                    names, before = [request.req_id for request in cached], [r.num_computed_tokens for r in cached]
                else:
                    names, before = cached.req_ids, cached.num_computed_tokens
                names, before = [*names], [*before]
                for request in new:
                    names.append(request.req_id)
                    before.append(request.num_computed_tokens)
                self.context = tokens + sum(before)
                self.longest = 1 + max(before)
                if tokens > requests:  # some request has more than one token
                    counts = batch.num_scheduled_tokens
                    self.longest = max(map(sum, zip(before, map(counts.get, names))))  # noqa: B905
            self.requests = requests
            return self.begin_iteration(len(new) == requests, requests, tokens, self.context, self.longest)
        except Exception as e:
            self.counted = False
            self.first.stop(e)


class SglangTimeline(EngineTimeline):
    """Keeps the iterations of SGLang (``ScheduleBatch`` of ``sglang/srt/managers/schedule_batch.py``)."""

    batch: Any = ()  # the requests of the last one

    def read_cache(self, scheduler: Any) -> Any:
        """Return how many tokens of SGLang's KV cache are in use (evictable ones are not), and its size in tokens.

        If other layers of the model have a sliding window or a state, only those of full attention are counted.
        """
        pool = getattr(scheduler, "token_to_kv_pool_allocator", None)  # none before 0.4.3.post3
        pool = pool or scheduler.token_to_kv_pool
        total = getattr(scheduler, "full_tokens_per_layer", None) or scheduler.max_total_num_tokens
        free = getattr(pool, "full_available_size", pool.available_size)()
        try:
            evictable = scheduler.tree_cache.evictable_size()
        except NotImplementedError:  # before 0.5.21 beside sliding windows or states
            evictable = scheduler.tree_cache.full_evictable_size()
        return total - free - evictable, total  # its blocks are tokens

    def iteration(self, worker: Any, batch: Any) -> Any:
        """Begin and return the span of an iteration: requests, tokens, sum and maximum of contexts of ``batch``.

        ``worker`` is the scheduler, whose use of the KV cache is noted, too. Return None without requests, on a
        rank that was not chosen, and after an error, which stops the timeline.
        """
        try:
            if self.counted is None:
                import sys

                dist: Any = sys.modules.get("torch.distributed")
                in_a_world = dist and dist.is_available() and dist.is_initialized()
                parallel, context = getattr(worker, "ps", worker), sys.modules.get("sglang.srt.runtime_context")
                if context and not hasattr(parallel, "dp_rank"):  # from 0.5.21 on
                    parallel = context.get_parallel()
                dp = getattr(parallel, "dp_rank", None)
                dp = getattr(parallel, "attn_dp_rank", 0) if dp is None else dp
                self.counted = self.records_rank(dist.get_rank() if in_a_world else 0, dp or 0)
            requests = len(batch.reqs)
            if not (requests and self.counted):
                return None
            self.blocks(worker)
            tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else requests
            lengths = getattr(batch, "seq_lens_cpu", None)  # on the host, from 0.5.3 on
            total, longest = batch.seq_lens_sum or 0, 0
            if lengths is not None:
                total, longest = total or int(lengths.sum()), int(lengths.max())
            return self.begin_iteration(self.begins_rollout(worker, batch), requests, tokens or 0, total, longest)
        except Exception as e:
            self.counted = False
            self.first.stop(e)

    def begins_rollout(self, scheduler: Any, batch: Any) -> bool:  # docstring goes in
        """Tell whether ``batch`` begins a rollout: it prefills new requests, and none runs. Call once a batch."""
        before, self.batch = self.batch, batch.reqs
        if not batch.forward_mode.is_extend() or getattr(getattr(scheduler, "running_batch", None), "reqs", []):
            return False
        return {*map(id, before)}.isdisjoint(map(id, batch.reqs))  # else it is the next part of a prompt


class TrainerTimeline(TimelineRecorder):
    """Keeps the training steps of a trainer that each rank runs by itself (a ``Trainer`` of transformers).

    A step is one piece of work on each rank, which has the number of the step; the first rank marks its end.
    """

    work: Any = None
    done: Any = None  # steps of the optimizer, when that work began

    def training_step(self, trainer: Any, kind: str, name: str) -> Any:  # docstring goes in
        """Begin and return a micro-batch's span; the first after an optimizer step begins a training step, too."""
        try:
            done = trainer.state.global_step
            if self.work is None or done != self.done:
                self.ended(trainer)
                self.done = done
                self.work = self.span("work", "train", type(trainer).__name__, done + 1)
        except Exception as e:
            self.first.stop(e)
        return self.span(kind, name)

    def logged(self, trainer: Any, values: Any) -> Any:  # docstring goes in
        """Begin and return a span "log"; if ``values`` has "train_runtime", the run ends: end its last step."""
        try:
            if "train_runtime" in values:
                self.ended(trainer)
        except Exception as e:
            self.first.stop(e)
        return self.span("phase", "log")

    def ended(self, trainer: Any) -> None:  # docstring goes in
        """End the training step that is going on, if any; rank 0 marks the end with the number of the step."""
        work, self.work = self.work, None
        if work is not None:
            del work
            if trainer.args.process_index == 0:
                self.span("step", "", None, self.done + 1)


class GroupTimeline(TimelineRecorder):
    """Keeps what a driver calls on groups of actors of Ray, each by the class of its group."""

    def called(self, group: Any, method: str) -> Any:
        """Begin and return the span of a driver's call on ``group``, a group of Ray actors.

        Its name is "Class.method", or ``method`` if the class of the actors is unknown.
        """
        import contextlib

        with contextlib.suppress(Exception):  # a group of another kind: its calls have no class then
            method = group.ray_actor_type.__ray_metadata__.modified_class.__name__ + "." + method
        return self.span("call", method)

    def works(self, actor: Any, method: str) -> Any:
        """Begin the span in which an actor runs one of its methods."""
        return self.span("work", type(actor).__name__ + "." + method)


class LoopTimeline(TimelineRecorder):
    """Keeps what a driver that is a script calls on groups of actors; in between, it waits for what it called.

    Nothing of the package runs in the driver while it waits. A training step ends with the update of the weights;
    without one (asynchronous trainers skip some), it ends when the next one begins.
    """

    waiting: Any = None  # the span of a step, in which its calls lie
    trained: Any = None  # rollout that was trained on, and is not marked as a step yet

    class Call:
        """A call of the driver, which lasts as long as its frame."""

        span: Any = None

        def __init__(self, timeline: Any, ends_step: bool) -> None:
            self.timeline, self.ends = timeline, ends_step

        def __del__(self) -> None:
            self.span = None
            if self.ends:
                self.timeline.end_step()

    def called(self, group: Any, method: str, rollout: Any = None) -> Any:
        """Begin a driver's call of ``method`` on a group of actors; it ends when the returned object is dropped.

        With ``rollout``, the call trains on the rollout of that number, and the first call for a rollout ends the
        step before. A step ends when its call of "update_weights" does.
        """
        if rollout is not None and rollout != self.trained:
            if self.trained is not None or self.waiting is None:
                self.end_step()
            self.trained = rollout
        call = self.Call(self, method == "update_weights")
        call.span = self.span("call", "%s.%s" % (getattr(group, "role", "actor"), method))
        if call.span and self.waiting:
            call.span.row[1] = self.waiting.row[0]  # also where each call is a task of asyncio's
        return call

    def end_step(self) -> None:
        """Mark the end of the step that was trained, if any, and begin the span in which the driver waits.

        The number of the step is that of its rollout plus 1: rollouts are counted from 0, steps from 1.
        """
        trained, self.trained, self.waiting = self.trained, None, None
        try:
            if trained is not None:
                self.span("step", "", None, trained + 1)
        except Exception as e:  # a rollout without a number
            self.first.stop(e)
        self.waiting = self.span("poll", "wait")

    def works(self, actor: Any, method: str) -> Any:
        return self.span("work", "%s.%s" % (getattr(actor, "role", "actor"), method))

    def timed(self, method: str, args: Any) -> Any:
        """Begin and return the span of ``method`` if the first of ``args`` is an actor with a role; else None."""
        return self.works(args[0], method) if args and hasattr(args[0], "role") else None
