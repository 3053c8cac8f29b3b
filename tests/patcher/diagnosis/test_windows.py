"""The recorded iterations are found again in the timeline, or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.rollouts import SimulatedEngine, requests
from patcher.commands.reports.reporting import ReadOptions, read_profiles
from patcher.diagnosis.engines import Engine, engines
from patcher.diagnosis.windows import join, traces
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
    paths = traces(folder, [engine])
    profiles = read_profiles(CommandResult("diagnose"), paths, ReadOptions(), lambda total: silent("", total))
    return list(map(int, join(engine, profiles).places))


def test_each_unit_is_its_iteration(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    simulation.write_window(tmp_path, 1, 40, 45)
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(40, 45)]


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
    metadata = path.with_name(path.name + ".rlpatch.json")
    content = json.loads(metadata.read_text())
    content["units"][2].update(changed)
    metadata.write_text(json.dumps(content))
    assert len(joined(tmp_path, engine)) == places


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    simulation, engine = engine_of(tmp_path)
    path = simulation.write_window(tmp_path, 1, 40, 45)
    metadata = path.with_name(path.name + ".rlpatch.json")
    content = json.loads(metadata.read_text())
    for unit in content["units"]:
        unit["begin"] += 100_000_000
    metadata.write_text(json.dumps(content))
    before = len(simulation.rollouts[0])
    assert joined(tmp_path, engine) == [before + number for number in range(40, 45)]
