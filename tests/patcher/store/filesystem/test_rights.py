from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from patcher.store.filesystem import rights
from patcher.store.filesystem.opened import opened
from patcher.store.filesystem.rights import ACL, PathState

STATE = PathState("0" * 64, None, 0o640, 1, 2, 3, 4, (("user.a", "YQ=="),))
LINK = PathState("", "elsewhere", 0o777, 1, 2)


@pytest.mark.parametrize(
    ("mode", "narrowed"),
    [(0o644, 0o644), (0o640, 0o600), (0o660, 0o600), (0o664, 0o644), (0o604, 0o600), (0o775, 0o755), (0o4755, 0o4755)],
)
def test_without_its_group_a_file_is_for_those_who_were_in_it_and_outside(mode: int, narrowed: int) -> None:
    assert rights.without_group(mode) == narrowed


@pytest.mark.parametrize(
    ("state", "now", "becomes"),
    [
        (STATE, None, STATE),
        (STATE, PathState("", None, 0o600, 5, 6, 7, 8), STATE._replace(mode=0o600, uid=5, gid=6, attributes=())),
        (STATE, LINK._replace(uid=5), STATE._replace(uid=5)),  # a link has no rights of its own
        (LINK, STATE._replace(uid=5), LINK._replace(uid=5)),
    ],
)
def test_rights_are_those_of_what_is_there(state: PathState, now: PathState | None, becomes: PathState) -> None:
    assert rights.with_rights_of(state, now) == becomes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"digest": "", "mtime_ns": 9}, ""),
        ({"mode": 0o4640}, "the file's mode is 4640 instead of 0640"),
        ({"uid": 5}, "the file's owner is 5:2 instead of 1:2"),
        ({"attributes": ()}, "the file's extended attributes have changed"),
        ({"attributes": (("security.x", "YQ=="), ("user.a", "YQ=="))}, ""),  # no record tells of those
        ({"mode": 0, "gid": 5}, "the file's mode is 0000 instead of 0640, the file's owner is 1:5 instead of 1:2"),
    ],
)
def test_what_others_have_changed_is_said(changes: dict[str, Any], said: str) -> None:
    assert rights.differences(STATE, STATE._replace(**changes)) == said


def test_a_group_that_could_not_be_given_is_no_difference() -> None:
    assert rights.differences(STATE._replace(gid=-1), STATE) == ""


def status(mode: int, uid: int, gid: int = 0) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 2, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("root", "store", "why"),
    [
        (status(0o755, 7), status(0o755, 0), ""),
        (status(0o755, 7), status(0o755, 7), ""),
        (status(0o755, 7), status(0o755, os.geteuid()), ""),
        (status(0o755, 7), status(0o755, 8), "belongs to user 8"),
        (status(0o755, 7), status(0o757, 7), "other users can write to this folder"),
        (status(0o755, 7), status(0o775, 7), "other users can write to this folder"),
        (status(0o775, 7, 9), status(0o775, 8, 9), ""),
        (status(0o775, 7, 9), status(0o775, 8, 3), "other users can write to this folder"),
        (status(0o777, 7, 9), status(0o755, 8, 9), "belongs to user 8"),
        (status(0o1775, 7, 9), status(0o755, 8, 9), "belongs to user 8"),
    ],
)
def test_a_store_is_believed_of_those_who_could_change_the_root(root, store, why: str) -> None:
    assert bool(rights.distrust_reason(store, root)) == bool(why)
    assert why in rights.distrust_reason(store, root)


@pytest.mark.parametrize("name", ["link/inner", "link", "file", "file/inner", "gone", "gone/inner"])
def test_a_folder_is_reached_without_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "file").write_bytes(b"")
    kind = FileNotFoundError if name.startswith("gone") else NotADirectoryError
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(kind) as caught, opened(tmp_path / name):
        pytest.fail("reached")
    assert caught.value.filename == str(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_an_open_folder_stays_the_same_whatever_its_name_leads_to(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    with opened(ours) as folder:
        ours.rename(tmp_path / "moved")
        ours.symlink_to(theirs)
        folder.make_link("x", "link")
        os.mkdir("folder", dir_fd=folder.descriptor)
        folder.replace("link", "renamed")
        assert sorted(folder.names()) == ["folder", "renamed"]
        folder.remove_folder("folder")
    assert (os.listdir(theirs), os.listdir(tmp_path / "moved")) == ([], ["renamed"])  # noqa: PTH208


def test_an_error_in_an_open_folder_names_the_whole_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, opened(tmp_path) as folder:
        folder.status("gone")
    assert caught.value.filename == str(tmp_path / "gone")


def test_a_file_system_without_attributes_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_args: object, **_options: object) -> list[str]:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "listxattr", unsupported)
    assert rights.attributes(tmp_path) == ()
    monkeypatch.delattr(os, "listxattr")
    assert rights.attributes(tmp_path) == ()
    assert ACL not in dict(rights.attributes(tmp_path))
