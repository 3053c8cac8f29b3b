"""The projects that rlpatch knows; apart from the recipes, so that `rlpatch status` need not load those."""

from __future__ import annotations

from patcher.targets.target import Project

VLLM_ASCEND = Project(
    "vllm-ascend",
    package="vllm_ascend",
    distributions=("vllm-ascend",),
    files=(
        "vllm_ascend/worker.py",
        "vllm_ascend/worker/worker.py",
        "vllm_ascend/worker/worker_v1.py",
    ),
)

PROJECTS = (VLLM_ASCEND,)
