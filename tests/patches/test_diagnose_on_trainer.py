"""``rlpatch diagnose`` with verl's own trainer on CPUs: it asks each stage for windows, and tells the whole step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fixtures.cache import Once
from fixtures.trainer import run as training
from tests.patches.command_line import run as rlpatch

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

STAGES = {"rollout", "compute-log-prob", "compute-ref-log-prob", "update-policy", "weight-sync"}


def diagnosed(folder: Path) -> None:
    """Train for eight steps under ``rlpatch diagnose``; what it says as JSON goes into ``result``."""
    traces = folder / "traces"
    settings = ("trainer.total_training_steps=8", "trainer.total_epochs=3")
    # Patched in memory where it is installed: beside a copy there is no torch that says which profiler to take.
    diagnose = [sys.executable, "-m", "patcher", "diagnose", "vllm", "verl", "--python", str(training.python())]
    through = [*diagnose, "--save-path", str(traces), "--"]
    outcome = training.train(folder / "run", folder / "packages", *settings, through=through)
    assert outcome.code == 0, outcome.console[-6000:]
    (folder / "result").write_text(rlpatch("diagnose", traces, "--once", "--json").stdout)


def test_the_stages_of_the_steps_are_asked_for_and_add_up(once: Once, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("a training run takes minutes: --thorough")
    folder = once("diagnosed-on-trainer", diagnosed)
    result = json.loads((folder / "result").read_text())["result"]
    stages = {stage["stage"]: stage for stage in result["stages"]}
    assert stages.keys() >= STAGES
    assert result["steps"] == 7
    assert sum(stage["step_seconds"] for stage in stages.values()) == pytest.approx(result["seconds"], rel=1e-3)
    assert all(stages[name]["recorded"] for name in STAGES)
    assert all(stages[name]["limited_by"] for name in STAGES)
    for stage in stages.values():
        assert stage["supported"] or stage["why"]  # on a machine that others use, equal micro-batches differ too much
        if stage["supported"]:
            assert sum(row["seconds"] for row in stage["classes"]) == pytest.approx(stage["seconds"], rel=1e-3)
