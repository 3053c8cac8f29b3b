"""MindSpeed-RL: decode steps of its rollout, micro-batches and mini-batches of its training stages."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("2.1.0", "2.2.0", "2.3.0"))

PROJECT = Project(
    "mindspeed-rl",
    package="mindspeed_rl",
    distributions=("mindspeed-rl",),
    releases=RELEASES,
    files=(
        "mindspeed_rl/__init__.py",
        "mindspeed_rl/trainer/dapo_trainer_hybrid.py",
        "mindspeed_rl/trainer/grpo_trainer_hybrid.py",
        "mindspeed_rl/trainer/ppo_trainer_hybrid.py",
        "mindspeed_rl/trainer/utils/transfer_dock.py",
        "mindspeed_rl/workers/resharding/megatron_sharding_manager.py",
        "mindspeed_rl/workers/reward_woker.py",
        "mindspeed_rl/workers/reward_worker.py",
        "mindspeed_rl/workers/scheduler/launcher.py",
        "mindspeed_rl/workers/vit_worker.py",
        "mindspeed_rl/models/base/base_training_engine.py",
        "mindspeed_rl/models/rollout/vllm_engine.py",
        "mindspeed_rl/workers/actor_hybrid_worker.py",
        "mindspeed_rl/workers/critic_worker.py",
        "mindspeed_rl/workers/reference_woker.py",  # so spelt in 2.1.0
        "mindspeed_rl/workers/reference_worker.py",
    ),
    on_index=False,
    placeholders=("2.1.0",),  # in setup.py, which 2.3.0 brought and nobody has changed since
)
