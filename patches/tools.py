"""The tools that record a window: their classes, and from the user's choice to the keywords of their constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from patcher.config import MemorySettings, NsysSettings, ProfileConfig, Stage, TorchNpuSettings
from patches.probes import memory_history, nsys, ranges, tools
from patches.probes.facts import CompressedMetadata, StepMetadata
from patches.probes.recorder import WindowTool


class Tool(NamedTuple):
    """Probe classes of a tool.

    `window` opens and closes a window, `ranges` marks ranges in its traces. `metadata` and `without_metadata` are the
    parts of a recorder that handle its files. `arguments` returns arguments that no other tool has.
    """

    window: type[WindowTool]
    ranges: type[ranges.Recorded]
    metadata: tuple[type, ...]
    without_metadata: tuple[type, ...] = ()
    arguments: Callable[[ProfileConfig[Stage]], Mapping[tuple[str, str], str]] = lambda _config: {}


_LEVELS = {"level_none": "Level_none", "level0": "Level0", "level1": "Level1", "level2": "Level2"}
_METRICS = {
    "none": "AiCoreNone",
    "pipe_utilization": "PipeUtilization",
    "arithmetic_utilization": "ArithmeticUtilization",
    "memory": "Memory",
    "memory_l0": "MemoryL0",
    "memory_ub": "MemoryUB",
    "resource_conflict_ratio": "ResourceConflictRatio",
    "l2_cache": "L2Cache",
}
_CONTENTS = {"memory": "profile_memory", "shapes": "record_shapes", "stack": "with_stack", "module": "with_modules"}


def _npu_arguments(config: ProfileConfig[Stage]) -> Mapping[tuple[str, str], str]:
    """Return the code of arguments that only torch_npu has: (function, keyword) → code.

    The names are those of torch_npu 2.1.0.post8 to 2.14.0. The first of these lacks `AiCMetrics.MemoryAccess`, so no
    option chooses it.
    """
    profiler = cast(TorchNpuSettings, config.profiler)
    level = profiler.level or "level1"
    # torch_npu drops AI Core metrics below level 1 with a warning.
    metrics = profiler.aic_metrics or ("none" if level in ("level_none", "level0") else "pipe_utilization")
    types = [f"torch_npu.profiler.ExportType.{name.capitalize()}" for name in profiler.exports(config.ranges)]
    experimental = {
        "export_type": types[0] if len(types) == 1 else f"[{', '.join(types)}]",  # 2.1.0.post8 takes no list
        "profiler_level": f"torch_npu.profiler.ProfilerLevel.{_LEVELS[level]}",
        "aic_metrics": f"torch_npu.profiler.AiCMetrics.{_METRICS[metrics]}",
        "l2_cache": str(profiler.l2_cache),
        "msprof_tx": str(profiler.marks(config.ranges)),  # "mstx" only from 2.7.1 on
    }
    keywords = {("_ExperimentalConfig", keyword): code for keyword, code in experimental.items()}
    return {**keywords, ("tensorboard_trace_handler", "analyse_flag"): str(profiler.analysis)}


TOOLS = {
    "npu": Tool(tools.NpuProfiler, ranges.NpuRanges, (StepMetadata,), arguments=_npu_arguments),
    "torch": Tool(tools.TorchProfiler, ranges.TorchRanges, (CompressedMetadata,), (tools.BareCompression,)),
    "nsys": Tool(nsys.NsysCapture, nsys.NvtxRanges, (nsys.NsysMetadata,)),
    "memory": Tool(memory_history.MemoryHistory, ranges.TorchRanges, (StepMetadata,)),
}
"""Word of ``--tool`` → the tool."""
WINDOWS = {name: tool.window for name, tool in TOOLS.items()}


def tool(config: ProfileConfig[Any]) -> Tool:
    """Return the chosen tool."""
    return TOOLS[config.profiler.TOOL]


def arguments(config: ProfileConfig[Stage]) -> Mapping[tuple[str, str], str]:
    """Return the code of the profiler's constructor arguments: (function, keyword) → code.

    {} for nsys and for the memory history, which have no such constructor.
    """
    profiler = config.profiler
    if isinstance(profiler, NsysSettings | MemorySettings):
        return {}
    words = {"cpu": "CPU", "npu": profiler.DEVICE}
    activities = [f"{profiler.MODULE}.ProfilerActivity.{words[word]}" for word in words if word in profiler.contents]
    keywords = {("profile", keyword): str(word in profiler.contents) for word, keyword in _CONTENTS.items()}
    return {**keywords, ("profile", "activities"): f"[{', '.join(activities)}]", **tool(config).arguments(config)}


def probe_arguments(config: ProfileConfig[Stage]) -> Mapping[tuple[str, str], str]:
    """Return (function, keyword) → code of the profiler's arguments, for a probe that imports its module as `profiler`.

    The code is "" for an argument that equals its default: in torch_npu.profiler 2.1.0.post8 to 2.14.0 and in
    torch.profiler, everything is off except `analyse_flag`.
    """
    always_named, module = ("tensorboard_trace_handler", "analyse_flag"), f"{config.profiler.MODULE}."
    codes = {key: code.replace(module, "profiler.") for key, code in arguments(config).items()}
    return {key: "" if code == "False" and key != always_named else code for key, code in codes.items()}
