"""miles: where the updates of actor and critic are recorded, and their forwards over a rollout, as in slime."""

from __future__ import annotations

from patches.miles import PROJECT, RELEASES
from patches.slime import slime_timeline, slime_weights
from patches.slime.recipes import upstream
from patches.timeline_stage import Timeline
from patches.weights_stage import Weights

_TIMELINE = Timeline(PROJECT.package, RELEASES)
_WEIGHTS = Weights(PROJECT.package, RELEASES)
_SENDS = tuple(f"UpdateWeightFromTensor._send_{kind}_params" for kind in ("base", "lora"))

UPSTREAM = upstream(
    PROJECT,
    ("4575348c35f9",),
    ("33800e6f2a7b",),
    *slime_timeline.recipes(
        _TIMELINE,
        slime_timeline.group(_TIMELINE, "ray/train/group.py"),
        slime_timeline.manager(_TIMELINE, "ray/rollout/rollout_manager.py"),
        slime_timeline.sender(_TIMELINE, "distributed/mixin.py", "DistBucketedWeightUpdateMixin"),
    ),
    *slime_weights.recipes(
        _WEIGHTS,
        slime_weights.sender(_WEIGHTS, "tensor.py", *_SENDS),
        slime_weights.sender(
            _WEIGHTS, "distributed/broadcast.py", "UpdateWeightFromDistributed._update_weight_implementation"
        ),
    ),
)
