"""The order of what `apply` does: find, end what was interrupted, look for other profilers, plan, commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patcher import plan
from patcher.commands.finding import LaunchOptions, SearchOptions
from patcher.commands.patching import applying
from patcher.commands.where import Committed, Where
from patcher.config import Window
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
    planned = plan.apply

    def apply(*words: Any) -> plan.Plan:
        taken.append("plan")
        return planned(*words)

    monkeypatch.setattr(plan, "apply", apply)
    monkeypatch.setattr(StoreFolder, "unfinished", lambda _store: True)
    return taken


class Machine(Where):
    """This machine; ``taken`` are the steps in their order, and a profiler may be ``on``."""

    taken: list[str]
    on: tuple[Problem, ...] = ()

    def settle(self, search: object) -> StepResult:
        self.taken.append("settle")
        return StepResult(("an interrupted run was undone",))

    def guard(self, *_words: Any, **_options: Any) -> StepResult:
        self.taken.append("guard")
        return StepResult(problems=self.on)

    def preflight(self, work: Any) -> StepResult:
        self.taken.append("preflight")
        return StepResult()

    def commit(self, work: Any, verb: str) -> Committed:
        self.taken.append("commit")
        return Committed(StepResult())


@pytest.mark.parametrize(
    ("dry_run", "on", "taken", "lines"),
    [
        (False, (), ["settle", "guard", "plan", "commit"], True),
        (True, (), ["guard", "plan", "preflight"], False),
        (False, (Problem(Kind.PROFILER_ON, "msprof is on"),), ["settle", "guard"], True),
    ],
)
def test_the_steps_stand_in_one_order(
    steps: list[str], tmp_path: Path, dry_run: bool, on: tuple[Problem, ...], taken: list[str], lines: bool
) -> None:
    machine = Machine(SearchOptions(tmp_path / "site"), print)
    machine.taken, machine.on = steps, on
    request = ProfileRequest((Window("decode", 30, 60),), {"save_path": "/tmp/traces"})
    report = applying.apply(["vllm-ascend"], machine, request, LaunchOptions({}), dry_run=dry_run, force=False)
    assert steps == taken
    assert (report.exit_code, "an interrupted run was undone" in report.lines) == (8 if on else 0, lines)
