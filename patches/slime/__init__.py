"""slime: micro-batches and mini-batches of its training on Megatron, and the forwards over a rollout before it."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.3.0", "0.3.1"))
"""Tags of its repository; the package index has another project of this name."""

PROJECT = Project(
    "slime",
    package="slime",
    distributions=("slime",),
    releases=RELEASES,
    files=("slime/backends/megatron_utils/model.py",),
    on_index=False,
)
