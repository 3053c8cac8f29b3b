"""Switches of other profilers in slime's training processes: its own, and those of every process."""

from __future__ import annotations

from patcher.messages import Text
from patcher.switches import Form, State, Switch
from patches.shared_switches import GPU, TORCH_NPU

_TORCH = Switch(
    profiler=Text("slime's own profiler"),
    form=Form.REQUEST,
    name="--use-pytorch-profiler",
    otherwise=State.ON,
    why=Text(
        "--profile-step-start and --profile-step-end are rollout numbers: each trainer records its work on every"
        " rollout from the first number up to (not including) the second; --profile-target chooses which part of this"
        " work is recorded"
    ),
    source="slime/utils/profile_utils.py TrainProfiler; slime/observability/profile_utils.py from 0.3.0",
    off="leave out --use-pytorch-profiler",
    requested_by=((r"--use-pyt[a-z-]*", r".*\.py|-m"),),
)
_MEMORY = (r"--record-m[a-z-]*", r".*\.py|-m")
_TARGET = r"--profile-t[a-z-]*(=.*)?"

# SGLang is a server of its own, whose windows and switches are its own.
SWITCHES: tuple[Switch, ...] = (
    _TORCH,
    _TORCH._replace(
        profiler=Text("slime's memory history"),
        name="--record-memory-history",
        why=Text(
            "each trainer records the history of its memory allocations from its start on. But if --profile-target is"
            " given without train_overall, the trainers record no such history"
        ),
        off="leave out --record-memory-history",
        requested_by=(
            (*_MEMORY, f"!{_TARGET}"),
            (*_MEMORY, _TARGET, r"(--profile-t[a-z-]*=)?train_overall"),
        ),
    ),
    *TORCH_NPU,
    *GPU,
)
