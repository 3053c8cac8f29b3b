"""vllm-ascend: the iterations of its V1 worker, its weights and its sleep."""

from __future__ import annotations

from patcher.messages import Text
from patches import vllm_engine
from patches.probes.timeline_recorder import VllmTimeline
from patches.timeline_stage import Timeline
from patches.vllm_ascend import RELEASES

_TIMELINE = Timeline("vllm_ascend", RELEASES.since("0.7.3rc2"))
_BESIDE_V0 = RELEASES.between("0.7.3rc2", "0.12.0rc1")  # worker.py is that of V0 as long as there is one

RECIPES = _TIMELINE.recipes(
    *(
        _TIMELINE.sites(
            Text("timeline of the worker class that {file} defines", name),
            f"worker/{name}",
            *vllm_engine.timeline_sites("NPUWorker"),
            needed="NPUWorker.execute_model",
            releases=releases,
        )
        for name, releases in (("worker_v1.py", _BESIDE_V0), ("worker.py", RELEASES.since("0.13.0rc1")))
    ),
    recorder_class=VllmTimeline,
)
