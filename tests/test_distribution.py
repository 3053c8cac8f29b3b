"""Distributions: sdist and wheel hold what they should, and `rlpatch demo` runs from the installed wheel."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from fixtures.environments import uv
from fixtures.releases import release
from patcher import __version__
from tests.matrix import MATRIX

pytestmark = MATRIX


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, made of the files that git knows."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([uv(), "build", "--quiet", "--out-dir", folder, REPOSITORY], check=True)
    return folder


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"rlpatch-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    manual = f"rlpatch-{__version__}.data/data/share/man/man1/rlpatch.1"
    folders = {name.partition("/")[0] for name in names if name != manual}
    assert folders == {"patcher", "patches", f"rlpatch-{__version__}.dist-info"}
    assert {manual, "patcher/messages/zh.po", "patcher/skill/SKILL.md"} <= {*names}
    sources = {
        str(path.relative_to(REPOSITORY))
        for package in ("patcher", "patches")
        for path in (REPOSITORY / package).rglob("*.py")
    }
    assert sources == {name for name in names if name.endswith(".py")}


def test_whoever_has_the_sdist_can_build_and_test(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py", "fixtures/cache.py"} <= names
    assert not [name for name in names if name.startswith((".cache", ".venv", ".ci", ".github"))]


def test_the_demo_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    subprocess.run([uv(), "venv", "--quiet", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([uv(), "pip", "install", "--quiet", "--python", python, wheel], check=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python.with_name("rlpatch")), "demo", "--path", str(release("0.11.0rc1"))]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("again: every byte, mode and time is the same as before the patch.\n")
