"""Switches of other profilers in MindSpeed-RL's worker processes."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import ENGINE_VARIABLE, TORCH_NPU

# vLLM's worker is an object in the process that trains, so its variable counts here, too.
SWITCHES: tuple[Switch, ...] = (
    ENGINE_VARIABLE._replace(source="mindspeed_rl/models/rollout/vllm_engine.py, on vLLM 0.9.1 and 0.11.0"),
    *TORCH_NPU,
)
