"""miles: where the updates of actor and critic are recorded, and their forwards over a rollout, as in slime."""

from __future__ import annotations

from patches.miles import PROJECT, RELEASES
from patches.slime import slime_timeline, slime_weights
from patches.slime.recipes import upstream

UPSTREAM = upstream(
    PROJECT,
    ("4575348c35f9",),
    ("33800e6f2a7b",),
    slime_timeline.group(PROJECT.package, RELEASES, "ray/train/group.py"),
    slime_timeline.manager(PROJECT.package, RELEASES, "ray/rollout/rollout_manager.py"),
    slime_timeline.sender(PROJECT.package, RELEASES, "distributed/mixin.py", "DistBucketedWeightUpdateMixin"),
    senders=(
        slime_weights.sender(
            PROJECT.package,
            RELEASES,
            "tensor.py",
            *(f"UpdateWeightFromTensor._send_{kind}_params" for kind in ("base", "lora")),
        ),
        slime_weights.sender(
            PROJECT.package,
            RELEASES,
            "distributed/broadcast.py",
            "UpdateWeightFromDistributed._update_weight_implementation",
        ),
    ),
)
