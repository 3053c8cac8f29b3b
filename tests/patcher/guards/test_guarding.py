"""Answers of the guards in a report: an error for what is on, a warning for what may be."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patcher.commands.guarding import guard
from patcher.guards.result import Launch
from patcher.messages.errors import Kind
from patcher.messages.report import CommandResult
from patcher.switches import Application, ConfigSwitch, Key, State
from patcher.targets.target import Project, Target

STATES = {None: State.OFF, "ready": State.ARMED, "record": State.ON}
APPLICATION = Application(
    packages=("toy",),
    folder="toy/conf",
    defaults=("main",),
    names=r"\bmode\b",
    switches=(
        ConfigSwitch("toy's profiler", (Key("mode", (None, "record")),), lambda values: STATES[values["mode"]], "why", "toy.py"),  # type: ignore[index]
    ),
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "toy" / "conf").mkdir(parents=True)
    (tmp_path / "toy" / "conf" / "main.yaml").write_text("mode: null\n")
    (tmp_path / "toy" / "run.py").write_text(
        "import hydra\n\n@hydra.main(config_path='conf', config_name='main')\ndef main(config):\n    toy()\n"
    )
    return tmp_path


def report(root: Path, words: str = "", *, application: Application | None = APPLICATION, **more: Any) -> CommandResult:
    project = Project("toy", "toy", ("toy",))
    upstream: Any = SimpleNamespace(project=project, switches=(), application=application)
    command = ("python", "-m", "toy.run", *words.split()) if words else ()
    launch = Launch(environ={}, command=command, config=more.pop("config", None))
    target = more.pop("target", None) or Target(project, "1.0", root, "wheel", "", "")
    force, profiler = more.pop("force", False), more.pop("profiler", "")
    return CommandResult("apply", guard(upstream, "1.0", launch, force=force, target=target, profiler=profiler))


def test_what_is_on_is_an_error_unless_it_is_forced(root: Path) -> None:
    (problem,) = report(root, "mode=record").problems
    assert (problem.kind, problem.where) == (Kind.PROFILER_ON, "command after --")
    assert problem.hint.startswith("set mode=null at the command after --; or add --force")
    forced = report(root, "mode=record", force=True)
    assert (forced.problems, len(forced.messages)) == ([], 1)


@pytest.mark.parametrize(("words", "said"), [("mode=ready", "mode=ready"), ("mode=[", "Hydra reports")])
def test_what_may_be_on_is_a_warning_that_says_what_was_seen(root: Path, words: str, said: str) -> None:
    found = report(root, words)
    assert found.problems == []
    (note,) = found.notes
    assert said in " ".join(note)
    assert "mode=null" in note.detail
    assert len(note.line) <= 100


def test_profilers_of_which_the_same_is_not_known_are_one_warning(root: Path) -> None:
    switches = tuple(APPLICATION.switches[0]._replace(profiler=f"profiler {number}") for number in range(3))
    found = report(root, "mode=[", application=APPLICATION._replace(switches=switches))
    (note,) = found.notes
    assert note.text == "3 profilers might be on: Hydra reports: no viable alternative at input '['"
    assert all(f"profiler {number} (command after --)" in note.detail for number in range(3))


def test_a_profiler_of_which_nothing_is_known_on_several_lines_is_one(root: Path) -> None:
    from patches.shared_switches import ENGINE_VARIABLE

    (root / "run.sh").write_text("bash gone.sh\nbash gone.sh\n")
    upstream: Any = SimpleNamespace(
        project=Project("toy", "toy", ("toy",)), switches=(ENGINE_VARIABLE,), application=None
    )
    found = guard(upstream, "1.0", Launch(environ={}, script=root / "run.sh"), force=False)
    (note,) = found.notes
    assert (
        note.text
        == f"{ENGINE_VARIABLE.profiler} might be on: the launch command or script names a file that was not found on this machine or is only known at run time"
    )
    assert "run.sh:1)" in note.detail


def test_a_profiler_that_is_to_be_on_is_no_problem_and_another_is_a_warning(root: Path) -> None:
    switches = (APPLICATION.switches[0], APPLICATION.switches[0]._replace(profiler="another profiler"))
    found = report(root, "mode=record", application=APPLICATION._replace(switches=switches), profiler="toy's profiler")
    assert found.problems == []
    assert [(note[0], note.text.partition(" (")[0]) for note in found.notes] == [
        ("note", "toy's profiler is on"),
        ("warning", "another profiler is on"),
    ]
    assert found.notes[0].text.endswith(", so the settings of the patch take effect")


def test_a_user_without_hydra_is_told_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hydra", None)
    switches = tuple(APPLICATION.switches[0]._replace(profiler=f"profiler {number}") for number in range(3))
    (note,) = report(root, "mode=record", application=APPLICATION._replace(switches=switches)).notes
    assert note.text == "3 profilers might be on: hydra-core is not installed (pip install hydra-core)"
    assert "hydra-core is not installed" not in note.detail
    assert note.detail.endswith("the patch checks for other profilers again before it records")
    assert report(root, "other=1", application=APPLICATION._replace(switches=switches)).notes == []


def test_where_no_configuration_is_there_to_look_at_apply_warns_of_nothing(root: Path) -> None:
    (root / "toy" / "conf" / "main.yaml").unlink()
    found = report(root)
    assert (found.problems, found.messages) == ([], ())


@pytest.mark.parametrize("words", ["", "mode=null", "--multirun"])
def test_what_is_off_is_not_spoken_of(root: Path, words: str) -> None:
    found = report(root, words)
    assert (found.problems, found.messages) == ([], ())


def test_a_configuration_for_a_project_that_takes_none_is_noted(root: Path) -> None:
    found = report(root, application=None, config=root / "mine.yaml")
    (message,) = found.messages
    assert message.startswith("note: ")
    assert " toy" in message
    assert "--config" in message
