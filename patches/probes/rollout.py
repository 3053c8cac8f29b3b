"""Counting the iterations of a rollout: what decodes, what prefills, and where a rollout ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from patches.probes.constants import CompileTime
from patches.probes.recorder import CountedUnits, ReplicaRecorder


class RolloutUnits(ReplicaRecorder, CountedUnits):
    """Counts the iterations of an engine, rollout by rollout.

    Every step comes from the head of an engine iteration, which ends the iteration before it: in all releases the
    forward and the sampling of an iteration lie between two heads. A class of the engine gives ``observe``.
    """

    ROLLOUT = "0"
    AT: Mapping[str, str] = {}

    LAST_EVENT: CompileTime[str] = "end_rollout"
    UNIT: CompileTime[str] = "decode"
    FIRST: CompileTime[int] = 1
    BY_LOAD: CompileTime[bool] = False
    BY_TAIL: CompileTime[bool] = False

    awaited: bool
    live: Any  # false between two rollouts
    in_step: bool  # whether a rollout goes on in which the ranks of a group run in step

    forget: Callable[[], None]
    observe: Callable[[Any], str | None]
    # The tokens of the longest context where that may decide, else a bound; ``reach`` is what none has passed;
    # it is 10**9 more than what is known as long as requests from before the rollout may be longer.
    longest_context: Callable[[Any, int, bool], int]

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.rollout = -1
        if self.UNIT == "aligned":
            self.in_step = False
        self.forget()
        if self.LIVE:
            self.show()

    def read_settings(self) -> None:
        if self.RELATIVE:
            self.origin = None
            least = r"\d+" if self.ON_DEMAND else r"[1-9]\d*"
            self.at = {n: int(self.setting("RLPATCH_AT_" + n.upper(), at, least)) for n, at in self.AT.items()}
        self.chosen_rollout = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))
        super().read_settings()

    def begin_rollout(self) -> None:
        self.rollout, self.unit = self.rollout + 1, self.FIRST
        if self.ON_DEMAND:
            self.note("installed")
            self.poll_request(self.rollout)  # if it refuses what lies there, that is how it stands
            requested = self.is_addressed and self.rollout == self.chosen_rollout
        elif self.REPEAT == 1:
            requested = self.rollout == self.chosen_rollout
        else:
            requested = 0 <= self.rollout - self.chosen_rollout < self.REPEAT
        if self.SEVERAL:
            self.next_windows, self.window = self.windows.split(",") if requested else [], self.windows
        if self.RELATIVE:
            self.awaited, self.most, self.origin = requested, 0, None
            self.fewest = self.reach = 10**9
            self.open_at = 10**9 if requested else None  # until the condition holds
        elif not self.SEVERAL:
            self.open_at = max(self.first - self.WARMUP, 0) if requested else None
        elif self.next_windows:
            self.schedule_window(0)
        if self.ON_DEMAND:
            if requested:
                self.note("waiting")
        elif self.METADATA:
            self.note("waiting" if requested else "installed")

    def step(self, batch: Any) -> None:
        kind = self.observe(batch)
        if self.UNIT == "aligned":
            counted = kind is not None
        else:
            counted = kind in ("decode", "prefill") if self.UNIT == "iterations" else kind == self.UNIT
        if self.prof is not None and self.unit == self.end:
            self.close("complete")
        if self.prof is None:
            at = self.unit if counted else self.unit - 1  # the warm-up of decode step 1 is the prefill
            if kind is not None and self.open_at is not None and at >= self.open_at:
                self.open(at, batch)
            self.unit += counted
        elif counted:
            self.tick(batch)
        elif kind is not None and self.unit > self.first:
            self.pause()
        if self.LIVE:
            self.shown[0] = self.unit

    def wait_for(self, kind: str | None, load: int, batch: Any) -> None:
        """Count from behind the first iteration in which all that was asked for holds; it is the warm-up."""
        if kind is None or not self.awaited:
            return
        self.most = load if load > self.most else self.most
        self.fewest = load if load < self.fewest else self.fewest
        holds = load >= self.at["load"] if self.BY_LOAD else True
        if self.BY_TAIL:
            holds = holds and self.drains(load)
        if self.BY_CONTEXT:
            holds = self.longest_context(batch, load, holds) >= self.at["context"] and holds
        if holds:
            self.awaited = False
            counted = kind in ("decode", "prefill") if self.UNIT == "iterations" else kind == self.UNIT
            self.schedule_window(self.unit + counted if not self.ON_DEMAND or any(self.at.values()) else 0)

    def drains(self, load: int) -> bool:
        return (self.ON_DEMAND and not self.at["tail"]) or load <= self.at["tail"] < self.most

    def end_rollout(self, why: str, last: bool = False) -> None:
        if self.SEVERAL and self.next_windows:
            why, self.next_windows = "%s before %s" % (why, ",".join(self.next_windows)), []
        if self.prof is not None:
            self.close(why)
        elif (self.live or (self.UNIT == "aligned" and self.in_step)) and self.open_at is not None:
            if self.RELATIVE:
                more = ", %s to %s requests were scheduled" % (self.fewest, self.most) if self.awaited else ""
            else:
                more = "; RLPATCH_ROLLOUT chooses another"
            self.finish("not recorded: %s after %s units%s" % (why, self.unit - self.FIRST, more))
        if self.ON_DEMAND and last:
            self.poll_request(self.rollout + 1)
            self.done = not self.is_addressed or self.last() <= self.rollout
        if last and not self.done:
            if self.REPEAT > 1:
                self.is_finished = lambda: True  # type: ignore[method-assign]
            self.finish("not recorded: %s before rollout %s" % (why, max(self.rollout + 1, self.chosen_rollout)))
        if self.UNIT == "aligned":
            self.in_step = False
        self.forget()

    def begin_in_step(self) -> None:
        """Ranks of a data-parallel group run in step: their rollout begins where the first of them has requests."""
        if not (self.in_step or self.done):
            self.begin_rollout()
            self.in_step = True

    def yield_to(self, start: bool) -> None:
        self.foreign = "the framework's own profiler was started and not stopped" if start else ""
        if start:
            self.close("the framework's own profiler starts")

    def finish(self, report: str, found: Sequence[str] = ()) -> None:
        self.say("%s %s of rollout %s: %s" % (self.UNIT, self.window, self.rollout, report))
        super().finish(report, found)

    def is_finished(self) -> bool:
        return self.rollout + 1 >= self.chosen_rollout + self.REPEAT

    def lowest(self) -> int:
        if self.ON_DEMAND:
            return 0 if any(self.at.values()) else self.FIRST
        return 0 if self.RELATIVE else self.FIRST

    def last(self) -> int:
        return self.chosen_rollout


class SchedulerOutputs(RolloutUnits):
    """Tells decode from prefill by vLLM V1's ``SchedulerOutput`` (``vllm/v1/core/sched/output.py``).

    An iteration decodes when no scheduled request has prompt tokens left. The last chunk of a prompt can be one
    token long, so the number of tokens tells nothing: the prompt's rest is tracked per request, and an iteration in
    which no request comes or goes costs a look at a few lengths. A request that was preempted computes its tokens
    again and prefills until it is given no more than a decode step needs. The second model runner warms up by way
    of the worker, with requests of its own.
    """

    RESUMED: CompileTime[str | None] = None  # "objects" before vLLM 0.9.2, "lists" before 0.11.1, then "ids"
    EMBEDS: CompileTime[bool] = True  # from vLLM 0.11 on, instead of tokens
    PREFILL_TOKENS: CompileTime[bool | None] = None  # from vLLM 0.12 on, for the second model runner
    WARMS_UP: CompileTime[bool | None] = None  # from vLLM 0.17 on

    prefilling: dict[str, int]
    counts: dict[str, int]

    def forget(self) -> None:
        self.live, self.prefilling, self.counts = set(), {}, {}

    def observe(self, batch: Any) -> str | None:
        if self.UNIT == "aligned" and batch is None:  # execute_dummy_batch(): another rank has requests
            self.begin_in_step()
            return "dummy"
        counts, finished = batch.num_scheduled_tokens, batch.finished_req_ids
        if self.WARMS_UP is not False and self.warms_up(counts):
            return None
        if self.UNIT != "aligned" and finished and self.live.issubset(finished):
            self.end_rollout("all requests have finished")
        for request in finished:
            self.live.discard(request)
            self.prefilling.pop(request, None)
        if counts and not (self.live or self.done):
            if self.UNIT == "aligned":
                self.begin_in_step()
            else:
                self.begin_rollout()
            self.live = set(counts)  # also those that go on after a sleep()
        self.add_prefills(batch)
        kind = "decode" if batch.total_num_scheduled_tokens else None
        for request, rest in list(self.prefilling.items()):
            count = counts.get(request, 0)
            if rest <= 0 and 0 < count <= 1 + len(batch.scheduled_spec_decode_tokens.get(request, ())):
                del self.prefilling[request]
            elif count:
                kind, self.prefilling[request] = "prefill", rest - count
        if self.RELATIVE:
            self.wait_for(kind, len(counts), batch)
        return kind

    def warms_up(self, counts: Mapping[str, int]) -> bool:
        name = next(iter(counts), "")  # vllm/v1/worker/gpu/warmup.py
        return not self.live and name.startswith("_") and "_warmup_" in name

    def add_prefills(self, batch: Any) -> None:
        counts, cached, new = batch.num_scheduled_tokens, batch.scheduled_cached_reqs, batch.scheduled_new_reqs
        if hasattr(cached, "resumed_req_ids") if self.RESUMED is None else self.RESUMED == "ids":
            for request in cached.resumed_req_ids:
                self.prefilling[request] = -1
        elif len(counts) > len(self.counts) - len(batch.finished_req_ids) + len(new):  # else none is back
            if isinstance(cached, list) if self.RESUMED is None else self.RESUMED == "objects":
                back = [request.req_id for request in cached if request.resumed_from_preemption]
            else:
                back = [n for n, again in zip(cached.req_ids, cached.resumed_from_preemption) if again]  # noqa: B905
            self.prefilling.update(dict.fromkeys(back, -1))
        if self.RESUMED != "ids":
            self.counts = counts
        for one in new:
            self.live.add(one.req_id)
            self.prefilling[one.req_id] = self.prompt_length(one) - one.num_computed_tokens

    def prompt_length(self, new: Any) -> int:
        tokens = new.prompt_embeds if self.EMBEDS and new.prompt_token_ids is None else new.prompt_token_ids
        if self.PREFILL_TOKENS is None:
            tokens = getattr(new, "prefill_token_ids", None) or tokens
        elif self.PREFILL_TOKENS:
            tokens = new.prefill_token_ids or tokens
        if self.BY_CONTEXT:
            self.reach = max(self.reach, self.reach // 10**9 * 10**9 + len(tokens))
        return len(tokens)

    def longest_context(self, batch: Any, load: int, decisive: bool) -> int:
        longest = self.reach = self.reach + self.growth  # or less
        if longest >= self.at["context"] and (decisive or longest > 10**9):
            longest = self.contents(batch).get("longest", 0)
            if load == len(self.live) and min(self.prefilling.values(), default=0) >= 0:  # else one may come back
                self.reach = longest + max(self.prefilling.values(), default=0)
        return longest

    def contents(self, batch: Any) -> Mapping[str, Any]:
        if self.UNIT == "aligned" and batch is None:
            return {"requests": 0, "tokens": 0}
        counts, cached, new = batch.num_scheduled_tokens, batch.scheduled_cached_reqs, batch.scheduled_new_reqs
        if self.RESUMED is None and not isinstance(cached, list) and not hasattr(cached, "num_computed_tokens"):
            return {}  # in a fork it may be of any form
        if isinstance(cached, list) if self.RESUMED is None else self.RESUMED == "objects":
            before = [(one.req_id, one.num_computed_tokens) for one in [*cached, *new]]
        else:
            before = [(one.req_id, one.num_computed_tokens) for one in new]
            before += zip(cached.req_ids, cached.num_computed_tokens)  # noqa: B905
        if self.RESUMED is None and not before:
            return {}
        contexts = [counts[name] + tokens for name, tokens in before]
        drafts = sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        held = {"requests": len(contexts), "tokens": batch.total_num_scheduled_tokens, "drafts": drafts}
        return {**held, "longest": max(contexts), "context": sum(contexts)}


class ModelInputs(RolloutUnits):
    """Tells decode from prefill by vLLM V0's model input (``vllm/worker/model_runner.py``, up to vLLM 0.9).

    The request ids and the finished ones travel in it to every rank; ``num_prefills`` counts the requests of the
    batch that still prefill, a last chunk of one token included.
    """

    metadata: Any
    model_input: Any = None

    def forget(self) -> None:
        self.live = set()

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
        finished = model_input.finished_requests_ids or ()
        if self.live and self.live.issubset(finished):
            self.end_rollout("all requests have finished")
        self.live.difference_update(finished)
        if not self.live and not self.done:
            self.begin_rollout()
        kind, self.metadata = "decode", model_input.attn_metadata
        if self.metadata.num_prefills:
            kind = "prefill"
        if self.metadata.num_prefills or not self.live:
            self.live.update(model_input.request_ids_to_seq_ids)
        if self.RELATIVE:
            self.wait_for(kind, batch.num_seq_groups, batch)
        return kind

    def longest_context(self, batch: Any, load: int, decisive: bool) -> int:  # noqa: ARG002
        return int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))

    def contents(self, batch: Any) -> Mapping[str, object]:
        longest = int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))
        tokens = self.metadata.num_prefill_tokens + self.metadata.num_decode_tokens
        return {"requests": batch.num_seq_groups, "tokens": tokens, "longest": longest}


class VllmWorker(ReplicaRecorder):
    """The replica and the global rank of a vLLM worker."""

    DATA_PARALLEL_INDEX: CompileTime[bool | None] = None  # from vLLM 0.14 on

    def __init__(self, worker: Any) -> None:
        import torch.distributed as dist

        parallel = worker.vllm_config.parallel_config
        if self.BY_CONTEXT:
            self.growth = 1 + getattr(worker.vllm_config.speculative_config, "num_speculative_tokens", 0)
        if self.DATA_PARALLEL_INDEX is None:
            self.dp = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
        elif self.DATA_PARALLEL_INDEX:
            self.dp = parallel.data_parallel_index
        else:
            self.dp = parallel.data_parallel_rank
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0
        self.rank = dist.get_rank() if world else worker.rank
        self.rank += self.dp * parallel.world_size if world <= parallel.world_size else 0  # else they share one
        if self.EVERY_RANK:
            self.world = max(world, parallel.world_size * parallel.data_parallel_size)
        super().__init__(worker)

    def serves(self, worker: Any) -> str:
        transfer = getattr(worker.vllm_config, "kv_transfer_config", None)
        return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(getattr(transfer, "kv_role", ""), "")


class VllmV1Rollout(VllmWorker, SchedulerOutputs):
    """A worker of vLLM's V1 engine."""


class VllmV0Rollout(VllmWorker, ModelInputs):
    """A worker of vLLM's V0 engine."""
