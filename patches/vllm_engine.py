"""What vLLM hands to its workers, release by release; vllm-ascend follows the numbers of vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping


def scheduler(release: str) -> Mapping[str, object]:
    """The compile-time constants of ``probes.rollout.SchedulerOutputs`` in a published release; nothing for "".

    From vllm/v1/core/sched/output.py and vllm/v1/worker/gpu/warmup.py, 0.8.5 to 0.33.0.
    """
    if not release:
        return {}
    number = _number(release)
    return {
        "RESUMED": "objects" if number < (0, 9, 2) else "lists" if number < (0, 11, 1) else "ids",
        "EMBEDS": number >= (0, 11, 0),
        "PREFILL_TOKENS": number >= (0, 12, 0),
        "WARMS_UP": number >= (0, 17, 0),
    }


def parallel(release: str) -> Mapping[str, object]:
    """The compile-time constants of ``probes.rollout.VllmWorker`` (vllm/config/parallel.py)."""
    return {"DATA_PARALLEL_INDEX": _number(release) >= (0, 14, 0)} if release else {}


def worker(release: str) -> Mapping[str, object]:
    """The compile-time constants of a worker of the V1 engine."""
    return {**scheduler(release), **parallel(release)}


def _number(release: str) -> tuple[int, ...]:
    """The three numbers of a release; its candidates have them, too, and what it hands over."""
    return tuple(int(text) for text in re.findall(r"\d+", release)[:3])


def spans(worker: str) -> tuple[tuple[str, str, str], ...]:
    """What the timeline keeps of a class of workers, as ``patches.timeline.sites`` takes it."""
    weights = ("start_weight_update", "update_weights", "finish_weight_update", "reload_weights")
    kinds = {
        "sync": (weights, "new weights for the next rollout"),
        "sleep": (("sleep", "wake_up"), "memory to train in"),
    }
    spans = ((kind, name, why) for kind, (names, why) in kinds.items() for name in names)
    return (
        (f"{worker}.execute_model", "iteration(self, scheduler_output)", "once per engine iteration"),
        *((f"{worker}.{name}", f'span("{kind}", "{name}")', why) for kind, name, why in spans),
    )


def syncs(worker: str) -> tuple[tuple[str, str, str], ...]:
    """The calls of a weight sync in a class of workers, as ``patches.weights.sites`` takes them."""
    goes_on = {"start_weight_update": ", True", "finish_weight_update": ", False"}
    calls = ("start_weight_update", "update_weights", "finish_weight_update", "reload_weights")
    return tuple(
        (f"{worker}.{call}", f'sync(self, "rollout", "{call}"{goes_on.get(call, "")})', "new weights for the rollout")
        for call in calls
    )
