"""OpenRLHF: a weight sync, on the trainer's side and in vLLM's workers, which it extends by a class of its own."""

from __future__ import annotations

from patcher.messages import Text
from patches.openrlhf import RELEASES
from patches.package_stage import line
from patches.weights_stage import Weights

_WEIGHTS = Weights("openrlhf", RELEASES)
_BROADCAST = "ActorPPOTrainer.broadcast_to_vllm"
_SENDS = Text("the trainer sends a tensor and waits until the engines have answered")
_RECEIVES = Text("the worker receives a tensor and loads it; empty_cache=True marks the last tensor of a sync")
_JOIN = line(
    "WorkerWrap.init_process_group",
    'import os, torch; os.environ["VERL_REPLICA_RANK"] = str((rank_offset - 1) // torch.distributed.get_world_size())',
    Text(
        "the trainer numbers the ranks of all engines consecutively; a worker can tell only from its rank number"
        " which engine it belongs to"
    ),
    parameters=("rank_offset",),
)

RECIPES = _WEIGHTS.recipes(
    _WEIGHTS.sites(
        Text("weight syncs of the actor"),
        "trainer/ray/ppo_actor.py",
        _WEIGHTS.sync(_BROADCAST, Text("the trainer's side of a weight sync, on each rank of the trainer")),
        *(
            _WEIGHTS.phase(f"{_BROADCAST}.{sender}", "send", _SENDS)
            for sender in ("_broadcast_param", "_handle_cuda_ipc")
        ),
        needed=_BROADCAST,
    ),
    _WEIGHTS.sites(
        Text("weights that vLLM's workers receive"),
        "trainer/ray/vllm_worker_wrap.py",
        *(
            (f"WorkerWrap.{call}", f'sync(self, "rollout", "{call}", not empty_cache)', _RECEIVES)
            for call in ("update_weight", "update_weight_cuda_ipc")
        ),
        more=(_JOIN,),
        needed="WorkerWrap.update_weight",
    ),
)
