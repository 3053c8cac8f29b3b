"""A weight sync between the real classes of verl: each side records the sync that was chosen, with its phases."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fixtures import environments
from fixtures.cache import REPOSITORY
from fixtures.trainer import run as training
from tests.patches.command_line import run as rlpatch

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

INSIDE = {
    # Three times, the last of which finds that there is nothing more; what has no bucket of its own fills the last one.
    "trainer": {"update_weights": 1, "bucket": 1, "gather": 1 + 3, "send": 2},
    "rollout": {"update_weights_from_ipc": 1, "receive": 1, "load": 2},
}
WITHIN = {"gather": "update_weights", "send": "bucket", "receive": "update_weights_from_ipc", "load": "receive"}


def ranges(trace: Path) -> dict[str, list[tuple[float, float]]]:
    """Our ranges in a trace, each by its beginning and its end."""
    found: dict[str, list[tuple[float, float]]] = {}
    for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"].startswith("rlpatch:"):
            begin_and_end = event["ts"], event["ts"] + event["dur"]
            found.setdefault(event["name"].removeprefix("rlpatch:"), []).append(begin_and_end)
    return found


def test_each_side_records_the_sync_that_was_chosen(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: nothing else in the run needs this environment of 3.5 GB")
    packages = training.site(tmp_path / "site")
    chosen = ("--stage", "weight-sync", "--sync", "1", "--tool", "torch", "--save-path", tmp_path / "traces")
    rlpatch("apply", "verl", *chosen, "--path", packages)
    path = os.pathsep.join(map(str, (packages, REPOSITORY)))
    more = {"PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": "fixtures.trainer.cpu"}
    env: dict[str, str] = environments.variables(npu=False, **more)
    command: tuple[Any, ...] = (training.python(), "-m", "fixtures.verl.weights")
    address = f"ipc://{tmp_path}/socket"
    sides = {
        side: subprocess.Popen([*command, side, address], env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for side in INSIDE
    }
    try:
        outcomes = {side: (process.communicate(timeout=300)[1], process.returncode) for side, process in sides.items()}
    finally:
        for process in sides.values():
            process.kill()
    for side, (said, code) in outcomes.items():
        assert code == 0, said
        assert f", weight sync 1, {side}: complete, recorded: " in said
        (trace,) = (tmp_path / "traces").glob(f"*_weight_sync_{side}_sync1_rank0_*.gz")
        found = ranges(trace)
        assert {name: len(times) for name, times in found.items()} == INSIDE[side]
        for inner, outer in WITHIN.items():
            ((begin, end),) = found.get(outer, [(0, float("inf"))])
            assert all(begin <= first < last <= end for first, last in found.get(inner, ()))
        (facts,) = (tmp_path / "traces").glob(f"*_weight_sync_{side}_*.rlpatch.json")
        told = json.loads(facts.read_text())
        assert (told["stage"], told["role"], told["sync"], told["rank"]) == ("weight-sync", side, 1, 0)
    assert len([*(tmp_path / "traces").glob("*.gz")]) == 2
