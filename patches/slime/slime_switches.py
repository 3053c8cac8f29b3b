"""Switches of other profilers in slime's training processes."""

from __future__ import annotations

from patcher.switches import Switch
from patches.shared_switches import TORCH_NPU

# SGLang is a server of its own, whose windows and switches are its own.
SWITCHES: tuple[Switch, ...] = TORCH_NPU
