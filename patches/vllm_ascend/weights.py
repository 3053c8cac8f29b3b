"""vllm-ascend: a weight sync in vLLM's own protocol."""

from __future__ import annotations

from patcher.messages.text import Text
from patches import vllm_engine, weights
from patches.vllm_ascend import RELEASES

_SINCE = RELEASES.since("0.22.1rc1")

RECIPES = weights.recipes(
    "vllm_ascend",
    _SINCE,
    weights.sites(
        "vllm_ascend", Text("weights of the V1 worker"), "vllm_ascend/worker/worker.py", _SINCE,
        vllm_engine.syncs("NPUWorker"),
    ),
    logger="vllm.rlpatch",
)  # fmt: skip
