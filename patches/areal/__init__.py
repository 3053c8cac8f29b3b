"""AReaL: micro-batches and mini-batches of its actor and critic, and their forwards over a rollout before them."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("1.0.4",))
"""The package index has no other one; of the tags, those from 1.0.2 on have the same structure."""

PROJECT = Project(
    "areal",
    package="areal",
    distributions=("areal",),
    releases=RELEASES,
    files=(
        "areal/trainer/ppo/actor.py",
        "areal/trainer/ppo/critic.py",
        "areal/engine/fsdp_engine.py",
        "areal/__init__.py",
        "areal/api/reward_api.py",
        "areal/engine/megatron_engine.py",
        "areal/experimental/engine/archon_engine.py",
        "areal/experimental/engine/archon_weight_sync.py",
        "areal/infra/controller/train_controller.py",
        "areal/infra/remote_inf_engine.py",
        "areal/infra/workflow_executor.py",
        "areal/utils/stats_logger.py",
        "areal/utils/stats_tracker.py",
    ),
)
