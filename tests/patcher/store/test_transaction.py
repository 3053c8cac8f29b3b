from __future__ import annotations

import errno
import json
import os
import py_compile
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath

import pytest

from patcher.changes.change import Change, Edit
from patcher.messages.errors import Kind, Problem
from patcher.store import journal
from patcher.store import transaction as store
from patcher.store.filesystem import files, lock
from patcher.store.filesystem.opened import Opened
from patcher.store.filesystem.rights import PathState
from patcher.store.folder import StoreFolder
from tests.patcher.store.refusals import fails
from tests.patcher.store.tree import (
    OLD,
    OURS,
    PRISTINE,
    ROLLOUT,
    UPDATE,
    WORKER,
    age,
    applying,
    backup,
    install,
    patched,
    picture,
    record,
    reverting,
)

V1 = PurePosixPath("pkg/worker_v1.py")


# --- the happy path -------------------------------------------------------------------------------------


def test_apply_writes_the_bytes_keeps_mode_and_owner_and_registers(root: Path) -> None:
    outcome = store.commit([applying(root)])
    status = (root / WORKER).stat()
    assert outcome.written == (root / WORKER,)
    assert (root / WORKER).read_bytes() == patched()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o640, os.getuid())
    assert status.st_mtime_ns > OLD + 10**9
    assert [one.patch for one in StoreFolder(root).records()] == [ROLLOUT]
    assert backup(root) == PRISTINE
    assert not StoreFolder(root).unfinished()
    assert (root / ".rlpatch" / ".gitignore").read_bytes() == b"*\n"


def test_revert_restores_the_whole_tree(root: Path) -> None:
    before = picture(root)
    store.commit([applying(root)])
    store.commit([applying(root, b"second = 1  # rlpatch\n")])
    python_compiles = root / "pkg" / "__pycache__" / "worker.cpython-399.pyc"
    python_compiles.write_bytes(b"compiled from the patched source")
    (root / "pkg" / "__pycache__" / "worker.cpython-310.pyc").write_bytes(b"so is this")
    store.commit([reverting(root)])
    assert picture(root) == before
    assert [path.name for path in root.rglob("*.pyc")] == ["worker_v1.cpython-311.pyc"]


def test_all_bytecode_of_the_file_is_removed_and_no_other(root: Path) -> None:
    store.commit([applying(root)])
    assert [path.name for path in root.rglob("*.pyc")] == ["worker_v1.cpython-311.pyc"]


def test_a_bytecode_folder_that_was_removed_meanwhile_stays_away(root: Path) -> None:
    store.commit([applying(root)])
    (root / "pkg" / "__pycache__" / "worker_v1.cpython-311.pyc").unlink()
    (root / "pkg" / "__pycache__").rmdir()
    store.commit([reverting(root)])
    assert not (root / "pkg" / "__pycache__").exists()
    assert (root / WORKER).stat().st_mtime_ns == OLD


def test_folder_times_tell_of_files_that_others_added(root: Path) -> None:
    store.commit([applying(root)])
    (root / "pkg" / "theirs.py").write_bytes(b"")
    store.commit([reverting(root)])
    assert (root / "pkg").stat().st_mtime_ns > OLD


def test_two_patches_in_one_file_reverted_in_either_order(root: Path) -> None:
    before = picture(root)
    store.commit([applying(root)])
    both = OURS + b"update = 1  # rlpatch\n"
    store.commit([applying(root, both, UPDATE)])
    assert [one.patch for one in StoreFolder(root).records()] == [ROLLOUT, UPDATE]
    store.commit([Edit(root, (Change(WORKER, patched(both), patched(), PRISTINE),), remove=(UPDATE,))])
    assert (root / WORKER).read_bytes() == patched()
    assert backup(root) == PRISTINE
    store.commit([reverting(root)])
    assert picture(root) == before


@pytest.mark.parametrize("first", [WORKER, V1])
def test_two_files_reverted_one_after_the_other_restore_their_folders(root: Path, first: PurePosixPath) -> None:
    before = picture(root)
    store.commit([applying(root)])
    v1 = (root / V1).read_bytes()
    store.commit([Edit(root, (Change(V1, v1, v1 + OURS, v1),), add=(record(UPDATE, str(V1)),))])
    second = V1 if first == WORKER else WORKER
    for path in (first, second):
        store.commit([reverting(root, ROLLOUT if path == WORKER else UPDATE, path)])
    assert picture(root) == before


def test_replacing_a_patch_keeps_its_place_and_its_pristine_backup(root: Path) -> None:
    store.commit([applying(root)])
    store.commit([Edit(root, (), add=(record(UPDATE),))])
    store.commit([applying(root, b"other = 1  # rlpatch\n")])
    assert [(one.patch, one.options[1]) for one in StoreFolder(root).records()] == [
        (ROLLOUT, "other = 1  # rlpatch\n"),
        (UPDATE, "30:60"),
    ]
    assert backup(root) == PRISTINE


def test_nothing_to_do_writes_nothing(root: Path) -> None:
    clean = picture(root)
    assert store.commit([]) == store.Outcome()
    assert store.commit([Edit(root, (Change(WORKER, PRISTINE, PRISTINE, PRISTINE),))]) == store.Outcome()
    assert picture(root) == clean
    store.commit([applying(root)])
    before = picture(root)
    again = Edit(
        root,
        (Change(WORKER, patched(), patched(), PRISTINE),),
        add=(record(window=OURS.decode(), at="later"),),
    )
    assert store.commit([again]).written == ()
    assert picture(root) == before


def test_reapply_in_the_same_second_still_moves_the_second(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_005)
    seconds = []
    for line in (b"a = 1  # rlpatch\n", b"b = 1  # rlpatch\n"):
        store.commit([applying(root, line)])
        seconds.append((root / WORKER).stat().st_mtime_ns // 10**9)
    assert seconds == [1_700_000_000, 1_700_000_001]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(root: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        store.commit([applying(root)])
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root / ".rlpatch").iterdir()}
    assert stat.S_IMODE((root / ".rlpatch").stat().st_mode) == 0o755
    assert modes.pop("state.json") == modes.pop(".gitignore") == 0o644
    assert modes[files.digest(PRISTINE)] == 0o640  # as its original, which the others may not read
    assert stat.S_IMODE((root / WORKER).stat().st_mode) == 0o640


def test_reading_the_registry_writes_nothing(root: Path) -> None:
    assert StoreFolder(root).records() == ()
    assert StoreFolder(root / "nowhere").records() == ()
    assert (StoreFolder(root).unfinished(), store.recover([root, root / "nowhere"])) == (False, [])
    assert backup(root) is None
    store.commit([applying(root)])
    before = picture(root)
    assert len(StoreFolder(root).records()) == 1
    assert store.recover([root]) == []
    assert picture(root) == before


def test_several_edits_of_one_root_are_one(root: Path) -> None:
    v1 = (root / V1).read_bytes()
    other = Edit(root / "pkg" / "..", (Change(V1, v1, v1 + OURS, v1),), add=(record(UPDATE, str(V1)),))
    store.commit([applying(root), other])
    assert [one.patch for one in StoreFolder(root).records()] == [ROLLOUT, UPDATE]


def test_two_changes_of_one_file_are_a_mistake_of_the_caller(root: Path) -> None:
    before = picture(root)
    with pytest.raises(ValueError, match="two changes of one file"):
        store.commit([applying(root), applying(root)])
    assert picture(root) == before


def test_removing_a_patch_that_is_not_there_is_nothing(root: Path) -> None:
    before = picture(root)
    store.commit([Edit(root, (), remove=(UPDATE,))])
    assert picture(root) == before


# --- hazards --------------------------------------------------------------------------------------------


def test_a_hard_link_into_a_cache_stays_untouched(root: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache.py"
    os.link(root / WORKER, cached)
    store.commit([applying(root)])
    assert cached.read_bytes() == PRISTINE
    assert cached.stat().st_mtime_ns == OLD


def test_a_symlink_into_a_cache_is_replaced_and_put_back(root: Path, tmp_path: Path) -> None:
    cached = tmp_path / "archive-v0" / "worker.py"
    cached.parent.mkdir()
    (root / WORKER).rename(cached)
    (root / WORKER).symlink_to(cached)
    age(root)
    before, outside = picture(root), picture(cached.parent)
    store.commit([applying(root)])
    assert not (root / WORKER).is_symlink()
    assert stat.S_IMODE((root / WORKER).stat().st_mode) == 0o640
    store.commit([applying(root, b"again = 1  # rlpatch\n")])
    store.commit([reverting(root)])
    assert (picture(root), picture(cached.parent)) == (before, outside)


@pytest.mark.parametrize("again", [False, True])
def test_of_a_symlink_into_a_cache_that_was_deleted_the_file_comes_back(
    root: Path, tmp_path: Path, again: bool
) -> None:
    cached = tmp_path / "archive-v0" / "worker.py"
    cached.parent.mkdir()
    (root / WORKER).rename(cached)
    (root / WORKER).symlink_to(cached)
    age(root)
    store.commit([applying(root)])
    if again:
        store.commit([applying(root, b"again = 1  # rlpatch\n")])
    shutil.rmtree(cached.parent)
    now = time.time_ns()
    foreseen = store.preflight([reverting(root)])
    done = store.commit([reverting(root)])
    assert foreseen == done.notes
    assert [note.detail for note in foreseen] == [f"{root / WORKER} -> {cached}"]
    status = (root / WORKER).lstat()
    assert (stat.S_ISREG(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o640)
    assert (root / WORKER).read_bytes() == PRISTINE
    assert status.st_mtime_ns >= now // 1_000_000_000 * 1_000_000_000  # whatever is compiled of it is compiled anew
    assert not list((root / "pkg").rglob("worker.cpython*"))
    assert not (root / ".rlpatch").exists()


def test_a_failed_change_puts_the_symlink_back(root: Path, tmp_path: Path, monkeypatch) -> None:
    cached = tmp_path / "worker.py"
    (root / WORKER).rename(cached)
    (root / WORKER).symlink_to(cached)
    age(root)
    before = picture(root)

    def refuse(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(StoreFolder, "commit", refuse)
    fails(Kind.ROLLED_BACK, [applying(root)], "Input/output error")
    assert picture(root) == before


def test_a_symlink_within_the_root_means_the_file_behind_it(root: Path) -> None:
    (root / "build").mkdir()
    link = root / "build" / "worker.py"
    link.symlink_to("../pkg/worker.py")
    age(root)
    before = picture(root)
    outcome = store.commit([applying(root, path=PurePosixPath("build/worker.py"))])
    assert outcome.written == (root / WORKER,)
    assert link.is_symlink()
    assert backup(root, PurePosixPath("build/worker.py")) == PRISTINE
    store.commit([reverting(root, path=PurePosixPath("build/worker.py"))])
    assert picture(root) == before


def test_a_fresh_interpreter_loads_the_new_code_in_spite_of_unchecked_bytecode(root: Path) -> None:
    source = root / WORKER
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    age(root)
    before = picture(root)

    def loaded() -> str:
        code = "import pkg.worker; print(pkg.worker.value())"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    store.commit([applying(root)])
    assert loaded() == "patched"
    # The bytecode that this interpreter wrote is as unchecked for the next change as Python lets it be.
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    store.commit([reverting(root)])
    assert picture(root) == before
    assert loaded() == "pristine"


def test_bytecode_below_the_prefix_is_removed(root: Path, tmp_path: Path, monkeypatch) -> None:
    prefix = tmp_path / "prefix"
    folder = prefix / str(root / "pkg").lstrip("/")
    folder.mkdir(parents=True)
    for name in ("worker.cpython-311.pyc", "worker_v1.cpython-311.pyc"):
        (folder / name).write_bytes(b"")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(prefix))
    store.commit([applying(root)])
    assert [path.name for path in folder.iterdir()] == ["worker_v1.cpython-311.pyc"]
    (folder / "worker.cpython-311.pyc").write_bytes(b"patched")
    store.commit([reverting(root)])
    assert [path.name for path in folder.iterdir()] == ["worker_v1.cpython-311.pyc"]


NEWER = PRISTINE.replace(b"pristine", b"upgraded")


def test_an_upgraded_file_gets_a_backup_of_its_own(root: Path) -> None:
    store.commit([applying(root)])
    (root / WORKER).unlink()
    (root / WORKER).write_bytes(NEWER)
    age(root / "pkg")
    os.utime(root / WORKER, ns=(OLD + 5, OLD + 5))
    change = Change(WORKER, NEWER, NEWER + OURS, NEWER)
    store.commit([Edit(root, (change,), add=(record(),))])
    assert backup(root) == NEWER
    store.commit([reverting(root)])
    assert (root / WORKER).read_bytes() == NEWER
    assert (root / WORKER).stat().st_mtime_ns == OLD + 5
    assert not (root / ".rlpatch").exists()


def test_a_reinstalled_file_of_equal_bytes_keeps_its_own_time(root: Path) -> None:
    store.commit([applying(root)])
    (root / WORKER).write_bytes(PRISTINE)
    os.utime(root / WORKER, ns=(OLD + 7, OLD + 7))
    store.commit([applying(root)])
    store.commit([reverting(root)])
    assert (root / WORKER).stat().st_mtime_ns == OLD + 7


def test_an_edit_of_others_survives_the_revert_and_gets_no_old_time(root: Path) -> None:
    store.commit([applying(root)])
    theirs = b"theirs = 1\n"
    (root / WORKER).write_bytes(patched() + theirs)
    store.commit([reverting(root)])
    assert (root / WORKER).read_bytes() == PRISTINE + theirs
    assert (root / WORKER).stat().st_mtime_ns > OLD + 10**9
    assert not list(root.rglob("worker.*pyc"))
    assert not (root / ".rlpatch").exists()


def test_an_edit_of_others_under_a_patch_that_stays_renews_the_backup(root: Path) -> None:
    store.commit([applying(root)])
    (root / WORKER).write_bytes(NEWER + OURS)
    change = Change(WORKER, NEWER + OURS, NEWER + b"b = 1  # rlpatch\n", NEWER)
    store.commit([Edit(root, (change,), add=(record(window="1:2"),))])
    assert backup(root) == NEWER


def test_a_record_without_its_file_can_be_removed(root: Path) -> None:
    store.commit([applying(root)])
    (root / WORKER).write_bytes(NEWER)
    store.commit([Edit(root, (), remove=(ROLLOUT,))])
    assert (root / WORKER).read_bytes() == NEWER
    assert not (root / ".rlpatch").exists()


def test_a_revert_that_saw_a_patch_in_one_of_its_files_alone_forgets_none_of_them(root: Path) -> None:
    """It looked while another command put the patch in, and found the marks of the file that was replaced first."""
    before, v1 = picture(root), (root / V1).read_bytes()
    changes = (Change(WORKER, PRISTINE, patched(), PRISTINE), Change(V1, v1, v1 + OURS, v1))
    store.commit([Edit(root, changes, add=(record(ROLLOUT, str(WORKER), str(V1)),))])
    fails(Kind.FOREIGN_EDIT, [reverting(root)], str(root / V1))
    assert (root / WORKER).read_bytes() == patched()
    store.commit(
        [Edit(root, tuple(one._replace(before=one.after, after=one.before) for one in changes), remove=(ROLLOUT,))]
    )
    assert picture(root) == before


def test_a_lost_store_is_made_again_by_the_next_apply(root: Path) -> None:
    import shutil

    store.commit([applying(root)])
    shutil.rmtree(root / ".rlpatch")
    again = Edit(root, (Change(WORKER, patched(), patched(), PRISTINE),), add=(record(),))
    assert store.commit([again]).written == ()
    assert backup(root) == PRISTINE
    store.commit([reverting(root)])
    assert (root / WORKER).read_bytes() == PRISTINE
    assert not (root / ".rlpatch").exists()


def test_lost_backups_do_not_stop_a_revert(root: Path) -> None:
    store.commit([applying(root)])
    for path in (root / ".rlpatch").iterdir():
        if len(path.name) == 64:
            path.write_bytes(b"damaged")
    assert backup(root) is None
    store.commit([reverting(root)])
    assert (root / WORKER).read_bytes() == PRISTINE
    assert (root / WORKER).stat().st_mtime_ns == OLD


def test_foreign_files_in_the_store_are_left_alone(root: Path) -> None:
    store.commit([applying(root)])
    (root / ".rlpatch" / "notes.txt").write_bytes(b"mine")
    store.commit([reverting(root)])
    assert [path.name for path in (root / ".rlpatch").iterdir()] == ["notes.txt"]
    assert not StoreFolder(root).unfinished()


# --- owners and groups --------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_root_keeps_the_owner_of_a_file_and_of_a_link(root: Path) -> None:
    os.chown(root / WORKER, 1234, 2345)
    store.commit([applying(root)])
    assert ((root / WORKER).stat().st_uid, (root / WORKER).stat().st_gid) == (1234, 2345)
    store.commit([reverting(root)])
    assert (root / WORKER).stat().st_uid == 1234
    target = root.parent / "cached.py"
    (root / WORKER).rename(target)
    (root / WORKER).symlink_to(target)
    os.chown(root / WORKER, 1234, 2345, follow_symlinks=False)
    store.commit([applying(root)])
    store.commit([reverting(root)])
    assert ((root / WORKER).is_symlink(), (root / WORKER).lstat().st_uid) == (True, 1234)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])  # EINVAL: a container that does not know the group
@pytest.mark.parametrize(("mode", "narrowed"), [(0o600, 0o600), (0o660, 0o600), (0o644, 0o644), (0o664, 0o644)])
def test_a_group_that_cannot_be_kept_is_not_fatal(root: Path, monkeypatch, number: int, mode: int, narrowed) -> None:
    def refuse(*_args, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "chown", refuse)
    files.put(root / "file", PathState("", None, mode, os.getuid(), os.getgid() + 1), b"x")
    files.put(root / "link", PathState("", "file", 0o777, os.getuid(), os.getgid() + 1), b"")
    assert (root / "link").read_bytes() == b"x"
    assert stat.S_IMODE((root / "file").stat().st_mode) == narrowed


def test_an_owner_that_cannot_be_kept_is(root: Path, monkeypatch) -> None:
    def refuse(*_args, **_options):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(PermissionError):
        files.put(root / "file", PathState("", None, 0o600, os.getuid() + 1, os.getgid()), b"x")
    assert not list(root.rglob(".rlpatch-tmp-*"))
    assert not (root / "file").exists()


@pytest.mark.parametrize("path", [WORKER, PurePosixPath("pkg/gone.py"), PurePosixPath("gone/worker.py")])
def test_a_file_that_is_not_as_planned_is_refused(root: Path, path: PurePosixPath) -> None:
    before = picture(root)
    change = Change(path, PRISTINE + b"stale", PRISTINE + OURS, PRISTINE)
    fails(Kind.FOREIGN_EDIT, [Edit(root, (change,), add=(record(),))], path.name)
    fails(Kind.FOREIGN_EDIT, [Edit(root, (Change(path, b"stale", b"stale", b"stale"),))], path.name)
    assert picture(root) == before


def test_the_bytes_are_compared_again_under_the_lock(root: Path, monkeypatch) -> None:
    edit = applying(root)
    monkeypatch.setattr(store, "preflight", lambda _edits: (root / WORKER).write_bytes(NEWER))
    fails(Kind.FOREIGN_EDIT, [edit])
    assert (root / WORKER).read_bytes() == NEWER
    assert not (root / ".rlpatch").exists()


# --- all or none ----------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [install(tmp_path / name) for name in ("a", "b")]


def test_two_roots_are_one_transaction(two: list[Path]) -> None:
    before = [picture(root) for root in two]
    store.commit([applying(root) for root in reversed(two)])
    assert all((root / WORKER).read_bytes() == patched() for root in two)
    store.commit([reverting(root) for root in two])
    assert [picture(root) for root in two] == before


def test_a_root_with_nothing_to_do_takes_no_part(two: list[Path]) -> None:
    before = picture(two[1])
    nothing = Edit(two[1], (Change(WORKER, PRISTINE, PRISTINE, PRISTINE),))
    store.commit([applying(two[0]), nothing])
    assert picture(two[1]) == before


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), Kind.ROLLED_BACK),
        (KeyboardInterrupt(), Kind.INTERRUPTED),
        (RuntimeError("a mistake of ours"), Kind.ROLLED_BACK),
    ],
)
def test_a_failure_in_the_second_root_brings_the_first_back(two: list[Path], failure, kind, monkeypatch) -> None:
    before = [picture(root) for root in two]
    real = Opened.replace

    def replace(folder, source, target):
        if folder.path / target == two[1] / WORKER:
            raise failure
        real(folder, source, target)

    monkeypatch.setattr(Opened, "replace", replace)
    fails(kind, [applying(root) for root in two])
    assert [picture(root) for root in two] == before


def test_a_file_replaced_by_others_during_the_run_stops_all(two: list[Path], monkeypatch) -> None:
    before = picture(two[0])
    real = Opened.replace

    def replace(folder, source, target):
        real(folder, source, target)
        if folder.path / target == two[0] / WORKER and not (two[1] / WORKER).read_bytes().endswith(b"theirs"):
            (two[1] / WORKER).write_bytes(PRISTINE + b"theirs")

    edits = [applying(root) for root in two]
    monkeypatch.setattr(Opened, "replace", replace)
    fails(Kind.FOREIGN_EDIT, edits, str(two[1] / WORKER))
    assert picture(two[0]) == before
    assert (two[1] / WORKER).read_bytes() == PRISTINE + b"theirs"
    assert not (two[1] / ".rlpatch").exists()


def test_a_failing_rollback_says_recover_and_recover_ends_it(two: list[Path], monkeypatch) -> None:
    before = [picture(root) for root in two]
    real = Opened.replace

    def replace(folder, source, target):
        path = folder.path / target
        if path == two[1] / WORKER or (path == two[0] / WORKER and broken):
            raise OSError(errno.EROFS, "Read-only file system")
        real(folder, source, target)
        broken.append(True) if path == two[0] / WORKER else None

    broken: list[bool] = []
    edits = [applying(root) for root in two]
    with monkeypatch.context() as patch:
        patch.setattr(Opened, "replace", replace)
        problem = fails(Kind.ROLLBACK_INCOMPLETE, edits, "Read-only")
        assert problem.hint == "rlpatch recover"
        with pytest.raises(Problem) as caught:
            store.recover(two)
        assert caught.value.kind is Kind.ROLLBACK_INCOMPLETE
    assert StoreFolder(two[0]).unfinished()
    assert [(one.root, one.forward) for one in store.recover(two)] == [(two[0], False)]
    assert [picture(root) for root in two] == before


def test_an_error_after_the_mark_stops_nothing(two: list[Path], monkeypatch) -> None:
    real = StoreFolder.commit

    def interrupted(folder):
        real(folder)
        raise KeyboardInterrupt

    edits = [applying(root) for root in two]
    monkeypatch.setattr(StoreFolder, "commit", interrupted)
    assert len(store.commit(edits).written) == 2
    assert all(len(StoreFolder(root).records()) == 1 and not StoreFolder(root).unfinished() for root in two)


def test_a_disk_that_fills_up_leaves_nothing(root: Path, monkeypatch) -> None:
    before = picture(root)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    edit = applying(root)
    monkeypatch.setattr(os, "fsync", full)
    fails(Kind.ROLLED_BACK, [edit], "No space left")
    assert picture(root) == before


def test_the_store_and_its_name_are_on_the_disk_before_the_first_file_is_replaced(root: Path, monkeypatch) -> None:
    """What a power cut leaves then, has the journal: also the root, which has got the store only now."""
    done = []

    def fsync(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def put(path: Path, state: PathState, data: bytes) -> None:
        done.append(f"replaces {path}")
        files.put(path, state, data)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal, "put", put)
    store.commit([applying(root)])
    before = done[: done.index(f"replaces {root / WORKER}")]
    assert before[-2:] == [str(root / ".rlpatch"), str(root)]


def test_the_new_name_of_a_file_is_on_the_disk_before_the_mark(root: Path, monkeypatch) -> None:
    """Else a power cut could leave the mark, and the file as it was, or bytecode of it."""
    done = []

    def fsync(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def put(path: Path, state: PathState, data: bytes) -> None:
        files.put(path, state, data)
        done.append("replaced")

    def commit(folder: StoreFolder) -> None:
        done.append("marked")
        real(folder)

    real = StoreFolder.commit
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal, "put", put)
    monkeypatch.setattr(StoreFolder, "commit", commit)
    store.commit([applying(root)])
    package = (root / WORKER).parent
    assert {str(package), str(package / "__pycache__")} <= {*done[done.index("replaced") : done.index("marked")]}


def test_a_file_system_that_syncs_no_folders_is_good_enough(root: Path, monkeypatch) -> None:
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store.commit([applying(root)])
    assert not StoreFolder(root).unfinished()


def test_a_commit_from_a_thread(root: Path) -> None:
    thread = threading.Thread(target=store.commit, args=([applying(root)],))
    thread.start()
    thread.join()
    assert len(StoreFolder(root).records()) == 1


def test_the_registry_is_versioned(root: Path) -> None:
    store.commit([applying(root)])
    path = root / ".rlpatch" / "state.json"
    top = json.loads(path.read_bytes())
    assert top["version"] == 1
    path.write_text(json.dumps({**top, "version": 2}))
    with pytest.raises(Problem, match="format 2, and this rlpatch reads only format 1") as caught:
        StoreFolder(root).records()
    assert "use the newer rlpatch" in caught.value.hint
    assert "move" not in caught.value.hint  # what is in it is not to be lost
    path.write_text(json.dumps({**top, "version": 0}))
    with pytest.raises(Problem, match="its version is 0, this rlpatch reads 1"):
        StoreFolder(root).records()


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda root: files.sync(root), "fsync"),
        (lambda root: store.commit([applying(root)]), "fsync"),
        (lambda root: StoreFolder(root).records(), "open"),
    ],
)
def test_other_errors_of_the_disk_are_not_swallowed(root: Path, monkeypatch, call, where: str) -> None:
    store.commit([Edit(root, (), add=(record(UPDATE),))])

    def broken(*_args, **_options):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, where, broken)
        with pytest.raises((OSError, Problem), match="Input/output error"):
            call(root)


def test_temporary_files_of_a_killed_run_are_recognised(root: Path) -> None:
    (root / "pkg" / ".rlpatch-tmp-0123").write_bytes(b"half")
    files.remove_temporary(root / "pkg")
    files.remove_temporary(root / "nowhere")
    assert not list(root.rglob(".rlpatch-tmp-*"))


def test_a_folder_that_is_gone_has_no_time_to_restore(root: Path) -> None:
    files.rewind(root / "pkg", None)
    files.rewind(root / "nowhere", files.folder_state(root / "pkg"))
    assert not (root / "nowhere").exists()


def test_bytecode_that_vanishes_meanwhile_stops_nothing(root: Path, monkeypatch) -> None:
    monkeypatch.setattr("patcher.store.filesystem.bytecode.beside", lambda _source: [root / "pkg" / "gone.pyc"])
    store.commit([applying(root)])
    assert (root / WORKER).read_bytes() == patched()


def test_bytecode_that_cannot_be_removed_undoes_the_change(root: Path, monkeypatch) -> None:
    before = picture(root)

    def refused(_path):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("patcher.store.journal.remove", refused)
        fails(Kind.ROLLED_BACK, [applying(root)], "Permission denied")
    assert picture(root) == before


def test_a_ctrl_c_while_waiting_changes_nothing(root: Path, monkeypatch) -> None:
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    before = picture(root)
    edit = applying(root)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "hold", stop)
        fails(Kind.INTERRUPTED, [edit])
        (root / ".rlpatch").mkdir()  # as a killed run leaves it
        with pytest.raises(Problem) as caught:
            store.recover([root])
        assert caught.value.kind is Kind.INTERRUPTED
    assert StoreFolder(root).unfinished()
    assert store.recover([root]) == []
    os.utime(root, ns=(OLD, OLD))
    assert picture(root) == before


def test_a_store_that_goes_while_its_lock_is_waited_for_needs_no_recovery(root: Path, monkeypatch) -> None:
    (root / ".rlpatch").mkdir()
    real = lock.hold

    def hold(folder, **options):
        folder.rmdir()
        return real(folder, **options)

    monkeypatch.setattr(lock, "hold", hold)
    assert store.recover([root]) == []


def test_a_store_that_comes_while_a_lock_is_waited_for_is_locked_too(two: list[Path], monkeypatch) -> None:
    (two[1] / ".rlpatch").mkdir()
    real, held = lock.hold, []

    def hold(folder, **options):
        held.append(folder.parent)
        if len(held) == 1:
            (two[0] / ".rlpatch").mkdir()
            (two[1] / ".rlpatch" / "journal.json").write_bytes(b"still there")
        else:
            (two[1] / ".rlpatch" / "journal.json").unlink(missing_ok=True)
        return real(folder, **options)

    monkeypatch.setattr(lock, "hold", hold)
    store.recover(two)
    assert held == [two[1], two[0], two[1]]


def test_a_backup_that_is_lost_during_the_run_is_said(root: Path, monkeypatch) -> None:
    def spoil(folder):
        (folder.path / files.digest(PRISTINE)).unlink()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(StoreFolder, "commit", spoil)
    problem = fails(
        Kind.ROLLBACK_INCOMPLETE,
        [applying(root)],
        "the file cannot be restored, because its backup is missing or damaged",
    )
    assert problem.where == str(root / WORKER)


def test_a_second_ctrl_c_does_not_stop_the_way_back(root: Path, monkeypatch) -> None:
    before, handler = picture(root), signal.getsignal(signal.SIGINT)
    real = files.rewind
    pressed: list[Path] = []

    def rewind(path, kept):
        signal.raise_signal(signal.SIGINT)
        pressed.append(path)
        real(path, kept)

    def stop(_folder):
        raise KeyboardInterrupt

    edit = applying(root)
    monkeypatch.setattr(StoreFolder, "commit", stop)
    monkeypatch.setattr(files, "rewind", rewind)
    fails(Kind.INTERRUPTED, [edit])
    assert pressed
    assert signal.getsignal(signal.SIGINT) is handler
    assert picture(root) == before


def test_a_lock_that_cannot_be_taken_changes_nothing(root: Path, monkeypatch) -> None:
    def broken(*_args):
        raise OSError(errno.EIO, "Input/output error")

    before = picture(root)
    monkeypatch.setattr("fcntl.flock", broken)
    fails(Kind.ROLLED_BACK, [applying(root)], "Input/output error")
    assert picture(root)["pkg/worker.py"] == before["pkg/worker.py"]


@pytest.mark.parametrize("name", [".rlpatch-tmp-0", "next.json", "lock.owner.0", "0" * 64])
def test_what_a_killed_run_left_is_pending_until_the_next_recovery(root: Path, name: str) -> None:
    store.commit([applying(root)])
    assert not StoreFolder(root).unfinished()
    (root / ".rlpatch" / name).write_bytes(b"half of it")
    assert StoreFolder(root).unfinished()
    store.recover([root])
    assert not (root / ".rlpatch" / name).exists()
    assert not StoreFolder(root).unfinished()
    assert [one.patch for one in StoreFolder(root).records()] == [ROLLOUT]


def test_a_store_that_goes_while_it_is_looked_at_holds_nothing(root: Path, monkeypatch) -> None:
    def gone(path):
        raise FileNotFoundError(path)

    store.commit([applying(root)])
    monkeypatch.setattr(os, "listdir", gone)
    assert not StoreFolder(root).unfinished()


def test_a_record_that_leads_out_of_the_root_is_refused(root: Path) -> None:
    store.commit([Edit(root, (), add=(record(ROLLOUT, "pkg/link/worker.py"),))])
    (root / "pkg" / "link").symlink_to(root.parent)
    with pytest.raises(Problem) as caught:
        StoreFolder(root).records()
    assert caught.value.kind is Kind.ENVIRONMENT
    assert str(root / "pkg" / "link") in caught.value.where


def test_a_store_that_its_last_user_removes_meanwhile_is_no_lack_of_rights(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = applying(root)
    store.commit([Edit(root, (), add=(record(ROLLOUT),))])
    exists = StoreFolder.exists

    def gone_behind_the_look(folder: StoreFolder) -> bool:
        there = exists(folder)
        shutil.rmtree(folder.path, ignore_errors=True)
        return there

    monkeypatch.setattr(StoreFolder, "exists", gone_behind_the_look)
    assert store.preflight([planned]) == ()
