"""TRL: the training steps of its trainers, and the log-probabilities that those with a rollout compute before."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# fmt: off
RELEASES = Releases((
    "0.26.0", "0.26.1", "0.26.2", "0.27.0", "0.27.1", "0.27.2", "0.28.0", "0.29.0", "0.29.1", "1.0.0rc1", "1.0.0",
    "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0", "1.5.1", "1.6.0", "1.7.0", "1.7.1", "1.8.0", "1.9.0", "1.9.1", "1.9.2",
    "1.10.0", "1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.14.1", "1.14.2", "1.15.0", "1.16.0",
))
# fmt: on

PROJECT = Project(
    "trl",
    package="trl",
    distributions=("trl",),
    releases=RELEASES,
    files=(
        "trl/__init__.py",
        "trl/generation/vllm_generation.py",
        "trl/trainer/grpo_trainer.py",
        "trl/trainer/rloo_trainer.py",
        "trl/trainer/sft_trainer.py",
        "trl/trainer/dpo_trainer.py",
        "trl/trainer/kto_trainer.py",
        "trl/extras/vllm_client.py",
        "trl/generation/vllm_client.py",
        "trl/experimental/async_grpo/async_grpo_trainer.py",
        "trl/experimental/async_grpo/weight_transfer.py",
    ),
)

LAZY_RECORDER = '__import__("sys").modules[__name__]._rlpatch_stage'
"""The variable of a recorder: the package puts a lazy one into its own place, in which the lines look for it."""
