"""The data that vLLM hands to its workers, release by release; vllm-ascend follows the numbers of vLLM."""

from __future__ import annotations

import re
from typing import Any

from patcher.messages import Text
from patcher.recipe import Before, Head, Insertion
from patches.package_stage import Site
from patches.probes import vllm
from patches.timeline_stage import span_sites

REMOVE = Text(
    "the patch is no longer needed once the engine's own profiler can record a window of decode steps of a chosen"
    " rollout and rank, and mark the steps"
)


def scheduler_output_parts(release: str) -> tuple[type, ...]:
    """Return the probe classes that read vLLM's scheduler output in a published release ("": in an unknown one).

    The first finds requests that prefill again after a preemption, the second the length of a prompt. Both are
    subclasses of `probes.vllm.SchedulerOutputs`. Based on vllm/v1/core/sched/output.py and
    vllm/v1/worker/gpu/warmup.py, 0.8.5 to 0.33.0.
    """
    if not release:
        return (vllm.ResumedSomehow, vllm.AnyPrompt)
    number = _number(release)
    resumed: type = vllm.ResumedNames
    if number < (0, 11, 1):
        resumed = vllm.ResumedRequests if number < (0, 9, 2) else vllm.ResumedFlags
    prompt: type = vllm.PrefillTokens
    if number < (0, 12, 0):
        prompt = vllm.PromptTokens if number < (0, 11, 0) else vllm.PromptEmbeds
    return (resumed, prompt)


def warm_ups(release: str) -> tuple[type, ...]:
    """Return the layer that skips the second model runner's warm-up; () for releases below 0.17.0, which have none."""
    return (vllm.WarmUps,) if not release or _number(release) >= (0, 17, 0) else ()


SLEEP = Insertion(
    "sleep",
    where=Head(),
    line='self._rlpatch_stage("end_rollout", "sleep()")',
    why=Text(
        "verl puts the engine to sleep with this call after each rollout. An engine in a single process runs no empty"
        " batch after the last request, so only this call shows that the rollout has ended"
    ),
)
PROFILE = Insertion(
    "profile",
    where=Before("if is_start: ..."),
    line='self._rlpatch_stage("close", "the framework\'s own profiler was called")',
    why=Text(
        "two profilers at once lose data or crash, so rlpatch closes its window before the engine's own profiler starts"
    ),
)
"""Line in the workers of the V1 engine, as ``SLEEP`` is."""

V1: dict[str, Any] = {
    "contexts": vllm.OutputContexts,
    "aligned": vllm.AlignedOutputs,
    "traits": scheduler_output_parts,
    "warm_ups": warm_ups,
}
"""Settings of ``patches.rollout.probe`` for the V1 engine."""


def _number(release: str) -> tuple[int, ...]:
    """Return the first three numbers of a release; a release candidate has those of its release."""
    return tuple(int(text) for text in re.findall(r"\d+", release)[:3])


_UPDATES = ("start_weight_update", "update_weights", "finish_weight_update", "reload_weights")


def timeline_sites(class_name: str) -> tuple[Site, ...]:
    """Return the functions of the V1 worker class `class_name` to record as spans of the timeline.

    They are iterations, weight updates, sleep and wake-up.
    """
    iteration = Text("this function runs once per engine iteration")
    update = Text("the engine receives the weights for the next rollout")
    memory = Text("here the engine frees memory for training, or allocates that memory again")
    return (
        (f"{class_name}.execute_model", "iteration(self, scheduler_output)", iteration),
        *span_sites(class_name, "sync", update, *_UPDATES),
        *span_sites(class_name, "sleep", memory, "sleep", "wake_up"),
    )


def sync_sites(class_name: str) -> tuple[Site, ...]:
    """Return the functions of the worker class `class_name` to record as calls of a weight sync.

    One sync may have several calls: ``start_weight_update`` leaves it open, ``finish_weight_update`` ends it.
    """
    goes_on = {"start_weight_update": ", True", "finish_weight_update": ", False"}
    return tuple(
        (
            f"{class_name}.{call}",
            f'sync(self, "rollout", "{call}"{goes_on.get(call, "")})',
            Text("the engine receives the new weights for the rollout"),
        )
        for call in _UPDATES
    )
