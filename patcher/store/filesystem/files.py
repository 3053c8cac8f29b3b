"""The one way in which a file of a target is looked at and replaced: never opened for writing.

Installers share file bodies: uv, conda and others hard-link site-packages into their caches, so a write
through an open file would change every environment on the machine. A replaced name changes this one only.
pip (``adjacent_tmp_file``) and quilt (``backup-files -L``) do the same for the same reason.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH123
from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from patcher.digests import sha256
from patcher.store import STORE
from patcher.store.filesystem import rights
from patcher.store.filesystem.opened import Opened, opened, reading
from patcher.store.filesystem.rights import PathState

TEMPORARY = ".rlpatch-tmp-"
BYTECODE = "__pycache__"
_ABSENT = (FileNotFoundError, NotADirectoryError)
CLOSED = (*_ABSENT, PermissionError)
"""rlpatch has nothing in a folder that does not exist, or that another user has closed (a ``__pycache__``)."""


class FolderState(NamedTuple):
    """Times of a folder and a digest of its names, apart from those of rlpatch and of bytecode."""

    names: str
    atime_ns: int
    mtime_ns: int


def digest(content: bytes) -> str:
    """Return the sha256 of ``content`` in hexadecimal."""
    return sha256(content).hexdigest()


def same(state: PathState | None, other: PathState | None) -> bool:
    """Tell whether two states have the same content or link text; times, modes and owners do not count.

    None, for no file, is the same only as None.
    """
    if state is None or other is None:
        return state is other
    return (state.digest, state.link) == (other.digest, other.link)


def read_resolved(path: Path) -> bytes:
    """Return the bytes of the regular file to which ``path`` leads, links followed.

    Raises OSError for anything else; a pipe or a device is not even opened.
    """
    with reading(path) as stream:
        return stream.read()


def observe(path: Path) -> tuple[PathState | None, bytes]:
    """Return the state of the file or link at ``path``, and the file's bytes; a link is not followed and has b"".

    Return (None, b"") if nothing lies there. Raises OSError, also for anything but a file or link.
    """
    try:
        with opened(path.parent) as folder:
            status = folder.status(path.name)
            if stat.S_ISLNK(status.st_mode):
                return _path_state(status, "", folder.link(path.name), ()), b""
            with folder.reading(path.name) as stream:
                content, attributes = stream.read(), rights.attributes(stream.fileno())
                return _path_state(os.fstat(stream.fileno()), digest(content), None, attributes), content
    except _ABSENT:
        return None, b""


def _path_state(status: os.stat_result, digest: str, link: str | None, attributes: rights.Attributes) -> PathState:
    mode, times = stat.S_IMODE(status.st_mode), (status.st_atime_ns, status.st_mtime_ns)
    return PathState(digest, link, mode, status.st_uid, status.st_gid, *times, attributes)


def put(path: Path, state: PathState, content: bytes) -> None:
    """Atomically replace ``path`` by what ``state`` describes: a link, or a file with ``content``; see `place`."""
    with opened(path.parent) as folder:
        place(folder, path.name, state, content)


def place(folder: Opened, name: str, state: PathState, content: bytes) -> None:
    """Atomically create or replace ``name`` in an open folder: a link if ``state`` has one, or a file with ``content``.

    Owner, mode and times of ``state`` are set before the file gets its name. Raises OSError, and then leaves no
    temporary file behind.
    """
    adjacent = TEMPORARY + os.urandom(6).hex()
    try:
        if state.link is not None:
            folder.make_link(state.link, adjacent)
            _set_link_owner_and_times(folder, adjacent, state)
        else:
            _write(folder, adjacent, state, content)
        folder.replace(adjacent, name)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.remove(adjacent)
        raise


def _write(folder: Opened, name: str, state: PathState, content: bytes) -> None:
    """Create the file ``name`` with ``content`` and the rights and times of ``state``, and sync it to the disk.

    An access time of None stays as it is; without a modification time, both stay. Raises OSError, also if ``name``
    exists.
    """
    descriptor = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        rights.give(descriptor, state)
        if state.mtime_ns is not None:
            os.utime(descriptor, ns=(_time_or(state.atime_ns, os.fstat(descriptor).st_atime_ns), state.mtime_ns))
        os.fsync(descriptor)


def _set_link_owner_and_times(folder: Opened, name: str, state: PathState) -> None:
    """Give the link ``name`` the owner of ``state``, if this user may, and its times if it has a modification time.

    Raises OSError.
    """
    status = folder.status(name)
    if (status.st_uid, status.st_gid) != (state.uid, state.gid):
        with contextlib.suppress(OSError):
            os.chown(name, state.uid, state.gid, dir_fd=folder.descriptor, follow_symlinks=False)
    if state.mtime_ns is not None:
        folder.set_times(_time_or(state.atime_ns, status.st_atime_ns), state.mtime_ns, name)


def _time_or(time_ns: int | None, otherwise: int) -> int:
    """Return ``time_ns``, or ``otherwise`` for None."""
    return otherwise if time_ns is None else time_ns


def remove(path: Path) -> None:
    """Remove the file or link ``path`` if it exists; raises OSError."""
    with contextlib.suppress(*_ABSENT), opened(path.parent) as folder:
        folder.remove(path.name)


def sync(path: Path) -> None:
    """Sync a folder's names to the disk, unless the folder is missing or closed to this user; raises OSError."""
    with contextlib.suppress(*CLOSED), opened(path) as folder:
        folder.sync()


def folder_state(path: Path) -> FolderState | None:
    """Return the present state of the folder at ``path``, with no names if unreadable; None if there is no folder.

    Raises OSError.
    """
    try:
        with opened(path) as opened_folder:
            return _state_of(opened_folder)
    except _ABSENT:
        return None
    except PermissionError:
        status = os.lstat(path)
        return FolderState(digest(b""), status.st_atime_ns, status.st_mtime_ns)


def _state_of(opened_folder: Opened) -> FolderState:
    """Return the state of an open folder: its access and modification times, and a digest of the names in it.

    The digest leaves out the names of rlpatch's own files and of bytecode.
    """
    status = opened_folder.status()
    names = sorted(
        os.fsencode(name) for name in opened_folder.names() if not _is_ours(name) and not name.endswith(".pyc")
    )
    return FolderState(digest(b"\0".join(names)), status.st_atime_ns, status.st_mtime_ns)


def _is_ours(name: str) -> bool:
    """Tell whether a name in a folder of the target is that of the store or of a temporary file."""
    return name == STORE or name.startswith(TEMPORARY)


def remove_temporary(path: Path) -> None:
    """Remove rlpatch's temporary files, which a killed command leaves, from the folder ``path``; raises OSError.

    Those of a running command go, too, so call it with the lock held. Stop without an error if the folder is missing,
    or if this user may not read or write it.
    """
    with contextlib.suppress(*CLOSED), opened(path) as opened_folder:
        for name in opened_folder.names():
            if name.startswith(TEMPORARY) and not opened_folder.is_folder(name):
                opened_folder.remove(name)


def rewind(path: Path, original: FolderState | None) -> None:
    """Reset the times of the folder ``path`` to those of ``original``, if it still has the same names.

    Other names mean that somebody else changed the folder, so its time must stay: Python's import system reads a
    listing again only if the time has changed. Do nothing for None, or if the folder is gone or closed to this user.
    Follow no link. Raises OSError.
    """
    if original is None:
        return
    with contextlib.suppress(*CLOSED), opened(path) as opened_folder:
        present = _state_of(opened_folder)
        if present.names == original.names and present.mtime_ns != original.mtime_ns:
            opened_folder.set_times(original.atime_ns, original.mtime_ns)
