"""What one node does when it is asked, in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from patcher.cluster.agent import Agent
from patcher.cluster.values import Found
from patcher.commands.finding import SearchOptions
from tests.patcher.cli.conftest import release


def test_another_interpreter_is_asked_once_for_all_words_and_questions(tmp_path: Path) -> None:
    site, asked, python = release(tmp_path / "site"), tmp_path / "asked", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho >> {asked}\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    agent = Agent(SearchOptions(python=str(python)), ("--ray",))
    survey = agent.survey(["vllm-ascend", "verl"], "apply", {})
    found = survey.asked["vllm-ascend"]
    assert isinstance(found, Found)
    assert (found.root, found.found_by) == (str(site), f"the Python of Ray's workers, {python}")
    assert agent.status([]).lines == ["nothing is patched; looked in: --ray"]
    assert agent.check(["vllm-ascend"]).lines[0] == "vllm-ascend 0.11.0rc1"
    assert asked.read_text() == "\n"
