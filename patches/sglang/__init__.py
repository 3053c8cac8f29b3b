"""SGLang: the rollout engine of verl, slime and AReaL on NPUs and GPUs."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# From 0.4.0 on, those before a release included: 0.5.0 has no other.
# fmt: off
RELEASES = Releases((
    "0.4.0", "0.4.0.post1", "0.4.0.post2", "0.4.1", "0.4.1.post1", "0.4.1.post2", "0.4.1.post3", "0.4.1.post4",
    "0.4.1.post5", "0.4.1.post6", "0.4.1.post7", "0.4.2", "0.4.2.post1", "0.4.2.post2", "0.4.2.post3", "0.4.2.post4",
    "0.4.3", "0.4.3.post1", "0.4.3.post2", "0.4.3.post3", "0.4.3.post4", "0.4.4", "0.4.4.post1", "0.4.4.post2",
    "0.4.4.post3", "0.4.4.post4", "0.4.5", "0.4.5.post1", "0.4.5.post2", "0.4.5.post3", "0.4.6", "0.4.6.post1",
    "0.4.6.post2", "0.4.6.post3", "0.4.6.post4", "0.4.6.post5", "0.4.7",
    "0.4.7.post1", "0.4.8", "0.4.8.post1", "0.4.9", "0.4.9.post1", "0.4.9.post2", "0.4.9.post3", "0.4.9.post4",
    "0.4.9.post5", "0.4.9.post6", "0.4.10", "0.4.10.post1", "0.4.10.post2", "0.5.0rc0", "0.5.0rc1", "0.5.0rc2",
    "0.5.1", "0.5.1.post1", "0.5.1.post2", "0.5.1.post3", "0.5.2rc0", "0.5.2rc1", "0.5.2rc2", "0.5.2", "0.5.3rc0",
    "0.5.3rc2", "0.5.3",
    "0.5.3.post1", "0.5.3.post2", "0.5.3.post3", "0.5.4", "0.5.4.post1", "0.5.4.post2", "0.5.4.post3", "0.5.5",
    "0.5.5.post1", "0.5.5.post2", "0.5.5.post3", "0.5.6", "0.5.6.post1", "0.5.6.post2",
    "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12",
    "0.5.12.post1",
    "0.5.13", "0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20",
    "0.5.21", "0.5.22", "0.5.23",
))
# fmt: on

PROJECT = Project(
    "sglang",
    package="sglang",
    distributions=("sglang",),
    checkout="python",
    releases=RELEASES,
    files=(
        "sglang/__init__.py",
        "sglang/srt/managers/scheduler.py",
        "sglang/srt/managers/scheduler_components/weight_updater.py",
        "sglang/srt/managers/scheduler_update_weights_mixin.py",
        "sglang/srt/managers/tp_worker_overlap_thread.py",
        "sglang/srt/model_executor/model_runner.py",
        "sglang/srt/server_args.py",
    ),
)
