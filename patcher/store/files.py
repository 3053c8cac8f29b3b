"""The one way in which a file of a target is looked at and replaced: never opened for writing.

Installers share file bodies: uv, conda and others hard-link site-packages into their caches, so a write
through an open file would change every environment on the machine. A replaced name changes this one only.
pip (``adjacent_tmp_file``) and quilt (``backup-files -L``) do the same for the same reason.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH105, PTH106, PTH108, PTH115, PTH116, PTH123, PTH208, PTH211
from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from patcher.store import STORE

TEMPORARY = ".rlpatch-tmp-"
BYTECODE = "__pycache__"


class Node(NamedTuple):
    """What one path holds, with everything of it that is put back: a regular file, or a symlink if ``link``.

    ``digest`` is the sha256 of a file's bytes (empty for a link). A time that is None is not known, and the
    file then gets the present one.
    """

    digest: str
    link: str | None
    mode: int
    uid: int
    gid: int
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Folder(NamedTuple):
    """The times of a folder and a digest of the names in it, ours left out."""

    names: str
    atime_ns: int
    mtime_ns: int


def digest(content: bytes) -> str:
    """The sha256 of ``content`` in hexadecimal."""
    import hashlib  # loads OpenSSL: not for `status`, which hashes nothing

    return hashlib.sha256(content).hexdigest()


def same(one: Node | None, other: Node | None) -> bool:
    """Whether two nodes hold the same thing; times, modes and owners do not count."""
    if one is None or other is None:
        return one is other
    return (one.digest, one.link) == (other.digest, other.link)


def read(path: Path) -> tuple[os.stat_result, bytes]:
    """The status and the bytes of the regular file at ``path``; a symlink or anything else is an OSError."""
    # O_NONBLOCK: a fifo that lies there by accident must be refused, not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return status, stream.read()


def observe(path: Path) -> tuple[Node | None, bytes]:
    """What lies at ``path`` and its bytes; (None, b"") when nothing does, b"" for a link. Raises OSError."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, b""
    link, content = None, b""
    if stat.S_ISLNK(status.st_mode):
        link = os.readlink(path)
    else:
        status, content = read(path)
    node = Node(
        digest="" if link is not None else digest(content),
        link=link,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
    )
    return node, content


def put(path: Path, node: Node, content: bytes) -> None:
    """Make ``path`` hold ``node``, whose bytes are ``content``, in one step; raises OSError, leaves no rest.

    Mode, owner and times are there before the name is, so nobody ever sees the file without them.
    """
    adjacent = path.with_name(TEMPORARY + os.urandom(6).hex())
    try:
        if node.link is not None:
            os.symlink(node.link, adjacent)
            _dress_link(adjacent, node)
        else:
            _write(adjacent, node, content)
        os.replace(adjacent, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(adjacent)
        raise


def _write(path: Path, node: Node, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (node.uid, node.gid):
            # Only root gives files away. The check before the first write refuses files of somebody else, so
            # what is left here is a group that we are not in: the file is then ours, as after any edit.
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, node.uid, node.gid)
        os.fchmod(descriptor, node.mode)  # after fchown, which clears bits
        if node.mtime_ns is not None:
            os.utime(descriptor, ns=(_or(node.atime_ns, made.st_atime_ns), node.mtime_ns))
        os.fsync(descriptor)


def _dress_link(path: Path, node: Node) -> None:
    made = os.lstat(path)
    if (made.st_uid, made.st_gid) != (node.uid, node.gid):
        with contextlib.suppress(PermissionError):
            os.chown(path, node.uid, node.gid, follow_symlinks=False)
    if node.mtime_ns is not None:
        os.utime(path, ns=(_or(node.atime_ns, made.st_atime_ns), node.mtime_ns), follow_symlinks=False)


def _or(time_ns: int | None, otherwise: int) -> int:
    return otherwise if time_ns is None else time_ns


def remove(path: Path) -> None:
    """Remove the name ``path`` if it is there; raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def sync(folder: Path) -> None:
    """Bring the names in ``folder`` to the disk; a file system that cannot is believed to need none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def folder(path: Path) -> Folder | None:
    """The times and names of the folder at ``path`` now; None when there is none. Raises OSError."""
    try:
        status = os.stat(path)
        names = sorted(os.fsencode(name) for name in os.listdir(path) if not _ours(name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Folder(digest(b"\0".join(names)), status.st_atime_ns, status.st_mtime_ns)


def _ours(name: str) -> bool:
    return name == STORE or name.startswith(TEMPORARY)


def clean(path: Path) -> None:
    """Remove the temporary files that a killed run left in the folder ``path``. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(path):
            if name.startswith(TEMPORARY):
                remove(path / name)


def rewind(path: Path, kept: Folder | None) -> None:
    """Put the times of the folder back, if it holds the names that it held when they were ``kept``.

    With other names in it somebody else changed the folder, and the time tells that truly: Python's import
    system reads a listing again only when the time has moved. A bytecode folder that was not there
    (``kept`` is None) and is empty is removed. Raises OSError.
    """
    if kept is None:
        if path.name == BYTECODE:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        return
    now = folder(path)
    if now is not None and now.names == kept.names and now.mtime_ns != kept.mtime_ns:
        os.utime(path, ns=(kept.atime_ns, kept.mtime_ns))
