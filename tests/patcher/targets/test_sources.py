from __future__ import annotations

import os
from pathlib import Path

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.targets import sources
from tests.patcher.targets.trees import write


def refusal(file: Path) -> Problem:
    with pytest.raises(Problem) as raised:
        sources.read(file)
    return raised.value


@pytest.mark.parametrize(
    ("beside", "source", "says"),
    [
        ("m.cpython-311-x86_64-linux-gnu.so", True, "Python loads m.cpython-311-x86_64-linux-gnu.so instead"),
        ("m.abi3.so", True, "Python loads m.abi3.so instead"),
        ("m.pyd", True, "Python loads m.pyd instead"),
        ("m.so", False, "only m.so exists"),
        ("m.pyc", False, "only m.pyc exists"),
        ("m/__init__.py", True, "Python loads m instead"),
    ],
)
def test_what_python_loads_in_place_of_the_source(tmp_path: Path, beside: str, source: bool, says: str) -> None:
    write(tmp_path / beside)
    file = tmp_path / "m.py"
    if source:
        write(file)
    problem = refusal(file)
    assert (problem.kind, says in problem.cause) == (Kind.ENVIRONMENT, True)
    assert sources.module_exists(file)


@pytest.mark.parametrize("beside", ["m2.so", "m.pyc", "m/data.txt", "mm/__init__.py", "m.py.orig", "m.json"])
def test_what_python_does_not_load(tmp_path: Path, beside: str) -> None:
    write(tmp_path / beside)
    write(tmp_path / "m.py", "x\r\n")
    assert sources.read(tmp_path / "m.py") == b"x\r\n"


def test_a_package_of_that_name_is_not_the_module(tmp_path: Path) -> None:
    """``worker.py`` of one release is ``worker/__init__.py`` in the next: that is another structure."""
    write(tmp_path / "worker/__init__.py")
    assert not sources.module_exists(tmp_path / "worker.py")
    assert refusal(tmp_path / "worker.py").kind is Kind.STRUCTURE
    assert refusal(tmp_path / "gone" / "worker.py").kind is Kind.STRUCTURE


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "broken.py").symlink_to("nothing")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("loop.py", "broken.py", "folder.py", "pipe.py"):
        problem = refusal(tmp_path / name)
        assert (problem.kind, problem.cause) == (
            Kind.ENVIRONMENT,
            f"{name} is neither a regular file nor a link to a regular file",
        )
        assert problem.where == str(tmp_path / name)


def test_a_link_to_a_source_is_read(tmp_path: Path) -> None:
    write(tmp_path / "real.py", "x")
    (tmp_path / "link.py").symlink_to("real.py")
    assert sources.read(tmp_path / "link.py") == b"x"
