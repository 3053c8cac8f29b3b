"""SGLang's scheduler: which batches count, where a rollout ends, and in which thread the forward runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patches.probes.rollout import RolloutUnits


class SglangRollout(RolloutUnits):
    """Tells decode from prefill by the mode of SGLang's ``ScheduleBatch`` (``managers/schedule_batch.py``).

    A batch decodes as a whole, or some request of it has prompt tokens left: extended, mixed, or computed again
    after retraction. With speculation a decode batch drafts and verifies. What happens is seen in the scheduler's
    thread. Where the forward has one of its own, it is counted there as soon as the window is near: a queue between
    the two costs an iteration more than the counting does.
    """

    running = near = False
    put: Any

    def schedule(self, batch: Any) -> None:
        kind = self.kind_of(batch)
        if kind is None:
            return
        runs = True if self.UNIT == "aligned" else kind in ("decode", "prefill")
        if runs and not self.running and not self.done:
            self.running = True
            self.hand_over("begin_rollout")
        if self.RELATIVE and runs and (self.near or self.awaited):
            self.hand_over("wait_for", kind, len(batch.reqs), batch)
        held: Mapping[str, object] = {}
        if self.METADATA and runs and self.open_at is not None and self.unit >= self.open_at:
            held = self.contents_of(batch)
        self.hand_over("step", (kind, held))

    def kind_of(self, batch: Any) -> str | None:
        mode, requests = batch.forward_mode.name, batch.reqs
        kind = "decode" if mode in ("DECODE", "TARGET_VERIFY") else "idle" if mode == "IDLE" else "prefill"
        if mode == "PREBUILT" or (kind == "prefill" and batch.extend_num_tokens == 0):
            return None  # without a forward
        return "health check" if len(requests) == 1 and str(requests[0].rid).startswith("HEALTH_CHECK") else kind

    def observe(self, batch: tuple[str, Any]) -> str | None:
        kind = batch[0]
        counted = True if self.UNIT == "aligned" else kind in ("decode", "prefill")
        self.live = self.live or counted
        # What is not counted is marked within a window and is nothing outside of it.
        return kind if counted or self.prof is not None else None

    def longest_context(self, batch: Any, load: int, decisive: bool) -> int:  # noqa: ARG002
        decodes = batch.forward_mode.name in ("DECODE", "TARGET_VERIFY")
        longest = self.reach = self.reach + self.growth  # or less
        if not decodes or (longest >= self.at["context"] and (decisive or longest > 10**9)):
            longest = max(self.contexts(batch))
            # All that decode are in one batch; until one was seen, the bound is 10**9 more than what is known.
            self.reach = longest if decodes else max(self.reach, self.reach // 10**9 * 10**9 + longest)
        return longest

    def contexts(self, batch: Any) -> list[int]:
        """The tokens of each request, with those that are scheduled. Overlapped, the outputs are known one late."""
        lengths = getattr(batch, "seq_lens_cpu", None)
        if lengths is not None:  # on the host, from 0.5.3 on; without a sum from 0.5.2x on
            return list(lengths.tolist())
        if batch.forward_mode.name not in ("DECODE", "TARGET_VERIFY"):
            return [before + more for before, more in zip(batch.prefix_lens, batch.extend_lens)]  # noqa: B905
        known = [len(request.origin_input_ids) + len(request.output_ids) for request in batch.reqs]
        late = 0 if batch.seq_lens_sum is None else (batch.seq_lens_sum - sum(known)) // len(known)
        return [tokens + late for tokens in known]

    def contents_of(self, batch: Any) -> Mapping[str, object]:
        try:
            contexts = self.contexts(batch)
            decodes = batch.forward_mode.name in ("DECODE", "TARGET_VERIFY")
            tokens = len(contexts) if decodes else batch.extend_num_tokens
            return {"requests": len(contexts), "tokens": tokens, "longest": max(contexts), "context": sum(contexts)}
        except Exception:  # a batch of another form, which stops nothing
            return {}

    def contents(self, batch: Any) -> Mapping[str, object]:
        return batch[1]  # type: ignore[no-any-return]

    def idle(self) -> None:
        if self.running and not self.scheduler.waiting_queue:
            self.running = False
            self.hand_over("end_rollout", "the engine is idle")

    def receive(self, requests: Any) -> None:
        for request in requests:
            name = type(request).__name__
            if name == "ReleaseMemoryOccupationReqInput":
                self.running = False
                self.hand_over("end_rollout", "release_memory_occupation()")
            elif name == "ProfileReq":
                self.hand_over("yield_to", "STOP_PROFILE" not in repr(request))
                self.wait()

    def hand_over(self, event: str, *args: Any) -> None:
        if self.put is not None and not self.near:
            self.near = self.open_at is not None and self.unit >= self.open_at
        if self.near:
            from functools import partial

            self.put(partial(self.scheduler._rlpatch_stage, event, *args))
        else:
            getattr(self, event)(*args)

    def wait(self) -> None:
        import threading

        if self.near:
            done = threading.Event()
            self.put(done.set)
            done.wait(60)  # a profiler that hangs must not hang the scheduler, too

    def forget(self) -> None:
        self.live = False

    def __init__(self, worker: Any) -> None:
        """The replica and the global rank of a scheduler, which has one accelerator.

        The replicas of data-parallel attention are parts of one world, all others have one each. Where the number
        of a replica stands has changed often; before 0.4.9 only the thread of the forward is told.
        """
        import sys

        import torch.distributed as dist

        scheduler = self.scheduler = worker
        self.put = getattr(scheduler.tp_worker, "_rlpatch_stage_put", None)
        if self.BY_CONTEXT:
            self.growth = 1 + (getattr(scheduler.server_args, "speculative_num_draft_tokens", 0) or 0)
        in_a_world = dist.is_available() and dist.is_initialized()
        world, self.rank = (dist.get_world_size(), dist.get_rank()) if in_a_world else (1, 0)
        context = sys.modules.get("sglang.srt.runtime_context")
        parallel = getattr(scheduler, "ps", scheduler)
        if context and not hasattr(parallel, "dp_rank"):  # from 0.5.21 on
            parallel = context.get_parallel()
        named = getattr(parallel, "dp_rank", None)
        replica = getattr(scheduler.tp_worker, "_rlpatch_stage_replica", named)
        if self.EVERY_RANK:
            apart = not scheduler.server_args.enable_dp_attention
            self.world = world * (getattr(scheduler.server_args, "dp_size", 1) if apart else 1)
        if scheduler.server_args.enable_dp_attention or replica is None:
            self.dp = getattr(parallel, "attn_dp_rank", named) or 0
        else:
            self.dp = replica
            self.rank += replica * world
        super().__init__(worker)

    def serves(self, worker: Any) -> str:
        return str(getattr(getattr(worker, "disaggregation_mode", None), "value", ""))  # an enum
