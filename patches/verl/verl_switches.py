"""Switches of other profilers in verl's worker processes."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import ENGINE_VARIABLE, GPU, TORCH_NPU

# verl's own worker processes know of the rollout engine's profiler as long as the engine runs in them; what verl
# hands to its servers is in ``profiling``.
SWITCHES: tuple[Switch, ...] = (
    ENGINE_VARIABLE._replace(
        releases="<0.7.1.dev0",
        source="verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py, vllm_rollout.py in 0.7.0: vLLM's worker is "
        "an object in verl's process",
    ),
    *TORCH_NPU,
    *GPU,
)
