"""verl-omni: mini-batches and calls of its engine worker, which is that of verl for models of images and speech."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("0.1.0rc1", "0.1.0", "0.2.0rc1", "0.2.0"))
WORKER = "verl_omni/workers/engine_workers.py"

PROJECT = Project(
    "verl-omni",
    package="verl_omni",
    distributions=("verl-omni",),
    version_files=("verl_omni/version/version",),
    releases=RELEASES,
    files=(WORKER,),
    on_index=False,
)
