"""NeMo-RL: mini-batches and micro-batches of its policy workers, and their forwards over a rollout before them."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("0.4.0", "0.5.0", "0.6.0", "0.7.0"))
"""Tags of its repository; the package index has only a placeholder."""

WORKERS = ("dtensor_policy_worker", "dtensor_policy_worker_v2", "megatron_policy_worker")

PROJECT = Project(
    "nemo-rl",
    package="nemo_rl",
    distributions=("nemo-rl",),
    releases=RELEASES,
    files=tuple(f"nemo_rl/models/policy/{folder}{worker}.py" for folder in ("workers/", "") for worker in WORKERS),
    on_index=False,
)
