"""An interpreter that a configuration names is started only after its user has agreed, and while nothing changes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
ASKS = "rlpatch.toml names an interpreter that you have not trusted yet"


class Clone:
    """A project with a configuration and a program that notes that it was started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "rlpatch.toml"
        self.log = folder.parent / "ran"
        self.program("evilpy")
        self.file.write_text('python = "./evilpy"\n')

    def program(self, name: str, more: str = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n{more}\n: > {self.log}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return path

    def started(self) -> bool:
        """Whether the program ran since this was asked last."""
        ran = self.log.exists()
        self.log.unlink(missing_ok=True)
        return ran


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Clone(tmp_path / "clone")


GOING_ON = (("status",), ("status", "-q"), ("status", "--json"), ("diff",), ("recover",))
ENDED = (
    ("revert",),
    ("check",),
    ("explain", "vllm-ascend"),
    ("apply", "vllm-ascend", "--decode", "1:2", "-n", "-q"),
    ("bundle", "vllm-ascend", "--decode", "1:2"),
    ("run", "vllm-ascend", "--decode", "1:2", "--", "true"),
)


@pytest.mark.parametrize("words", [*GOING_ON, *ENDED], ids=" ".join)
def test_without_consent_nothing_of_a_clone_is_started(words: tuple[str, ...], clone: Clone, run: Run) -> None:
    said = run(*words, code=0 if words in GOING_ON else 2)
    assert not clone.started()
    assert ASKS in said.stderr
    assert f"at {clone.file}:1\n" in said.stderr
    assert f"interpreter: {clone.folder}/evilpy\n" in said.stderr
    assert f"next: rlpatch trust {clone.file}\n" in said.stderr
    if "--json" in words:
        assert any(ASKS in message for message in json.loads(said.stdout)["messages"])


@pytest.mark.parametrize(
    ("content", "made", "words", "path"),
    [
        ('python = "evilpy"', "bin/evilpy", ("status",), "bin:/usr/bin:/bin"),
        ('python = "evilpy"', "evilpy", ("status",), ":/usr/bin:/bin"),
        ('python = "env"', "env/bin/python", ("status",), "/usr/bin:/bin"),
        ('python = "./env"', "env/bin/python", ("status",), "/usr/bin:/bin"),
        ('[presets.x]\npython = "./evilpy"', "evilpy", ("diff", "--preset", "x"), "/usr/bin:/bin"),
    ],
)
def test_an_interpreter_needs_consent_however_the_configuration_names_it(
    content: str, made: str, words: tuple[str, ...], path: str, clone: Clone, run: Run
) -> None:
    (clone.folder / "evilpy").unlink()
    clone.program(made)
    clone.file.write_text(content)
    assert ASKS in run(*words, PATH=path).stderr
    assert not clone.started()
    assert f"is allowed to start {clone.folder / made}" in run("trust", PATH=path).stdout
    assert ASKS not in run(*words, PATH=path).stderr
    assert clone.started()


def test_other_settings_of_a_file_apply_without_consent(clone: Clone, run: Run, site: Path) -> None:
    clone.file.write_text('python = "./evilpy"\npath = "../site"\n')
    assert f"from rlpatch.toml: --path {clone.folder}/../site" in run("status", "--json").stdout


def test_what_is_typed_needs_no_consent(clone: Clone, run: Run) -> None:
    assert ASKS not in run("status", "--python", clone.folder / "evilpy").stderr
    assert clone.started()
    assert ASKS not in run("revert", "--path", clone.folder).stderr


def _relinked(clone: Clone) -> None:
    clone.program("other")
    (clone.folder / "evilpy").unlink()
    (clone.folder / "evilpy").symlink_to("other")


def _moved(clone: Clone) -> None:
    clone.folder.rename(clone.folder.with_name("moved"))
    os.chdir("../moved")


CHANGES: dict[str, Callable[[Clone], object]] = {
    "the file": lambda clone: clone.file.write_text(f"{clone.file.read_text()}# more\n"),
    "the program": lambda clone: clone.program("evilpy", "# more"),
    "another link": _relinked,
    "the file's place": _moved,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_consent_ends_with_what_it_was_given_for(change: str, clone: Clone, run: Run) -> None:
    run("trust")
    assert ASKS not in run("status").stderr
    assert clone.started()
    CHANGES[change](clone)
    assert ASKS in run("status").stderr
    assert not clone.started()
    run("trust")
    assert ASKS not in run("revert").stderr


def test_the_folder_of_a_linked_interpreter_is_part_of_it(clone: Clone, run: Run) -> None:
    for name in ("good", "evil"):
        (clone.folder / name / "bin").mkdir(parents=True)
        (clone.folder / name / "bin/python").symlink_to(sys.executable)
    env = clone.folder / "env"
    env.symlink_to("good")
    clone.file.write_text('python = "./env"\n')
    assert f"a symbolic link to {os.path.realpath(sys.executable)}" in run("trust").stdout
    assert ASKS not in run("status").stderr
    env.unlink()
    env.symlink_to("evil")
    assert ASKS in run("status").stderr


def test_an_interpreter_on_the_nodes_of_a_cluster_is_not_started_here(clone: Clone, run: Run) -> None:
    clone.file.write_text('python = "/nodes/bin/python"\n')
    assert "/nodes/bin/python" in run("trust").stdout
    assert "/nodes/bin/python" in run("status", code=2).stderr


def test_config_names_interpreters_that_are_not_trusted(clone: Clone, run: Run) -> None:
    said = run("config").stdout
    assert f"not trusted yet: {clone.folder}/evilpy\nnext: rlpatch trust {clone.file}\n" in said
    assert json.loads(run("config", "--json").stdout)["result"]["untrusted"] == [f"{clone.folder}/evilpy"]
    run("trust")
    assert "trust" not in run("config").stdout


def _linked(record: Path) -> None:
    record.rename(record.with_name("other"))
    record.symlink_to("other")


def _piped(record: Path) -> None:
    record.unlink()
    os.mkfifo(record)


SPOILT: dict[str, Callable[[Path], object]] = {
    "a link": _linked,
    "other users can write to the file": lambda record: record.chmod(0o666),
    "others may write the folder": lambda record: record.parent.chmod(0o777),
    "a pipe": _piped,
    "empty": lambda record: record.write_text(""),
    "noise": lambda record: record.write_bytes(os.urandom(4096)),
}
if os.geteuid() == 0:
    SPOILT |= {
        "another user's": lambda record: os.chown(record, 65534, 65534),
        "in another user's folder": lambda record: os.chown(record.parent, 65534, 65534),
    }


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_others_may_have_written_is_no_consent(spoil: str, clone: Clone, run: Run, tmp_path: Path) -> None:
    run("trust")
    (record,) = (tmp_path / "state/rlpatch/trusted").iterdir()
    assert (record.stat().st_mode & 0o777, record.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    SPOILT[spoil](record)
    assert ASKS in run("status").stderr
    assert not clone.started()
    code = 5 if "folder" in spoil else 0
    assert ("can write to the folder" in run("trust", code=code).stderr) == bool(code)
