"""One lock per root: two commands never change a target at once, and the second says whom it waits for.

The kernel's ``flock`` ends with its process, so nothing is left to clean. It is enough where only one kernel can
mount the file system. Elsewhere it may hold on each host alone (NFS with ``local_lock``, Lustre with ``localflock``),
or nowhere: there a claim is needed, too, a name that only one process can create, wherever it runs.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from patcher import interrupts
from patcher.messages import Kind, Problem, Text
from patcher.store import CLAIM, LOCK
from patcher.store.filesystem import mounts
from patcher.store.filesystem.files import remove
from patcher.store.filesystem.opened import opened

_PAUSE = 0.05
_SOMEBODY = Text("another process")
_ONE_KERNEL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay", "vfat", "exfat", "ntfs3"}
)


class Owner(NamedTuple):
    """Holder of a lock: enough to name the process, and to tell on the same host whether it still lives.

    ``boot`` is the kernel's boot id, because hosts may share a name or be clones. ``space`` is the pid namespace,
    ``started`` the process's start in clock ticks after boot, ``words`` the command.
    """

    host: str
    boot: str
    pid: int
    space: str
    started: str
    words: str

    @property
    def description(self) -> Text:
        """Pid, host and command for messages, the last two cut to 80 characters.

        Unprintable characters become ?, because another process wrote the fields.
        """
        host, words = (
            "".join(char if char.isprintable() else "?" for char in text)[:80] for text in (self.host, self.words)
        )
        return Text("process {pid} on host {host} ({command})", pid=self.pid, host=host, command=words)


def silent(_message: str) -> None:
    """Ignore a message."""


@contextlib.contextmanager
def hold(folder: Path, *, prepare: Callable[[], None], wait: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the store ``folder`` for the body of a ``with`` statement.

    ``prepare`` creates the folder, or raises if that is not wanted; it is called before each attempt, because the
    previous holder may have removed the folder. ``on_wait`` gets one message per owner that is waited for. Raises
    Problem (ENVIRONMENT) with the owner's name after ``wait`` seconds, KeyboardInterrupt between two attempts, and
    OSError.
    """
    signature = _signature()
    descriptor = _acquire(folder, signature, prepare, wait, on_wait)
    try:
        yield
    finally:
        _release(folder, signature, descriptor)


def _acquire(
    folder: Path, signature: str, prepare: Callable[[], None], wait: float, on_wait: Callable[[str], None]
) -> int:
    """Return the descriptor that holds the lock of the store ``folder``; wait and raise as `hold` says.

    ``signature`` identifies this process.
    """
    deadline = time.monotonic() + wait
    owner = ""
    while True:
        prepare()
        with contextlib.suppress(FileNotFoundError):  # the folder went with its last record: make it again
            attempt = _attempt(folder, signature)
            if isinstance(attempt, int):
                return attempt
            if attempt not in ("", owner):
                owner = attempt
                on_wait(Text("waiting for {process}", owner))
        if time.monotonic() >= deadline:
            claim = folder / CLAIM
            cause, hint = (
                Text("rlpatch is already working on these files: {process} holds the lock", owner or _SOMEBODY),
                Text("wait until the process that holds the lock has ended, then try again"),
            )
            if os.path.lexists(claim):
                hint = Text(
                    "wait until the process that holds the lock has ended, then try again. If there is no such process"
                    " any more, delete {claim_file}",
                    claim,
                )
            raise Problem(Kind.ENVIRONMENT, cause, str(folder / LOCK), hint)
        time.sleep(_PAUSE)
        interrupts.raise_pending()


def _attempt(folder: Path, signature: str) -> int | str:
    """Try once to lock the store ``folder``; return the descriptor that holds the lock, or the present holder in words.

    On success, ``signature`` is written into the lock file. Where `flock` alone does not keep other hosts out, the lock
    also needs the claim link of ``signature``. An empty text means that another attempt may succeed at once. Raises
    OSError and Problem (ENVIRONMENT).
    """
    path = folder / LOCK
    descriptor = _open_lock_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if not _flock(descriptor):
            text = os.pread(descriptor, 4096, 0)  # empty: it comes or goes this very moment
            holder = _holder_name(text) if text else ""
        elif not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            holder = ""  # the owner before has removed this file: the lock on it keeps nobody out
        elif _flock_suffices(path, descriptor) or not (holder := _claim(folder / CLAIM, signature)):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, signature.encode(), 0)
            return descriptor
        elif holder == signature:
            holder = ""
        else:
            holder = _holder_name(holder)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return holder


def _open_lock_file(path: Path, flags: int) -> int:
    """Open the lock file ``path`` and return its descriptor.

    With O_CREAT in a group-writable folder, make a file of this user group-writable. Raises Problem (ENVIRONMENT) for a
    link, a hard link or an irregular file, which somebody may have planted, and OSError.
    """
    cause = Text(
        "the lock file has hard links or is not a regular file. rlpatch never creates such a lock file, so it does not"
        " use this one"
    )
    if path.is_symlink():
        cause = Text("the lock file is a symlink. rlpatch never creates such a lock file, so it does not use this one")
    trap = Problem(Kind.ENVIRONMENT, cause, str(path), Text("delete {path}, then try again", path))
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
    """Try to lock the open file ``descriptor``, without waiting, and tell whether this process now has the lock.

    Return True on a file system without locks, too. Raises OSError.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    return True


def _flock_suffices(path: Path, descriptor: int) -> bool:
    """Tell whether the ``flock`` held by ``descriptor`` on the file ``path`` keeps every other process out.

    A second descriptor must fail to lock, and the file system must be one that only one kernel can mount. Raises
    OSError, and Problem (ENVIRONMENT) if the file is not one that rlpatch creates.
    """
    second = _open_lock_file(path, os.O_RDWR)
    try:
        return not _flock(second) and mounts.kind(descriptor) in _ONE_KERNEL
    finally:
        os.close(second)


def _claim(path: Path, signature: str) -> str:
    """Try to claim the lock by a link at ``path``; return "" on success, else the text of the present owner.

    If that owner was dead, try to remove its claim, and return ``signature``: another attempt is worthwhile. A link is
    created atomically with its text, on NFS, too. Raises Problem (ENVIRONMENT) and OSError.
    """
    there = _make_claim(path, signature)
    if there and _is_dead(there):
        if _may_remove_claim(path, there, signature) and _read_claim(path) == there:
            remove(path)
        return signature
    return there


def _may_remove_claim(path: Path, dead: str, signature: str) -> bool:
    """Try to get the sole right to remove the stale claim at ``path``, whose text is ``dead``; tell if that worked.

    That needs a second claim, with this process's text ``signature``: else the slower of two processes would remove a
    claim that was made in the meantime. It is a link beside ``path``, named after the dead one, and removed in the same
    way if its owner dies, too. The next holder of the lock removes it. Raises Problem (ENVIRONMENT) and OSError.
    """
    will = path.with_name(f"{CLAIM}.{binascii.crc32(os.fsencode(dead)):08x}")
    other = _make_claim(will, signature)
    return not other or (_is_dead(other) and _may_remove_claim(path, other, signature))


def _make_claim(path: Path, signature: str) -> str:
    """Create the link ``path`` with the text ``signature``; return "", or the text of somebody else's link there.

    Raises Problem (ENVIRONMENT) on a file system without symlinks, and OSError.
    """
    try:
        with opened(path.parent) as folder:
            folder.make_link(signature, path.name)
    except FileExistsError:
        there = _read_claim(path)
        return "" if there == signature else there  # else NFS has made it and lost its own answer
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP):
            raise
        cause = Text(
            "this file system has no symlinks, so rlpatch cannot keep other hosts from changing the same files"
        )
        hint = Text("install the package on another file system")
        raise Problem(Kind.ENVIRONMENT, cause, str(path.parent), hint) from error
    return ""


def _read_claim(path: Path) -> str:
    """Return the text of the claim at ``path``. Raises Problem (ENVIRONMENT) if it is not a link, and OSError."""
    try:
        with opened(path.parent) as folder:
            return folder.link(path.name)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        cause = Text("rlpatch claims its lock with a symlink of this name, but this file is not a symlink")
        raise Problem(Kind.ENVIRONMENT, cause, str(path), Text("delete {path}, then try again", path)) from None


def _signature() -> str:
    """Return a unique JSON text that identifies this process as an `Owner`."""
    pid = os.getpid()
    words = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    owner = Owner(os.uname().nodename, _boot(), pid, _pid_namespace(), _start_ticks(pid), words[:120])
    return json.dumps({**owner._asdict(), "once": os.urandom(4).hex()})


def _holder_name(text: str | bytes) -> str:
    """Return the description of the owner that wrote ``text``; "another process" if the text is not valid."""
    owner = _owner_of(text)
    return owner.description if owner else _SOMEBODY


def _owner_of(text: str | bytes) -> Owner | None:
    """Parse the text of a lock or claim into its `Owner`; None if it does not describe one."""
    try:
        fields = json.loads(text)
        texts = {name: str(fields[name]) for name in Owner._fields if name != "pid"}
        return Owner(pid=int(fields["pid"]), **texts)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_dead(text: str) -> bool:
    """Tell whether the process that signed a claim with ``text`` has surely ended.

    Return False if that cannot be known: ``text`` is damaged, or it ran under another kernel or in another container.
    """
    owner = _owner_of(text)
    if owner is None or not owner.boot or (owner.boot, owner.space) != (_boot(), _pid_namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    started = _start_ticks(owner.pid)
    return bool(owner.started and started and owner.started != started)  # else the number belongs to a later process


def _boot() -> str:
    """Return the id of the kernel's boot, "" if unknown."""
    return mounts.kernel_text("/proc/sys/kernel/random/boot_id").strip()


def _pid_namespace() -> str:
    """Return the id of the pid namespace, "" if unknown: containers of one host do not see each other's processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" if it has ended."""
    fields = mounts.kernel_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if fields else ""


def _release(folder: Path, signature: str, descriptor: int) -> None:
    """Remove the claim if its text is ``signature``, and close ``descriptor``, which frees the lock.

    Ignore errors, since the kernel frees the lock and a dead owner's claim is broken.
    """
    with contextlib.suppress(OSError, Problem):
        if _read_claim(folder / CLAIM) == signature:
            remove(folder / CLAIM)
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)  # no message names an owner that has gone
    with contextlib.suppress(OSError):
        os.close(descriptor)
