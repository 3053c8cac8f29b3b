"""verl: the training stages, from the FSDP and Megatron workers of 0.2 to the engine workers of 0.9."""

from __future__ import annotations

from patcher.targets.target import Project
from patches.releases import Releases

# fmt: off
RELEASES = Releases((
    "0.2", "0.2.0.post1", "0.2.0.post2", "0.3.0.post0", "0.3.0.post1", "0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1",
    "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1",
))
# fmt: on

PROJECT = Project(
    "verl",
    package="verl",
    distributions=("verl",),
    version_files=("verl/version/version",),
    releases=RELEASES,
    files=(
        "verl/__init__.py",
        "verl/checkpoint_engine/base.py",
        "verl/experimental/agent_loop/agent_loop.py",
        "verl/experimental/reward_loop/reward_loop.py",
        "verl/single_controller/base/decorator.py",
        "verl/single_controller/ray/base.py",
        "verl/trainer/ppo/v1/replay_buffer.py",
        "verl/utils/profiler/performance.py",
        "verl/utils/tracking.py",
        "verl/workers/fsdp_workers.py",
        "verl/workers/megatron_workers.py",
        "verl/workers/rollout/llm_server.py",
        "verl/workers/rollout/router.py",
        "verl/workers/rollout/sglang_rollout/async_sglang_server.py",
        "verl/workers/rollout/sglang_rollout/sglang_rollout.py",
        "verl/workers/rollout/vllm_rollout/vllm_async_server.py",
        "verl/workers/rollout/vllm_rollout/vllm_rollout.py",
        "verl/workers/actor/dp_actor.py",
        "verl/workers/actor/megatron_actor.py",
        "verl/workers/critic/dp_critic.py",
        "verl/workers/critic/megatron_critic.py",
        "verl/workers/engine_workers.py",
        "verl/workers/engine_workers_tinker.py",
        "verl/workers/engine/fsdp/transformer_impl.py",
        "verl/workers/engine/megatron/transformer_impl.py",
        "verl/workers/engine/veomni/transformer_impl.py",
        "verl/workers/engine/torchtitan/transformer_impl.py",
        "verl/workers/engine/automodel/transformer_impl.py",
        "verl/checkpoint_engine/hccl_checkpoint_engine.py",
        "verl/checkpoint_engine/kimi_checkpoint_engine.py",
        "verl/checkpoint_engine/mooncake_checkpoint_engine.py",
        "verl/checkpoint_engine/nccl_checkpoint_engine.py",
        "verl/checkpoint_engine/nixl_checkpoint_engine.py",
        "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py",
        "verl/workers/rollout/vllm_rollout/utils.py",
        "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py",
        "verl/workers/sharding_manager/fsdp_sglang.py",
        "verl/workers/sharding_manager/fsdp_vllm.py",
        "verl/workers/sharding_manager/megatron_sglang.py",
        "verl/workers/sharding_manager/megatron_vllm.py",
    ),
)
