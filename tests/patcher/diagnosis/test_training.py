"""Calls of a simulated trainer, diagnosed from a few micro-batches: the true seconds of each class are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import numpy as np
import pytest

from fixtures.micro_batches import BETWEEN_US, SimulatedTrainer, dynamic
from patcher.commands.diagnosis import reading
from patcher.diagnosis.model import RunDiagnosis, StageDiagnosis
from patcher.diagnosis.training import (
    TrainerStage,
    _micro_batches_of_stage,
    _Paused,
    choose_micro_batches,
    correlation,
    next_micro_batches,
    slowest_rank,
    trainer_stages,
)
from patcher.diagnosis.training_composition import (
    _diagnose_stage,
    _record_command,
    shortened_to_others,
    undisturbed_by_recording,
)
from patcher.diagnosis.windows import NAMES, Joined
from patcher.messages import CommandResult, Text
from patcher.progress import silent
from patcher.timeline import files, runs
from patcher.timeline.files import KeptSpan

LARGE = 0.05
"""Share from which on a class counts."""


def simulated(folder: Path, seed: int = 0, calls: int = 5, *, sizes: bool = True, **trainer: float) -> SimulatedTrainer:
    """A warm-up and more calls, of other sizes each."""
    simulation = SimulatedTrainer(seed, **trainer)  # type: ignore[arg-type]
    for number in range(calls):
        simulation.call(dynamic(10 * seed + number))
    simulation.write_timeline(folder, sizes=sizes)
    return simulation


def stages(folder: Path) -> list[TrainerStage]:
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    return trainer_stages(processes)


def diagnosed(folder: Path) -> RunDiagnosis:
    result = CommandResult("diagnose")
    diagnosis = reading.read(folder, None, silent, result)
    assert not result.problems
    return diagnosis


def stage_of(folder: Path, name: str = "update-policy") -> StageDiagnosis:
    return next(stage for stage in diagnosed(folder).stages if stage.stage == name)


def record_chosen(folder: Path, simulation: SimulatedTrainer, call: int = 3) -> None:
    for first, end in next_micro_batches(stages(folder)[0]):
        simulation.write_window(folder, call, first, end)


def errors(stage: StageDiagnosis, simulation: SimulatedTrainer) -> dict[str, float]:
    truth = simulation.shares(stage.stage)
    return {part.name: abs(part.share - truth[part.name]) for part in stage.classes if truth[part.name] > LARGE}


def test_the_shortest_and_the_longest_micro_batch_tell_the_classes(tmp_path: Path) -> None:
    worst, covered = list[float](), list[bool]()
    for seed in range(10):
        folder = tmp_path / str(seed)
        simulation = simulated(folder, seed)
        record_chosen(folder, simulation)
        stage = stage_of(folder)
        assert (stage.turns, stage.iterations, stage.recorded) == (4, 40, 4)
        assert stage.seconds == pytest.approx(sum(call.us for call in simulation.calls[1:]) / 1e6, rel=0.01)
        assert stage.between_seconds == pytest.approx(4 * BETWEEN_US / 1e6, rel=1e-3)
        assert sum(part.share for part in stage.by_load) == pytest.approx(1)
        if stage.supported:
            off, intervals = errors(stage, simulation), {part.name: part.interval for part in stage.classes}
            assert stage.seconds == pytest.approx(sum(part.seconds for part in stage.classes))
            worst.append(max(off.values()))
            covered += [error <= intervals[name] for name, error in off.items()]
    assert len(worst) >= 5
    assert max(worst) < 0.025
    assert sum(covered) >= 0.9 * len(covered)


def test_short_and_long_micro_batches_differ(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, 2)
    record_chosen(tmp_path, simulation)
    shares = {
        part.load: next(row.share for row in part.classes if row.name == "attention")
        for part in stage_of(tmp_path).by_load
    }
    assert shares["short"] < shares["medium"] < shares["long"]


@pytest.mark.parametrize("place", ["shortest", "longest"])
def test_a_single_length_does_not_tell_the_others(place: str, tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    sizes = simulation.calls[3].sizes
    number = sizes.index(min(sizes[1:]) if place == "shortest" else max(sizes))
    simulation.write_window(tmp_path, 3, number, number + 1)
    stage = stage_of(tmp_path)
    assert (stage.supported, stage.recorded, stage.classes) == (False, 1, ())
    assert stage.why
    assert all(part.why for part in stage.by_load if not part.supported)


def test_without_sizes_lengths_decide_and_intervals_are_wider(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, sizes=False)
    (stage,) = stages(tmp_path)
    assert not stage.micro_batches.sized
    for package, target in (("", "verl"), ("slime", "slime")):
        assert _record_command(replace(stage, package=package)).startswith(f"rlpatch run {target} --timeline --stage")
    record_chosen(tmp_path, simulation)
    told = stage_of(tmp_path)
    assert told.recorded == 4
    assert all(part.interval >= 0.02 for part in told.classes)


def test_what_the_recording_costs_is_left_out(tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    record_chosen(tmp_path, simulation)
    undisturbed, windows = stage_of(tmp_path), next_micro_batches(stages(tmp_path)[0])
    call = simulation.calls[3]
    recorded = {number for window in windows for number in range(*window)}
    slow = [
        {name: us * (1 + (number in recorded)) for name, us in row.items()} for number, row in enumerate(call.classes)
    ]
    simulation.calls[3] = call._replace(classes=tuple(slow))
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        path.unlink()
    simulation.write_timeline(tmp_path)
    for first, end in windows:
        simulation.write_window(tmp_path, 3, first, end)
    stage = stage_of(tmp_path)
    added = sum(sum(call.classes[number].values()) for number in recorded) / 1e6
    assert stage.recording_seconds == pytest.approx(added, rel=0.1)
    assert stage.seconds == pytest.approx(undisturbed.seconds, rel=0.02)
    assert stage.supported


@pytest.mark.parametrize(
    ("recorded", "disturbed"),
    [([5], [4, 5, 6]), ([0, 11], [0, 1, 10, 11]), ([], []), ([1, 4, 7, 10], [])],
    ids=["one", "first and last", "none", "all are disturbed"],
)
def test_a_recorded_micro_batch_and_its_neighbors_are_disturbed(recorded: list[int], disturbed: list[int]) -> None:
    undisturbed = undisturbed_by_recording(np.array(recorded, dtype=np.int64), 12)
    assert np.flatnonzero(~undisturbed).tolist() == disturbed


@pytest.mark.parametrize(
    ("recorded", "factor"), [([1, 4], 1 / 3), ([0, 2, 3], 1.0), ([], 1.0), ([0, 1, 2, 3, 4], 1.0)], ids=str
)
def test_recorded_micro_batches_without_sizes_are_shortened_to_the_others(recorded: list[int], factor: float) -> None:
    measured = np.array([10, 40, 20, 30, 80.0])
    seconds = shortened_to_others(measured, np.array(recorded, dtype=np.int64))
    expected = [each * factor if place in recorded else each for place, each in enumerate(measured)]
    assert seconds == pytest.approx(np.array(expected))


def lengthened(simulation: SimulatedTrainer, factors: list[list[float]], name: str = "") -> None:
    """Let each micro-batch take a multiple of its time, of all classes or in the one with this name."""
    for call, of_call in zip(simulation.calls, factors, strict=True):
        for row, factor in zip(call.classes, of_call, strict=True):
            added = (factor - 1) * sum(row.values())
            if name:
                row[name] += round(added)
            else:
                row.update({each: round(us * factor) for each, us in row.items()})


NOISY = np.random.default_rng(5).uniform(0.7, 1.5, (5, 10)).tolist()
LAST = [[1.0] * 9 + [2.0]] * 5
SOME = [[1.0] * 10, [1.0] * 4 + [2.5] + [1.0] * 5, [1.0] * 10, [1.0] * 10, [1.0, 2.5] + [1.0] * 8]


@pytest.mark.parametrize(
    ("factors", "name", "widest", "sizes"),
    [(NOISY, "", 0.1, True), (LAST, "gemm", 0.02, True), (LAST, "gemm", 0.02, False), (SOME, "gemm", 0.15, True)],
    ids=["a busy host", "the last of each call", "the last, without sizes", "some took more of one class"],
)
def test_equal_micro_batches_that_take_different_times_are_covered(
    factors: list[list[float]], name: str, widest: float, sizes: bool, tmp_path: Path
) -> None:
    simulation = SimulatedTrainer(1)
    for _ in range(5):
        simulation.call([400] * 10)
    lengthened(simulation, factors, name)
    simulation.write_timeline(tmp_path, sizes=sizes)
    record_chosen(tmp_path, simulation)
    stage = stage_of(tmp_path)
    assert stage.supported
    intervals = {part.name: part.interval for part in stage.classes}
    assert all(error <= intervals[part] for part, error in errors(stage, simulation).items())
    assert max(intervals.values()) <= widest


@pytest.mark.parametrize(("count", "supported"), [(10, True), (2, False)])
def test_few_micro_batches_that_differ_much_do_not_support_a_stage(count: int, supported: bool, tmp_path: Path) -> None:
    simulation = SimulatedTrainer(1)
    for _ in range(5):
        simulation.call([400] * count)
    lengthened(simulation, [row[:count] for row in NOISY])
    simulation.write_timeline(tmp_path)
    record_chosen(tmp_path, simulation)
    stage = stage_of(tmp_path)
    assert (stage.supported, bool(stage.classes), bool(stage.by_load)) == (supported, supported, supported)
    assert bool(stage.record) != supported
    assert isinstance(stage.why, Text) != supported


@pytest.mark.parametrize("sizes", [True, False])
def test_a_micro_batch_over_three_times_as_long_as_those_of_its_size_waited(sizes: bool, tmp_path: Path) -> None:
    simulation = SimulatedTrainer()
    for _ in range(4):
        simulation.call([400, 410, 420, 430, 440, 450] * 2)
    usual = simulation.calls[3].classes[7]
    simulation.calls[3].classes[7].update({name: 9 * us for name, us in usual.items()})
    simulation.write_timeline(tmp_path, sizes=sizes)
    simulation.write_window(tmp_path, 2, 1, 5)
    stage = stage_of(tmp_path)
    whole = sum(call.us for call in simulation.calls[1:]) / 1e6
    assert stage.waiting_seconds == pytest.approx(sizes * sum(usual.values()) * 8 / 9 / 1e6, rel=0.1)
    assert stage.seconds == pytest.approx(whole - stage.waiting_seconds, rel=0.01)


@pytest.mark.parametrize(
    ("last", "rank"),
    [
        ({0: 10, 1: 10.5, 2: 10}, 0),
        ({0: 10, 1: 10.6, 2: 10}, 1),
        ({2: 10, 1: 9.8}, 1),
        ({None: 10}, None),
        ({None: 1, 3: 10}, 3),
    ],
    ids=str,
)
def test_the_rank_to_record_is_one_that_is_slower_or_the_first(last: dict[int | None, float], rank: int | None) -> None:
    of_ranks: Any = [Some(rank=of, call_seconds=[99, seconds]) for of, seconds in last.items()]
    assert slowest_rank(of_ranks) == rank


@pytest.mark.parametrize(
    ("sizes", "seconds", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], -1), ([1, 2, 3, 4], [10, 20, 30, 99], 1), ([1, 2, 3, 4], [4, 3, 2, 1], -1),
        ([1, 2, 3, 4], [2, 1, 4, 3], 0.6), ([1, 2, 3, np.inf], [1, 2, 3, 4], -1), ([1, 2, 3, 4], [5, 5, 5, 5], -1),
        ([7, 7, 7, 7], [1, 2, 3, 4], -1),
    ],
)  # fmt: skip
def test_sizes_and_seconds_correlate_by_rank(sizes: list[float], seconds: list[float], expected: float) -> None:
    assert correlation(np.array(sizes), np.array(seconds)) == pytest.approx(expected)


def span(start: int, end: int | None, amount: int | None = None, *more: int | None) -> KeptSpan:
    return KeptSpan(start, end, "unit", "micro-batch", amount, 0, 0, 0, None, more)


def test_micro_batches_belong_to_the_call_that_they_end_in() -> None:
    """A call and its last micro-batch are rounded: this one may end 1 ms later."""
    calls = [span(1_000, 500_000), span(600_000, 900_000)]
    units = [
        span(999, 2_000), span(1_000, 2_000), span(3_000, 501_000), span(3_001, 501_001), span(550_000, 560_000),
        span(600_000, 700_000), span(900_000, 901_000), span(900_001, None),
    ]  # fmt: skip
    found = _micro_batches_of_stage(units, calls, _Paused([span(1_500, 1_700), span(650_000, 660_000)]))
    assert found.start.tolist() == [0.001, 0.003, 0.6, 0.9]
    assert found.seconds.tolist() == pytest.approx([0.0008, 0.498, 0.09, 0.001])
    assert (found.call.tolist(), found.number.tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert len(_micro_batches_of_stage([], calls, _Paused([]))) == 0


def test_cpu_seconds_are_without_pauses_too() -> None:
    """Sizes explain the CPU time alone; the third micro-batch was saved for 30 of its 43 µs."""
    units = [span(at * 100, at * 100 + length, size, None, cpu) for at, (size, cpu, length) in enumerate(
        [(1, 5, 12), (2, 6, 11), (3, 37, 43), (4, 8, 10)]
    )]  # fmt: skip
    found = _micro_batches_of_stage(units, [span(0, 500)], _Paused([span(205, 235)]))
    assert found.length.tolist() == pytest.approx([5e-6, 6e-6, 7e-6, 8e-6])


@pytest.mark.parametrize(
    ("sizes", "kept", "sized"),
    [
        ([(1, 9, 50), (2, 8, 60), (3, 7, 70), (4, 6, 80)], "tokens", True), ([(9, 1, 50), (8, 2, 60), (7, 3, 70), (6, 4, 80)], "padded", True),
        ([(2, 9, 60), (1, 8, 50), (4, 7, 80), (3, 6, 70)], "cpu", True), ([(3, 9, 5), (4, 9, 5), (1, 9, 5), (2, 9, 5)], "", False),
        ([(2, 9, 5), (1, 9, 5), (4, 9, 5), (3, 9, 5)], "tokens", True),
    ],
    ids=str,
)  # fmt: skip
def test_the_size_and_the_length_that_go_together_are_kept(
    sizes: list[tuple[int, int, int]], kept: str, sized: bool
) -> None:
    """Each of four micro-batches takes longer than the one before."""
    units = [span(at * 100, at * 100 + 10 + at, *size) for at, size in enumerate(sizes)]
    found = _micro_batches_of_stage(units, [span(0, 500)], _Paused([]))
    assert found.sized == sized
    assert (found.length.tolist() == pytest.approx([cpu / 1e6 for *_, cpu in sizes])) == (kept == "cpu")
    if kept in ("tokens", "padded"):
        assert found.size.tolist() == [size[kept == "padded"] for size in sizes]


def test_micro_batches_without_time_have_no_prediction_error(tmp_path: Path) -> None:
    simulation = SimulatedTrainer()
    for _ in range(2):
        simulation.call([500] * 4)
    last = simulation.calls[-1]
    simulation.calls[-1] = last._replace(classes=(*last.classes[:3], dict.fromkeys(last.classes[3], 0)))
    simulation.write_timeline(tmp_path, sizes=False)
    simulation.write_window(tmp_path, 1, 1, 3)
    short, long = stage_of(tmp_path).by_load
    assert (short.load, short.share, short.error) == ("short", 0, None)
    assert long.share == pytest.approx(1)


def test_the_seconds_of_a_stage_are_the_mean_over_its_processes(tmp_path: Path) -> None:
    """All ranks have the same times; micro-batch 25 took twice as long since it was recorded."""
    simulated(tmp_path)
    stage = stages(tmp_path)[0]
    stage.micro_batches.seconds[25] *= 2
    places, classes = np.array([15, 25, 35]), np.ones((3, len(NAMES)))
    joined = Joined(places, classes, np.zeros(3, dtype=np.int64), (), on_device=True)
    one, three = (_diagnose_stage([stage] * count, [joined] * count) for count in (1, 3))
    assert (three.turns, three.iterations, three.recorded) == (one.turns, one.iterations, 3 * one.recorded)
    assert one.recording_seconds > 0
    for name in ("seconds", "recording_seconds", "between_seconds"):
        assert getattr(three, name) == pytest.approx(getattr(one, name), rel=0.1), name
    ended_early = replace(stage, call_seconds=stage.call_seconds[:1])
    assert _diagnose_stage([stage, ended_early], [joined] * 2).turns == one.turns


@pytest.mark.parametrize("on_device", [True, False])
def test_classes_of_a_device_are_predicted_from_seconds_and_not_from_cpu_time(on_device: bool, tmp_path: Path) -> None:
    simulated(tmp_path)
    stage = stages(tmp_path)[0]
    every = stage.micro_batches
    with_cpu_time = replace(stage, micro_batches=replace(every, length=every.length + np.arange(len(every)) % 2))
    places, classes = np.array([15, 25, 35]), np.ones((3, len(NAMES)))
    joined = Joined(places, classes, np.zeros(3, dtype=np.int64), (), on_device=on_device)
    diagnoses = [_diagnose_stage([each], [joined]) for each in (stage, with_cpu_time)]
    assert (diagnoses[0] == diagnoses[1]) == on_device


@pytest.mark.parametrize("calls", [1, 2])
def test_the_first_call_is_a_warm_up_unless_there_is_no_other(calls: int, tmp_path: Path) -> None:
    simulation = simulated(tmp_path, calls=calls)
    record_chosen(tmp_path, simulation, calls - 1)
    assert (stage_of(tmp_path).turns, stage_of(tmp_path).recorded) == (1, 4)


@pytest.mark.parametrize("units", [True, False])
def test_without_a_window_the_stage_has_its_seconds(units: bool, tmp_path: Path) -> None:
    simulation = SimulatedTrainer()
    for number in range(3):
        simulation.call(dynamic(number))
    simulation.write_timeline(tmp_path, units=units)
    stage = stage_of(tmp_path)
    assert (stage.supported, stage.recorded, stage.classes, stage.by_load) == (False, 0, (), ())
    assert (stage.recording_seconds, stage.waiting_seconds) == (0, 0)
    assert stage.why
    assert ("--micro-batch" in stage.record) == units
    seconds = sum(call.us + BETWEEN_US for call in simulation.calls[1:]) / 1e6
    assert stage.seconds + stage.between_seconds == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("update-policy", "--stage update-policy --micro-batch"),
        ("compute-log-prob", "--stage compute-log-prob --role actor --micro-batch"),
        ("compute-ref-log-prob", "--stage compute-log-prob --role ref --micro-batch"),
    ],
)
def test_the_command_for_missing_windows_names_the_role(name: str, options: str, tmp_path: Path) -> None:
    simulation = SimulatedTrainer()
    for number in range(2):
        simulation.call(dynamic(number), name)
    simulation.write_timeline(tmp_path)
    assert options in stage_of(tmp_path, name).record


def test_recorded_micro_batches_without_time_have_no_classes(tmp_path: Path) -> None:
    simulated(tmp_path)
    nothing = np.zeros((2, len(NAMES)))
    joined = Joined(np.array([15, 25]), nothing, np.zeros(2, dtype=np.int64), (), on_device=False)
    assert _diagnose_stage(stages(tmp_path), [joined]).classes == ()


def test_ranks_are_told_together_and_stages_apart(tmp_path: Path) -> None:
    first, second = SimulatedTrainer(0), SimulatedTrainer(1, pid=816, rank=1)
    for simulation in (first, second):
        for number in range(3):
            simulation.call(dynamic(number), "compute-log-prob")
            simulation.call(dynamic(number))
        simulation.write_timeline(tmp_path)
    update = next(stage for stage in stages(tmp_path) if stage.stage == "update-policy")
    for at, end in next_micro_batches(update):
        first.write_window(tmp_path, 5, at, end)
    told = {stage.stage: stage for stage in diagnosed(tmp_path).stages}
    assert (told["update-policy"].supported, told["update-policy"].recorded) == (True, 4)
    assert (told["compute-log-prob"].supported, told["compute-log-prob"].recorded) == (False, 0)
    of_both = [call.us for simulation in (first, second) for call in simulation.of_stage("update-policy")[1:]]
    assert told["update-policy"].seconds == pytest.approx(sum(of_both) / 2e6, rel=0.01)


@pytest.mark.parametrize(
    "changed", [{"pid": 1}, {"host": "elsewhere"}, {"stage": "update-critic"}, {"units": []}, {"format": 9}], ids=str
)
def test_windows_of_another_process_or_stage_are_left_out(changed: dict[str, Any], tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    simulation.write_window(tmp_path, 3, 2, 3, **changed)
    assert stage_of(tmp_path).recorded == 0


@pytest.mark.parametrize(
    ("sizes", "length", "chosen"),
    [
        ([5], 2, [(0, 1)]), ([1, 5], 2, [(1, 2)]), ([1, 5, 7], 2, [(1, 3)]), ([1, 9, 5, 7], 2, [(1, 4)]),
        ([1, 2, 5, 7, 8, 9], 2, [(1, 3), (4, 6)]), ([1, 9, 5, 3, 2], 2, [(1, 5)]),
        ([1, 5, 4, 3, 6, 2], 2, [(2, 6)]), ([1, 4, 4, 9, 2, 4, 4], 2, [(3, 7)]), ([9, 5, 8, 6], 2, [(1, 4)]),
        ([9, 5, 6, 8], 2, [(1, 4)]), ([1, 2, 5, 7, 8, 9], 1, [(1, 2), (5, 6)]), ([1, 9, 5, 7], 1, [(1, 3)]),
    ],
)  # fmt: skip
def test_windows_hold_the_extremes_and_leave_room_to_warm_up(
    sizes: list[int], length: int, chosen: list[tuple[int, int]], tmp_path: Path
) -> None:
    simulation = SimulatedTrainer(noise=0.0)
    simulation.call(sizes)
    simulation.write_timeline(tmp_path)
    (stage,) = stages(tmp_path)
    assert choose_micro_batches(stage.newest_call, sized=True, length=length) == chosen
    assert choose_micro_batches(stage.newest_call.chosen(np.zeros(len(sizes), dtype=bool)), sized=True) == []
