"""The stages of a made run's steps: their parts add up, and each is named after what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline.made import empty
from fixtures.timeline.small import small
from patcher.commands.diagnosis import lines, reading
from patcher.diagnosis import tables
from patcher.diagnosis.model import RunDiagnosis, StageDiagnosis
from patcher.diagnosis.steps import with_steps
from patcher.messages import CommandResult
from patcher.progress import silent
from patcher.timeline.model import PathSegment, TrainingStep


def diagnosed(folder: Path) -> RunDiagnosis:
    return reading.read(folder, None, silent, CommandResult("diagnose"))


def test_the_parts_of_the_stages_add_up_to_the_steps(tmp_path: Path) -> None:
    small(tmp_path, slow={3: 200})
    diagnosis = diagnosed(tmp_path)
    told = {stage.stage: stage for stage in diagnosis.stages}
    assert diagnosis.steps == 4
    assert diagnosis.seconds == pytest.approx(4.2)
    assert list(told) == ["rollout", "adv", "update-policy", "weight-sync"]
    assert {name: round(stage.step_seconds, 2) for name, stage in told.items()} == {
        "rollout": 1.6, "adv": 0.4, "update-policy": 1.8, "weight-sync": 0.4,
    }  # fmt: skip
    assert all(stage.limited_by for stage in told.values())


def test_a_stage_without_kernels_has_seconds_and_says_why_it_has_no_classes(tmp_path: Path) -> None:
    small(tmp_path)
    told = {stage.stage: stage for stage in diagnosed(tmp_path).stages}
    adv = told["adv"]
    assert (adv.supported, adv.classes, adv.iterations) == (False, (), 0)
    assert adv.seconds == pytest.approx(0.4)
    assert adv.why
    assert (told["update-policy"].turns, told["update-policy"].iterations) == (4, 8)


def test_the_text_has_a_row_for_each_stage_and_stays_short(tmp_path: Path) -> None:
    small(tmp_path)
    text = lines.report(diagnosed(tmp_path), None, 100)
    assert len(text) <= 25
    assert all(any(line.strip().startswith(name) for line in text) for name in ("rollout", "adv", "weight-sync"))


@pytest.mark.parametrize(("name", "has_micro_batches"), [("update-policy", True), ("weight-sync", False)])
def test_only_a_training_stage_has_micro_batches(name: str, has_micro_batches: bool) -> None:
    stage = StageDiagnosis(
        name, 1.2, supported=True, why="", turns=7, iterations=4, recorded=2, recording_seconds=0, waiting_seconds=0
    )
    detail = lines.report(RunDiagnosis((stage,), (), ()), None, 80)[0]
    assert ("7 calls, 1.2 s" in detail, "micro-batches" in detail) == (True, has_micro_batches)


def test_a_run_without_an_engine_has_its_training_stages(tmp_path: Path) -> None:
    small(tmp_path)
    for path in (tmp_path / "timeline").glob("node0_3*"):
        path.unlink()
    assert "update-policy" in {stage.stage for stage in diagnosed(tmp_path).stages}


@pytest.mark.parametrize(
    ("segments", "stages"),
    [
        ([("engine", "iteration", "decode", "step", 2), ("trainer", "work", "optimizer", "", 8)], "rollout other"),
        ([("trainer", "work", "update_critic", "step", 2), ("engine", "sync", "load", "", 8)], "update-critic weight-sync"),
        ([("agent", "work", "tool", "gen", 6), ("trainer", "work", "optimizer", "gen", 4)], "rollout"),
        ([("agent", "work", "tool", "gen", 5), ("trainer", "work", "optimizer", "gen", 5)], "gen"),
        ([("trainer", "work", "optimizer", "sync_weights", 10)], "weight-sync"),
    ],
)  # fmt: skip
def test_a_segment_counts_as_what_its_phase_mostly_is_else_by_its_own_activity(
    segments: list[tuple[str, str, str, str, float]], stages: str
) -> None:
    path, end = list[PathSegment](), 0.0
    for role, kind, what, phase, seconds in segments:
        path.append(PathSegment(end, end + seconds, seconds, role, 0, 0, kind, what, phase, None))
        end += seconds
    step = TrainingStep(
        step=1, start=0, end=end, seconds=end, verdict="", why="", limited_by=None, mostly=None,
        critical_path=tuple(path), roles=(), tail_seconds=0, tail=None, sync_seconds=0, sync=(), poll_seconds=0,
        phases=(),
    )  # fmt: skip
    diagnosis = with_steps(RunDiagnosis((), (), ()), replace(empty(), steps=(step,)))
    assert [stage.stage for stage in diagnosis.stages] == stages.split()
    assert sum(stage.step_seconds for stage in diagnosis.stages) == 10
    assert [row[0] for row in tables.stages(diagnosis).rows] == stages.split()
    assert tables.stages(replace(diagnosis, steps=0)).rows == []
