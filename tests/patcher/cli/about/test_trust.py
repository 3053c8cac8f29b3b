"""Consent by ``rlpatch trust``, and where it is refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from patcher.cli import rlpatch


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rlpatch.toml"
    path.write_text(f'python = "{sys.executable}"\n')
    return path


def trust(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(rlpatch, ["trust", *map(str, words)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_trust_names_the_interpreters_and_can_be_taken_back(file: Path) -> None:
    assert trust().startswith(f"trusted: {file}\n  rlpatch is allowed to start {sys.executable}")
    assert json.loads(trust(file, "--json"))["result"] == {"file": str(file), "interpreters": [sys.executable]}
    assert trust("--remove", file.relative_to(Path.cwd())) == f"no longer trusted: {file}\n"
    assert trust("--remove") == f"no trust to remove: {file} is not trusted\n"


def _many(file: Path) -> None:
    file.write_text("".join(f'[presets.p{number}]\npython = "python{number}"\n' for number in range(17)))


@pytest.mark.parametrize(
    ("words", "change", "code", "named"),
    [
        ((), lambda file: file.write_text('decode = "1:2"'), 0, "{file}"),
        ((), Path.unlink, 2, ""),
        ((), lambda file: file.write_text("python = 1:2"), 2, "{file}:1"),
        ((), lambda file: file.chmod(0o666), 2, "rlpatch.toml"),
        ((), _many, 2, "17"),
        (("other.toml",), str, 2, "other.toml"),
        (("nowhere/rlpatch.toml",), str, 2, "rlpatch.toml"),
        ((), lambda file: (file.parent / "state").write_text(""), 5, "state"),
    ],
)
def test_trust_refuses_a_file_without_an_interpreter_to_trust(
    words: tuple[str, ...], change: Callable[[Path], object], code: int, named: str, file: Path
) -> None:
    change(file)
    assert named.format(file=file) in trust(*words, code=code)


@pytest.mark.skipif(os.geteuid() != 0, reason="root may read everything")
def test_a_program_that_is_too_large_is_not_read(file: Path) -> None:
    program = file.with_name("large")
    program.touch(0o755)
    os.truncate(program, 3 << 30)
    file.write_text('python = "./large"\n')
    assert str(program) in trust(code=5)
