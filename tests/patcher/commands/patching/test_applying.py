"""The order of what `apply` does: find, end what was interrupted, look for other profilers, plan, commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patcher import plan
from patcher.commands import applied
from patcher.commands.finding import SearchOptions
from patcher.commands.patching import applying, planning
from patcher.commands.where import Where
from patcher.config import Window
from patcher.guards.result import Launch
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import StepResult
from patcher.request import ProfileRequest
from patcher.store.folder import StoreFolder
from tests.patcher.cli.conftest import release


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that are taken on a target that holds an interrupted run."""
    release(tmp_path / "site")
    taken: list[str] = []
    planned = plan.make_plan

    def make_plan(*words: Any) -> plan.Plan:
        taken.append("plan")
        return planned(*words)

    def settle(*_words: Any) -> StepResult:
        taken.append("settle")
        return StepResult(("undid an interrupted command in some folder",))

    def preflight(*_words: Any) -> tuple[Any, ...]:
        taken.append("preflight")
        return ()

    def commit(*_words: Any) -> StepResult:
        taken.append("commit")
        return StepResult()

    monkeypatch.setattr(plan, "make_plan", make_plan)
    monkeypatch.setattr(StoreFolder, "unfinished", lambda _store: True)
    monkeypatch.setattr(applied, "end_interrupted", settle)
    monkeypatch.setattr("patcher.store.transaction.preflight", preflight)
    monkeypatch.setattr("patcher.store.outcomes.commit", commit)
    return taken


@pytest.mark.parametrize(
    ("dry_run", "on", "taken", "lines"),
    [
        (False, (), ["settle", "guard", "plan", "commit"], True),
        (True, (), ["guard", "plan", "preflight"], False),
        (False, (Problem(Kind.PROFILER_ON, "msprof is on"),), ["settle", "guard"], True),
    ],
)
def test_the_steps_stand_in_one_order(
    steps: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dry_run: bool,
    on: tuple[Problem, ...],
    taken: list[str],
    lines: bool,
) -> None:
    def guard(*_words: Any, **_options: Any) -> StepResult:
        steps.append("guard")
        return StepResult(problems=on)

    monkeypatch.setattr(planning, "guard", guard)
    where = Where(SearchOptions(path=(tmp_path / "site",)), print)
    request = ProfileRequest((Window("decode", 30, 60),), {"save_path": "/tmp/traces"})
    report = applying.apply(["vllm-ascend"], where, request, Launch(environ={}), dry_run=dry_run, force=False)
    assert steps == taken
    assert (report.exit_code, "undid an interrupted command in some folder" in report.lines) == (
        8 if on else 0,
        lines,
    )
