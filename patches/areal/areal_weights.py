"""AReaL: a weight sync on the trainer's side, in any of its engines; the rollout's side is SGLang's or vLLM's."""

from __future__ import annotations

from patcher.messages import Text
from patches.areal import RELEASES
from patches.weights_stage import Weights

_WEIGHTS = Weights("areal", RELEASES)
_WHOLE = Text("the trainer calls this function on each of its ranks")
_GATHERS = Text("each rank contributes its shard of a tensor here")
_SENDS = Text("a bucket of weights is sent here, or the ranks wait until it has arrived")

RECIPES = _WEIGHTS.recipes(
    *(
        _WEIGHTS.sites(
            Text("weight syncs of the {name} engine", name),
            file,
            _WEIGHTS.sync(f"{name}Engine.update_weights", _WHOLE),
            *(_WEIGHTS.phase(f"{name}Engine.{method}", "gather", _GATHERS) for method in gathers),
            *(_WEIGHTS.phase(f"{name}Engine.{method}", "send", _SENDS) for method in sends),
            needed=f"{name}Engine.update_weights",
        )
        for name, file, gathers, sends in (
            (
                "FSDP",
                "engine/fsdp_engine.py",
                ("_get_full_tensor",),
                ("_update_bucket_weights_from_distributed_async", "_wait_pending_weight_update_bucket"),
            ),
            (
                "Megatron",
                "engine/megatron_engine.py",
                ("_collect_param",),
                ("_update_bucket_weights_from_distributed",),
            ),
            ("Archon", "experimental/engine/archon_engine.py", (), ()),
        )
    ),
    _WEIGHTS.sites(
        Text("weights sent by the Archon engine"),
        "experimental/engine/archon_weight_sync.py",
        *(
            _WEIGHTS.phase(name, "send", _SENDS)
            for name in ("_update_bucket_weights", "_update_bucket_weights_multi_group")
        ),
        needed="_update_bucket_weights",
    ),
)
