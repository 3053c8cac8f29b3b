"""Every `apply` and `check` of the README on the real releases; that of MindSpeed-RL on a tree of its shape."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fixtures import releases
from fixtures.cache import REPOSITORY
from fixtures.mindspeed_rl import trees
from patches.projects import projects
from tests.patches.test_releases import run

COMMANDS = sorted(
    {
        line.strip()
        for line in re.findall(
            r"(?:^ {4}|`)rlpatch ((?:apply|check) [^`#\n]*)", (REPOSITORY / "README.md").read_text(), re.M
        )
        if "--" in line
    }
)
NEWEST = {project.name: project.releases[-1] for project in projects() if project.name != "mindspeed-rl"}


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("apply")])
def test_what_the_readme_shows_can_be_done(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    where = Path("MindSpeed-RL") if "--path" in words else Path("site")
    for word in words[1:]:
        name, _, version = word.partition("==")
        if name == "mindspeed-rl":
            trees.checkout(trees.RELEASES[-1], where)
        elif name in NEWEST:
            shutil.copytree(releases.release(version or NEWEST[name], name), where, dirs_exist_ok=True)
    done = run(*words, *(() if "--path" in words else ("--path", where)))
    assert "patched " in done.stdout
    assert "nothing is patched" not in run("status", "--path", where).stdout


@pytest.mark.parametrize(("steps", "code", "said"), [("null", 0, "off"), ("[1]", 8, "my_trainer.yaml")])
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("check verl")])
def test_what_the_readme_checks(
    command: str, steps: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(releases.release(NEWEST["verl"], "verl"), "site")
    Path("run_grpo.sh").write_text("python3 -m verl.trainer.main_ppo --config-path=$PWD --config-name=my_trainer\n")
    Path("my_trainer.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: [pkg://verl.trainer.config]}\n"
        f"global_profiler: {{tool: torch, steps: {steps}}}\n"
        "actor_rollout_ref: {actor: {profiler: {enable: true, tool: torch}}}\n"
    )
    words = shlex.split(command)
    done = run(*words[: words.index("--")], "--path", "site", *words[words.index("--") :], code=code)
    assert said in done.stdout + done.stderr
