"""A folder that stays the one that was opened, whatever somebody makes of its name meanwhile.

Where the tree belongs to somebody else, its owner can make a name lead elsewhere between two calls of ours, and what
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
"""What lies above needs to be passed only, not to be read."""


class Opened:
    """An open folder; every method raises OSError, and none follows a link."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def status(self, name: str = "") -> os.stat_result:
        """The status of what has that name, of the folder itself without one."""
        if not name:
            return os.fstat(self.descriptor)
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def is_folder(self, name: str) -> bool:
        """Whether a folder has that name: one that is called like a rest of ours is somebody else's."""
        try:
            return stat.S_ISDIR(self.status(name).st_mode)
        except FileNotFoundError:
            return False

    def names(self) -> list[str]:
        """All names in the folder."""
        return os.listdir(self.descriptor)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A descriptor of the file ``name``; a pipe is not waited for."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, mode, dir_fd=self.descriptor)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """The regular file ``name``, open; anything else that has this name is an OSError."""
        # Looked at before it is opened, too: to open some devices is to use them.
        require_regular(self.status(name), self.path / name)
        with open(self.open(name, os.O_RDONLY), "rb") as stream:
            require_regular(os.fstat(stream.fileno()), self.path / name)
            yield stream

    def link(self, name: str) -> str:
        """The text of a link."""
        return os.readlink(name, dir_fd=self.descriptor)

    def make_link(self, text: str, name: str) -> None:
        """Make a link."""
        os.symlink(text, name, dir_fd=self.descriptor)

    def replace(self, source: str, target: str) -> None:
        """Give what is called ``source`` the name ``target``, in one step."""
        os.replace(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove the name, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=self.descriptor)

    def date(self, atime_ns: int, mtime_ns: int, name: str = "") -> None:
        """Set the times of what has that name, or of the folder itself, where that is ours to do.

        A colleague's folder keeps the new ones: that stops nothing, and `preflight` notes it.
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
        """Bring the names to the disk; a file system that cannot is believed to need none."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The regular file at ``path``, wherever links lead; anything else is an OSError, and no pipe is waited for."""
    require_regular(path.stat(), path)
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
        require_regular(os.fstat(stream.fileno()), path)
        yield stream


def require_regular(status: os.stat_result, path: Path) -> None:
    """Raise OSError where the ``status`` of what lies at ``path`` is not that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, Text("not a regular file"), str(path))


def resolved(path: Path) -> Path:
    """Return where ``path`` leads, links followed; what is not there is taken as it is.

    Raises Problem(ENVIRONMENT) when somebody makes another thing of a link while it is read.
    """
    try:
        return Path(os.path.realpath(path))
    except OSError as error:
        cause = Text("somebody is changing it right now: {strerror}", error.strerror)
        raise Problem(Kind.ENVIRONMENT, cause, str(path), Text("run the command again")) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """The folder at the absolute ``path``, which must lead there without a link.

    Raises FileNotFoundError where a part is not there, NotADirectoryError where one is a link or a file.
    """
    descriptor = _reach(path)
    try:
        yield Opened(path, descriptor)
    except OSError as error:
        if isinstance(error.filename, int) or (error.filename and not os.path.isabs(error.filename)):
            error.filename = str(path if isinstance(error.filename, int) else path / os.fsdecode(error.filename))
        raise
    finally:
        os.close(descriptor)


def _reach(path: Path) -> int:
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
    try:
        return os.open(name, flags | _FOLDER, dir_fd=descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)
