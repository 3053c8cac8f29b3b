"""The command line of a bundle: what is typed, what comes out for people and for programs, and with which code."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from patcher.bundle import line, plans, steps
from patcher.bundle.plans import Bundle
from patcher.messages.report import CommandResult
from tests.interpreters import interpreter
from tests.patcher.cli.conftest import SOURCE, WORKER, release


class Said(NamedTuple):
    """What a command line has printed."""

    code: int
    out: str
    err: str


Typed = Callable[..., Said]


@pytest.fixture
def typed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command line of the bundle in this process."""
    monkeypatch.setattr(pkgutil, "get_data", lambda _package, _name: plans.text_of(bundle))
    monkeypatch.setattr(sys, "argv", ["patch.pyz"])
    monkeypatch.setattr(line, "_words", lambda: "python3 patch.pyz")

    def run(*words: object) -> Said:
        code = line.main(list(map(str, words)))
        return Said(code, *capfd.readouterr())

    return run


def test_version_of_a_bundle_is_that_of_the_rlpatch_that_made_it(
    typed: Typed, bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        typed("-V")
    assert (ended.value.code, capfd.readouterr().out) == (0, f"rlpatch {bundle.tool}\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "the following arguments are required: COMMAND\n  next: python3 patch.pyz --help"),
        (("nonsense",), 2, "invalid choice: 'nonsense'"),
        (("apply", "--nonsense"), 2, "unrecognized arguments: --nonsense\n  next: python3 patch.pyz --help"),
        (("prepare", "job"), 2, "invalid choice: 'prepare'"),
        (
            ("status", "--path", "site", "--python", "python3"),
            2,
            "--path and --python cannot be combined: both say where to look",
        ),
        (("status", "--path", "nowhere"), 3, "the folder nowhere does not exist"),
        (("status", "--python", "nowhere"), 2, "the interpreter nowhere does not exist"),
        (("apply", "--path", "."), 3, "vllm-ascend (package vllm_ascend) is not installed here\n  at --path ."),
    ],
)
def test_what_cannot_be_done_is_said_with_the_code_of_rlpatch(
    typed: Typed, site: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    found = typed(*words)
    assert (found.code, said in found.err) == (code, True), found.err
    document = json.loads(typed(*words, "--json").out)
    assert (document["exit_code"], document["problems"][0]["exit_code"]) == (code, code)


def test_each_host_prints_one_line_of_json(typed: Typed, site: Path) -> None:
    for words in (("apply",), ("status",), ("diff",), ("revert",), ("recover",)):
        found = typed(*words, "--json", "--path", site)
        (text,) = found.out.splitlines()
        document = json.loads(text)
        assert document["host"] == os.uname().nodename
        assert set(CommandResult("status").envelope()) == document.keys() - {"host"}
        assert (document["command"], document["exit_code"], found.code) == (words[0], 0, 0)


def test_commands_of_rlpatch_are_said_as_they_can_be_typed_here(typed: Typed, site: Path) -> None:
    assert typed("apply", "--path", site).code == 0
    (site / WORKER).write_text(SOURCE)
    assert (
        "the file was replaced and no longer has this patch (to make rlpatch forget the patch: python3 patch.pyz revert)"
        in typed("status", "--path", site).out
    )
    assert f"`python3 patch.pyz diff --path {site}` shows every inserted line" in typed("apply", "--path", site).out


def test_a_diff_is_bytes_and_quiet_is_quiet(typed: Typed, site: Path) -> None:
    diff = typed("diff", "--planned", "--path", site)
    assert diff.out.startswith(f"diff --git a/{WORKER} b/{WORKER}\n")
    assert diff.err == ""
    assert typed("apply", "-q", "--path", site) == Said(0, "", "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (PermissionError(13, "no", "/x/y"), 5, "y cannot be read: permission denied"),
        (OSError(28, "No space left on device", b"/x"), 5, "No space left on device\n  at /x"),
        (
            RuntimeError("odd"),
            1,
            "RuntimeError: odd\n  next: please report this; add -v to the command to see the traceback",
        ),
    ],
)
def test_a_failure_prints_no_traceback_without_verbose(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(_machine: steps.Machine) -> CommandResult:
        raise error

    monkeypatch.setattr(steps, "recover", fail)
    found = typed("recover")
    assert (found.code, said in found.err) == (code, True), found.err
    if code == 1:
        with pytest.raises(RuntimeError):
            typed("recover", "-v")


def test_the_help_tells_what_is_inside(typed: Typed, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed("--help")
    shown = capfd.readouterr().out
    assert re.search(r"vllm-ascend rollout on 0\.11\.0rc1: --decode 30:60 .*\n.* on 0\.10\.2rc1", shown)


def ran(python: object, pyz: Path, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "zh_CN.UTF-8"}  # it is English all the same
    return subprocess.run(
        [str(word) for word in (python, pyz, *words)], cwd=cwd, env=environ, capture_output=True, text=True
    )


def test_the_file_runs_without_anything_that_is_installed(pyz: Path, site: Path, tmp_path: Path) -> None:
    """Also in a folder whose modules have the names of ours, and on a release that only a library could compare."""
    (tmp_path / "patcher.py").write_text("raise ImportError('not this one')\n")
    (site / "vllm_ascend-0.11.0rc1.dist-info" / "METADATA").write_text(
        "Name: vllm-ascend\nVersion: 0.11.0rc1.dev0+g1\n"
    )
    (site / "vllm_ascend" / "_version.py").write_text("__version__ = '0.11.0rc1'\n")
    command = [sys.executable, "-I", "-S", str(pyz), "apply", "--json", "--path", str(site)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "# >>> rlpatch vllm-ascend rollout" in (site / WORKER).read_text()


CYCLE = (
    "status", "diff --planned", "apply -n", "apply", "apply", "status", "diff", "revert", "recover", "status",
)  # fmt: skip


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A version and a Python of it, found before PATH is emptied for the test."""
    return request.param, interpreter(request.param)


@pytest.mark.engine
@pytest.mark.parametrize("python", ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"], indirect=True)
def test_every_python_runs_it(pyz: Path, site: Path, tmp_path: Path, python: tuple[str, Path]) -> None:
    for words in CYCLE:
        done = ran(python[1], pyz, *words.split(), "--path", "site", "--json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stderr)
        assert json.loads(done.stdout)["command"] == words.split()[0]
    assert (site / WORKER).read_text() == SOURCE
    assert not (site / ".rlpatch").exists()


@pytest.mark.engine
def test_a_bundle_searches_the_environment_of_its_interpreter(pyz: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    release(site)
    for command in ("apply", "revert"):
        done = ran(python, pyz, command, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert str(site) in done.stdout
    named = ran(sys.executable, pyz, "apply", "--python", python, cwd=tmp_path)
    assert f"patched {WORKER}" in named.stdout, named.stderr


@pytest.mark.engine
@pytest.mark.parametrize("python", ["2.7", "3.6", "3.7"], indirect=True)
def test_a_python_that_is_too_old_says_so(pyz: Path, tmp_path: Path, python: tuple[str, Path]) -> None:
    done = ran(python[1], pyz, "apply", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr == (
        f"Error: not possible in this environment: this is Python {python[0]}, and a bundle needs 3.8 or newer\n"
        "  next: run it with a newer Python, and name the folder of this Python's packages: --path DIR\n"
    )
