"""Local edits are seen: against the wheel's RECORD, and against git's HEAD."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from patcher.targets import find, originals
from tests.patcher.targets.trees import ASCEND, commit, repository, wheel, write

WORKER = PurePosixPath("vllm_ascend/worker.py")


def record(root: Path, line: str) -> None:
    (info,) = root.glob("*.dist-info")
    write(info / "RECORD", f"vllm_ascend/__init__.py,,\n{line}\n")


@pytest.mark.parametrize(
    ("line", "differs"),
    [
        # sha256 of b"x = 1\n", as a wheel's RECORD writes it
        ("vllm_ascend/worker.py,sha256=nia_NpkRxFwkPGhBR7I_yeHc_PJX0pmhxjIBam_NM_Q,6", False),
        ("vllm_ascend/worker.py,sha256=AAAA,6", True),
        ("vllm_ascend/worker.py,,", False),
        ("vllm_ascend/other.py,sha256=AAAA,6", False),
    ],
)
def test_a_file_that_differs_from_the_record_of_its_wheel_is_told(tmp_path: Path, line: str, differs: bool) -> None:
    wheel(tmp_path)
    write(tmp_path / WORKER, "x = 1\n")
    record(tmp_path, line)
    target = find.find(ASCEND, paths=[tmp_path])
    assert bool(originals.difference_note(target, WORKER, b"x = 1\n")) is differs


def test_a_wheel_without_a_record(tmp_path: Path) -> None:
    wheel(tmp_path)
    target = find.find(ASCEND, paths=[tmp_path])
    for name in tmp_path.glob("*.dist-info/RECORD"):
        name.unlink()
    assert originals.difference_note(target, WORKER, b"x = 1\n") is None


def test_a_file_that_differs_from_git_is_told(tmp_path: Path) -> None:
    repository(tmp_path, tag="v0.11.0rc1")
    write(tmp_path / WORKER, "x = 1\n")
    commit(tmp_path)
    target = find.find(ASCEND, paths=[tmp_path])
    assert originals.difference_note(target, WORKER, b"x = 1\n") is None
    differing = originals.difference_note(target, WORKER, b"x = 2\n")
    assert differing == ("worker.py has uncommitted changes", f"{WORKER} differs from git's HEAD")
    assert originals.difference_note(target, PurePosixPath("vllm_ascend/new.py"), b"") is None
