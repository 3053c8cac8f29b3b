"""Counting the iterations of a rollout: what decodes, what prefills, and where a rollout ends."""

from __future__ import annotations

from typing import Any


class Rollouts:
    """Counts the iterations of an engine, rollout by rollout.

    Every step comes from the head of an engine iteration, which ends the iteration before it: in all
    releases the forward and the sampling of an iteration lie between two heads. ``place`` and
    ``observe`` come from the recipe, the other names below from ``recorder.Recorder``.
    """

    KINDS: tuple[str, ...] = ("decode",)
    ROLLOUT = "0"
    BETWEEN = "uncounted iterations"

    LOWEST: int
    WARMUP: int
    REPEAT: int
    configure: Any
    setting: Any
    place: Any
    observe: Any
    open: Any
    tick: Any
    pause: Any
    close: Any
    finish: Any
    window: str
    first: int
    end: int
    prof: Any
    open_at: Any
    done: bool
    host: str
    pid: int
    live: set[str]
    prefilling: dict[str, float]
    counts: dict[str, int]

    def __init__(self, worker: Any) -> None:
        replica, rank = self.place(worker)
        self.configure(rank)
        self.chosen = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))
        self.name = "%s_dp%s_rank%s_%s" % (self.host, replica, rank, self.pid)
        self.foreign, self.live, self.prefilling, self.counts = "", set(), {}, {}
        self.rollout = 0
        if not self.done:
            self.rewind()

    def rewind(self) -> None:
        self.unit, self.uncounted, self.busy = self.LOWEST, 0, False
        self.done = self.rollout >= self.chosen + self.REPEAT
        asked = self.rollout >= self.chosen and not self.done
        self.open_at = max(self.first - self.WARMUP, 0) if asked else None

    def title(self) -> str:
        return "%s %s of rollout %s" % ("+".join(self.KINDS), self.window, self.rollout)

    def finished(self) -> bool:
        return self.rollout + 1 >= self.chosen + self.REPEAT

    def framework(self) -> str:
        return self.foreign

    def step(self, batch: Any) -> None:
        kind = self.observe(batch)
        if self.prof is not None:
            if self.unit == self.end:
                self.close("complete")
            elif kind in self.KINDS:
                self.tick()
            elif kind is not None:
                self.pause()
        elif kind is not None:
            counted = kind in self.KINDS
            at = self.unit if counted else self.LOWEST - 1  # the warm-up of decode step 1 is the prefill
            if self.open_at is not None and at >= self.open_at:
                self.open(at)
            self.unit += counted

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
    step needs. The second model runner warms up by way of the worker, with requests of its own.
    """

    live: set[str]
    prefilling: dict[str, float]
    counts: dict[str, int]
    busy: bool
    end_rollout: Any

    def observe(self, batch: Any) -> str | None:
        counts, new, finished = batch.num_scheduled_tokens, batch.scheduled_new_reqs, batch.finished_req_ids
        if not self.busy and self.warms_up(counts):
            return None
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

    def warms_up(self, counts: dict[str, int]) -> bool:
        name = next(iter(counts), "")  # vllm/v1/worker/gpu/warmup.py, vLLM 0.17.1 to 0.33.0
        return name.startswith("_") and "_warmup_" in name

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


class PreparedInputs:
    """V0 only: shows the probe what ``execute_worker`` is about to run."""

    _rlpatch_stage: Any

    def prepare_input(self, execute_model_req: Any = None) -> Any:
        inputs = super().prepare_input(execute_model_req)  # type: ignore[misc]
        self._rlpatch_stage("prepare", inputs)
        return inputs


class Inherited:
    """For a worker whose base class has the rest of the patch."""

    _rlpatch_stage_probe: Any = False
