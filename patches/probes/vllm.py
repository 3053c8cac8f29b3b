"""vLLM's workers: which iterations decode, where a rollout ends, and which rank a worker is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patches.probes.members import Calls
from patches.probes.recorder import ReplicaRecorder
from patches.probes.rollout import RolloutUnits


class SchedulerOutputs(RolloutUnits):
    """Tells decode from prefill by vLLM V1's ``SchedulerOutput`` (``vllm/v1/core/sched/output.py``).

    An iteration decodes when no scheduled request has prompt tokens left. The last chunk of a prompt can be one
    token long, so the number of tokens tells nothing: the prompt's rest is tracked per request. A request that was
    preempted computes its tokens again and prefills until it is given no more than a decode step needs.
    """

    live: set[str]  # the requests of the rollout
    prefilling: dict[str, int]  # how many tokens of the prompt are left

    add_resumed: Callable[[Any], None]  # to those that prefill
    prompt_length: Callable[[Any], int]
    context_lengths: Callable[[Any], list[int]]  # tokens of each scheduled request, with those that are scheduled

    def forget(self) -> None:
        """Forget the requests of the rollout that has ended."""
        self.live, self.prefilling = set(), {}

    def observe(self, batch: Any) -> str | None:
        """Return the kind of an iteration, given its scheduler output: "decode", "prefill", or None without tokens.

        Also end the rollout when all its requests have finished, and begin one with the first request after that.
        Call it once for each iteration, in order.
        """
        counts, finished = batch.num_scheduled_tokens, batch.finished_req_ids
        if finished and self.live.issubset(finished):
            self.end_rollout("all requests have finished")
        self.live.difference_update(finished)
        self.prefilling = {name: left for name, left in self.prefilling.items() if name not in finished}
        if counts and not (self.live or self.done):
            self.begin_rollout()
            self.live = set(counts)  # also those that go on after a sleep()
        self.add_resumed(batch)
        for request in batch.scheduled_new_reqs:
            self.live.add(request.req_id)
            length = self.prompt_length(request)
            self.prefilling[request.req_id] = length - request.num_computed_tokens
        kind = "decode" if batch.total_num_scheduled_tokens else None
        for name, tokens_left in list(self.prefilling.items()):
            count = counts.get(name, 0)
            if tokens_left <= 0 and 0 < count <= 1 + len(batch.scheduled_spec_decode_tokens.get(name, ())):
                del self.prefilling[name]
            elif count:
                kind, self.prefilling[name] = "prefill", tokens_left - count
        self.check_state(kind, len(counts), batch)
        return kind

    def contents(self, batch: Any) -> Mapping[str, Any]:
        """Return "requests", "tokens", "drafts", "longest" context and sum of contexts ("context") of an iteration.

        {} if the contexts are unknown.
        """
        contexts = self.context_lengths(batch)
        drafts = sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        sums = {"requests": len(contexts), "tokens": batch.total_num_scheduled_tokens, "drafts": drafts}
        return {**sums, "longest": max(contexts), "context": sum(contexts)} if contexts else {}


# --- what differs between releases: one class of each group goes in ---


class ListedRequests(SchedulerOutputs):
    """Cached requests as lists, from vLLM 0.9.2 on."""

    def context_lengths(self, batch: Any) -> list[int]:
        """Return the context of each scheduled request, in tokens, including this iteration's."""
        counts, cached = batch.num_scheduled_tokens, batch.scheduled_cached_reqs
        contexts = [counts[new.req_id] + new.num_computed_tokens for new in batch.scheduled_new_reqs]
        contexts += [counts[name] + tokens for name, tokens in zip(cached.req_ids, cached.num_computed_tokens)]  # noqa: B905
        return contexts


class ResumedNames(ListedRequests):
    """The names of those that are back after a preemption, from vLLM 0.11.1 on."""

    def add_resumed(self, batch: Any) -> None:
        """Note the requests that prefill again after a preemption, by the list of their ids."""
        for name in batch.scheduled_cached_reqs.resumed_req_ids:
            self.prefilling[name] = -1


class ResumedFlags(ListedRequests):
    """A flag for each request, in vLLM 0.9.2 to 0.11.0."""

    def add_resumed(self, batch: Any) -> None:
        """Note the requests that prefill again after a preemption, by a list of flags."""
        cached = batch.scheduled_cached_reqs
        flags = zip(cached.req_ids, cached.resumed_from_preemption)  # noqa: B905
        self.prefilling.update((resumed, -1) for resumed, again in flags if again)


class ResumedRequests(SchedulerOutputs):
    """Cached requests as objects, before vLLM 0.9.2."""

    def add_resumed(self, batch: Any) -> None:
        """Note the requests that prefill again after a preemption, by a flag of each."""
        resumed = [request.req_id for request in batch.scheduled_cached_reqs if request.resumed_from_preemption]
        self.prefilling.update(dict.fromkeys(resumed, -1))

    def context_lengths(self, batch: Any) -> list[int]:
        """Return the context of each scheduled request, in tokens, including this iteration's."""
        counts, requests = batch.num_scheduled_tokens, [*batch.scheduled_cached_reqs, *batch.scheduled_new_reqs]
        return [counts[request.req_id] + request.num_computed_tokens for request in requests]


class ResumedSomehow(SchedulerOutputs):
    """Cached requests in any of these forms, or in one that is not known: for a release that is none."""

    def add_resumed(self, batch: Any) -> None:
        """Note the requests that prefill again after a preemption, in whichever form the batch has them."""
        cached = batch.scheduled_cached_reqs
        if hasattr(cached, "resumed_req_ids"):
            resumed = cached.resumed_req_ids
        elif isinstance(cached, list):
            resumed = [request.req_id for request in cached if request.resumed_from_preemption]
        else:
            flags = zip(cached.req_ids, cached.resumed_from_preemption)  # noqa: B905
            resumed = [name for name, again in flags if again]
        self.prefilling.update(dict.fromkeys(resumed, -1))

    def context_lengths(self, batch: Any) -> list[int]:
        """Return the context of each scheduled request, in tokens, including this iteration's; [] if unknown."""
        counts, cached = batch.num_scheduled_tokens, batch.scheduled_cached_reqs
        requests = [*(cached if isinstance(cached, list) else []), *batch.scheduled_new_reqs]
        contexts = [counts[request.req_id] + request.num_computed_tokens for request in requests]
        if isinstance(cached, list):
            return contexts
        if not hasattr(cached, "num_computed_tokens"):
            return []  # in a fork it may be of any form
        before = zip(cached.req_ids, cached.num_computed_tokens)  # noqa: B905
        return contexts + [counts[name] + tokens for name, tokens in before]


class PromptTokens(SchedulerOutputs):
    """Prompts as tokens, before vLLM 0.11."""

    def prompt_length(self, request: Any) -> int:
        """Return the tokens of a new request's prompt."""
        return len(request.prompt_token_ids)


class PromptEmbeds(SchedulerOutputs):
    """Prompts as tokens or as embeddings, in vLLM 0.11."""

    def prompt_length(self, request: Any) -> int:
        """Return the length of a new request's prompt, in tokens or in embeddings."""
        return len(request.prompt_embeds if request.prompt_token_ids is None else request.prompt_token_ids)


class PrefillTokens(SchedulerOutputs):
    """The tokens to prefill, which the second model runner gets from vLLM 0.12 on, or the prompt."""

    def prompt_length(self, request: Any) -> int:
        """Return the tokens that a new request has to prefill."""
        prompt = request.prompt_embeds if request.prompt_token_ids is None else request.prompt_token_ids
        return len(request.prefill_token_ids or prompt)


class AnyPrompt(SchedulerOutputs):
    """Any of these: for a release that is none."""

    def prompt_length(self, request: Any) -> int:
        """Return the tokens that a new request has to prefill, in whichever form it has them."""
        prompt = request.prompt_embeds if request.prompt_token_ids is None else request.prompt_token_ids
        return len(getattr(request, "prefill_token_ids", None) or prompt)


class WarmUps(SchedulerOutputs):
    """The second model runner warms up by way of the worker, with requests of its own, from vLLM 0.17 on."""

    def observe(self, batch: Any) -> str | None:
        """Return the kind of an iteration; None for a warm-up of the model runner."""
        name = next(iter(batch.num_scheduled_tokens), "")  # vllm/v1/worker/gpu/warmup.py
        warms_up = not self.live and name.startswith("_") and "_warmup_" in name
        return None if warms_up else super().observe(batch)


# --- what goes on top where it is asked for ---


class AlignedOutputs(SchedulerOutputs):
    """Ranks of a data-parallel group run in step: their rollout begins where the first of them has requests.

    It ends for all of them at once, and a rank without requests runs dummy batches, which are counted.
    """

    OTHERS = "requests of other ranks"

    def observe(self, batch: Any) -> str | None:
        """Return the kind of an iteration, and keep the rollout alive until all ranks have ended it.

        A ``batch`` of None is "dummy". It begins a rollout if none is live, unless nothing more will be recorded.
        The kind is None for a batch without tokens and for a warm-up.
        """
        if batch is None:  # execute_dummy_batch(): another rank has requests
            if not (self.live or self.done):
                self.begin_rollout()
            self.live.add(self.OTHERS)
            return "dummy"
        kind = super().observe(batch)
        if self.live:
            self.live.add(self.OTHERS)
        return kind

    def contents(self, batch: Any) -> Mapping[str, Any]:
        """Return the step metadata of an iteration; a dummy batch has no requests."""
        return {"requests": 0, "tokens": 0} if batch is None else super().contents(batch)


class OutputContexts(SchedulerOutputs):
    """The longest context of an iteration, or a bound where it is too short to matter."""

    growth: int  # tokens of an iteration, at most
    longest_bound: int
    bound_known: bool  # False: requests from before the rollout may be longer

    def forget(self) -> None:
        """Forget the longest context of the rollout that has ended."""
        super().forget()
        self.longest_bound, self.bound_known = 0, False

    def prompt_length(self, request: Any) -> int:
        """Return the tokens of a new request's prompt, and raise the bound of the longest context to that."""
        length = super().prompt_length(request)
        self.longest_bound = max(self.longest_bound, length)
        return length

    def longest_context(self, batch: Any, threshold: int, exact: bool) -> int:  # docstring goes in
        """Call once a batch: return the longest context in tokens, a bound below ``threshold`` or not ``exact``."""
        self.longest_bound += self.growth
        if self.bound_known and (self.longest_bound < threshold or not exact):
            return self.longest_bound
        longest: Any = self.contents(batch).get("longest", 0)
        if len(batch.num_scheduled_tokens) == len(self.live) and min(self.prefilling.values(), default=0) >= 0:
            # Every request is in this batch, and none may come back.
            self.longest_bound, self.bound_known = longest + max(self.prefilling.values(), default=0), True
        return longest  # type: ignore[no-any-return]


class ModelInputs(RolloutUnits):
    """Tells decode from prefill by vLLM V0's model input (``vllm/worker/model_runner.py``, up to vLLM 0.9).

    The request ids and the finished ones travel in it to every rank; ``num_prefills`` counts the requests of the
    batch that still prefill, a last chunk of one token included.
    """

    live: set[str]
    metadata: Any
    model_input: Any = None

    def forget(self) -> None:
        """Forget the requests of the rollout that has ended."""
        self.live = set()

    def prepare(self, inputs: Any) -> None:
        """Keep ``inputs[0]``, the model input of the next iteration; if ``inputs`` is None, end the rollout."""
        if inputs is None:
            self.end_rollout("no request is left")
        else:
            self.model_input = inputs[0]

    def observe(self, batch: Any) -> str | None:
        """Return the kind of the iteration that runs ``batch``: "decode", "prefill", or None without requests.

        Also end the rollout when all its requests have finished, and begin one with the first request after that.
        Raises RuntimeError if no model input was prepared.
        """
        model_input, self.model_input = self.model_input, None
        if not batch.num_seq_groups:
            return None
        if model_input is None:
            raise RuntimeError("rlpatch supports neither multi-step scheduling nor Ray SPMD workers")
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
        self.check_state(kind, batch.num_seq_groups, batch)
        return kind

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return "requests", "tokens" and "longest" context (in tokens) of the iteration that was observed last."""
        longest = int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))
        tokens = self.metadata.num_prefill_tokens + self.metadata.num_decode_tokens
        return {"requests": batch.num_seq_groups, "tokens": tokens, "longest": longest}


class InputContexts(ModelInputs):
    """The longest context of an iteration."""

    growth: int

    def longest_context(self, batch: Any, threshold: int, exact: bool) -> int:  # noqa: ARG002
        """Return the tokens of the longest context in the iteration observed last; the arguments are ignored."""
        return int(max(self.metadata.max_prefill_seq_len, self.metadata.max_decode_seq_len))


class VllmWorker(ReplicaRecorder):
    """The replica and the global rank of a vLLM worker."""

    def __init__(self, worker: Any) -> None:
        import torch.distributed as dist

        parallel = worker.vllm_config.parallel_config
        self.dp = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0
        self.rank = dist.get_rank() if world else worker.rank
        if world <= parallel.world_size:  # each data-parallel replica has a world of its own
            self.rank += self.dp * parallel.world_size
        super().__init__(worker)

    def count_ranks(self, worker: Any) -> int:
        """Return how many ranks all data-parallel replicas have together."""
        import torch.distributed as dist

        parallel = worker.vllm_config.parallel_config
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0
        return max(world, parallel.world_size * parallel.data_parallel_size)  # type: ignore[no-any-return]

    def serves(self, worker: Any) -> str:
        """Return "prefill" or "decode" for a worker of a server that does only that; "" otherwise."""
        transfer = getattr(worker.vllm_config, "kv_transfer_config", None)
        return {"kv_producer": "prefill", "kv_consumer": "decode"}.get(getattr(transfer, "kv_role", ""), "")

    def context_growth(self, worker: Any) -> int:
        """Return the most tokens by which one iteration makes a context longer.

        It is one, plus the number of draft tokens with speculative decoding.
        """
        return 1 + int(getattr(worker.vllm_config.speculative_config, "num_speculative_tokens", 0))


class VllmV1Rollout(VllmWorker, SchedulerOutputs):
    """A worker of vLLM's V1 engine."""


class VllmV0Rollout(VllmWorker, ModelInputs):
    """A worker of vLLM's V0 engine."""


class PreparedInputs(Calls):
    """vLLM V0: shows the recorder what ``execute_worker`` is about to run."""

    def prepare_input(self, execute_model_req: Any = None) -> Any:
        """Return what vLLM prepares for an iteration (None: no request is left), and show it to the recorder."""
        inputs = super().prepare_input(execute_model_req)  # type: ignore[misc]
        self._rlpatch_stage("prepare", inputs)
        return inputs
