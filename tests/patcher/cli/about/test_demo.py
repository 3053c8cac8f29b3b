"""The demo: what a newcomer sees first, from an installation that has no fixtures beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from tests.matrix import MATRIX
from tests.patcher.cli.conftest import release
from tests.patcher.store.tree import picture

RELEASE = ("vllm-ascend", "0.11.0rc1")


@MATRIX
def test_the_demo_runs_from_what_a_wheel_holds(tmp_path: Path) -> None:
    for package in ("patcher", "patches"):
        # With bytecode, as pip would compile it, but for what other tests are writing.
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    source = releases.release(RELEASE[1])
    before = picture(source)
    command = [sys.executable, "-m", "patcher", "demo", "--path", str(source), "--json"]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["release"] == "==".join(RELEASE)
    assert [step["command"].split()[1] for step in result["steps"]] == ["apply", "diff", "status", "revert"]
    assert "\n+        self._rlpatch_rollout(" in result["steps"][1]["output"]
    assert "intact vllm_ascend/worker/worker_v1.py" in result["steps"][2]["output"]
    hashes = result["hashes"]
    assert hashes["before"] == hashes["after"] != hashes["patched"]
    assert picture(source) == before


def test_people_read_every_command_and_the_verdict(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(_names: object, version: str, folder: Path, **_limits: object) -> None:
        assert version == RELEASE[1]
        release(folder)

    monkeypatch.setattr("patcher.commands.about.demonstrating.download", fetched)
    said = run("demo")
    assert len(said.stdout.splitlines()) < 80, "the calls, not every line"
    assert "`rlpatch demo -v` shows every inserted line" in said.stdout
    assert "downloading vllm-ascend==0.11.0rc1 …" in said.stderr
    assert "\n$ rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60 --path site\n" in said.stdout
    assert said.stdout.endswith("again: every byte, mode and time is the same as before the patch.\n")


def test_all_lines_are_shown_where_they_are_asked_for(run, site: Path) -> None:
    said = run("demo", "--path", site, "-v").stdout
    assert "# >>> rlpatch vllm-ascend rollout" in said
    assert "folded" not in said
    assert len(said.splitlines()) > 300


def test_a_command_that_fails_ends_the_demo_with_its_code(run, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patcher.commands.about.demonstrating.WINDOW", ("--decode", "0:1"))
    said = run("demo", "--path", site, code=2)
    assert "rlpatch apply vllm-ascend==0.11.0rc1 --decode 0:1 --path site" in said.stderr


def test_a_tree_that_is_not_as_before_is_a_failure_to_be_reported(run, site: Path, monkeypatch) -> None:
    hashes = iter("abc")
    monkeypatch.setattr("patcher.commands.about.demonstrating._hash", lambda _tree: next(hashes))
    assert "after patch and revert, the copy of the release is not the same as before: its hash is c" in (
        said := run("demo", "--path", site, code=1).stderr
    )
    assert "next: please report this as a bug of rlpatch" in said


def test_where_it_cannot_be_downloaded_the_demo_takes_what_is_installed(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "rlpatch demo --path DIR" in run("demo", code=5).stderr
    assert "vllm_ascend" in run("demo", "--path", tmp_path, code=3).stderr
