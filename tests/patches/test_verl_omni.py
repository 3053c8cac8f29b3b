"""verl-omni: its engine worker is that of verl, so a checkout with verl's file stands for one.

``test_checkouts`` has real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import releases
from fixtures.mindspeed_rl.trees import commit
from patches.projects import upstream
from patches.verl_omni import RELEASES, WORKER
from tests.patches.command_line import run, there_and_back

UPSTREAM = upstream("verl-omni")
SAME = "0.8.0"  # the release of verl whose update verl-omni has


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / WORKER).parent.mkdir(parents=True)
    (root / "verl_omni/__init__.py").touch()
    (root / "verl_omni/workers/__init__.py").touch()
    (root / WORKER).write_bytes(releases.release_file(SAME, "verl/workers/engine_workers.py", "verl"))
    commit(root, "verl-omni", f"v{RELEASES[-1]}")
    return root


@pytest.mark.usefixtures("unwatched")
def test_the_worker_of_verl_is_patched_as_its_own(root: Path, tmp_path: Path) -> None:
    there_and_back(UPSTREAM, RELEASES[-1], "update-policy", "mini-batch", root, tmp_path)


def test_what_is_missing_for_micro_batches_is_said(root: Path) -> None:
    said = run("apply", "verl-omni", "--micro-batch", "0:2", "--path", root, code=2).stderr
    assert "--mini-batch" in said
    assert "timestep" in said
