"""`rlpatch run` with verl's real workers in real Ray: the window is recorded, and the shared tree stays as it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fixtures import environments, releases
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY
from fixtures.rays import cluster as rays
from fixtures.verl.host import drive
from tests.patcher.store.tree import picture
from tests.patches.verl_runs import MINI, Case, Tree, traces

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

WORKERS = ("0.6.1", "legacy")


@pytest.mark.parametrize("version", [rays.OLDEST, rays.NEWEST])
def test_a_mini_batch_in_an_actor_of_ray(version: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if version == rays.OLDEST and not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: half a minute, for what the newest Ray shows, too")
    tree, case = releases.release(WORKERS[0], "verl"), Case("update-policy", "0:1")
    job: dict[str, Any] = {"release": WORKERS[0], "runs": [case.run(WORKERS)]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    python = environments.torch_npu_env(environments.VERL)
    # The same torch under either Ray: that of the newest is in the environment.
    (oldest,) = rays.python(rays.OLDEST).parents[1].glob("lib/python3*/site-packages")
    ray = [oldest] if version == rays.OLDEST else []
    before = picture(tree)
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        given = environments.variables(
            npu=False,
            PYTHONPATH=os.pathsep.join(map(str, [*ray, tree, REPOSITORY])),
            PYTHONDONTWRITEBYTECODE="1",
            TMPDIR=scratch,
            RAY_TMPDIR=scratch,
            **rays.variables(),
        )
        command = [str(python), "-m", "fixtures.rays.workers", str(tmp_path / "job.json")]
        capture = (
            "--mini-batch",
            "0:1",
            "--tool",
            "torch",
            "--contents",
            "cpu",
            "--save-path",
            str(tmp_path / "traces"),
        )
        done = subprocess.run(
            [sys.executable, "-m", "patcher", "run", "verl==0.6.1", *capture, "--path", str(tree), "--", *command],
            env=given,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert list(Path(scratch).glob("rlpatch-run-*")) == [], done.stderr[-3000:]
    assert picture(tree) == before
    found = re.search(r"FOUND (.*)", done.stdout)
    assert found
    (calls,), pid, seen = json.loads(found[1])
    assert [calls] == drive(WORKERS[0], tree, job["runs"]).runs
    expected = case.expected(calls, Tree({"update-policy": MINI}, "all", ()))
    assert dict(traces(tmp_path / "traces")) == expected
    assert len(expected) == 1
    assert seen
    (path,) = trace.find(tmp_path / "traces")
    assert f"_{pid}." in path.name
    assert "rlpatch run: verl was patched in 2 processes" in done.stderr
