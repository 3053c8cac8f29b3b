"""A release is downloaded by pip and unpacked: a wheel, or an archive whose build never runs."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from patcher.messages.errors import Kind, Problem
from patches.survey.download import download, published_versions
from tests.matrix import MATRIX

METADATA = "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
FILES = {"toy/__init__.py": "", "toy/worker.py": "class Worker: pass\n", "toy/large.py": "#" * 100, "other/x.py": ""}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


def wheel(index: Path, name: str) -> None:
    info = f"{name}-1.0.dist-info"
    about = {
        f"{info}/METADATA": METADATA.replace("toy", name),
        f"{info}/WHEEL": "Wheel-Version: 1.0\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in {**FILES, **about}.items():
            archive.writestr(path, text)


def source_archive(index: Path, ran: Path) -> None:
    setup = f"open({str(ran)!r}, 'w').close()\n"
    with tarfile.open(index / "toy-1.0.tar.gz", "w:gz") as archive:
        for path, text in {**FILES, "PKG-INFO": METADATA, "setup.py": f"import setuptools\n{setup}"}.items():
            member = tarfile.TarInfo(f"toy-1.0/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def fetched(folder: Path, *names: str, parts: tuple[str, ...] = ()) -> set[str]:
    folder.mkdir()
    download(names or ("toy",), "1.0", folder, prefixes=parts, keep=lambda _path, size: size < 100)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def test_what_a_wheel_has_in_its_data_lies_where_it_is_installed(index: Path, tmp_path: Path) -> None:
    wheel(index, "toy")
    with zipfile.ZipFile(index / "toy-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("toy-1.0.data/purelib/toy/pure.py", "")
        archive.writestr("toy-1.0.data/scripts/toy.py", "")
    assert fetched(tmp_path / "parts", parts=("toy/",)) == {"toy/__init__.py", "toy/worker.py", "toy/pure.py"}


def test_a_wheel_is_unpacked_but_for_what_is_not_wanted(index: Path, tmp_path: Path) -> None:
    wheel(index, "toy")
    assert fetched(tmp_path / "all") == {"toy/__init__.py", "toy/worker.py", "other/x.py"}
    assert fetched(tmp_path / "parts", parts=("toy/w", "toy-")) == {"toy/worker.py"}
    assert (tmp_path / "parts/toy-1.0.dist-info/METADATA").is_file()


@MATRIX
def test_without_a_wheel_the_archive_is_unpacked_and_its_build_does_not_run(index: Path, tmp_path: Path) -> None:
    source_archive(index, tmp_path / "ran")
    assert fetched(tmp_path / "out", parts=("toy/", "PKG-INFO")) == {"toy/__init__.py", "toy/worker.py"}
    assert (tmp_path / "out/PKG-INFO").read_text() == METADATA
    assert not (tmp_path / "ran").exists()


@MATRIX
def test_the_first_name_that_has_the_release_is_taken(index: Path, tmp_path: Path) -> None:
    wheel(index, "toy_cpu")
    assert "toy/worker.py" in fetched(tmp_path / "out", "toy", "toy-cpu")


@MATRIX
def test_what_nobody_has_is_a_problem_with_the_next_command(index: Path, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"toy 1\.0 cannot be downloaded: no package index answers") as caught:
        fetched(tmp_path / "out")
    assert caught.value.kind is Kind.ENVIRONMENT
    assert "--path DIR" in caught.value.hint


def test_the_index_is_asked_for_every_version(index: Path) -> None:
    wheel(index, "toy")
    (index / "toy-1.1rc1-py3-none-any.whl").write_bytes((index / "toy-1.0-py3-none-any.whl").read_bytes())
    assert published_versions("toy") == ("1.1rc1", "1.0")


def test_an_index_that_does_not_answer_is_not_one_without_news(index: Path) -> None:
    with pytest.raises(Problem, match="no package index answers, or no index has toy") as caught:
        published_versions("toy")
    assert caught.value.hint.endswith("-m pip index versions --pre --retries=2 toy")


def test_where_rlpatch_has_no_pip_that_of_python3_is_taken(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(index, "toy")
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr("patches.survey.download._pip_is_here", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with monkeypatch.context() as alone:
        alone.setattr("patches.survey.download.sys.executable", "/nowhere/python")
        assert published_versions("toy") == ("1.0",)
    monkeypatch.setenv("PATH", str(index))
    with pytest.raises(
        Problem, match="pip, which downloads the release, is neither beside rlpatch nor beside a"
    ) as caught:
        published_versions("toy")
    assert caught.value.hint == "uv pip install pip, or uvx --with pip …"


def test_setuptools_keeps_its_distutils_where_pip_is_looked_for(index: Path) -> None:
    wheel(index, "toy")
    code = "from patches.survey.download import published_versions; published_versions('toy'); import setuptools"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
