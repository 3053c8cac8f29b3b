"""The entry point, and runs that were killed."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from patcher import __main__ as entry
from patcher.store import lock
from tests.patcher.cli.conftest import SOURCE, WORKER

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--path", "site")
# Dies before the third file operation of the transaction that matters: the journal lies there, the file is replaced.
KILLED = """
import os, sys
from patcher.cli import rlpatch
from patcher.store.folder import StoreFolder
StoreFolder.commit = lambda self: os._exit(9)
rlpatch()
"""


def test_the_module_runs_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["rlpatch", "--version"])
    monkeypatch.delitem(sys.modules, "patcher.__main__")
    with pytest.raises(SystemExit) as done:
        runpy.run_module("patcher", run_name="__main__")
    assert done.value.code == 0
    assert "rlpatch, version" in capsys.readouterr().out


def test_a_foreign_package_patches_ends_with_both_paths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    foreign = ModuleType("patches")
    foreign.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "patches", foreign)
    with pytest.raises(SystemExit) as done:
        entry.main()
    assert done.value.code == 5
    assert str(tmp_path) in capsys.readouterr().err


@pytest.fixture
def killed(site: Path) -> Path:
    """A package whose apply was killed in the middle."""
    command = [sys.executable, "-c", KILLED, *APPLY]
    repository = Path(entry.__file__).parents[1]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin", "PYTHONPATH": str(repository)}, capture_output=True, text=True
    )
    assert done.returncode == 9, done.stderr
    assert "_rlpatch_rollout" in (site / WORKER).read_text()
    return site


def test_status_says_that_a_run_was_interrupted(run, killed: Path) -> None:
    said = run("status", "--path", "site").stderr
    assert "holds an interrupted run; next: rlpatch recover --path site" in said


def test_recover_undoes_it(run, killed: Path) -> None:
    assert "was undone" in run("recover", "--path", "site").stdout
    assert (killed / WORKER).read_text() == SOURCE
    assert "nothing to recover" in run("recover", "--path", "site").stdout


def test_so_does_the_next_command(run, killed: Path) -> None:
    assert "was undone" in run("revert", "--path", "site").stdout
    assert (killed / WORKER).read_text() == SOURCE


def test_and_the_next_apply_goes_through(run, killed: Path) -> None:
    said = run(*APPLY).stdout
    assert "was undone" in said
    assert f"patched {WORKER}" in said
    run("revert", "--path", "site")
    assert (killed / WORKER).read_text() == SOURCE


def test_another_process_holds_the_lock(run, site: Path) -> None:
    """The waiting is told, and who is waited for."""
    run(*APPLY)
    with lock.hold(site / ".rlpatch", prepare=lambda: None, wait=1, on_wait=print):
        command = [sys.executable, "-m", "patcher", "revert", "--path", "site"]
        repository = Path(entry.__file__).parents[1]
        waiting = subprocess.Popen(
            command, env={"PATH": "/usr/bin", "PYTHONPATH": str(repository)}, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        assert f"waiting for process {os.getpid()}" in waiting.stderr.readline()
    assert waiting.wait(30) == 0
    assert (site / WORKER).read_text() == SOURCE
