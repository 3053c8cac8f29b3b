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
from patcher.diagnosis.steps import _overlap, with_steps
from patcher.messages import CommandResult
from patcher.progress import silent
from patcher.timeline.model import Lane, LaneSpan, PathSegment, TrainingStep


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


def test_a_stage_without_windows_says_why(tmp_path: Path) -> None:
    """The generation of a run whose engine wrote no timeline file is no stage that rlpatch cannot record."""
    small(tmp_path)
    for path in tmp_path.rglob("node0_3*"):
        path.unlink()
    whys = {stage.stage: str(stage.why) for stage in diagnosed(tmp_path).stages if not stage.iterations}
    assert whys == {
        "gen": "no engine wrote a timeline file",
        "adv": "rlpatch cannot record windows of this stage",
        "weight-sync": "the weight sync was not recorded",
    }


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


Segments = list[tuple[str, str, str, str, float]]
"""Role, kind, activity, phase of the driver, and seconds of each segment of a critical path."""


def one_step(segments: Segments, number: int = 1, *, warm_up: bool = False, sync_seconds: float = 0) -> TrainingStep:
    path, end = list[PathSegment](), 0.0
    for role, kind, what, phase, seconds in segments:
        path.append(PathSegment(end, end + seconds, seconds, role, 0, 0, kind, what, phase, None))
        end += seconds
    return TrainingStep(
        step=number, start=0, end=end, seconds=end, verdict="", why="", limited_by=None, mostly=None,
        critical_path=tuple(path), roles=(), tail_seconds=0, tail=None, sync_seconds=sync_seconds, sync=(),
        poll_seconds=0, phases=(), warm_up=warm_up,
    )  # fmt: skip


def in_phase(phase: str, *seconds: float) -> Segments:
    return [("trainer", "unit", "micro-batch", phase, length) for length in seconds]


@pytest.mark.parametrize(
    ("segments", "calls", "stages"),
    [
        ([("engine", "iteration", "decode", "step", 2), *in_phase("", 8)], [], {"rollout": 2, "other": 8}),
        ([("trainer", "work", "update_critic", "step", 2), ("engine", "sync", "load", "", 8)], [], {"update-critic": 2, "weight-sync": 8}),
        ([("agent", "work", "tool", "gen", 6), *in_phase("gen", 4)], [], {"rollout": 10}),
        ([("balancer", "route", "acquire_server", "gen", 6), *in_phase("gen", 4)], [], {"rollout": 10}),
        ([("agent", "work", "tool", "gen", 5), *in_phase("gen", 5)], [], {"gen": 10}),
        (in_phase("sync_weights", 10), [], {"weight-sync": 10}),
        (in_phase("update", 6, 4), [("update_policy", 0, 6)], {"update-policy": 10}),
        (in_phase("update", 6, 4), [("update_policy", 0, 5)], {"update": 10}),
        (in_phase("update", 6, 4), [("update_policy", 0, 2), ("update_policy", 0, 6), ("update_critic", 6, 10)], {"update-policy": 10}),
        (in_phase("update", 6, 4), [("update_policy", 5, 99)], {"update": 10}),
        (in_phase("update", 6, 4), [("update_policy", 4, 99)], {"update-policy": 10}),
        (in_phase("update", 6, 4), [("update_policy", 10, 99), ("no stage", 0, 10)], {"update": 10}),
        (in_phase("adv", 9.95) + in_phase("short", 0.05), [], {"adv": 9.95, "short": 0.05}),
        (in_phase("adv", 9.96) + in_phase("short", 0.04), [], {"adv": 9.96, "other": 0.04}),
        (in_phase("adv", 9.96) + in_phase("sync_weights", 0.04), [], {"adv": 9.96, "weight-sync": 0.04}),
        (in_phase("adv", 9.94) + in_phase("a", 0.03) + in_phase("b", 0.03), [], {"adv": 9.94, "other": 0.06}),
    ],
)  # fmt: skip
def test_a_segment_counts_as_what_its_phase_mostly_is_else_by_its_own_activity(
    segments: Segments, calls: list[tuple[str, float, float]], stages: dict[str, float]
) -> None:
    spans = tuple(LaneSpan(start, end, "work", name) for name, start, end in calls)
    lanes = (Lane("trainer", 0, None, 0, "a", 1, "c", (*spans, LaneSpan(0, None, "work", "update_policy"))),)
    timeline = replace(empty(), steps=(one_step(segments),), lanes=lanes)
    diagnosis = with_steps(RunDiagnosis((), (), ()), timeline)
    assert {stage.stage: stage.step_seconds for stage in diagnosis.stages} == pytest.approx(stages)
    assert [row[0] for row in tables.stages(diagnosis).rows] == [*stages]
    assert tables.stages(replace(diagnosis, steps=0)).rows == []


def test_warm_up_is_left_out_and_all_syncs_count() -> None:
    segments = [*in_phase("adv", 3), *in_phase("sync_weights", 2), ("driver", "phase", "adv", "adv", 1.0)]
    warm_up, step = one_step(segments, warm_up=True, sync_seconds=9), one_step(segments, 2, sync_seconds=4)
    diagnosed = {}
    for steps in ((warm_up,), (warm_up, step, step)):
        diagnosis = with_steps(RunDiagnosis((), (), ()), replace(empty(), steps=steps))
        assert (diagnosis.steps, diagnosis.seconds) == ((1, 6) if len(steps) == 1 else (2, 12))
        diagnosed = {stage.stage: stage for stage in diagnosis.stages}
    adv, sync = diagnosed["adv"], diagnosed["weight-sync"]
    assert (adv.seconds, adv.step_seconds, adv.turns, adv.recorded, adv.iterations) == (8, 8, 2, 0, 0)
    assert (sync.seconds, sync.step_seconds, sync.turns) == (8, 4, 2)
    assert "75 %" in adv.limited_by
    assert (adv.recording_seconds, adv.waiting_seconds) == (0, 0)
    assert (adv.supported, sync.supported, bool(adv.why), bool(sync.why)) == (False, False, True, True)
    assert with_steps(RunDiagnosis((), (), ()), empty()) == RunDiagnosis((), (), ())
    recorded = [
        StageDiagnosis(name, 3, supported=True, why="", turns=1, iterations=1, recorded=1, recording_seconds=0, waiting_seconds=0)
        for name in ("weight-sync", "rollout")
    ]  # fmt: skip
    diagnosis = with_steps(RunDiagnosis(tuple(recorded), (), ()), replace(empty(), steps=(step,)))
    diagnosed = {stage.stage: stage for stage in diagnosis.stages}
    sync, beside = diagnosed["weight-sync"], diagnosed["rollout"]
    assert (sync.seconds, sync.step_seconds, sync.supported) == (4, 2, True)
    assert (beside.seconds, beside.step_seconds, beside.between_seconds, beside.limited_by) == (3, 0, 0, "")


def test_of_the_calls_of_as_many_ranks_one_overlaps_a_segment() -> None:
    (segment,) = one_step(in_phase("update", 9)).critical_path
    assert [_overlap(segment, [(0, 5), *[(7, 7.0)] * count]) for count in (0, 63, 64)] == [5, 5, 0]
