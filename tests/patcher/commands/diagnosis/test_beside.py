"""The diagnosis beside a command: it ends with Ctrl-C or the command, and no fault of it reaches the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.rollouts import SimulatedEngine, requests
from patcher.commands.diagnosis import reading
from patcher.commands.diagnosis.beside import DiagnosisBeside
from patcher.commands.diagnosis.following import Follower
from patcher.messages import CommandResult


class Shown:
    """The results that were shown, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.results: list[CommandResult] = []
        self.said: list[str] = []
        self.beside = DiagnosisBeside(Follower(folder, 3, self.said.append), reading.NO_FILES, self.show)

    def show(self, result: CommandResult) -> int:
        self.results.append(result)
        return result.exit_code


def test_ctrl_c_shows_what_there_is_and_the_end_does_not_repeat_it(tmp_path: Path) -> None:
    engine = SimulatedEngine()
    for of in (requests(99, 4), requests(0)):
        engine.run(of)
    engine.write_timeline(tmp_path, ended=False)
    shown = Shown(tmp_path)
    shown.beside.interrupted()
    assert "rollout: 1 rollout" in shown.results[0].lines[0]
    assert f"diagnose {tmp_path} --once -v" in shown.results[0].more
    assert "Ctrl-C again" in shown.said[-1]
    assert not shown.beside.ends_command()
    assert shown.beside.finish() == 0
    assert len(shown.results) == 1


def test_an_unexpected_fault_at_the_end_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "diagnose_newest", lambda *_: 1 // 0)
    shown = Shown(tmp_path)
    assert shown.beside.finish() != 0
    (problem,) = shown.results[0].problems
    assert "test_beside.py:" in problem.where
    assert "ZeroDivisionError" in problem.cause


def test_a_run_that_dies_before_it_records_anything(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    assert shown.beside.finish() == 3
    assert "no timeline" in shown.results[0].problems[0].cause
