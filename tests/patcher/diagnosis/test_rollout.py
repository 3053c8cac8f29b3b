"""Rollouts of a simulated engine, diagnosed from a few windows: the true seconds of each class are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import numpy as np
import pytest

from fixtures.iterations import decodes
from fixtures.rollouts import OUTSIDE_US, Iteration, SimulatedEngine, requests
from fixtures.timeline.writer import Writer
from patcher.commands.diagnosis import reading
from patcher.diagnosis.composition import RecordedIterations
from patcher.diagnosis.engines import Engine, engines, read_engine
from patcher.diagnosis.iterations import concatenated
from patcher.diagnosis.loads import LoadCheck, by_load
from patcher.diagnosis.model import CLASSES, LoadPart, RunDiagnosis, StageDiagnosis
from patcher.diagnosis.plan import LENGTH, WINDOWS, choose_windows
from patcher.diagnosis.rollout import (
    DiagnosedRollouts,
    _busy_errors,
    _predicted_seconds,
    _recorded_iterations,
    class_shares,
    unsupported_reason,
)
from patcher.diagnosis.run import planned_windows
from patcher.diagnosis.windows import Joined
from patcher.messages import CommandResult
from patcher.progress import silent
from patcher.timeline import files, runs
from patcher.traces.families import FAMILIES
from tests.matrix import thinned

LARGE = 0.05
"""Share from which on a class counts."""


def simulated(folder: Path, seed: int = 0, *, count: int = 48, **engine: int | float) -> SimulatedEngine:
    """A warm-up and two rollouts of the same requests."""
    simulation = SimulatedEngine(seed, **engine)  # type: ignore[arg-type]
    simulation.run(requests(99, 4))
    simulation.run(requests(seed, count))
    simulation.run(requests(seed, count))
    simulation.write_timeline(folder)
    return simulation


def engine_in(folder: Path) -> Engine:
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    (engine,) = engines(processes)
    return engine


def diagnosed(
    folder: Path, simulation: SimulatedEngine, windows: Iterable[tuple[int, int]] | None = None, **recording: Any
) -> RunDiagnosis:
    """Record ``windows`` of rollout 2, those that are chosen by default, and diagnose the run.

    ``recording`` is how they are recorded, as in ``SimulatedEngine.write_window``.
    """
    if windows is None:
        windows = choose_windows(engine_in(folder).whole_rollouts[-1], first=1)
    for first, end in windows:
        simulation.write_window(folder, 2, first, end, **recording)
    result = CommandResult("diagnose")
    diagnosis = reading.read(folder, None, silent, result)
    assert not result.problems
    return diagnosis


def errors(stage: StageDiagnosis, simulation: SimulatedEngine) -> dict[str, float]:
    truth = simulation.shares([1, 2])
    return {part.name: abs(part.share - truth[part.name]) for part in stage.classes if truth[part.name] > LARGE}


def test_classes_are_the_families_of_kernels() -> None:
    assert {*CLASSES} == {*FAMILIES}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("count", "at_once"), [(48, 16), (20, 8), (60, 32)])
def test_the_chosen_windows_tell_the_classes(seed: int, count: int, at_once: int, tmp_path: Path) -> None:
    simulation = simulated(tmp_path, seed, count=count, at_once=at_once)
    rollout = engine_in(tmp_path).whole_rollouts[-1]
    windows = choose_windows(rollout, first=1)
    (stage,) = diagnosed(tmp_path, simulation, windows).stages
    ends_rollout = windows[-1][1] == len(rollout)  # its iteration is left out, because it holds the pause behind it
    assert (stage.supported, stage.turns, stage.recorded) == (True, 2, WINDOWS * LENGTH - ends_rollout)
    assert max(errors(stage, simulation).values()) < 0.015
    assert stage.seconds == pytest.approx(sum(part.seconds for part in stage.classes))
    assert sum(part.share for part in stage.by_load) == pytest.approx(1)
    assert all(part.classes for part in stage.by_load)
    for part in stage.by_load:
        assert part.ms_each * part.iterations == pytest.approx(1000 * part.share * stage.seconds)


@pytest.mark.parametrize("slower", [1.0, 2.5])
def test_a_profiler_slows_the_host_of_a_device_and_no_kernel(slower: float, tmp_path: Path) -> None:
    """What the kernels leave of an iteration's seconds in the timeline is time in which the device waits."""
    simulation = simulated(tmp_path)
    (stage,) = diagnosed(tmp_path, simulation, slower=slower, device=True).stages
    shares, truth = {part.name: part.share for part in stage.classes}, simulation.shares([1, 2])
    assert stage.supported
    assert max(abs(part.error or 0) for part in stage.by_load) < 0.1
    for name in ("gemm", "attention", "elementwise"):
        assert shares[name] == pytest.approx(truth[name], abs=0.015)


@pytest.mark.parametrize("seeds", thinned([3, 8], [3]))
def test_intervals_cover_the_truth(seeds: int, tmp_path: Path) -> None:
    covered = []
    for seed in range(seeds):
        folder = tmp_path / str(seed)
        simulation = simulated(folder, seed, noise=0.1)
        (stage,) = diagnosed(folder, simulation).stages
        intervals = {part.name: part.interval for part in stage.classes}
        covered += [error <= intervals[name] for name, error in errors(stage, simulation).items()]
    assert sum(covered) >= 0.9 * len(covered)


WHERE: dict[str, Callable[[Iteration], bool]] = {
    "full load alone": lambda iteration: iteration.requests == iteration.tokens == 16,
    "the tail alone": lambda iteration: iteration.requests == iteration.tokens <= 2,
    "prompts alone": lambda iteration: iteration.tokens > 300,
}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_windows_that_tell_too_little_are_noticed(where: str, device: bool, tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    fitting = [WHERE[where](iteration) for iteration in simulation.rollouts[2]]
    windows = [(at, at + 1) for at, fits in enumerate(fitting) if at and fits]
    diagnosis = diagnosed(tmp_path, simulation, windows[:: max(1, len(windows) // 8)], device=device)
    (stage,) = diagnosis.stages
    assert not stage.supported
    assert not stage.classes
    assert stage.why
    withheld = [part for part in stage.by_load if not part.supported]
    assert withheld
    assert not any(part.classes for part in withheld)
    assert diagnosis.planned
    of = engine_in(tmp_path).whole_rollouts[-1]
    masks = by_load(of)
    lacking = np.logical_or.reduce([masks[part.load] for part in withheld])
    hits = [2 * lacking[first:end].sum() >= end - first for first, end in diagnosis.planned.windows]
    assert sum(hits) >= 3  # what was withheld gets most of the next windows


def test_the_next_round_supports_what_was_withheld(tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    fitting = [WHERE["full load alone"](iteration) for iteration in simulation.rollouts[2]]
    diagnosis = diagnosed(tmp_path, simulation, [(at, at + 1) for at, fits in enumerate(fitting) if at and fits][::9])
    assert diagnosis.planned
    (stage,) = diagnosed(tmp_path, simulation, diagnosis.planned.windows).stages
    assert stage.supported
    assert max(errors(stage, simulation).values()) < 0.02


def test_where_rollouts_differ_in_length_windows_count_from_a_state(tmp_path: Path) -> None:
    simulation = SimulatedEngine()
    for of in (requests(99, 4), requests(0, 48), [request._replace(output=30) for request in requests(1)], requests(2)):
        simulation.run(of)
    simulation.write_timeline(tmp_path)
    first = planned_windows([engine_in(tmp_path)])
    assert first
    assert not first.conditions
    prefills = [(at, at + 1) for at, row in enumerate(simulation.rollouts[2]) if at and row.tokens > 100]
    diagnosis = diagnosed(tmp_path, simulation, prefills)
    withheld = {part.load for part in diagnosis.stages[0].by_load if not part.supported} - {"prefill"}
    assert withheld
    assert diagnosis.planned
    assert bool(diagnosis.planned.load) != bool(diagnosis.planned.tail)
    assert diagnosis.next_conditions.startswith("--at-")
    assert 0 <= diagnosis.planned.windows[0][0] < 20


def test_without_a_window_the_timeline_is_told_and_windows_are_chosen(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, simulated(tmp_path), [])
    (stage,) = diagnosis.stages
    assert (stage.supported, stage.recorded, stage.classes) == (False, 0, ())
    assert {part.load for part in stage.by_load} == {"prefill", "full", "middle", "tail"}
    for part in stage.by_load:
        assert part.ms_each * part.iterations == pytest.approx(1000 * part.share * stage.seconds)
    assert diagnosis.next_windows
    assert "fuller batches" in [action.what for action in diagnosis.actions]


def test_what_the_recording_costs_is_left_out(tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    undisturbed = diagnosed(tmp_path, simulation).stages[0]
    rollout = engine_in(tmp_path).whole_rollouts[-1]
    windows = [window for window in choose_windows(rollout, first=1) if window[1] < len(rollout)]
    for begins in simulation.begins[2:]:
        for _, end in windows:  # saving takes a second
            begins[end:] = [begin + 1_000_000 for begin in begins[end:]]
    for path in (tmp_path / "timeline").iterdir():
        path.unlink()
    for path in tmp_path.glob("*.pt.trace.json.gz*"):
        path.unlink()
    simulation.now += 10_000_000
    simulation.write_timeline(tmp_path)
    stage = diagnosed(tmp_path, simulation, windows).stages[0]
    assert stage.recording_seconds == pytest.approx(len(windows), abs=0.5)
    assert stage.seconds == pytest.approx(undisturbed.seconds, rel=0.02)
    assert stage.supported


def test_the_time_between_iterations_is_exact(tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    stage = diagnosed(tmp_path, simulation).stages[0]
    gaps = sum(len(rollout) - 1 for rollout in simulation.rollouts[1:])
    assert stage.between_seconds == pytest.approx(gaps * OUTSIDE_US / 1e6, abs=1e-4)


def test_iterations_that_waited_are_counted_apart(tmp_path: Path) -> None:
    simulation = simulated(tmp_path)
    undisturbed = diagnosed(tmp_path, simulation).stages[0]
    for at in range(5, len(simulation.begins[1]), 20):
        simulation.begins[1][at:] = [begin + 300_000 for begin in simulation.begins[1][at:]]
    shift = simulation.begins[1][-1] + 3_000_000 - simulation.begins[2][0]
    simulation.begins[2] = [begin + max(shift, 0) for begin in simulation.begins[2]]
    for path in tmp_path.glob("*.pt.trace.json.gz*"):
        path.unlink()
    (next((tmp_path / "timeline").iterdir())).unlink()
    simulation.now += 30_000_000
    simulation.write_timeline(tmp_path)
    stage = diagnosed(tmp_path, simulation).stages[0]
    waited = len(range(5, len(simulation.begins[1]), 20)) * 0.3
    assert stage.waiting_seconds == pytest.approx(waited, rel=0.1)
    assert stage.seconds == pytest.approx(undisturbed.seconds, rel=0.02)


def test_fuller_batches_save_what_decoding_costs_beyond_full_load(tmp_path: Path) -> None:
    simulation = simulated(tmp_path, noise=0.0)
    action = next(action for action in diagnosed(tmp_path, simulation).actions if action.what == "fuller batches")
    decoding = [
        (iteration.requests, sum(row.values()) / 1e6)
        for rollout in (1, 2)
        for iteration, row in zip(simulation.rollouts[rollout], simulation.classes[rollout], strict=True)
        if iteration.tokens == iteration.requests
    ]
    per_token = [seconds / count for count, seconds in decoding if count == 16]
    took, tokens = sum(seconds for _, seconds in decoding), sum(count for count, _ in decoding)
    assert action.bound_seconds == pytest.approx(took - tokens * sorted(per_token)[len(per_token) // 2], rel=0.01)


def test_two_engines_are_told_together(tmp_path: Path) -> None:
    first = simulated(tmp_path, 1)
    second = SimulatedEngine(2, pid=4712)
    for of in (requests(99, 4), requests(2), requests(2)):
        second.run(of)
    second.write_timeline(tmp_path)
    (stage,) = diagnosed(tmp_path, first, choose_windows(read_first(tmp_path).whole_rollouts[-1], first=1)).stages
    assert (stage.turns, stage.recorded, stage.supported) == (4, WINDOWS * LENGTH, True)


def read_first(folder: Path) -> Engine:
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    return next(engine for engine in engines(processes) if engine.pid == 4711)


def test_a_run_of_one_rollout_includes_its_warm_up(tmp_path: Path) -> None:
    simulation = SimulatedEngine()
    simulation.run(requests(0))
    simulation.write_timeline(tmp_path)
    diagnosis = reading.read(tmp_path, None, silent, CommandResult("diagnose"))
    assert diagnosis.stages[0].turns == 1
    assert len(diagnosis.notes) == 1


@pytest.mark.parametrize(
    ("package", "target"), [("sglang", "sglang"), ("vllm-ascend", "vllm-ascend"), ("verl", "vllm")]
)
def test_an_engine_in_a_trainer_is_taken_for_vllm(package: str, target: str, tmp_path: Path) -> None:
    writer = Writer(tmp_path, pid=7, package=package)
    writer.iterate(1_000_000, 3_000_000, 2, 20, 20)
    writer.iterate(4_000_000, 5_000_000, 2, 2, 22)
    writer.close((6_000_000, 16_000_000))
    ((_, (process,)),) = runs.survey(files.paths(tmp_path)).runs
    read = read_engine(process)
    assert (read.package, read.pid) == (target, 7)
    assert (read.iterations.start.tolist(), read.iterations.seconds.tolist()) == ([11, 14], [3, 1])
    assert (read.between.tolist(), read.between_seconds, read.iterations.context.tolist()) == ([1, 0], 1, [20, 22])


def test_the_largest_load_that_was_checked_is_withheld_first() -> None:
    errors = {"prefill": (0.1, False), "full": (0.3, False), "middle": (None, False), "tail": (0.2, True)}
    parts = [
        LoadPart(load, share, 1, 1.0, (), error, supported)
        for share, (load, (error, supported)) in zip((0.2, 0.3, 0.4, 0.1), errors.items(), strict=True)
    ]
    stage: Any = Some(by_load=parts)
    some: Any = None
    assert DiagnosedRollouts(stage, some, (), some, ()).withheld == ("full", "prefill")


def recorded_shares(windows: list[int], kernels: list[float], waits: float) -> RecordedIterations:
    """Iterations of which kernels take these seconds, and waits for the host ``waits``, which a profiler stretches."""
    seconds = np.stack([np.array(kernels), np.full(len(kernels), waits)], axis=1)
    return RecordedIterations(np.ones((len(kernels), 1)), seconds, np.array(windows), np.array([False, True]))


def test_what_a_profiler_stretches_is_predicted_by_what_kernels_leave() -> None:
    """They leave 0.4 s of each second, of 0.8 s under the profiler; the last two iterations were disturbed."""
    seconds = np.array([1.0, 1.0, 1.0, 9.0, 9.0])
    undisturbed = seconds == 1
    predicted = _predicted_seconds(recorded_shares([0, 1], [0.6, 0.6], 0.8), np.ones((5, 1)), seconds, undisturbed)
    assert predicted == pytest.approx(np.ones(5), rel=1e-3)


def test_the_error_of_a_load_is_that_of_its_recorded_iterations_or_of_busy_time_beyond_the_measured() -> None:
    """Other windows predict 1.7 s for 1.6 s of full load; of the tail nothing was recorded."""
    working = decodes([8] * 6 + [1] * 2, [1.0] * 6 + [1.0, 0.3])
    of_windows = recorded_shares([0, 0, 1], [0.5, 0.5, 0.6], 0.1)
    counted = np.array([False] * 2 + [True] * 8)
    errors = _busy_errors(of_windows, np.ones((8, 1)), working, np.array([2, 3, 5]), counted)
    busy = errors["tail"] + 0.3
    assert 0.5 < busy < 0.6
    assert errors == {"full": pytest.approx(6 * busy / 16, rel=1e-3), "tail": pytest.approx(busy - 0.3)}


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ([], ""), ([("full", 0.1, 0.04, 0, 0)], ""), ([("full", 0.1, 0.06, 0, 0), ("tail", -0.3, -0.1, 0, 0)], "tail: -30 %"),
        ([("full", 0.1, 0.06, 0, 0), ("tail", -0.3, -0.05, 0, 0)], "full load: +10 %"), ([("full", 9, 0.9, 0, 0), ("tail", 0, 0, 0, 5)], "tail: differ"),
        ([("full", 0.1, 0.03, 0.3, 0), ("tail", 9, 0.9, 0, 0)], "full load: differ"),
    ],
)  # fmt: skip
def test_the_worst_load_tells_why_all_are_not_supported(
    checks: list[tuple[str, float, float, float, float]], words: str
) -> None:
    why = unsupported_reason([LoadCheck(*each) for each in checks])
    load, _, reason = words.partition(": ")
    assert bool(why) == bool(words)
    assert why.startswith(load)
    assert reason in why


def test_classes_without_time_are_left_out_and_the_largest_is_the_first() -> None:
    shares = {"gemm": 0.25, "copy": 0.0, "attention": 0.75}
    rows = class_shares(np.array([shares.get(name, 0.0) for name in CLASSES]), np.full(len(CLASSES), 0.01), seconds=8.0)
    assert [(row.name, row.share, row.interval, row.seconds) for row in rows] == [
        ("attention", 0.75, 0.01, 6), ("gemm", 0.25, 0.01, 2)
    ]  # fmt: skip


def test_the_windows_of_all_engines_are_numbered_consecutively() -> None:
    parts = [decodes([8] * 4, [1.0] * 4), decodes([9] * 5, [1.0] * 5)]
    both: Any = [Some(iterations=part) for part in parts]
    joined = [
        Joined(np.array(places), np.zeros((len(places), len(CLASSES))), np.array(windows), (), on_device=False)
        for places, windows in (([1, 2, 3], [0, 0, 1]), ([0, 4], [0, 1]))
    ]
    recorded, places = _recorded_iterations(both, joined, concatenated(parts))
    assert (places.tolist(), recorded.window_numbers.tolist()) == ([1, 2, 3, 4, 8], [0, 0, 1, 2, 3])
    assert recorded.features[:, 1].tolist() == [8, 8, 8, 9, 9]
    assert recorded.stretched.all()
