"""Switches of other profilers in OpenRLHF's training workers; it has none of its own."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import GPU, TORCH_NPU

# vLLM runs in Ray actors of its own, whose windows and switches are those of vLLM.
SWITCHES: tuple[Switch, ...] = (*TORCH_NPU, *GPU)
