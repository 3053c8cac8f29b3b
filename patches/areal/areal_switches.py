"""Switches of other profilers in AReaL's training workers; the probe looks for its own when it records."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import TORCH_NPU

# SGLang and vLLM are servers of their own, whose windows and switches are theirs.
SWITCHES: tuple[Switch, ...] = TORCH_NPU
