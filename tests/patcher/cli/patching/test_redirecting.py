"""A window that is asked of the wrong half of a run: the answer is the command line that records it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher.config import RolloutStage
from patches import projects

TRAINERS = [upstream.project.name for upstream in projects.upstreams() if upstream.engines]
MEANT = {
    "apply verl --decode 30:60": "apply vllm-ascend --decode 30:60",
    "apply verl==0.6.1 --decode 30:60": "apply vllm-ascend --decode 30:60",
    "apply slime --decode 30:60": "apply sglang --decode 30:60",
    "apply verl --stage rollout": "apply vllm-ascend --decode 30:60 --stage rollout",
    "apply verl --stage graph-capture": "apply vllm-ascend --stage graph-capture",
    "apply verl --decode 30:60 --mini-batch 0:1": "apply vllm-ascend verl --decode 30:60 --mini-batch 0:1",
    "apply verl --decode 30:60 --timeline": "apply vllm-ascend verl --decode 30:60 --timeline",
    "apply vllm-ascend verl --decode 30:60": "apply vllm-ascend --decode 30:60",
    "diff vllm-ascend --mini-batch 0:1": "diff verl --mini-batch 0:1",
    "apply vllm-ascend --stage update-policy": "apply verl --micro-batch 0:4 --stage update-policy",
    "apply vllm-ascend --decode 1:2 --mini-batch 0:1": "apply verl vllm-ascend --decode 1:2 --mini-batch 0:1",
}


@pytest.fixture
def both(site: Path) -> Path:
    """The engine of `site` with a verl beside it."""
    (site / "verl").mkdir()
    (site / "verl/__init__.py").touch()
    return site


@pytest.mark.parametrize("typed", MEANT)
def test_the_half_of_the_run_that_has_the_window_is_named(run, both: Path, typed: str) -> None:
    command, *words = typed.split()
    said = run(command, *words, "--path", both, "--json", code=3 if "--stage" in words else 2)
    (problem,) = json.loads(said.stdout)["problems"]
    assert problem["next"] == f"rlpatch {MEANT[typed]} --path {both} --json"


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("words", [*(f"--{unit.name} 1:2" for unit in RolloutStage.UNITS), "--stage rollout"])
def test_every_trainer_names_its_engines(run, tmp_path: Path, trainer: str, words: str) -> None:
    """None of them is installed: each command is given, and what is missing is said."""
    said = run("apply", trainer, *words.split(), "--path", tmp_path, "--json", code=3 if "stage" in words else 2)
    (problem,) = json.loads(said.stdout)["problems"]
    engines = projects.upstream(trainer).engines
    assert [command.split()[2] for command in problem["next"].split(" or ")] == [*engines]
    assert all(engine in problem["notes"][0] for engine in engines)


def test_a_window_that_no_engine_has_stays_an_error_of_the_target(run, both: Path) -> None:
    said = run("apply", "verl", "--stage", "nonsense", "--path", both, code=3).stderr
    assert "no target has the stage nonsense" in said
