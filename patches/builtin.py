"""The settings of a framework's own profiler, where it is one of torch_npu that the framework's code sets up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from patcher.config import BuiltinStage, ProfileConfig, TorchNpuSettings
from patcher.messages import Kind, Note, Problem, Text
from patcher.recipe import Call, Probe
from patches import tools

_NAMESPACE = "torch_npu.profiler."

# Parameters and defaults as in torch_npu/profiler/profiler.py, 2.1.0.post8 to 2.14.0.
CALLS = (
    Call(
        f"{_NAMESPACE}_ExperimentalConfig",
        why=Text("this call sets level, metrics, L2 cache, marks and export types"),
    ),
    Call(
        f"{_NAMESPACE}profile",
        why=Text("this call sets what is recorded: activities, memory, shapes, stacks and modules"),
        defaults={
            "record_shapes": "False", "profile_memory": "False", "with_stack": "False", "with_modules": "False",
        },
    ),
    Call(
        f"{_NAMESPACE}tensorboard_trace_handler",
        why=Text("this call sets whether the trace is parsed during the run"),
        positional=("dir_name", "worker_name", "analyse_flag"),
        defaults={"analyse_flag": "True"},
    ),
)  # fmt: skip

_CONFIG = "_ExperimentalConfig"
_LEVEL, _METRICS = (_CONFIG, "profiler_level"), (_CONFIG, "aic_metrics")
_KEYWORDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "level": (_LEVEL,),
    "contents": tuple(
        ("profile", keyword)
        for keyword in ("activities", "profile_memory", "record_shapes", "with_stack", "with_modules")
    ),
    "export_type": ((_CONFIG, "export_type"),),
    "aic_metrics": (_METRICS,),
    "l2_cache": ((_CONFIG, "l2_cache"),),
    "mstx": ((_CONFIG, "msprof_tx"),),
    "analysis": (("tensorboard_trace_handler", "analyse_flag"),),
}


def arguments(config: ProfileConfig[BuiltinStage]) -> Mapping[tuple[str, str], str]:
    """Return the code of the arguments that the user's settings change: (function, keyword) → code."""
    every = tools.arguments(config)
    return {key: every[key] for setting in config.stage.changed_settings for key in _KEYWORDS[setting]}


def summary(config: ProfileConfig[BuiltinStage]) -> str:
    """Return a sentence on the settings that change, for the report."""
    return Text(
        "Sets {settings} of the framework's own profiler; the other settings do not change.", " ".join(config.words[1:])
    )


def argument_notes(config: ProfileConfig[BuiltinStage], arguments: Mapping[tuple[str, str], str]) -> tuple[Note, ...]:
    """Return a note if torch_npu will ignore or replace the chosen AI Core metrics at the chosen level, else ().

    Ignored metrics are noted even if `config` changes neither of the two. `arguments` has the code of all arguments
    after the change: (function, keyword) → code. Based on `_check_params` in torch_npu/profiler/experimental_config.py,
    2.1.0.post8 to 2.14.0. Raises Problem (USAGE) if `config` requests metrics, but leaves the level at one that
    collects none.
    """
    level, metrics = (arguments.get(key, "").removeprefix(_NAMESPACE).rpartition(".")[2] for key in (_LEVEL, _METRICS))
    changed_settings = config.stage.changed_settings
    if level in ("Level0", "Level_none") and metrics not in ("", "AiCoreNone"):
        profiler = cast(TorchNpuSettings, config.profiler)
        if "level" not in changed_settings and "aic_metrics" in changed_settings:
            raise Problem(
                Kind.USAGE,
                Text(
                    "--aic-metrics {aic_metrics} has no effect, because the level stays {level}: torch_npu"
                    " collects these metrics only at level1 and above",
                    aic_metrics=profiler.aic_metrics,
                    level=level,
                ),
                hint=Text("add --level level1, because --aic-metrics {aic_metrics} needs level1", profiler.aic_metrics),
            )
        metrics_stay = Text(
            "torch_npu collects no AI Core metrics: at {level}, torch_npu ignores aic_metrics={metrics}, and rlpatch"
            " leaves aic_metrics as it is",
            level=level,
            metrics=metrics,
        )
        return (
            Note(
                metrics_stay,
                Text(
                    "torch_npu will log a warning that it ignores aic_metrics; --aic-metrics none avoids this warning"
                ),
            ),
        )
    if level in ("Level1", "Level2") and metrics == "AiCoreNone" and {"level", "aic_metrics"} & {*changed_settings}:
        return (Note(Text("at {level}, torch_npu up to 2.9 replaces AiCoreNone with PipeUtilization", level)),)
    return ()


PROBE = Probe(members=(), summary=summary, arguments=arguments, argument_notes=argument_notes)
