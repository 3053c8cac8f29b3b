"""vllm-ascend: the rollout engine of verl on Ascend NPUs."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# fmt: off
RELEASES = Releases((
    "0.7.1rc1", "0.7.3rc1", "0.7.3rc2", "0.7.3", "0.7.3.post1", "0.8.4rc1", "0.8.4rc2", "0.8.5rc1", "0.9.0rc1",
    "0.9.0rc2", "0.9.1rc1", "0.9.1rc2", "0.9.1rc3", "0.9.1", "0.9.2rc1", "0.10.0rc1", "0.10.1rc1", "0.10.2rc1",
    "0.11.0rc0", "0.11.0rc1", "0.11.0rc2", "0.11.0rc3", "0.11.0", "0.12.0rc1", "0.13.0rc1", "0.13.0rc2", "0.13.0rc3",
    "0.13.0", "0.14.0rc1", "0.15.0rc1", "0.16.0rc1", "0.17.0rc1", "0.18.0rc1", "0.18.0", "0.19.1rc1", "0.20.2rc1",
    "0.21.0rc1", "0.22.1rc1", "0.23.0rc1", "0.23.0", "0.23.0.post1", "0.24.0rc1", "0.25.1rc1", "0.26.0rc1",
    "0.27.1rc1", "0.28.0rc1", "0.29.0rc1", "0.30.0rc1", "0.30.0rc2",
))
# fmt: on

PROJECT = Project(
    "vllm-ascend",
    package="vllm_ascend",
    distributions=("vllm-ascend",),
    releases=RELEASES,
    files=(
        "vllm_ascend/__init__.py",
        "vllm_ascend/worker.py",
        "vllm_ascend/worker/worker.py",
        "vllm_ascend/worker/worker_v1.py",
        "vllm_ascend/profiler/torch_npu_profiler.py",
    ),
)
