"""The store folder ``.rlpatch`` of one root, read as something that anybody may have put there.

    .gitignore      "*": the folder ignores itself
    lock            see `patcher.store.lock`
    state.json      the registry: applied patches in the order of application, patched files, folder times
    <sha256>        the bytes of a pristine file or of a removed .pyc
    journal.json    an unfinished transaction, and next.json the registry that it leads to
    committed.json  the same journal once the transaction counts

No symlink is followed here, and every path that is read here must resolve inside the root when it is used.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH100, PTH101, PTH102, PTH104, PTH106, PTH116, PTH208
from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path, PurePosixPath
from typing import NoReturn

from patcher.change import Record
from patcher.errors import Kind, Problem
from patcher.store import CLAIM, LOCK, STORE, registry
from patcher.store.files import TEMPORARY, Node, digest, put, read, remove, sync
from patcher.store.registry import Journal, Registry

STATE, NEXT, JOURNAL, COMMITTED, IGNORE = (
    "state.json",
    "next.json",
    "journal.json",
    "committed.json",
    ".gitignore",
)
_STANDING = frozenset({LOCK, CLAIM, IGNORE})
_HEX = frozenset("0123456789abcdef")


class StoreFolder:
    """The store folder of one root. Nothing in it is followed if it is a symlink."""

    def __init__(self, root: Path) -> None:
        self.given = Path(os.path.abspath(root))
        self.root = Path(os.path.realpath(root))
        self.path = self.root / STORE

    def exists(self) -> bool:
        """Whether the folder is there; raises Problem(ENVIRONMENT) when something else has its name."""
        try:
            status = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISDIR(status.st_mode):
            _refuse(self.path, "is not a folder of its own")
        return True

    def unfinished(self) -> bool:
        """Whether a journal lies here, or what a run has left that was stopped before it or after it."""
        try:
            names = set(os.listdir(self.path)) if self.exists() else None
        except FileNotFoundError:  # its last user has removed it this very moment
            names = None
        if names is None:
            return False
        if names & {JOURNAL, COMMITTED}:
            return True
        if STATE in names:
            return any(map(_ours, names - self.registry().digests()))
        return all(name in _STANDING or _ours(name) for name in names)

    def prepare(self) -> None:
        """Make the folder when it is not there, and leave the times of the root as they are."""
        if self.exists():
            return
        root = os.stat(self.root)
        # Another may make it first, or sweep it away empty: the lock's loop looks again.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.mkdir(self.path, 0o700)
            os.utime(self.root, ns=(root.st_atime_ns, root.st_mtime_ns))
            # Not the umask's business: whoever can write here can have any text put into the target.
            os.chmod(self.path, 0o700 | root.st_mode & 0o755)

    def read(self, name: str) -> bytes | None:
        """The bytes of one file of the store; None when it is not there. Raises Problem(ENVIRONMENT)."""
        path = self.path / name
        if not self.exists():
            return None
        try:
            return read(path)[1]
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR):
                _refuse(path, "is not a regular file")
            raise Problem(Kind.ENVIRONMENT, f"cannot read it: {error.strerror}", where=str(path)) from error

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Put one file into the store; raises OSError."""
        put(self.path / name, Node("", None, mode, os.geteuid(), os.getegid()), content)

    def keep(self, content: bytes, mode: int) -> str:
        """Back ``content`` up, with the permissions of the original or fewer; gives its digest."""
        name = digest(content)
        if self.blob(name) is None:
            self.write(name, content, mode & 0o777)
        elif (there := os.stat(self.path / name).st_mode & 0o777) & ~mode:
            os.chmod(self.path / name, there & mode)  # meanwhile fewer people may read the original
        return name

    def blob(self, name: str) -> bytes | None:
        """The backup of that digest; None when it is not there or damaged."""
        content = self.read(name)
        return content if content is not None and digest(content) == name else None

    def locate(self, path: PurePosixPath) -> Path:
        """The name that a change of ``path`` replaces, without symlinks in its folder.

        Raises Problem(FOREIGN_EDIT) when it is not there, ENVIRONMENT when it leads out of the root.
        """
        named = self.root / path
        try:
            parent = Path(os.path.realpath(named.parent, strict=True))
            target = Path(os.path.realpath(named, strict=True))
        except OSError as error:
            kind = Kind.FOREIGN_EDIT if isinstance(error, FileNotFoundError) else Kind.ENVIRONMENT
            raise Problem(kind, f"cannot find the file: {error.strerror}", where=str(named)) from error
        if parent != self.root and self.root not in parent.parents:
            raise Problem(
                Kind.ENVIRONMENT,
                "its folder leads out of the root",
                where=f"{named} -> {parent}",
                hint="give the folder behind the link with --path",
            )
        return target if self.root in target.parents else parent / named.name

    def backup(self, path: PurePosixPath) -> bytes | None:
        """The pristine bytes of a file as they were backed up; None when there is no good backup of it.

        Raises Problem(ENVIRONMENT) when the registry is damaged, FOREIGN_EDIT when the file is not there.
        """
        entry = self.registry().files.get(self.locate(path).relative_to(self.root).as_posix())
        return None if entry is None else self.blob(entry.digest)

    def registry(self) -> Registry:
        """The registry as it is; raises Problem(ENVIRONMENT) when it is damaged."""
        content = self.read(STATE)
        try:
            return Registry() if content is None else registry.read_registry(content)
        except ValueError as error:
            _refuse(self.path / STATE, f"cannot be read: {error}")

    def records(self) -> tuple[Record, ...]:
        """The applied patches alone, quickly.

        Raises Problem(ENVIRONMENT) when they are damaged, or name a file that lies elsewhere: it would be read.
        """
        content = self.read(STATE)
        try:
            found = () if content is None else registry.read_records(content)
        except ValueError as error:
            _refuse(self.path / STATE, f"cannot be read: {error}")
        for file in {file for record in found for file in record.files}:
            self.inside(file)
        return found

    def journal(self) -> Journal | None:
        """The unfinished transaction; raises Problem(ENVIRONMENT) when its journal is damaged."""
        for name in (COMMITTED, JOURNAL):
            content = self.read(name)
            try:
                if content is not None:
                    return registry.read_journal(content, committed=name == COMMITTED)
            except ValueError as error:
                _refuse(self.path / name, f"cannot be read: {error}")
        return None

    def commit(self) -> None:
        """Set the commit mark: one rename, there or not there."""
        os.rename(self.path / JOURNAL, self.path / COMMITTED)
        sync(self.path)

    def inside(self, text: str) -> Path:
        """The path that a text of the store means; Problem(ENVIRONMENT) if it leads out of the root."""
        pure = PurePosixPath(text)
        parent = Path(os.path.realpath(self.root / pure.parent))
        if parent != self.root and self.root not in parent.parents:
            _refuse(self.root / pure, "leads out of the root")
        return parent / pure.name

    def sweep(self) -> None:
        """Remove what no registry needs, and the folder itself with the last entry. Raises OSError."""
        if not self.exists() or self.journal() is not None:
            return
        registered = self.registry()
        needed = registered.digests()
        empty = registered == Registry()
        for name in os.listdir(self.path):
            if name not in needed and _ours(name):
                remove(self.path / name)
        if empty:
            root = os.stat(self.root)
            for name in (STATE, IGNORE, CLAIM, LOCK):
                remove(self.path / name)
            with contextlib.suppress(OSError):  # foreign files are in it, or the lock's next owner is
                os.rmdir(self.path)
                os.utime(self.root, ns=(root.st_atime_ns, root.st_mtime_ns))


def _ours(name: str) -> bool:
    if name.startswith((TEMPORARY, f"{CLAIM}.")) or name == NEXT:
        return True
    return len(name) == 64 and _HEX.issuperset(name)


def _refuse(path: Path, why: str) -> NoReturn:
    raise Problem(
        Kind.ENVIRONMENT,
        f"{path.name} {why}; rlpatch did not make it so",
        where=str(path),
        hint=f"look at it, then move {STORE} away; the markers suffice for `rlpatch revert`",
    )
