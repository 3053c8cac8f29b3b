"""vLLM: a weight sync in its own protocol, which a trainer drives call by call."""

from __future__ import annotations

from patcher.messages import Text
from patches import vllm_engine
from patches.vllm import RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("vllm", RELEASES.since("0.10.0"))

RECIPES = _WEIGHTS.recipes(
    _WEIGHTS.sites(
        Text("weight updates in the V1 worker"), "v1/worker/gpu_worker.py", *vllm_engine.sync_sites("Worker")
    ),
)
