"""Targets of another machine, whose files are read in a copy."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from patcher.messages.errors import Problem
from patcher.targets.patched import PatchedRoot, patched
from patcher.targets.target import Discovery, Project, Target
from tests.alarms import at_most

TOY = Project("toy", "toy", ("toy",), files=("toy/worker.py",))
MARKED = b"x = 1  # not of rlpatch but by hand\n"


def test_paths_are_those_of_the_other_machine_and_bytes_those_of_the_copy(tmp_path: Path) -> None:
    package = tmp_path / "site" / "toy"
    package.mkdir(parents=True)
    (package / "worker.py").write_bytes(MARKED)
    target = Target(TOY, "1.0", Path("/site"), "wheel", "", "", mirror=tmp_path)
    assert (target.root, target.folder) == (Path("/site"), tmp_path / "site")
    assert target.read(PurePosixPath("toy/worker.py")) == MARKED
    assert target.exists(PurePosixPath("toy/worker.py"))
    assert target.beside("toy")
    with pytest.raises(Problem):
        target._replace(mirror=None).read(PurePosixPath("toy/worker.py"))
    root = PatchedRoot(Path("/site"), (target,), (), TOY.files, False, tmp_path)
    assert root.marked() == {"toy/worker.py": MARKED}
    assert patched(Discovery((target,), (), (), (), tmp_path)) == []


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    os.mkfifo(tmp_path / "toy/worker.py")
    with at_most(5):
        assert not Discovery((Target(TOY, "1.0", tmp_path, "wheel", "", ""),), (), (), ()).may_be_patched
