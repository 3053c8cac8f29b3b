"""SGLang: the iterations of its scheduler, and the weights and the memory that it is asked to take and to leave."""

from __future__ import annotations

from collections.abc import Iterator

from patcher.messages import Text
from patches.package_stage import Site
from patches.probes.timeline_recorder import SglangTimeline
from patches.sglang import RELEASES
from patches.timeline_stage import Timeline, span_sites

_TIMELINE = Timeline("sglang", RELEASES)
_MANAGERS = "srt/managers"


def _request_sites(owner: str) -> Iterator[Site]:
    """Yield the functions of the class `owner` to record as spans of the timeline.

    They update the weights ("sync"), and free or allocate memory ("sleep").
    """
    updates = (f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc"))
    memory = ("release_memory_occupation", "resume_memory_occupation")
    yield from span_sites(owner, "sync", Text("the engine receives the weights for the next rollout"), *updates)
    yield from span_sites(
        owner, "sleep", Text("here the engine frees memory for training, or allocates that memory again"), *memory
    )


RECIPES = _TIMELINE.recipes(
    _TIMELINE.sites(
        Text("timeline of the scheduler"),
        f"{_MANAGERS}/scheduler.py",
        (
            "Scheduler.run_batch",
            "iteration(self, batch)",
            Text("this function runs once per engine iteration, never for a draft model"),
        ),
        *_request_sites("Scheduler"),
        needed="Scheduler.run_batch",
    ),
    _TIMELINE.sites(
        Text("weight updates in the scheduler"),
        f"{_MANAGERS}/scheduler_update_weights_mixin.py",
        *_request_sites("SchedulerUpdateWeightsMixin"),
        releases=RELEASES.between("0.4.10", "0.5.12.post1"),
    ),
    _TIMELINE.sites(
        Text("weight updates in the scheduler's weight updater"),
        f"{_MANAGERS}/scheduler_components/weight_updater.py",
        *_request_sites("SchedulerWeightUpdaterManager"),
        releases=RELEASES.since("0.5.13"),
    ),
    recorder_class=SglangTimeline,
)
