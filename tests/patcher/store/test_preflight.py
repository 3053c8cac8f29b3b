"""Obstacles to a change: refused with the reason, and nothing is written."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from patcher.changes.change import Change, Edit
from patcher.messages.errors import Kind, Problem
from patcher.store import transaction as store
from tests.patcher.store.refusals import fails
from tests.patcher.store.tree import (
    PRISTINE,
    WORKER,
    applying,
    install,
    picture,
    record,
    reverting,
)


def _zipped(root: Path) -> list[Edit]:
    archive = root / "pkg.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr("pkg/worker.py", PRISTINE)
    return [Edit(archive, (), add=(record(),))]


def _compiled(name: str):
    def make(root: Path) -> list[Edit]:
        (root / "pkg" / name).write_bytes(b"\x7fELF")
        return [applying(root)]

    return make


def _shadowed(root: Path) -> list[Edit]:
    (root / "pkg" / "worker").mkdir()
    (root / "pkg" / "worker" / "__init__.py").write_bytes(b"")
    return [applying(root)]


def _loop(root: Path) -> list[Edit]:
    (root / "loop").symlink_to("loop")
    return [Edit(root, (Change(PurePosixPath("loop/worker.py"), b"", b"x", b""),))]


def _folder_outside(root: Path) -> list[Edit]:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "worker.py").write_bytes(PRISTINE)
    (root / "away").symlink_to(outside)
    return [applying(root, path=PurePosixPath("away/worker.py"))]


def _fifo(root: Path) -> list[Edit]:
    os.mkfifo(root / "pkg" / "pipe.py")
    return [Edit(root, (Change(PurePosixPath("pkg/pipe.py"), b"", b"x", b""),))]


def _linked_cache(root: Path) -> list[Edit]:
    (root / "pkg" / "__pycache__").rename(root.parent / "elsewhere")
    (root / "pkg" / "__pycache__").symlink_to(root.parent / "elsewhere")
    return [applying(root)]


def _store_is_a_link(root: Path) -> list[Edit]:
    (root.parent / "outside").mkdir()
    (root / ".rlpatch").symlink_to(root.parent / "outside")
    return [applying(root)]


def _store_is_a_file(root: Path) -> list[Edit]:
    (root / ".rlpatch").write_bytes(b"")
    return [applying(root)]


def _inner_link(name: str):
    def make(root: Path) -> list[Edit]:
        secret = root.parent / "secret"
        secret.write_bytes(b"secret")
        edit = applying(root)
        store.commit([edit])
        (root / ".rlpatch" / name).unlink(missing_ok=True)
        (root / ".rlpatch" / name).symlink_to(secret)
        return [reverting(root)]

    return make


def _inner_folder(root: Path) -> list[Edit]:
    (root / ".rlpatch" / "state.json").mkdir(parents=True)
    return [applying(root)]


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        (_zipped, "zipped"),
        (_compiled("worker.cpython-311-x86_64-linux-gnu.so"), "imports worker.cpython"),
        (_compiled("worker.abi3.so"), "imports worker.abi3.so"),
        (_compiled("worker.pyd"), "imports worker.pyd"),
        (_shadowed, "imports worker instead"),
        (_loop, "symbolic links"),
        (_folder_outside, "leads out of /"),
        (_fifo, "not a regular file"),
        (_linked_cache, "bytecode folder is a symlink"),
        (_store_is_a_link, "is a link or a file, not a folder"),
        (_store_is_a_file, "is a link or a file, not a folder"),
        (_inner_link("state.json"), "not a regular file"),
        (_inner_link("journal.json"), "not a regular file"),
        (_inner_link("lock"), "lock file is a symlink"),
        (_inner_folder, "not a regular file"),
    ],
)
def test_an_obstacle_is_refused_with_its_reason_and_writes_nothing(root: Path, arrange, words: str) -> None:
    edits = arrange(root)
    before = picture(root.parent)
    fails(Kind.ENVIRONMENT, edits, words)
    after = picture(root.parent)
    ours = {"site-packages/.rlpatch", "site-packages/.rlpatch/lock"}  # a store that was there is locked first
    assert {key: after[key] for key in after if key not in ours} == {
        key: before[key] for key in before if key not in ours
    }


def test_another_module_with_a_longer_name_does_not_count_as_compiled(root: Path) -> None:
    (root / "pkg" / "worker_v1.abi3.so").write_bytes(b"")
    (root / "pkg" / "worker").mkdir()  # a folder without __init__.py loses against worker.py
    store.commit([applying(root)])


def test_a_module_compiled_after_the_apply_does_not_stop_the_revert(root: Path) -> None:
    store.commit([applying(root)])
    (root / "pkg" / "worker.abi3.so").write_bytes(b"")
    store.commit([reverting(root)])
    assert (root / WORKER).read_bytes() == PRISTINE


@pytest.mark.parametrize("name", ["pkg/worker.py", "pkg", "pkg/__pycache__", "."])
def test_a_read_only_path_is_refused(root: Path, name: str, monkeypatch) -> None:
    closed = root if name == "." else root / name
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and real(path, mode))
    before = picture(root)
    fails(Kind.ENVIRONMENT, [applying(root)], "no permission", str(closed))
    assert picture(root) == before


def test_a_file_of_somebody_else_is_refused(root: Path, monkeypatch) -> None:
    uid = os.getuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    before = picture(root)
    fails(Kind.ENVIRONMENT, [applying(root)], f"belongs to user {uid}")
    assert picture(root) == before


@pytest.mark.parametrize("name", ["site", "a b"])
def test_a_file_that_is_mounted_is_refused_by_the_name_of_its_mount(tmp_path: Path, name: str) -> None:
    root = install(tmp_path / name)
    shutil.copyfile(root / WORKER, tmp_path / "one.py")
    if subprocess.run(["mount", "--bind", tmp_path / "one.py", root / WORKER], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        for call in (store.preflight, store.commit):
            with pytest.raises(Problem, match=r"the file is mounted from .*one\.py") as caught:
                call([applying(root)])
            assert caught.value.kind is Kind.ENVIRONMENT
            assert caught.value.where == str(root / WORKER)
            assert "rlpatch run" in caught.value.hint
        assert not (root / ".rlpatch").exists()
    finally:
        subprocess.run(["umount", root / WORKER], check=True)
