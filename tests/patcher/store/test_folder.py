"""The marker by which machines that see the same folder know it, and what the store keeps of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.filesystem import lock
from patcher.store.filesystem.files import digest
from patcher.store.folder import StoreFolder
from tests.patcher.store.tree import PRISTINE, WORKER, applying, patched, picture

RUN = "0123456789abcdef"


def test_who_comes_first_leaves_its_name_and_all_get_the_same_answer(root: Path) -> None:
    before = picture(root)
    assert [StoreFolder(root).mark(RUN, name) for name in ("one", "two", "one")] == ["one"] * 3
    assert StoreFolder(root).mark("another", "two") == "two"
    assert StoreFolder(root).unfinished()  # it was left by one that died, as far as anybody knows
    store.recover([root])
    assert picture(root) == before


def test_a_marker_that_is_taken_away_leaves_nothing(root: Path) -> None:
    before = picture(root)
    StoreFolder(root).mark(RUN, "one")
    for _ in range(2):
        store.remove_marker(root, RUN)
        assert picture(root) == before


def test_a_marker_can_be_taken_away_while_others_hold_the_lock(root: Path) -> None:
    """Else the root looks interrupted: whoever holds the lock may have tidied up before the marker came."""
    store.commit([applying(root)])
    with lock.hold(root / STORE, prepare=lambda: None, wait=0, on_wait=lock.silent):
        child = os.fork()
        if child == 0:
            StoreFolder(root).mark("another", "two")
            pending = StoreFolder(root).unfinished()
            store.remove_marker(root, "another")
            os._exit(0 if pending and not StoreFolder(root).unfinished() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_mark_that_is_set_while_others_look_for_the_journal_hides_it_from_nobody(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a rename, and whoever looks needs two names: once the second one was looked for too late."""
    real, names = StoreFolder.commit, list[str]()
    read = StoreFolder.read

    def read_before_the_mark(folder: StoreFolder, name: str) -> bytes | None:
        content = read(folder, name)
        if not names:
            names.append(name)
            real(folder)
        return content

    def look_and_stop(folder: StoreFolder) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(StoreFolder, "read", read_before_the_mark)
            journal = folder.journal()
        assert journal is not None
        assert journal.committed

    monkeypatch.setattr(StoreFolder, "commit", look_and_stop)
    store.commit([applying(root)])
    assert names


def test_what_the_store_keeps_of_a_run_is_no_more_open_than_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / WORKER).chmod(0o600)
    commit, modes = StoreFolder.commit, list[int]()

    def look(folder: StoreFolder) -> None:
        modes.extend((folder.path / digest(content)).stat().st_mode & 0o777 for content in (PRISTINE, patched()))
        commit(folder)

    monkeypatch.setattr(StoreFolder, "commit", look)
    store.commit([applying(root)])
    assert modes == [0o600, 0o600]
