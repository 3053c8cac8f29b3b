"""vLLM: a weight sync in its own protocol, which a trainer drives call by call."""

from __future__ import annotations

from patcher.messages.text import Text
from patches import vllm_engine, weights
from patches.vllm import RELEASES

RECIPES = weights.recipes(
    "vllm",
    RELEASES.since("0.10.0"),
    weights.sites(
        "vllm", Text("weights of the V1 worker"), "vllm/v1/worker/gpu_worker.py", RELEASES.since("0.10.0"),
        vllm_engine.syncs("Worker"),
    ),
    logger="vllm.rlpatch",
)  # fmt: skip
