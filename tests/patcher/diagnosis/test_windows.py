"""The recorded iterations are found again in the timeline, or left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import numpy as np
import pytest

from fixtures.rollouts import SimulatedEngine, requests
from patcher.commands.reports.reporting import ReadOptions, read_profiles
from patcher.diagnosis.engines import Engine, engines
from patcher.diagnosis.iterations import iterations
from patcher.diagnosis.windows import (
    NAMES,
    _find_iteration,
    disturbed_by_recording,
    join,
    join_units,
    recorded_traces,
)
from patcher.messages import CommandResult
from patcher.progress import silent
from patcher.timeline import files, runs


def engine_of(folder: Path, **simulated: Any) -> tuple[SimulatedEngine, Engine]:
    simulation = SimulatedEngine(**simulated)
    simulation.run(requests(99, 4))
    simulation.run(requests(0))
    simulation.write_timeline(folder)
    ((_, processes),) = runs.survey(files.paths(folder)).runs
    (engine,) = engines(processes)
    return simulation, engine


def joined(folder: Path, engine: Engine) -> list[int]:
    paths = recorded_traces(folder, [engine])
    profiles = read_profiles(CommandResult("diagnose"), paths, ReadOptions(), lambda total: silent("", total))
    return list(map(int, join(engine, profiles).places))


def change_units(trace: Path, change: Callable[[dict[str, Any]], None]) -> None:
    metadata = trace.with_name(trace.name + ".rlpatch.json")
    content = json.loads(metadata.read_text())
    for unit in content["units"]:
        change(unit)
    metadata.write_text(json.dumps(content))


def forget_id(unit: dict[str, Any]) -> None:
    """Make the metadata of a unit those of an older rlpatch."""
    del unit["iteration"]


@pytest.mark.parametrize("old", [False, True])
def test_each_unit_is_its_iteration(old: bool, tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    if old:
        change_units(path, forget_id)
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(40, 45)]


def test_a_unit_with_the_start_of_the_profiler_is_left_out(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    change_units(path, lambda unit: unit.update(profiler_start=True) if unit["number"] == 40 else None)
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(41, 45)]


def test_ids_need_no_clock_and_no_contents(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    change_units(path, lambda unit: unit.update(begin=7, requests=1, tokens=1, context=1))
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(40, 45)]


def test_an_id_that_the_timeline_has_lost_is_left_out(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    change_units(path, lambda unit: unit.update(iteration=unit["iteration"] + 10**6 * (unit["number"] == 42)))
    assert len(joined(tmp_path, engine)) == 4


@pytest.mark.parametrize(
    "changed",
    [{"pid": 1}, {"host": "elsewhere"}, {"stage": "update-policy"}, {"units": []}, {"units": "none"}, {"format": 9}],
    ids=str,
)
def test_what_is_of_another_process_or_says_nothing_is_left_out(changed: dict[str, Any], tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    simulation.write_window(tmp_path, 1, 40, 45, **changed)
    assert joined(tmp_path, engine) == []


@pytest.mark.parametrize(
    ("changed", "places"),
    [({"tokens": 7}, 4), ({"context": 1}, 4), ({"requests": 99}, 4), ({"begin": 17}, 4), ({"drafts": 3}, 4)],
    ids=str,
)
def test_a_unit_that_is_no_iteration_is_left_out(changed: dict[str, int], places: int, tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    change_units(path, forget_id)
    change_units(path, lambda unit: unit.update(changed if unit["number"] == 42 else {}))
    assert len(joined(tmp_path, engine)) == places


def test_the_last_iteration_of_a_rollout_is_left_out(tmp_path: Path) -> None:
    """Its window may last until the next rollout begins."""
    simulation, engine = engine_of(tmp_path)
    first, second = map(len, simulation.rollouts[:2])
    simulation.write_window(tmp_path, 1, second - 5, second)
    assert joined(tmp_path, engine) == [first + number for number in range(second - 5, second - 1)]


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    change_units(path, forget_id)
    change_units(path, lambda unit: unit.update(begin=unit["begin"] + 100_000_000))
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(40, 45)]


def profile(units: int, *more: Any, kernels: tuple[str, ...] = ()) -> Any:
    """A profile of units with a second of matmuls each, and ``more``; the first includes the profiler's start."""
    recorded = [Some(number=number, classes={"gemm": 10**9}) for number in range(units)]
    return Some(units=[*recorded, *more], cold=(0,), facts=None, metadata=None, source="", kernels=kernels)


def test_units_of_a_long_window_count_as_several_windows() -> None:
    idle = Some(number=3, classes={})
    profiles = [profile(6), profile(1), profile(3, idle, kernels=("matmul",))]
    units = join_units(profiles, lambda unit, entry: None if unit.number == 4 else 10 + unit.number, 2)
    assert units.places.tolist() == [11, 12, 13, 15, 11, 12]
    assert units.window_numbers.tolist() == [0, 0, 1, 1, 4, 4]
    assert [window.joined for window in units.windows] == [4, 0, 2]
    assert units.class_seconds.tolist() == [[float(name == "gemm") for name in NAMES]] * 6
    assert units.on_device
    assert not join_units(profiles[:2], lambda unit, entry: 0, 2).on_device


@pytest.mark.parametrize(("joined", "disturbed"), [([], []), ([1], [0, 1, 2, 3]), ([5, 9], [3, 4, 5, 6, 7, 8, 9])])
def test_recording_disturbs_two_iterations_on_either_side(joined: list[int], disturbed: list[int]) -> None:
    assert np.flatnonzero(disturbed_by_recording(joined, 10)).tolist() == disturbed


@pytest.mark.parametrize(
    ("entry", "unit", "place"),
    [
        ({"iteration": 12}, (9, 9, None), 2), ({"iteration": 99}, (1, 1, None), None), ({"iteration": True, "begin": 11 * 10**9}, (4, 6, None), 1),
        ({"begin": 11_400_000_000}, (4, 6, None), 1), ({"begin": 11_600_000_000}, (4, 6, None), None), ({"begin": 10_600_000_000}, (4, 6, None), 1),
        ({"begin": 10_400_000_000}, (4, 6, None), None), ({"begin": 11 * 10**9}, (4, 7, None), None), ({"begin": 11 * 10**9}, (5, 6, None), None),
        ({"begin": 11 * 10**9}, (4, 6, 70), 1), ({"begin": 11 * 10**9}, (4, 6, 71), None), ({"begin": 11 * 10**9}, (None, 6, None), None),
        ({"begin": 11 * 10**9}, (4, None, None), None), ({"begin": 11.0}, (4, 6, None), None), ({}, (4, 6, None), None),
        ({"begin": 13_100_000_000}, (5, 5, None), 3), ({"begin": 13_200_000_000}, (5, 5, None), 4),
    ],
    ids=str,
)  # fmt: skip
def test_an_iteration_is_found_by_its_id_else_by_its_contents_within_half_a_second(
    entry: dict[str, object], unit: tuple[int | None, int | None, int | None], place: int | None
) -> None:
    """Iterations 10 to 14 began at 10, 11, 12, 13 and 13.25 s."""
    columns = [[10, 11, 12, 13, 13.25], [1] * 5, [4, 4, 4, 5, 5], [4, 6, 4, 5, 5], [70] * 5]
    begins, lengths, *loads = np.array(columns, dtype=float)
    ones, ids = np.ones(5, dtype=np.int64), np.arange(10, 15)
    of = iterations(begins, lengths, loads[0], loads[1], loads[2], rollout=ones, identity=ids)
    requests, tokens, context = unit
    some: Any = Some(requests=requests, tokens=tokens, context=context, drafts=None)
    found = _find_iteration(Engine("a", 1, None, "vllm", of, np.zeros(5)), some, entry)
    assert found == place
    some.drafts, some.tokens = 3, tokens and tokens + 3
    assert _find_iteration(Engine("a", 1, None, "vllm", of, np.zeros(5)), some, entry) == place
