"""Options that each kind of stage takes, and those that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from patcher.config import (
    WHOLE,
    BuiltinStage,
    ProfileConfig,
    RolloutStage,
    TorchNpuSettings,
    TorchSettings,
    TrainingStage,
    Window,
)
from patcher.messages.errors import Problem
from tests.choices import config


@pytest.mark.parametrize(
    ("words", "units"),
    [
        ("--decode 1:2 --markers", ("decode",)),
        ("--mini-batch 1:2", ("mini-batch",)),
        ("--mini-batch 1:2 --markers", ("micro-batch", "mini-batch")),
        ("--micro-batch 1:2 --markers", ("micro-batch", "mini-batch")),
    ],
)
def test_markers_show_every_loop_of_a_training_stage(words: str, units: tuple[str, ...]) -> None:
    assert config(words).stage.marked == units


@pytest.mark.parametrize("words", ["--stage graph-capture", "--stage weight-sync --sync 2", "--builtin --level level2"])
def test_a_stage_without_a_window(words: str) -> None:
    whole = config(words)
    assert whole.stage.window.unit == WHOLE
    assert not [note for note in whole.notes if "warm-up" in note.text]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "--stage graph-capture --rollout 1",
            "--rollout works only with rollout stages, but --stage graph-capture selects another kind of stage",
        ),
        (
            "--stage graph-capture --warmup 0",
            "--warmup works only with rollout and training stages, but --stage graph-capture selects another kind of stage",
        ),
        (
            "--stage graph-capture --markers",
            "--markers works only with rollout and training stages, but --stage graph-capture selects another kind of stage",
        ),
        (
            "--stage graph-capture --module-ranges",
            "--module-ranges works only with rollout and training stages, but --stage graph-capture selects another kind of stage",
        ),
        (
            "--stage graph-capture --sync 1",
            "--sync works only with weight-sync stages, but --stage graph-capture selects another kind of stage",
        ),
        (
            "--stage weight-sync --replicas decode",
            "--replicas decode cannot be used with a weight sync: the option chooses single servers, but each sync covers all servers of a replica",
        ),
        ("--decode 1:2 --replicas encode", "--replicas encode is not a whole number from 0 to"),
        ("--decode 1:2 --replicas all,prefill", "--replicas all,prefill: "),
        ("--decode 1:2 --replicas 1,all", "--replicas 1,all: "),
        ("--decode 1:2 --ranks 1,all", "--ranks 1,all: "),
        (
            "--stage weight-sync --rollout 1",
            "--rollout works only with rollout stages, but --stage weight-sync selects another kind of stage",
        ),
        (
            "--decode 1:2 --sync 1",
            "--sync works only with weight-sync stages, but --decode selects another kind of stage",
        ),
        (
            "--stage graph-capture --role ref",
            "--role works only with training stages, but --stage graph-capture selects another kind of stage",
        ),
        ("--builtin", "with --builtin, name at least one setting to change"),
        (
            "--mini-batch 0:1 --rollout 1",
            "--rollout works only with rollout stages, but --mini-batch selects another kind of stage",
        ),
        (
            "--decode 1:2 --training-steps 2",
            "--training-steps works only with training stages, but --decode selects another kind of stage",
        ),
    ],
)
def test_what_a_stage_of_another_kind_does_not_take(words: str, cause: str) -> None:
    with pytest.raises(Problem, match=cause) as caught:
        config(words)
    assert caught.value.hint


@pytest.mark.parametrize(
    "build",
    [
        lambda: RolloutStage(name="rollout", window=Window("mini-batch", 0, 1)),
        lambda: TrainingStage(name="update-policy", window=Window(WHOLE, 0, 1)),
        lambda: ProfileConfig(
            stage=BuiltinStage(changed_settings=("level",)), profiler=TorchNpuSettings(level="level1"), ranks=None
        ),
        lambda: ProfileConfig(stage=BuiltinStage(changed_settings=("level",)), profiler=TorchNpuSettings(mstx=True)),
        lambda: ProfileConfig(stage=BuiltinStage(changed_settings=("contents",)), profiler=TorchSettings()),
    ],
)
def test_impossible_values_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"is not a unit of|are no settings"):
        build()
