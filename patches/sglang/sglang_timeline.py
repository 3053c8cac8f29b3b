"""SGLang: the iterations of its scheduler, and the weights and the memory that it is asked to take and to leave."""

from __future__ import annotations

from patcher.messages import Text
from patches.probes.timeline_recorder import SglangTimeline
from patches.sglang import RELEASES
from patches.timeline_stage import Timeline

_TIMELINE = Timeline("sglang")
_MANAGERS = "srt/managers"
_WEIGHTS = ("disk", "distributed", "tensor", "ipc")


def _request_sites(owner: str) -> tuple[tuple[str, str, str], ...]:
    """Return the timeline sites for weight updates and memory release in the class `owner`."""
    weights = (f"update_weights_from_{source}" for source in _WEIGHTS)
    return (
        *(
            (
                f"{owner}.{method}",
                f'span("sync", "{method}")',
                Text("the engine receives the weights for the next rollout"),
            )
            for method in weights
        ),
        *(
            (
                f"{owner}.{method}",
                f'span("sleep", "{method}")',
                Text("the engine frees memory for training here, or allocates it again"),
            )
            for method in ("release_memory_occupation", "resume_memory_occupation")
        ),
    )


RECIPES = _TIMELINE.recipes(
    RELEASES,
    _TIMELINE.sites(
        Text("timeline of the scheduler"),
        f"{_MANAGERS}/scheduler.py",
        RELEASES,
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
        RELEASES.between("0.4.10", "0.5.12.post1"),
        *_request_sites("SchedulerUpdateWeightsMixin"),
    ),
    _TIMELINE.sites(
        Text("weight updates in the scheduler's weight updater"),
        f"{_MANAGERS}/scheduler_components/weight_updater.py",
        RELEASES.since("0.5.13"),
        *_request_sites("SchedulerWeightUpdaterManager"),
    ),
    kind=SglangTimeline,
)
