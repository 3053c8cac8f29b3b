"""MindSpeed-RL's own profiler: which keys of its Hydra configuration switch it on."""

from __future__ import annotations

from collections.abc import Mapping

from patcher.messages import Text
from patcher.switches import Application, ConfigSwitch, Key, State

_OWN = "profiler_config.integrated"


def _own(values: Mapping[str, object]) -> State:
    """Return ON if the profiler is switched on by the configuration `values`, ARMED if only mstx is, else OFF."""
    if values[f"{_OWN}.profile"]:
        return State.ON
    return State.ARMED if values[f"{_OWN}.mstx"] else State.OFF


PROFILING = Application(
    packages=("mindspeed_rl",),
    folder="configs",
    defaults=("grpo_qwen25_7b_A3", "dapo_qwen25_32b_A3", "ppo_qwen25_32b_A3", "dpo_qwen3_30b_a3b_A3"),
    names=r"profiler_config|(?<!_)\bintegrated\s*[.=:{[]",
    switches=(
        ConfigSwitch(
            Text("MindSpeed-RL's own profiler"),
            (Key(f"{_OWN}.profile", (False, True)), Key(f"{_OWN}.mstx", (False, True))),
            _own,
            Text(
                "the workers record whole stages with torch_npu, from training step profile_step_start up to (not"
                " including) profile_step_end"
            ),
            "mindspeed_rl/utils/utils.py get_grpo_profiler, mindspeed_rl/config_cls/mindstudio_config.py, 2.1.0 to"
            " 2.3.0; cli/train_dpo.py hands it to Megatron",
            armed=Text("mstx only marks ranges, and the option `profile` is off, so nothing is recorded"),
        ),
    ),
)
