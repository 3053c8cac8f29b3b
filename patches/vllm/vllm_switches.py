"""Switches of other profilers beside vLLM: its own, and dynolog's."""

from __future__ import annotations

from patcher.messages import Text
from patcher.switches import Switch
from patches.shared_switches import (
    ENGINE_DEPRECATED,
    ENGINE_IGNORED,
    ENGINE_OPTION,
    ENGINE_VARIABLE,
    GPU,
    KINETO_DAEMON,
)

SWITCHES: tuple[Switch, ...] = (
    ENGINE_VARIABLE._replace(releases="<0.13.0rc0", source="vllm/v1/worker/gpu_worker.py and vllm/envs.py"),
    ENGINE_DEPRECATED._replace(releases=">=0.13.0rc0,<0.16.0rc0"),
    ENGINE_IGNORED._replace(releases=">=0.16.0rc0"),
    ENGINE_OPTION._replace(releases=">=0.13.0rc0", source="vllm/config/profiler.py, from 0.13.0"),
    KINETO_DAEMON._replace(
        why=Text("libkineto registers with the dynolog daemon and starts to record when `dyno gputrace` is run"),
        source="PyTorch's libkineto, KINETO_USE_DAEMON",
    ),
    *GPU,
)
