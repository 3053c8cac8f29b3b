"""Switches of other profilers in NeMo-RL's workers: its own with nsys, and those of every process."""

from __future__ import annotations

from patcher.messages import Text
from patcher.switches import Form, State, Switch
from patches.shared_switches import GPU, TORCH_NPU

# vLLM and SGLang have windows and switches of their own.
SWITCHES: tuple[Switch, ...] = (
    Switch(
        profiler=Text("NeMo-RL's nsys"),
        form=Form.VARIABLE,
        name="NRL_NSYS_WORKER_PATTERNS",
        otherwise=State.ON,
        why=Text(
            "each worker whose name matches this pattern runs under nsys, which records the training steps that"
            " NRL_NSYS_PROFILE_STEP_RANGE selects"
        ),
        source="nemo_rl/utils/nsys.py, nemo_rl/distributed/worker_group_utils.py",
        off="unset NRL_NSYS_WORKER_PATTERNS",
    ),
    *TORCH_NPU,
    *GPU,
)
