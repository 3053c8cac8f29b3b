"""Switches of other profilers beside SGLang: its own, which a request starts, and those of torch_npu."""

from __future__ import annotations

from patcher.messages import Text
from patcher.switches import Form, State, Switch
from patches.shared_switches import ENGINE, GPU, TORCH_NPU

_SGLANG_START = (
    (r"start_profile|(.*[/.])start_profile([?/#].*)?",),
    (r"(.*/)?bench_\w+\.py", "--profile"),
    (r"sglang\.bench_\w+", "--profile"),
    (r"sglang\.profiler|(.*/)?sglang/profiler\.py",),
)
_SGLANG = Switch(
    profiler=ENGINE,
    form=Form.VARIABLE,
    name="SGLANG_TORCH_PROFILER_DIR",
    otherwise=State.ARMED,
    why=Text("each scheduler creates a profiler when it starts, and records from /start_profile to /stop_profile"),
    source="sglang/srt/managers/scheduler.py, 0.4.0 to 0.4.3.post2",
    off="unset SGLANG_TORCH_PROFILER_DIR",
)

SWITCHES: tuple[Switch, ...] = (
    _SGLANG._replace(
        form=Form.REQUEST,
        name="/start_profile",
        requested_by=_SGLANG_START,
        otherwise=State.ON,
        releases=">=0.4.3.post3",
        why=Text("after this HTTP request the schedulers record; the traces go to /tmp if no directory is set"),
        source="sglang/srt/managers/scheduler.py from 0.4.3.post3; sglang/profiler.py, bench_serving.py --profile",
        off=Text("remove the code that calls /start_profile"),
    ),
    _SGLANG._replace(releases="<0.4.3.post3"),
    _SGLANG._replace(
        releases=">=0.4.3.post3",
        why=Text(
            "/start_profile and Engine.start_profile() write to the folder that this variable names; if the variable"
            " is not set, they write to /tmp"
        ),
        source="sglang/srt/managers/scheduler.py from 0.4.3.post3, scheduler_profiler_mixin.py from 0.4.10,"
        " scheduler_components/profiler_manager.py from 0.5.13",
    ),
    *TORCH_NPU,
    *GPU,
)
