"""Switches of other profilers in AReaL's training workers; the probe looks for its own when it records."""

from __future__ import annotations

from collections.abc import Mapping

from patcher.messages import Text
from patcher.switches import Application, ConfigSwitch, Key, State, Switch
from patches.shared_switches import GPU, TORCH_NPU

# SGLang and vLLM are servers of their own, whose windows and switches are theirs.
SWITCHES: tuple[Switch, ...] = (*TORCH_NPU, *GPU)

_MEMORY = "memory_profiler"


def _memory(values: Mapping[str, object]) -> State:
    """Return ON unless ``memory_profiler`` is missing or has no steps; it defaults to steps 0 and 1."""
    steps = values[f"{_MEMORY}.profile_steps"]
    return State.OFF if values[_MEMORY] is None or steps == [] else State.ON


PROFILING = Application(
    packages=("areal", "examples"),
    folder="areal",
    defaults=(),
    names=r"\b(perf_tracer|memory_profiler)\b",
    main=r"(load_expr_config|parse_cli_args)\(()",
    option="--config",
    switches=(
        ConfigSwitch(
            Text("AReaL's perf_tracer"),
            (Key("perf_tracer.enabled", (False, True)), Key("perf_tracer.profile_steps", (None, [1]))),
            lambda values: State.ON if values["perf_tracer.enabled"] else State.OFF,
            Text(
                "each rank writes a trace of the phases of a training step; in the training steps listed in"
                " profile_steps, torch.profiler also records the parts of the code that are marked for it"
            ),
            "areal/utils/perf_tracer.py PerfTracer and _should_enable_profiler, areal/api/cli_args.py",
        ),
        ConfigSwitch(
            Text("AReaL's memory_profiler"),
            (Key(_MEMORY, (None, {})), Key(f"{_MEMORY}.profile_steps", ([], [0, 1]))),
            _memory,
            Text(
                "the actor records its memory allocations in the training steps listed in"
                " memory_profiler.profile_steps (default: 0 and 1)"
            ),
            "areal/trainer/rl_trainer.py start_memory_profile, areal/api/cli_args.py MemoryProfilerConfig",
        ),
    ),
)
