"""Counting the iterations of a rollout: what decodes, what prefills, and where a rollout ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.recorder import Placed
from patches.probes.settled import Settled


class Rollout(Placed):
    """Counts the iterations of an engine, rollout by rollout.

    Every step comes from the head of an engine iteration, which ends the iteration before it: in all releases the
    forward and the sampling of an iteration lie between two heads. A class of the engine gives ``place`` and
    ``observe``.
    """

    ROLLOUT = "0"
    AT: Mapping[str, str] = {}

    UNIT: Settled[str] = "decode"
    FIRST: Settled[int] = 1
    BY_LOAD: Settled[bool] = False
    BY_TAIL: Settled[bool] = False

    awaited: bool

    def __init__(self, worker: Any) -> None:
        self.place(worker)
        self.identify()
        told = self.replica = self.told()
        self.name = "%s_%sdp%s_rank%s_%s" % (self.host, told and "replica%s_" % told, self.dp, self.rank, self.pid)
        self.configure()
        self.choose()
        self.heed(told)
        self.rollout, self.foreign = -1, ""
        self.forget()
        if self.FACTS:
            self.watched = "%s/.rlpatch/%s_%s.json" % (self.save_path, self.STAGE, self.name)
        if self.LIVE:
            self.show()

    def expect(self) -> None:
        if self.RELATIVE:
            self.at = {n: self.condition(n, at) for n, at in self.AT.items()}
        self.chosen = int(self.setting("RLPATCH_ROLLOUT", self.ROLLOUT, r"\d+"))

    def begin_rollout(self) -> None:
        self.rollout, self.unit = self.rollout + 1, self.FIRST
        if self.ON_DEMAND:
            self.note("installed")
            self.look(self.rollout)  # if it refuses what lies there, that is how it stands
        if self.SEVERAL:
            self.coming, self.span = self.window.split(",") if self.asked() else [], self.window
        if self.RELATIVE:
            self.awaited, self.most = self.asked(), 0
            self.fewest = self.reach = 10**9
        elif not self.SEVERAL:
            self.open_at = max(self.first - self.WARMUP, 0) if self.asked() else None
        elif self.coming:
            self.aim(0)
        if self.ON_DEMAND:
            if self.asked():
                self.note("waiting")
        elif self.FACTS:
            self.note("waiting" if self.asked() else "installed")

    def seen(self) -> int:
        return self.unit - self.FIRST

    def asked(self) -> bool:
        if self.ON_DEMAND:
            return self.meant and self.rollout == self.chosen
        if self.REPEAT == 1:
            return self.rollout == self.chosen
        return 0 <= self.rollout - self.chosen < self.REPEAT

    def step(self, batch: Any) -> None:
        kind = self.observe(batch)
        counted = self.is_counted(kind)
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

    def is_counted(self, kind: str | None) -> bool:
        return kind in ("decode", "prefill") if self.UNIT == "iterations" else kind == self.UNIT

    def wait_for(self, kind: str, load: int, batch: Any) -> None:
        """Count from behind the first iteration in which all that was asked for holds; it is the warm-up."""
        self.most = load if load > self.most else self.most
        self.fewest = load if load < self.fewest else self.fewest
        held = self.awaited and (not self.BY_LOAD or load >= self.at["load"])
        if self.BY_TAIL:
            held = held and self.drains(load)
        if self.BY_CONTEXT:
            longest = self.longest(batch, load, held)
        if held and (not self.BY_CONTEXT or longest >= self.at["context"]):
            self.awaited, origin = False, self.counted_from(kind)
            self.aim(origin)

    def counted_from(self, kind: str) -> int:
        return self.unit + self.is_counted(kind) if not self.ON_DEMAND or any(self.at.values()) else 0

    def drains(self, load: int) -> bool:
        return (self.ON_DEMAND and not self.at["tail"]) or load <= self.at["tail"] < self.most

    def end_rollout(self, why: str) -> None:
        if self.SEVERAL and self.busy() and self.coming:  # who is busy has begun
            why, self.coming = "%s before %s" % (why, ",".join(self.coming)), []
        if self.prof is not None:
            self.close(why)
        elif self.busy() and (self.open_at is not None or (self.RELATIVE and self.awaited)):
            self.give_up(why)
        self.forget()

    def give_up(self, why: str) -> None:
        if self.BY_CONTEXT:
            met = ", %s to at most %s requests of up to %s tokens" % (self.fewest, self.most, self.reach % 10**9)
            self.finish("not recorded: %s after %s units%s" % (why, self.seen(), met if self.awaited else ""))
        elif self.RELATIVE:
            met = ", %s to at most %s requests were scheduled" % (self.fewest, self.most)
            self.finish("not recorded: %s after %s units%s" % (why, self.seen(), met if self.awaited else ""))
        else:
            self.finish("not recorded: %s after %s units; RLPATCH_ROLLOUT chooses another" % (why, self.seen()))

    def yield_to(self, start: bool) -> None:
        self.foreign = "the framework's own profiler was started and not stopped" if start else ""
        if start:
            self.close("the framework's own profiler starts")

    def prefix(self) -> str:
        return "RLPATCH_ROLLOUT_"

    def title(self, report: str) -> str:
        return "%s %s of rollout %s: %s" % (self.UNIT, self.current(), self.rollout, report)

    def current(self) -> str:
        return self.span if self.SEVERAL else self.window

    def finished(self) -> bool:
        if self.ON_DEMAND:
            return False
        return self.REPEAT == 1 or self.rollout + 1 >= self.chosen + self.REPEAT

    def framework(self) -> str:
        return self.foreign

    def between(self) -> str:
        return "uncounted iterations"

    def lowest(self) -> int:
        if self.ON_DEMAND:
            return 0 if any(self.at.values()) else self.FIRST
        return 0 if self.RELATIVE else self.FIRST

    def condition(self, n: str, at: str) -> int:
        return int(self.setting("RLPATCH_AT_" + n.upper(), at, self.least()))

    def least(self) -> str:
        return r"\d+" if self.ON_DEMAND else r"[1-9]\d*"

    def last(self) -> int:
        return self.chosen

    def over(self) -> bool:
        return self.done

    def busy(self) -> Any:
        raise NotImplementedError

    def forget(self) -> None:
        raise NotImplementedError

    def longest(self, batch: Any, load: int, held: bool) -> int:
        # The tokens of the longest context where that may decide, else a bound; ``reach`` is what none has passed;
        # it is 10**9 more than what is known as long as requests from before the rollout may be longer.
        raise NotImplementedError

    def observe(self, batch: Any) -> str | None:
        raise NotImplementedError


class SchedulerOutputs(Rollout):
    """Tells decode from prefill by vLLM V1's ``SchedulerOutput`` (``vllm/v1/core/sched/output.py``).

    An iteration decodes when no scheduled request has prompt tokens left. The last chunk of a prompt can be one
    token long, so the number of tokens tells nothing: the prompt's rest is tracked per request, and an iteration in
    which no request comes or goes costs a look at a few lengths. A request that was preempted computes its tokens
    again and prefills until it is given no more than a decode step needs. The second model runner warms up by way
    of the worker, with requests of its own.
    """

    RESUMED: Settled[str | None] = None  # "objects" before vLLM 0.9.2, "lists" before 0.11.1, then "ids"
    EMBEDS: Settled[bool] = True  # from vLLM 0.11 on, instead of tokens
    PREFILL_TOKENS: Settled[bool | None] = None  # from vLLM 0.12 on, for the second model runner
    WARMS_UP: Settled[bool | None] = None  # from vLLM 0.17 on

    live: set[str]
    prefilling: dict[str, int]
    counts: dict[str, int]

    def forget(self) -> None:
        self.live, self.prefilling, self.counts = set(), {}, {}

    def busy(self) -> Any:
        return self.live

    def observe(self, batch: Any) -> str | None:
        counts, new, finished = batch.num_scheduled_tokens, batch.scheduled_new_reqs, batch.finished_req_ids
        if self.WARMS_UP is not False and not self.live:
            name = next(iter(counts), "")  # vllm/v1/worker/gpu/warmup.py
            if name.startswith("_") and "_warmup_" in name:
                return None
        if finished and self.live.issubset(finished):
            self.end_rollout("all requests have finished")
        for request in finished:
            self.live.discard(request)
            self.prefilling.pop(request, None)
        cached = batch.scheduled_cached_reqs
        if hasattr(cached, "resumed_req_ids") if self.RESUMED is None else self.RESUMED == "ids":
            for request in cached.resumed_req_ids:
                self.prefilling[request] = -1
        elif len(counts) > len(self.counts) - len(finished) + len(new):  # else nobody is back from preemption
            if isinstance(cached, list) if self.RESUMED is None else self.RESUMED == "objects":
                back = [request.req_id for request in cached if request.resumed_from_preemption]
            else:
                back = [name for name, again in zip(cached.req_ids, cached.resumed_from_preemption) if again]  # noqa: B905
            self.prefilling.update(dict.fromkeys(back, -1))
        if self.RESUMED != "ids":
            self.counts = counts
        if counts and not self.live and not self.done:
            self.begin_rollout()
            self.live = set(counts)  # also those that go on after a sleep()
        for one in new:
            tokens = one.prompt_embeds if self.EMBEDS and one.prompt_token_ids is None else one.prompt_token_ids
            if self.PREFILL_TOKENS is None:
                tokens = getattr(one, "prefill_token_ids", None) or tokens
            elif self.PREFILL_TOKENS:
                tokens = one.prefill_token_ids or tokens
            self.prefilling[one.req_id] = len(tokens) - one.num_computed_tokens
            self.live.add(one.req_id)
            if self.BY_CONTEXT:
                self.reach = max(self.reach, self.reach // 10**9 * 10**9 + len(tokens))
        kind = "decode" if batch.total_num_scheduled_tokens else None
        for request, rest in list(self.prefilling.items()) if self.prefilling else ():
            count = counts.get(request, 0)
            if rest <= 0 and 0 < count <= 1 + len(batch.scheduled_spec_decode_tokens.get(request, ())):
                del self.prefilling[request]
            elif count:
                kind, self.prefilling[request] = "prefill", rest - count
        if self.RELATIVE and kind and self.awaited:
            self.wait_for(kind, len(counts), batch)
        return kind

    def longest(self, batch: Any, load: int, held: bool) -> int:
        longest = self.reach = self.reach + self.growth  # or less
        if longest >= self.at["context"] and (held or longest > 10**9):
            longest = (
                max(self.contexts(batch)) if self.RESUMED is not None else max(self.contexts(batch), default=0)
            )
            if load == len(self.live) and min(self.prefilling.values(), default=0) >= 0:  # else one may come back
                self.reach = longest + max(self.prefilling.values(), default=0)
        return longest

    def contexts(self, batch: Any) -> list[int]:
        counts, cached, new = batch.num_scheduled_tokens, batch.scheduled_cached_reqs, batch.scheduled_new_reqs
        if self.RESUMED is None and not isinstance(cached, list) and not hasattr(cached, "num_computed_tokens"):
            return []  # in a fork it may be of any form
        if isinstance(cached, list) if self.RESUMED is None else self.RESUMED == "objects":
            before = [(one.req_id, one.num_computed_tokens) for one in [*cached, *new]]
        else:
            before = [*zip(cached.req_ids, cached.num_computed_tokens)]  # noqa: B905
            before += [(one.req_id, one.num_computed_tokens) for one in new]
        return [counts[name] + tokens for name, tokens in before]

    def begin(self, batch: Any) -> None:
        contexts = self.contexts(batch)
        if self.RESUMED is None and not contexts:
            return self.units.append(self.begun())
        drafts = sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        self.units.append(self.begun())
        self.units[-1].update(requests=len(contexts), tokens=batch.total_num_scheduled_tokens, drafts=drafts)
        self.units[-1].update(longest=max(contexts), context=sum(contexts))


class ModelInputs(Rollout):
    """Tells decode from prefill by vLLM V0's model input (``vllm/worker/model_runner.py``, up to vLLM 0.9).

    The request ids and the finished ones travel in it to every rank; ``num_prefills`` counts the requests of the
    batch that still prefill, a last chunk of one token included.
    """

    live: set[str]
    model_input: Any = None
    metadata: Any

    def forget(self) -> None:
        self.live = set()

    def busy(self) -> Any:
        return self.live

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
        if self.RELATIVE and self.awaited:
            self.wait_for(kind, batch.num_seq_groups, batch)
        return kind

    def longest(self, batch: Any, load: int, held: bool) -> int:  # noqa: ARG002
        longest = int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))
        self.reach = max(self.reach % 10**9, longest)
        return longest

    def begin(self, batch: Any) -> None:
        longest = int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))
        tokens = self.metadata.num_prefill_tokens + self.metadata.num_decode_tokens
        self.units.append(self.begun())
        self.units[-1].update(requests=batch.num_seq_groups, tokens=tokens, longest=longest)


class VllmWorker(Placed):
    """The replica and the global rank of a vLLM worker."""

    DATA_PARALLEL_INDEX: Settled[bool | None] = None  # from vLLM 0.14 on

    def place(self, worker: Any) -> None:
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


class VllmV1Rollout(VllmWorker, SchedulerOutputs):
    """A worker of vLLM's V1 engine."""


class VllmV0Rollout(VllmWorker, ModelInputs):
    """A worker of vLLM's V0 engine."""
