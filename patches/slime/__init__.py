"""slime: micro-batches and mini-batches of its training on Megatron, and the forwards over a rollout before it."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

UPDATE = "backends/megatron_utils/update_weight/update_weight_from_"
"""Beginning of the paths of the modules that send weights."""


def files(package: str, *more: str) -> tuple[str, ...]:
    """Return the paths of the files to patch in `package`, slime or a fork; `more` are paths in it that others lack."""
    common = (
        "__init__.py", "backends/megatron_utils/model.py", "backends/megatron_utils/actor.py", f"{UPDATE}tensor.py",
        "ray/actor_group.py", "rollout/sglang_rollout.py", "rollout/rm_hub/__init__.py",
        "utils/timer.py", "backends/megatron_utils/update_weight/common.py",
    )  # fmt: skip
    return tuple(f"{package}/{file}" for file in (*common, *more))


RELEASES = Releases(("0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.3.0", "0.3.1"))
"""Tags of its repository; the package index has another project of this name."""

PROJECT = Project(
    "slime",
    package="slime",
    distributions=("slime",),
    releases=RELEASES,
    files=files("slime", "observability/timer.py", "ray/rollout.py", f"{UPDATE}distributed.py", f"{UPDATE}disk.py"),
    on_index=False,
)
