"""SGLang's scheduler: which batches count, where a rollout ends, and in which thread the forward runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.recorder import ReplicaRecorder
from patches.probes.rollout import RolloutUnits


class SglangWorker(ReplicaRecorder):
    """The replica and the global rank of a scheduler or a model runner, which has one accelerator."""

    def __init__(self, worker: Any) -> None:  # docstring goes in
        """Find the replica and the global rank.

        The replicas of data-parallel attention are parts of one world, all others have one each. Where the number
        of a replica stands has changed often; before 0.4.9 only the thread of the forward is told.
        """
        import sys

        import torch.distributed as dist

        in_a_world = dist.is_available() and dist.is_initialized()
        world, self.rank = (dist.get_world_size(), dist.get_rank()) if in_a_world else (1, 0)
        context = sys.modules.get("sglang.srt.runtime_context")
        parallel = getattr(worker, "ps", worker)
        if context and not hasattr(parallel, "dp_rank"):  # from 0.5.21 on
            parallel = context.get_parallel()
        dp_rank = getattr(parallel, "dp_rank", None)
        replica = getattr(getattr(worker, "tp_worker", None), "_rlpatch_stage_replica", dp_rank)
        if worker.server_args.enable_dp_attention or replica is None:
            self.dp = getattr(parallel, "attn_dp_rank", dp_rank) or 0
        else:
            self.dp = replica
            self.rank += replica * world
        super().__init__(worker)

    def count_ranks(self, worker: Any) -> int:
        """Return how many ranks all data-parallel replicas have together."""
        import torch.distributed as dist

        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        apart = not worker.server_args.enable_dp_attention
        return world * (getattr(worker.server_args, "dp_size", 1) if apart else 1)


class TargetModel(SglangWorker):
    """A model runner; one that runs a draft model records nothing."""

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self.done = self.done or getattr(worker, "is_draft_worker", False)  # none before 0.4.1.post4

    def serves(self, worker: Any) -> str:
        """Return "prefill" or "decode" for a server that serves one alone; any other text otherwise."""
        return str(getattr(worker.server_args, "disaggregation_mode", ""))


class SglangRollout(SglangWorker, RolloutUnits):
    """Tells decode from prefill by the mode of SGLang's ``ScheduleBatch`` (``managers/schedule_batch.py``).

    A batch decodes as a whole, or some request of it has prompt tokens left: extended, mixed, or computed again
    after retraction. With speculation a decode batch drafts and verifies. What happens is seen in the scheduler's
    thread. Where the forward has one of its own, it is counted there as soon as the window is near: a queue between
    the two costs an iteration more than the counting does.
    """

    running = near = False
    will_start = False  # SGLang's own profiler
    contents_of_batch: Mapping[str, object]
    put: Any  # into the queue of the forward's thread, None where it has none

    def schedule(self, batch: Any) -> None:
        """Tell the recorder that the scheduler is about to run ``batch``; do nothing if it has no forward.

        The first prefill or decode after the engine was idle begins a rollout.
        """
        kind = self.kind_of(batch)
        if kind is None:
            return
        runs = self.runs(kind)
        if runs and not self.running and not self.done:
            self.running = True
            self.hand_over("begin_rollout")
        self.contents_of_batch = {}
        if runs:
            self.hand_over_load(kind, batch)
            self.keep_contents(batch)
        self.hand_over("step", (kind, self.contents_of_batch))

    def keep_contents(self, batch: Any) -> None:
        """Hook: note what a batch holds, before the forward's thread gets it."""

    def hand_over_load(self, kind: str, batch: Any) -> None:
        """Hook: a batch of ``kind`` is about to run; its number of requests may place a window after it."""

    def kind_of(self, batch: Any) -> str | None:
        """Return "decode", "prefill", "idle" or "health check" for a batch; None if no forward pass runs for it."""
        mode, requests = batch.forward_mode.name, batch.reqs
        kind = "decode" if mode in ("DECODE", "TARGET_VERIFY") else "idle" if mode == "IDLE" else "prefill"
        if mode == "PREBUILT" or (kind == "prefill" and batch.extend_num_tokens == 0):
            return None  # without a forward
        return "health check" if len(requests) == 1 and str(requests[0].rid).startswith("HEALTH_CHECK") else kind

    def observe(self, batch: tuple[str, Any]) -> str | None:
        """Return the kind of ``batch``, a pair (kind, contents); None if outside of a window and not counted."""
        kind = batch[0]
        # What is not counted is marked within a window and is nothing outside of it.
        return kind if self.runs(kind) or self.prof is not None else None

    def runs(self, kind: str) -> bool:
        """Tell whether batches of this kind belong to the rollout."""
        return kind in ("decode", "prefill")

    def context_lengths(self, batch: Any) -> list[int]:  # docstring goes in
        """Return each request's context in tokens; tokens of this batch and of late results are included."""
        lengths = getattr(batch, "seq_lens_cpu", None)
        if lengths is not None:  # on the host, from 0.5.3 on; without a sum from 0.5.2x on
            return list(lengths.tolist())
        if batch.forward_mode.name not in ("DECODE", "TARGET_VERIFY"):
            return [before + more for before, more in zip(batch.prefix_lens, batch.extend_lens)]  # noqa: B905
        lengths = [len(request.origin_input_ids) + len(request.output_ids) for request in batch.reqs]
        late = 0 if batch.seq_lens_sum is None else (batch.seq_lens_sum - sum(lengths)) // len(lengths)
        return [tokens + late for tokens in lengths]

    def idle(self) -> None:
        """End the rollout if no request waits: the scheduler calls this when it has no batch to run."""
        if self.running and not self.scheduler.waiting_queue:
            self.running = False
            self.hand_over("end_rollout", "the engine is idle")

    def receive(self, requests: Any) -> None:
        """End the rollout if one of ``requests`` releases memory.

        If one starts SGLang's own profiler, wait until the window is closed, and open none until one stops it.
        """
        for request in requests:
            name = type(request).__name__
            if name == "ReleaseMemoryOccupationReqInput":
                self.running = False
                self.hand_over("end_rollout", "release_memory_occupation()")
            elif name == "ProfileReq":
                self.hand_over("yield_to", "STOP_PROFILE" not in repr(request))
                self.wait()

    def yield_to(self, start: bool) -> None:
        """Close the window before SGLang's own profiler starts, and open none until it stops.

        ``start`` tells whether it starts or stops. A window that is due before it stops is lost.
        """
        self.will_start = start
        if start:
            self.close("the framework's own profiler starts")

    def open(self, unit: int, batch: Any = None) -> None:
        """Open the window before unit number ``unit``.

        If SGLang's own profiler was started and not stopped, end the recording instead, and report why.
        """
        if self.will_start:  # at a step of its own, perhaps
            return self.finish("not recorded: the framework's own profiler was started and not stopped")
        super().open(unit, batch)

    def hand_over(self, event: str, *args: Any) -> None:
        """Call the method ``event`` with ``args``: now, or later in the forward's thread once the window is near.

        If the forward runs in the scheduler's own thread, it is always now.
        """
        if self.put is not None and not self.near:
            self.near = self.open_at is not None and self.unit >= self.open_at
        if self.near:
            from functools import partial

            self.put(partial(self.scheduler._rlpatch_stage, event, *args))
        else:
            getattr(self, event)(*args)

    def wait(self) -> None:
        """Wait until the thread that runs the forward has done all that was handed over; at most 60 seconds.

        Return at once while nothing is handed over to that thread.
        """
        import threading

        if self.near:
            done = threading.Event()
            self.put(done.set)
            done.wait(60)  # a profiler that hangs must not hang the scheduler, too

    def __init__(self, worker: Any) -> None:
        self.scheduler = worker
        self.put = getattr(worker.tp_worker, "_rlpatch_stage_put", None)
        super().__init__(worker)

    def context_growth(self, worker: Any) -> int:
        """Return the most tokens by which one iteration makes a context longer.

        It is one, plus the number of draft tokens with speculative decoding.
        """
        return 1 + (getattr(worker.server_args, "speculative_num_draft_tokens", 0) or 0)

    def serves(self, worker: Any) -> str:
        """Return "prefill" or "decode" for a server that serves one alone; any other text otherwise."""
        return str(getattr(getattr(worker, "disaggregation_mode", None), "value", ""))  # an enum


class BatchMetadata(SglangRollout):
    """Notes what each batch holds, for the step metadata."""

    def keep_contents(self, batch: Any) -> None:
        """Keep what a batch holds, once the window is near."""
        if self.open_at is not None and self.unit >= self.open_at:
            self.contents_of_batch = self.contents_of(batch)

    def contents_of(self, batch: Any) -> Mapping[str, object]:
        """Return "requests", "tokens", "longest" context and sum of contexts ("context") of a batch.

        {} if it has another form.
        """
        try:
            contexts = self.context_lengths(batch)
            decodes = batch.forward_mode.name in ("DECODE", "TARGET_VERIFY")
            tokens = len(contexts) if decodes else batch.extend_num_tokens
            return {"requests": len(contexts), "tokens": tokens, "longest": max(contexts), "context": sum(contexts)}
        except Exception:  # a batch of another form, which stops nothing
            return {}

    def contents(self, batch: Any) -> Mapping[str, object]:
        """Return what was kept for a batch, a pair of its kind and its contents."""
        return batch[1]  # type: ignore[no-any-return]


class AlignedBatches(SglangRollout):
    """Ranks of a data-parallel group run in step: each batch counts, whatever it is."""

    def runs(self, kind: str) -> bool:  # noqa: ARG002
        """Return True: each batch belongs to the rollout."""
        return True


class BatchContexts(SglangRollout):
    """The longest context of a batch, or a bound where it is too short to matter."""

    growth: int  # tokens of an iteration, at most
    longest_bound: int
    bound_known: bool  # False: no batch was seen that decodes, and one has all requests that do

    def forget(self) -> None:
        """Forget the longest context of the rollout that has ended."""
        super().forget()
        self.longest_bound, self.bound_known = 0, False

    def longest_context(self, batch: Any, threshold: int, exact: bool) -> int:  # docstring goes in
        """Call once a batch: return the longest context in tokens, a bound below ``threshold`` or not ``exact``."""
        decodes = batch.forward_mode.name in ("DECODE", "TARGET_VERIFY")
        self.longest_bound += self.growth
        if decodes and self.bound_known and (self.longest_bound < threshold or not exact):
            return self.longest_bound
        longest = max(self.context_lengths(batch))
        self.longest_bound = longest if decodes else max(self.longest_bound, longest)
        self.bound_known = self.bound_known or decodes
        return longest


class ForwardThread:
    """SGLang up to 0.5.3, overlapped: what the recorder does goes with the batches to the forward's thread.

    A profiler sees the operators of the thread that started it, and must be stopped there.
    """

    input_queue: Any
    _rlpatch_stage_put: Any
    _rlpatch_stage_replica: Any

    def _rlpatch_stage_listen(self, replica: Any) -> None:
        """Let the thread that runs the forward also call functions that are put into its queue.

        Keep ``replica``, the number of the replica, for the recorder.
        """
        import functools

        self._rlpatch_stage_replica = replica
        self._rlpatch_stage_put = self.input_queue.put
        self.input_queue.get = functools.partial(self._rlpatch_stage_next, self.input_queue.get)

    def _rlpatch_stage_next(self, take: Any) -> Any:
        """Take items from a queue by ``take`` until one is a batch, and return it; call each function before it."""
        item = take()
        while callable(item):  # a batch is a tuple
            item()
            item = take()
        return item


class NamedReplica:
    """SGLang: for its package, which a server of verl imports before it starts the schedulers.

    verl tells vLLM's workers by a variable which replica they are, and SGLang's schedulers by nothing. But the
    server is an actor, whose name has the number (``workers/rollout/sglang_rollout/async_sglang_server.py``, from
    0.6.1). The actors of slime and its forks have no name, and know their number as ``rank``: it counts the nodes
    of all engines (``backends/sglang_utils/sglang_engine.py``).
    """

    class _RlpatchStageReplica:
        """Tells the processes that inherit this environment which replica of verl they are."""

        def __init__(self) -> None:
            import contextlib
            import os
            import re

            with contextlib.suppress(Exception):
                context = self.actor_context()
                number = re.match(r"sglang_server_(?:[a-z]+_)*(\d+)_", (context and context.get_actor_name()) or "")
                if number:
                    os.environ["VERL_REPLICA_RANK"] = number[1]

        def actor_context(self) -> Any:
            """Return Ray's runtime context if this process is a worker of Ray (an actor or task), else None."""
            import sys

            ray: Any = sys.modules.get("ray")
            context = ray.get_runtime_context() if ray and ray.is_initialized() else None
            return context if context and context.worker.mode == ray.WORKER_MODE else None

        def configured(self, nodes: int) -> None:
            """Set VERL_REPLICA_RANK for the server that this actor of slime is about to start on ``nodes`` nodes.

            It is the actor's rank divided by ``nodes``. In any other process, and if that fails, nothing is set.
            """
            import contextlib
            import os

            with contextlib.suppress(Exception):
                context = self.actor_context()
                actor = context and context.worker.actors[context.worker.actor_id]
                if hasattr(actor, "worker_type"):  # and no rank that trains
                    os.environ["VERL_REPLICA_RANK"] = str(actor.rank // nodes)
