"""vllm-ascend: a weight sync in vLLM's own protocol."""

from __future__ import annotations

from patcher.messages import Text
from patches import vllm_engine
from patches.vllm_ascend import RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("vllm_ascend", RELEASES.since("0.22.1rc1"))

RECIPES = _WEIGHTS.recipes(
    _WEIGHTS.sites(Text("weight updates in the V1 worker"), "worker/worker.py", *vllm_engine.sync_sites("NPUWorker")),
)
