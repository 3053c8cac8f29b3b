"""Counting the iterations of a rollout and recording those of the window."""

from __future__ import annotations

from typing import Any


class Window:
    """Opens a profiler shortly before the window, steps it, and saves it where the window ends.

    Every step comes from the head of an engine iteration, which ends the iteration before it: in all
    releases the forward and the sampling of an iteration lie between two heads. This class knows no
    engine and no profiler; ``place`` and ``observe`` come from the recipe, the other names below from
    the backend. The text constants have the form of the environment variables that replace them.
    """

    KINDS: tuple[str, ...] = ("decode",)
    WINDOW = "30:60"
    LOWEST = 1
    WARMUP = 1
    ROLLOUT = "0"
    REPEAT = 1
    RANKS = "0"
    SAVE_PATH = "/nowhere/rlpatch_traces"
    LOGGER = "rlpatch"

    place: Any
    observe: Any
    build: Any
    synchronize: Any
    occupied: Any
    TRACES: str
    prof: Any
    open_at: Any
    live: set[str]
    prefilling: dict[str, float]
    counts: dict[str, int]

    def __init__(self, worker: Any) -> None:
        import contextlib
        import os

        on = self.setting("RLPATCH", "1", "[01]") == "1"
        self.first, self.end = map(int, self.setting("RLPATCH_WINDOW", self.WINDOW, r"\d+:\d+").split(":"))
        ranks = self.setting("RLPATCH_RANKS", self.RANKS, r"all|\d+(,\d+)*")
        self.chosen = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))
        self.save_path = os.path.realpath(self.setting("RLPATCH_SAVE_PATH", self.SAVE_PATH, "/.*"))
        if not self.LOWEST <= self.first < self.end:
            raise ValueError("RLPATCH_WINDOW=%s:%s is empty or too early" % (self.first, self.end))
        replica, rank = self.place(worker)
        host = "".join(c if c.isalnum() else "_" for c in os.uname().nodename)
        self.name = "%s_dp%s_rank%s_%s" % (host, replica, rank, os.getpid())
        self.prof = None
        self.uncounted_range = contextlib.ExitStack()
        self.foreign, self.live, self.prefilling, self.counts = "", set(), {}, {}
        self.rollout = 0
        self.rewind()
        self.done = not on or (ranks != "all" and str(rank) not in ranks.split(","))

    def setting(self, name: str, default: str, pattern: str) -> str:
        import os
        import re

        text = os.environ.get(name) or default
        if os.environ.get("RLPATCH") == "0" and name != "RLPATCH":
            text = default  # switched off: what the others hold does not matter
        if not re.fullmatch(pattern, text):
            raise ValueError("%s=%s cannot be used where %s is the default" % (name, text, default))
        return text

    def rewind(self) -> None:
        self.unit, self.uncounted, self.busy = self.LOWEST, 0, False
        self.done = self.rollout >= self.chosen + self.REPEAT
        asked = self.rollout >= self.chosen and not self.done
        self.open_at = max(self.first - self.WARMUP, 0) if asked else None

    def step(self, batch: Any) -> None:
        kind = self.observe(batch)
        if self.prof is not None:
            self.advance(kind)
        elif kind is not None:
            counted = kind in self.KINDS
            at = self.unit if counted else self.LOWEST - 1  # the warm-up of decode step 1 is the prefill
            if self.open_at is not None and at >= self.open_at:
                self.open(at)
            self.unit += counted

    def open(self, at: int) -> None:  # not in the worker's __init__, where every rank is still on device 0
        import atexit
        from multiprocessing.util import Finalize

        reason = self.foreign or self.occupied()
        if reason:
            self.finish("not recorded: %s" % reason)
            return
        self.earlier = self.traces()
        self.synchronize()
        self.prof = self.build(at, self.first - at, self.end - self.first)
        # At exit before torch_npu shuts the device down; multiprocessing's children run only finalizers.
        atexit.register(self.leave)
        Finalize(None, self.leave, exitpriority=100)
        self.prof.start()
        for _ in range(at):  # through WAIT, so that ProfilerStep#n carries the number of its unit
            self.prof.step()

    def leave(self) -> None:
        import logging
        import os

        try:
            if self.name.endswith("_%s" % os.getpid()):  # not in a child that was forked inside the window
                self.close("the process ends")
        except Exception:
            logging.getLogger(self.LOGGER).exception("rlpatch: no profile")

    def advance(self, kind: str | None) -> None:
        from torch.profiler import record_function

        self.uncounted_range.close()
        if self.unit == self.end:
            self.close("complete")
        elif kind in self.KINDS:
            if self.unit == self.first:
                self.synchronize()  # kernels of the warm-up are not part of the first unit
            self.prof.step()
            self.unit += 1
        elif kind is not None and self.unit > self.first:
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
        text = "%s, recorded %s of %s units with %s uncounted iterations between them: %s"
        traces = ", ".join(found) or "no trace"
        self.finish(text % (why, count, self.end - self.first, self.uncounted, traces))

    def finish(self, report: str) -> None:
        import logging

        self.open_at = None
        self.done = self.rollout + 1 >= self.chosen + self.REPEAT
        window = "%s %s:%s of rollout %s" % ("+".join(self.KINDS), self.first, self.end, self.rollout)
        logging.getLogger(self.LOGGER).warning("rlpatch: %s, %s: %s", self.name, window, report)

    def traces(self) -> set[str]:
        import glob

        found = glob.glob(glob.escape("%s/%s" % (self.save_path, self.name)) + self.TRACES)  # noqa: PTH207
        return {path.partition("/profiler_info")[0] for path in found}

    def end_rollout(self, why: str) -> None:
        self.live.clear()
        self.prefilling.clear()
        if self.prof is not None:
            self.close(why)
        elif self.busy and self.open_at is not None:
            text = "not recorded: %s after %s units; RLPATCH_ROLLOUT chooses another"
            self.finish(text % (why, self.unit - self.LOWEST))
        if self.busy:
            self.rollout += 1
            self.rewind()

    def yield_to(self, start: bool) -> None:
        self.foreign = "the framework's own profiler was started and not stopped" if start else ""
        if start:
            self.close("the framework's own profiler starts")


class VllmRanks:
    """The replica and the global rank of a vLLM worker."""

    def place(self, worker: Any) -> tuple[int, int]:
        import torch.distributed as dist

        parallel = worker.vllm_config.parallel_config
        replica = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0
        rank = dist.get_rank() if world else worker.rank
        if world <= parallel.world_size:  # every data-parallel replica has a world of its own
            rank += replica * parallel.world_size
        return replica, rank


class SchedulerOutputs:
    """Tells decode from prefill by vLLM V1's ``SchedulerOutput`` (``vllm/v1/core/sched/output.py``).

    An iteration decodes when no scheduled request has prompt tokens left. The last chunk of a prompt
    can be one token long, so the number of tokens tells nothing: the prompt's rest is tracked per
    request, and an iteration in which no request comes or goes costs a look at a few lengths. A request
    that was preempted computes its tokens again and prefills until it is given no more than a decode
    step needs.
    """

    live: set[str]
    prefilling: dict[str, float]
    counts: dict[str, int]
    busy: bool
    end_rollout: Any

    def observe(self, batch: Any) -> str | None:
        counts, new, finished = batch.num_scheduled_tokens, batch.scheduled_new_reqs, batch.finished_req_ids
        if finished:
            self.live.difference_update(finished)
            for request in finished:
                self.prefilling.pop(request, None)
        if self.busy and not self.live:
            self.end_rollout("all requests have finished")
        resumed = getattr(batch.scheduled_cached_reqs, "resumed_req_ids", None)
        if resumed is None:  # before vLLM 0.12; only one more than expected can be one that is back
            more = len(counts) > len(self.counts) - len(finished) + len(new)
            resumed = self.resumed(batch.scheduled_cached_reqs) if more else ()
        for request in resumed:
            self.prefilling[request] = -1
        for data in new:
            tokens = getattr(data, "prefill_token_ids", None) or data.prompt_token_ids
            length = len(data.prompt_embeds if tokens is None else tokens)
            self.prefilling[data.req_id] = length - data.num_computed_tokens
            self.live.add(data.req_id)
        if counts and not self.busy:
            self.live.update(counts)  # also those that go on after a sleep()
            self.busy = True
        self.counts = counts
        if not batch.total_num_scheduled_tokens:
            return None
        return self.prefill(counts, batch.scheduled_spec_decode_tokens) if self.prefilling else "decode"

    def resumed(self, cached: Any) -> list[str]:
        if isinstance(cached, list):  # before vLLM 0.9.2
            return [request.req_id for request in cached if request.resumed_from_preemption]
        return [name for name, again in zip(cached.req_ids, cached.resumed_from_preemption) if again]  # noqa: B905

    def prefill(self, counts: dict[str, int], drafts: dict[str, list[int]]) -> str:
        kind = "decode"
        for request, rest in list(self.prefilling.items()):
            count = counts.get(request, 0)
            if rest < 0 and 0 < count <= 1 + len(drafts.get(request, ())):
                del self.prefilling[request]
            elif count:
                kind = "prefill"
                if rest > count:
                    self.prefilling[request] = rest - count
                elif rest >= 0:
                    del self.prefilling[request]
        return kind


class ModelInputs:
    """Tells decode from prefill by vLLM V0's model input (``vllm/worker/model_runner.py``, up to vLLM
    0.9).

    The request ids and the finished ones travel in it to every rank; ``num_prefills`` counts the
    requests of the batch that still prefill, a last chunk of one token included.
    """

    live: set[str]
    busy: bool
    end_rollout: Any
    model_input: Any = None

    def prepare(self, inputs: Any) -> None:
        if inputs is None:
            self.end_rollout("no request is left")
        else:
            self.model_input = inputs[0]

    def observe(self, batch: Any) -> str | None:
        model_input, self.model_input = self.model_input, None
        if not batch.num_seq_groups:
            return None
        if model_input is None:
            raise RuntimeError("multi-step scheduling and Ray SPMD workers are not supported")
        self.live.difference_update(model_input.finished_requests_ids or ())
        if self.busy and not self.live:
            self.end_rollout("all requests have finished")
        if not model_input.attn_metadata.num_prefills:
            return "decode"
        self.live.update(model_input.request_ids_to_seq_ids)
        self.busy = True
        return "prefill"


class Calls:
    """What the patched class gets beside the probe; its methods call ``_rlpatch_rollout``."""

    _RlpatchRollout: Any
    _rlpatch_rollout_probe: Any = False  # False: not called yet, None: nothing more to record

    def _rlpatch_rollout(self, event: str, *args: Any) -> None:
        probe = self._rlpatch_rollout_probe
        if probe is None:
            return
        try:
            if probe is False:
                probe = self._rlpatch_rollout_probe = self._RlpatchRollout(self)
            if not probe.done:
                getattr(probe, event)(*args)
            if probe.done:
                self._rlpatch_rollout_probe = None
        except Exception:  # profiling must not stop the run
            import contextlib
            import logging

            self._rlpatch_rollout_probe = None
            logging.getLogger(self._RlpatchRollout.LOGGER).exception("rlpatch: no profile, the run goes on")
            with contextlib.suppress(Exception):
                probe.close("failed")


class PreparedInputs:
    """V0 only: shows the probe what ``execute_worker`` is about to run."""

    _rlpatch_rollout: Any

    def prepare_input(self, execute_model_req: Any = None) -> Any:
        inputs = super().prepare_input(execute_model_req)  # type: ignore[misc]
        self._rlpatch_rollout("prepare", inputs)
        return inputs
