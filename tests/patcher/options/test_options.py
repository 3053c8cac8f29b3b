"""The values of options: what they take, and that they compare and print like any value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patcher.commands.finding import SearchOptions
from patcher.config.profilers import RangeOptions, TorchNpuSettings, TorchSettings
from patcher.config.stages import BuiltinStage, TrainingStage
from patcher.messages import Problem
from patcher.options import options_of

BUILTIN: Any = BuiltinStage
SEARCH = SearchOptions(path=(Path("site"),))


@pytest.mark.parametrize("values", [{}, {"changed_settings": ("level",), "colour": "red"}])
def test_a_missing_value_and_an_unknown_one_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"changed_settings|colour"):
        BUILTIN(**values)


def test_a_copy_with_other_values_is_checked_and_the_original_stays() -> None:
    ranges = RangeOptions(module_ranges=True)
    assert ranges.replace(module_pattern="MLP") == RangeOptions(module_pattern="MLP", module_ranges=True)
    with pytest.raises(Problem, match="--module-pattern"):
        RangeOptions().replace(module_pattern="MLP")
    with pytest.raises(AttributeError, match="module_ranges"):
        setattr(ranges, "module_ranges", False)  # noqa: B010  (mypy refuses an assignment)
    assert ranges.module_ranges


def test_values_are_equal_within_a_class() -> None:
    assert {SEARCH, SearchOptions(python=None, path=SEARCH.path)} == {SEARCH}
    assert SearchOptions() != SEARCH
    assert TorchSettings() != TorchNpuSettings()
    assert repr(RangeOptions()) == "RangeOptions(markers=False, module_ranges=False, module_pattern='')"


def test_the_options_of_a_base_come_first() -> None:
    assert [*options_of(TrainingStage)] == ["repeat", "warmup", "on_demand", "role", "strategy", "training_steps"]
