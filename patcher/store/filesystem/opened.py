"""A folder that stays the one that was opened, whatever somebody makes of its name meanwhile.

Where the tree belongs to somebody else, its owner can make a name lead elsewhere between two calls of rlpatch, and what
root then writes is written there. So a folder is reached from the top without following any link, and all that is
done in it goes through its descriptor.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH117, PTH123, PTH208
from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from patcher.messages import Kind, Problem, Text

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY)
"""Flag to pass through a parent folder, which need not be readable."""


class Opened:
    """An open folder; every method raises OSError, and none follows a link."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def status(self, name: str = "") -> os.stat_result:
        """Return the status of ``name`` in the folder; without a name, that of the folder itself."""
        if not name:
            return os.fstat(self.descriptor)
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_folder(self, name: str) -> bool:
        """Tell whether ``name`` is a folder; False if nothing has this name."""
        try:
            return stat.S_ISDIR(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def names(self) -> list[str]:
        """Return all names in the folder, in no particular order."""
        return os.listdir(self.descriptor)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open the file ``name`` without waiting for a pipe; return the descriptor."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, mode, dir_fd=self.descriptor)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """Open the regular file ``name`` as a binary stream, for a ``with`` statement.

        Raises OSError for anything else of this name, also for a link.
        """
        # Looked at before it is opened, too: to open some devices is to use them.
        require_regular(self.status(name), self.path / name)
        with open(self.open(name, os.O_RDONLY), "rb") as stream:
            require_regular(os.fstat(stream.fileno()), self.path / name)
            yield stream

    def link(self, name: str) -> str:
        """Return the text of the symbolic link ``name``."""
        return os.readlink(name, dir_fd=self.descriptor)

    def make_link(self, text: str, name: str) -> None:
        """Create the symbolic link ``name`` to ``text``."""
        os.symlink(text, name, dir_fd=self.descriptor)

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target`` atomically."""
        os.replace(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove the file or link ``name`` if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove the empty folder ``name``."""
        os.rmdir(name, dir_fd=self.descriptor)

    def set_times(self, atime_ns: int, mtime_ns: int, name: str = "") -> None:
        """Set the times of ``name``, or of the folder itself without a name.

        Do nothing if it belongs to another user and this one may not set its times: `preflight` notes that.
        """
        try:
            if name:
                os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=self.descriptor, follow_symlinks=False)
            else:
                os.utime(self.descriptor, ns=(atime_ns, mtime_ns))
        except PermissionError:
            if self.status(name).st_uid == os.geteuid():
                raise

    def sync(self) -> None:
        """Sync the folder's names to the disk; do nothing on a file system that cannot sync folders."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open the regular file to which ``path`` leads, links followed, as a binary stream for a ``with`` statement.

    Raises OSError for anything else, and waits for no pipe.
    """
    require_regular(path.stat(), path)
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
        require_regular(os.fstat(stream.fileno()), path)
        yield stream


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raise OSError unless ``status``, that of ``path``, is the status of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, Text("not a regular file"), str(path))


def resolved(path: Path) -> Path:
    """Return the absolute ``path`` with links followed; parts that do not exist stay as written.

    Raises Problem (ENVIRONMENT) if somebody changes a link meanwhile.
    """
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        cause = Text("another program is changing the file right now: {error}", error.strerror)
        raise Problem(Kind.ENVIRONMENT, cause, str(path), Text("run the command again")) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Open the folder at the absolute ``path`` for the body of a ``with`` statement; no part may be a link.

    Raises FileNotFoundError if a part does not exist, NotADirectoryError if a part is a link or a file. An OSError of
    the body gets the absolute path of its file.
    """
    descriptor = _open_folder(path)
    try:
        yield Opened(path, descriptor)
    except OSError as error:
        if isinstance(error.filename, int) or (error.filename and not os.path.isabs(error.filename)):
            error.filename = str(path if isinstance(error.filename, int) else path / os.fsdecode(error.filename))
        raise
    finally:
        os.close(descriptor)


def _open_folder(path: Path) -> int:
    """Open the folder at the absolute ``path``, following no link; return the descriptor. Raises OSError."""
    above, last = [path.anchor, *path.parts[1:-1]], path.name or path.anchor
    descriptor = None
    try:
        for name in above:
            descriptor = _step(name, _THROUGH, descriptor)
        return _step(last, os.O_RDONLY, descriptor)
    except OSError as error:
        error.filename = str(path)
        raise


def _step(name: str, flags: int, descriptor: int | None) -> int:
    """Open the folder ``name`` inside the open folder ``descriptor`` (None: ``name`` is absolute) with ``flags``.

    Return the new descriptor. The old one is closed in any case. Raises OSError.
    """
    try:
        return os.open(name, flags | _FOLDER, dir_fd=descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
