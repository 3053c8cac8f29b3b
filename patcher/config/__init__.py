"""The profile configuration, as values that cannot be wrong: a stage and a tool of one kind, ranks and a folder.

Each type declares its options once, as fields (``patcher.options``). What a combination cannot be is a
:class:`patcher.messages.errors.Problem` (USAGE) where it is built.
"""

from patcher.config.profile import ProfileConfig
from patcher.config.profilers import (
    AIC_METRICS,
    CONTENTS,
    EXPORT_TYPES,
    LEVELS,
    PROFILERS,
    TOOLS,
    MemorySettings,
    NoProfiler,
    NsysSettings,
    RangeOptions,
    TorchNpuSettings,
    TorchSettings,
)
from patcher.config.stages import (
    KINDS,
    STAGES,
    BuiltinStage,
    RolloutStage,
    Stage,
    SyncStage,
    TimelineStage,
    TrainingStage,
    WholeStage,
    WindowedStage,
    kind_of,
)
from patcher.config.windows import OPEN_END, UNITS, WHOLE, Window, typed_as

__all__ = [
    "AIC_METRICS", "CONTENTS", "EXPORT_TYPES", "KINDS", "LEVELS", "OPEN_END", "PROFILERS", "STAGES",
    "TOOLS", "UNITS", "WHOLE", "BuiltinStage", "MemorySettings", "NoProfiler", "NsysSettings", "ProfileConfig",
    "RangeOptions", "RolloutStage", "Stage", "SyncStage", "TimelineStage", "TorchNpuSettings", "TorchSettings",
    "TrainingStage", "WholeStage", "Window", "WindowedStage", "kind_of", "typed_as",
]  # fmt: skip
