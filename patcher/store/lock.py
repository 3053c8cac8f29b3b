"""One lock per root: two commands never change a target at once, and the second says whom it waits for.

The kernel's ``flock`` is used where it excludes: it ends with its process, so nothing is left to clean. On
some shared file systems it succeeds for everybody; a file that only one can create takes its place there.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH115
from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from patcher.errors import Kind, Problem
from patcher.store import CLAIM, LOCK
from patcher.store.files import remove
from patcher.store.opened import opened

_PAUSE = 0.05
_SOMEBODY = "another process"
_UNSIGNED = 10.0  # seconds after which a claim that nobody signed is taken for a dead process's


class Owner(NamedTuple):
    """Who holds a lock: enough to name it, and to tell on the same host whether it still lives."""

    host: str
    pid: int
    space: str
    started: str
    words: str

    def __str__(self) -> str:
        """As it stands in messages; the text was written by another process, so only printable characters."""
        text = f"process {self.pid} on host {self.host} ({self.words})"
        return "".join(char if char.isprintable() else "?" for char in text)[:200]


def silent(_message: str) -> None:
    """Take a message and say nothing."""


@contextlib.contextmanager
def hold(folder: Path, *, prepare: Callable[[], None], wait: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the store ``folder``; ``prepare`` makes the folder, or raises when that is not wanted.

    The holder before may have removed the folder with the lock in it, so ``prepare`` is called before every
    attempt. ``on_wait`` gets one message per owner that is waited for. Raises Problem(ENVIRONMENT) that names
    the owner after ``wait`` seconds, and OSError.
    """
    descriptor = _acquire(folder, prepare, wait, on_wait)
    try:
        yield
    finally:
        _release(folder, descriptor)


def _acquire(folder: Path, prepare: Callable[[], None], wait: float, on_wait: Callable[[str], None]) -> int:
    deadline = time.monotonic() + wait
    told = ""
    while True:
        prepare()
        with contextlib.suppress(FileNotFoundError):  # the folder went with its last record: make it again
            got = _attempt(folder)
            if isinstance(got, int):
                return got
            if got not in ("", told):
                told = got
                on_wait(f"waiting for {told}")
        if time.monotonic() >= deadline:
            raise Problem(
                Kind.ENVIRONMENT,
                f"{told or _SOMEBODY} holds the lock",
                where=str(folder / LOCK),
                hint=f"wait for it and try again; if it is gone for good, remove {folder / CLAIM}",
            )
        time.sleep(_PAUSE)


def _attempt(folder: Path) -> int | str:
    """The descriptor that holds the lock, or in words who holds it (empty: try again)."""
    path = folder / LOCK
    descriptor = _own(path, os.O_RDWR | os.O_CREAT)
    try:
        whom: str | None
        if not _flock(descriptor):
            text = os.pread(descriptor, 4096, 0)  # empty: it comes or goes this very moment
            whom = str(_signed(text) or _SOMEBODY) if text else ""
        elif not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            whom = ""  # the owner before has removed this file: the lock on it keeps nobody out
        else:
            whom = None if _excludes(path) else _claim(folder / CLAIM)
            if whom is None:
                _sign(descriptor)
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return whom


def _own(path: Path, flags: int) -> int:
    """A descriptor of a file of the lock; what is no file of its own is somebody's trap, and a Problem(ENVIRONMENT)."""
    why = "is a symlink" if path.is_symlink() else "is not a file of its own"
    trap = Problem(
        Kind.ENVIRONMENT,
        f"the lock {why}; rlpatch did not make it so",
        where=str(path),
        hint=f"remove {path}, and try again",
    )
    try:
        with opened(path.parent) as folder:
            descriptor = folder.open(path.name, flags, 0o644)
            status, above = os.fstat(descriptor), folder.status()
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise trap from None
        raise
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise trap
    if above.st_mode & 0o020 and status.st_uid == os.geteuid() and flags & os.O_CREAT:
        os.fchmod(descriptor, 0o664)  # in a store of a group everybody signs
    return descriptor


def _flock(descriptor: int) -> bool:
    """Whether the lock is ours now; a file system that knows no locks lets everybody in."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    return True


def _excludes(path: Path) -> bool:
    """Whether others are kept out: tried with a second descriptor while the first holds the lock."""
    descriptor = _own(path, os.O_RDWR)
    try:
        return not _flock(descriptor)
    finally:
        os.close(descriptor)


class _Claim(NamedTuple):
    """A file that only one process could create, as it was seen; ``since`` and ``number`` tell it from a later one."""

    text: bytes
    since: int
    number: int

    @property
    def abandoned(self) -> bool:
        """Whether the process that made it surely lives no more."""
        owner = _signed(self.text)
        return time.time() - self.since / 1e9 > _UNSIGNED if owner is None else _dead(owner)


def _claim(path: Path) -> str | None:
    """None when the exclusive file is ours now, else who holds it; a dead owner's is removed on the way."""
    if _make(path):
        return None
    seen = _look(path)
    if not seen.abandoned:
        return str(_signed(seen.text) or _SOMEBODY)
    if _inherit(path, seen) and _look(path) == seen:
        remove(path)
    return ""


def _inherit(path: Path, seen: _Claim) -> bool:
    """Whether we are the only one who may remove the claim that a dead process has left.

    Had two the right, the slower one would remove the claim that somebody has made after the quicker one. So the
    right is a file that only one can create. It is named after the dead claim, and when its owner dies before the
    deed it is inherited in the same way. They are swept up by whoever holds the lock next.
    """
    will = path.with_name(f"{CLAIM}.{zlib.crc32(repr(seen).encode()):08x}")
    if _make(will):
        return True
    other = _look(will)
    return other.abandoned and _inherit(path, other)


def _make(path: Path) -> bool:
    """Create and sign the file; False when it is there."""
    try:
        descriptor = _own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    try:
        _sign(descriptor)
    finally:
        os.close(descriptor)
    return True


def _look(path: Path) -> _Claim:
    descriptor = _own(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        return _Claim(os.pread(descriptor, 4096, 0), status.st_mtime_ns, status.st_ino)
    finally:
        os.close(descriptor)


def _sign(descriptor: int) -> None:
    pid = os.getpid()
    words = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    owner = Owner(os.uname().nodename, pid, _space(), _started(pid), words[:120])
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner._asdict()).encode(), 0)


def _signed(text: bytes) -> Owner | None:
    try:
        fields = json.loads(text)
        return Owner(
            str(fields["host"]),
            int(fields["pid"]),
            str(fields["space"]),
            str(fields["started"]),
            str(fields["words"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _dead(owner: Owner) -> bool:
    """Whether the owner surely lives no more; of another host or container nothing is known, so it lives."""
    if (owner.host, owner.space) != (os.uname().nodename, _space()):
        return False
    try:
        os.kill(owner.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    started = _started(owner.pid)
    return bool(owner.started and started and owner.started != started)  # else the number was given out again


def _space() -> str:
    """The process-number space: two containers with one host name do not see each other's processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _release(folder: Path, descriptor: int) -> None:
    """Let go. What cannot be tidied up stops nothing: the kernel frees the lock, a dead owner's claim is broken."""
    with contextlib.suppress(OSError, Problem):
        claim = folder / CLAIM
        owner = _signed(_look(claim).text)
        if owner is not None and owner.pid == os.getpid() and owner.host == os.uname().nodename:
            remove(claim)
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)  # nobody shall be told of an owner that has gone
    with contextlib.suppress(OSError):
        os.close(descriptor)
