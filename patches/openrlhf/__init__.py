"""OpenRLHF: micro-batches and mini-batches of its actor and critic, and the forwards over a rollout before them."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# fmt: off
RELEASES = Releases((
    "0.9.1", "0.9.1.post1", "0.9.2", "0.9.3", "0.9.4", "0.9.5", "0.9.6", "0.9.7", "0.9.8", "0.9.9", "0.9.10", "0.10.0",
    "0.10.1", "0.10.1.post1", "0.10.1.post2", "0.10.2", "0.10.3", "0.10.4", "0.11.0", "0.11.1", "0.11.2",
))
# fmt: on

PROJECT = Project(
    "openrlhf",
    package="openrlhf",
    distributions=("openrlhf",),
    releases=RELEASES,
    files=(
        "openrlhf/__init__.py",
        "openrlhf/trainer/ppo_trainer.py",
        "openrlhf/trainer/ppo_trainer_async.py",
        "openrlhf/trainer/ppo_utils/experience_maker.py",
        "openrlhf/trainer/ppo_utils/samples_generator.py",
        "openrlhf/trainer/ray/vllm_engine.py",
        "openrlhf/trainer/ray/ppo_actor.py",
        "openrlhf/trainer/ray/ppo_critic.py",
        "openrlhf/trainer/ray/launcher.py",
        "openrlhf/trainer/ray/vllm_worker_wrap.py",
    ),
)
