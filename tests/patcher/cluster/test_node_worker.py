"""Calls of a node, in this process."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patcher.cluster.node_worker import NodeWorker
from patcher.commands.finding import SearchOptions
from patcher.messages.report import CommandResult
from patcher.processes import RunningProcess
from patches import projects
from tests.patcher.cli.conftest import release

ENGINES = {upstream.project.name: upstream.processes for upstream in projects.upstreams()}


def test_another_interpreter_is_asked_once_for_all_words_and_questions(tmp_path: Path) -> None:
    site, asked, python = release(tmp_path / "site"), tmp_path / "asked", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {asked}\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    worker = NodeWorker(SearchOptions(python=str(python)), ("--ray",))
    survey = worker.survey(["vllm-ascend", "verl"], "apply", {})
    found = survey.targets_by_word["vllm-ascend"].target
    assert (found.root, found.found_by) == (site, f"the Python of Ray's workers, {python}")
    assert worker.status([], ENGINES).lines == ["no patch was found; looked in: --ray"]
    assert worker.check(["vllm-ascend"]).lines[0] == "vllm-ascend 0.11.0rc1"
    assert asked.read_text() == "\n"


STATES = {
    "patched": (("intact", "intact"), "patched"),
    "one of two edited": (("intact", "edited"), "edited"),
    "each in its own way": (("edited", "lost"), "edited, lost"),
    "nothing patched": ((), "as released"),
    "nothing there": ((), "no target installed"),
    "patched, and the target is gone": (("missing",), "missing"),
    "a run was interrupted": (("intact",), "interrupted"),
}


@pytest.mark.parametrize("case", STATES)
def test_the_status_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    states, state = STATES[case]
    site, there = release(tmp_path / "site"), case not in ("nothing there", "patched, and the target is gone")
    patches: Any = tuple(SimpleNamespace(files=[SimpleNamespace(state=state)]) for state in states)
    if not there:
        shutil.rmtree(site / "vllm_ascend")
    if state == "interrupted":
        monkeypatch.setattr("patcher.store.folder.StoreFolder.unfinished", lambda _store: True)
    monkeypatch.setattr(
        "patcher.commands.patching.status.status",
        lambda *_: CommandResult("status", data=SimpleNamespace(patches=patches)),
    )
    monkeypatch.setattr(
        "patcher.processes.running", lambda _known, packages: tuple(RunningProcess(str(one)) for one in packages)
    )
    status = NodeWorker(SearchOptions(path=(site,))).status([], ENGINES).data
    assert (status.state, status.patches) == (state, patches)
    assert status.unfinished == ((str(site),) if state == "interrupted" else ())
    if there:
        assert (status.targets, status.roots) == ({"vllm-ascend": "0.11.0rc1"}, (str(site),))
        assert (status.running, bool(status.free)) == ((f"{site}/vllm_ascend",), True)
    else:
        assert (status.targets, status.roots, status.running, status.free) == ({}, (), (), None)
