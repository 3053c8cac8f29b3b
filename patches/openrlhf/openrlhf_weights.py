"""OpenRLHF: a weight sync, on the trainer's side and in vLLM's workers, which it extends by a class of its own."""

from __future__ import annotations

from patcher.messages import Text
from patches.openrlhf import RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("openrlhf")
_BROADCAST = "ActorPPOTrainer.broadcast_to_vllm"
_SENDS = Text("a tensor is sent; the engines' answers are waited for")
_RECEIVES = Text("the worker receives a tensor and loads it; the last one of a sync is sent with empty_cache")

RECIPES = _WEIGHTS.recipes(
    RELEASES,
    _WEIGHTS.sites(
        Text("weight syncs of the actor"),
        "trainer/ray/ppo_actor.py",
        RELEASES,
        _WEIGHTS.sync(_BROADCAST, Text("the trainer's side of a weight sync, on each of its ranks")),
        *(
            _WEIGHTS.phase(f"{_BROADCAST}.{sender}", "send", _SENDS)
            for sender in ("_broadcast_param", "_handle_cuda_ipc")
        ),
        needed=_BROADCAST,
    ),
    _WEIGHTS.sites(
        Text("weights in vLLM's workers"),
        "trainer/ray/vllm_worker_wrap.py",
        RELEASES,
        *(
            (f"WorkerWrap.{call}", f'sync(self, "rollout", "{call}", not empty_cache)', _RECEIVES)
            for call in ("update_weight", "update_weight_cuda_ipc")
        ),
        needed="WorkerWrap.update_weight",
    ),
)
