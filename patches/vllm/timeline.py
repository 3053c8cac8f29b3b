"""vLLM: the iterations of its V1 engine, its weights and its sleep."""

from __future__ import annotations

from patcher.messages.text import Text
from patches import timeline, vllm_engine
from patches.probes.timeline import VllmTimeline
from patches.vllm import RELEASES

_PACKAGE = "vllm"
_CPU_WORKER = RELEASES.between("0.9.1", "0.10.2.post2")  # later ones inherit execute_model()

RECIPES = timeline.recipes(
    _PACKAGE,
    RELEASES,
    timeline.sites(
        _PACKAGE,
        Text("timeline of the V1 worker"),
        "vllm/v1/worker/gpu_worker.py",
        RELEASES,
        vllm_engine.spans("Worker"),
        needed="Worker.execute_model",
    ),
    timeline.sites(
        _PACKAGE,
        Text("timeline of the V1 worker for CPUs"),
        "vllm/v1/worker/cpu_worker.py",
        _CPU_WORKER,
        vllm_engine.spans("CPUWorker"),
        needed="CPUWorker.execute_model",
    ),
    logger="vllm.rlpatch",
    kind=VllmTimeline,
)
