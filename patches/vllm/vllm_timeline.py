"""vLLM: the iterations of its V1 engine, its KV cache, its weights and its sleep."""

from __future__ import annotations

from patcher.messages import Text
from patches import vllm_engine
from patches.probes.timeline_recorder import VllmTimeline
from patches.timeline_stage import Timeline
from patches.vllm import RELEASES

_TIMELINE = Timeline("vllm", RELEASES)
_CPU_WORKER = RELEASES.between("0.9.1", "0.10.2.post2")  # later ones inherit execute_model()

RECIPES = _TIMELINE.recipes(
    _TIMELINE.sites(
        Text("timeline of the V1 worker"),
        "v1/worker/gpu_worker.py",
        *vllm_engine.timeline_sites("Worker"),
        needed="Worker.execute_model",
    ),
    _TIMELINE.sites(
        Text("timeline of the V1 CPU worker"),
        "v1/worker/cpu_worker.py",
        *vllm_engine.timeline_sites("CPUWorker"),
        needed="CPUWorker.execute_model",
        releases=_CPU_WORKER,
    ),
    _TIMELINE.sites(
        Text("KV cache of the V1 scheduler"),
        "v1/core/sched/scheduler.py",
        (
            "Scheduler.update_from_output",
            "blocks(self)",
            Text("in this function, the batch that has just run still holds its KV-cache blocks"),
        ),
    ),
    recorder_class=VllmTimeline,
)
