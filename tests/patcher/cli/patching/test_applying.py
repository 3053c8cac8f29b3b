"""Next commands that `apply` prints: they lead to what was patched, from wherever they are typed."""

from __future__ import annotations

import re
import shlex
import venv
from pathlib import Path

import pytest

from tests.patcher.cli.conftest import WORKER

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")


def revert_of(said: str) -> list[str]:
    (typed,) = re.findall(r"`rlpatch (revert [^`]*)`", said)
    return shlex.split(typed)


def environment(folder: Path) -> Path:
    """The site-packages of a new environment."""
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return packages


@pytest.mark.parametrize("activated", [False, True])
def test_the_revert_that_is_printed_works_from_anywhere(
    run, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activated: bool
) -> None:
    where: tuple[str, ...] = ("--path", "site")
    worker = site / WORKER
    if activated:
        packages = environment(tmp_path / "venv")
        for folder in site.iterdir():
            folder.rename(packages / folder.name)
        where, worker = (), packages / WORKER
        monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    before = worker.read_bytes()
    said = run(*APPLY, *where).stdout
    assert worker.read_bytes() != before

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert "reverted" in run(*revert_of(said)).stdout
    assert worker.read_bytes() == before


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (("--python", "venv"), ("--python", "{base}/venv/bin/python")),
        (("--path", "other/../site"), ("--path", "{base}/site")),
        ((), ("--path", "{base}/site")),
    ],
)
def test_options_that_depend_on_the_shell_are_not_printed_again(
    run, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    (tmp_path / "other").mkdir()
    if typed[:1] == ("--python",):
        (environment(tmp_path / "venv") / "site.pth").write_text(f"{site}\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))
    assert revert_of(run(*APPLY, *typed).stdout)[2:] == [word.format(base=tmp_path) for word in shown]
