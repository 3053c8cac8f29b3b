"""What is recorded, as values that cannot be wrong: a stage of one kind, a profiler of one kind, ranks and a folder.

Each type declares its options once, as fields (``patcher.options``). What a combination cannot be is a
:class:`patcher.errors.Problem` (USAGE) where it is built.
"""

from patcher.config.profile import LONG_WINDOW, ProfileConfig
from patcher.config.profilers import (
    AIC_METRICS,
    BACKENDS,
    CONTENTS,
    EXPORT_TYPES,
    LEVELS,
    NO_RANGES,
    PROFILERS,
    Profiler,
    RangeOptions,
    TorchNpuProfiler,
    TorchProfiler,
)
from patcher.config.stages import (
    KINDS,
    ROLES,
    STAGES,
    BuiltinStage,
    RolloutStage,
    Stage,
    TrainingStage,
    WholeStage,
    WindowedStage,
    kind_of,
)
from patcher.config.windows import OPEN_END, ROLLOUT_UNITS, TRAINING_UNITS, UNITS, WHOLE, Window, WindowUnit, typed_as

__all__ = [
    "AIC_METRICS", "BACKENDS", "CONTENTS", "EXPORT_TYPES", "KINDS", "LEVELS", "LONG_WINDOW", "NO_RANGES",
    "OPEN_END", "PROFILERS", "ROLES", "ROLLOUT_UNITS", "STAGES", "TRAINING_UNITS", "UNITS", "WHOLE",
    "BuiltinStage", "ProfileConfig", "Profiler", "RangeOptions", "RolloutStage", "Stage", "TorchNpuProfiler",
    "TorchProfiler", "TrainingStage", "WholeStage", "Window", "WindowUnit", "WindowedStage", "kind_of",
    "typed_as",
]  # fmt: skip
