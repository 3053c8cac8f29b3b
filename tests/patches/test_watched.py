"""Files of the probes, read by `watch` and `trigger` beside probes on stand-ins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patcher.traces import sidecar
from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import RunProgress
from tests.patches.command_line import run
from tests.patches.rollout_workers import V1Worker, batch
from tests.patches.step_metadata import Traces, with_lists
from tests.patches.training_stages import Stage
from tests.patches.triggered import STATES, WAITING, rollout

pytestmark = pytest.mark.usefixtures("stand_in_torch")

ABOUT = {"format": 1, "rlpatch": "0.1.0", "target": "vllm", "release": "0.32.0"}


@pytest.fixture
def survey(tmp_path: Path) -> Callable[[], RunProgress]:
    return lambda: progress.collect(StateFolder(tmp_path), time.time())


def about(worker: Any, target: str = "vllm") -> Any:
    worker._RlpatchStage.ABOUT = {**worker._RlpatchStage.ABOUT, **ABOUT, "target": target}
    return worker


def test_each_transition_is_read(tmp_path: Path, survey: Callable[[], RunProgress]) -> None:
    worker = about(V1Worker(WINDOW="2:4", METADATA=True, LIVE=True, SAVE_PATH=str(tmp_path), parts=(Traces,)))
    worker.iterate(batch({"b": 1}, {"b": 1}), "prefill")
    seen = []
    for n in range(1, 6):
        found = survey()
        assert not found.skipped
        (row,) = found.rows
        seen.append((row.worker.state, row.outcome, row.life.number))
        worker.iterate(with_lists(batch({"b": 1}), "b"), f"decode {n}")
    assert seen == [
        ("waiting", "at work", 1),
        ("armed", "at work", 2),
        ("recording", "at work", 3),
        ("recording", "at work", 4),
        ("saved", "done", 5),
    ]
    assert survey().complete
    (facts,) = [sidecar.read(file) for file in tmp_path.glob("*.rlpatch.json")]
    assert (facts.window and facts.window.text, facts.closed) == ("2:4", "complete")


def test_a_request_is_written_taken_and_seen_to_be_served(tmp_path: Path, survey: Callable[[], RunProgress]) -> None:
    worker = about(V1Worker(**WAITING, **STATES, SAVE_PATH=str(tmp_path), parts=(Traces,)))
    rollout(worker)
    run("trigger", "--save-path", tmp_path, "--decode", "2:4", "--at-load", "1")
    request = json.loads((tmp_path / ".rlpatch/rollout.request").read_text())
    asked = [request[f"RLPATCH_{name}"] for name in ("ROLLOUT", "WINDOW", "AT_LOAD", "AT_TAIL")]
    assert asked == ["1", "2:4", "1", "0"]
    assert not survey().complete
    rollout(worker, 9)
    assert [[*profiler.recorded] for profiler in worker.made] == [[3, 4]]
    assert survey().complete
    run("watch", tmp_path, "--once")


def test_a_training_stage_is_asked_too(tmp_path: Path, survey: Callable[[], RunProgress]) -> None:
    stage = about(Stage(**WAITING, SAVE_PATH=str(tmp_path), parts=(Traces,)), "verl")
    stage.update()
    run("trigger", "verl", "--save-path", tmp_path, "--micro-batch", "1:2")
    for _ in range(3):
        stage.update()
    assert survey().complete
    assert [[*profiler.recorded] for profiler in stage.made] == [[1]]
