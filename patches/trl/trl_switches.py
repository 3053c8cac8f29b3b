"""Switches of other profilers in TRL's processes; it has none of its own."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import ENGINE_VARIABLE, GPU, TORCH_NPU

# With vllm_mode="colocate" vLLM's worker is an object in the process that trains, so its variable counts here, too.
# What accelerate's Accelerator.profile() records is in no option: a script calls it, and the recorder sees it run.
SWITCHES: tuple[Switch, ...] = (
    ENGINE_VARIABLE._replace(source="trl/generation/vllm_generation.py, with vLLM below 0.16"),
    *TORCH_NPU,
    *GPU,
)
