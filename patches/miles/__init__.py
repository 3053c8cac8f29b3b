"""miles, a fork of slime: micro-batches and mini-batches of its training on Megatron, and the forwards before it."""

from __future__ import annotations

from patcher.targets.target import Project
from patches import slime
from patches.releases import Releases

RELEASES = Releases(("0.1.0",))
"""Tags of its repository; the package index has another project of this name."""

PROJECT = Project(
    "miles",
    package="miles",
    distributions=("miles",),
    releases=RELEASES,
    files=slime.files(
        "miles",
        "ray/train/group.py",
        "ray/rollout/rollout_manager.py",
        f"{slime.UPDATE}distributed/mixin.py",
        f"{slime.UPDATE}distributed/broadcast.py",
    ),
    on_index=False,
)
