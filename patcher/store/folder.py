"""The store folder ``.rlpatch`` of one root, read as something that anybody may have put there.

    .gitignore      "*": the folder ignores itself
    lock            see `patcher.store.filesystem.lock`
    state.json      the registry: applied patches in the order of application, patched files, folder times
    <sha256>        the bytes of a pristine file
    journal.json    an unfinished transaction, and next.json the registry that it leads to
    committed.json  the same journal once the transaction counts
    tree-<id>       a link whose text is the first of the machines that see this root in a command over several

It is believed only if nobody has written it who could not change the root itself. No symlink is followed here, and
every path that is read here must be inside the root, without a link on the way, when it is used.

In a root that a group writes in together, so does it in the store: whoever may put a store there may do all else.
"""

# The calls of `os` are the seam at which the tests fail and kill, and Path methods hide them.
# ruff: noqa: PTH100, PTH116
from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TypeVar

from patcher.changes.change import Record
from patcher.messages import CommandLine, Kind, Problem, Text
from patcher.store import CLAIM, LOCK, STORE
from patcher.store.filesystem import rights
from patcher.store.filesystem.files import TEMPORARY, digest, observe, place
from patcher.store.filesystem.opened import Opened, opened, resolved
from patcher.store.filesystem.rights import PathState, differences
from patcher.store.registry import Entry, Journal, NewerError, Registry, is_digest, journal_of, read, registry_of

STATE, NEXT, JOURNAL, COMMITTED = "state.json", "next.json", "journal.json", "committed.json"
IGNORE = ".gitignore"
TREE = "tree-"
_STANDING = frozenset({LOCK, CLAIM, IGNORE})
_READABLE = PathState("", None, 0o644, -1, -1)
T = TypeVar("T")


def _revert_hint() -> str:
    """Return the hint that `rlpatch revert` also works if the store's folder is lost."""
    return Text(
        "`{command}` works without this folder, too: rlpatch finds the inserted lines by their marker comments",
        CommandLine("revert"),
    )


class StoreFolder:
    """The store folder of one root. No symlink in the folder is followed."""

    def __init__(self, root: Path) -> None:
        self.alias = Path(os.path.abspath(root))
        self.root = resolved(root)
        self.path = self.root / STORE

    def exists(self) -> bool:
        """Tell whether the folder exists.

        Raises Problem (ENVIRONMENT) if it cannot be trusted or is a link or a file, OSError if it cannot be looked at.
        """
        try:
            status = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._require_trusted(status)
        return True

    @contextlib.contextmanager
    def open(self) -> Iterator[Opened]:
        """Open the folder for the body of a ``with`` statement.

        Raises Problem (ENVIRONMENT) if the folder is closed to this user or cannot be trusted, and OSError otherwise:
        FileNotFoundError if it does not exist.
        """
        try:
            with opened(self.path) as folder:
                self._require_trusted(folder.status())
                yield folder
        except NotADirectoryError:
            self.exists()
            raise
        except PermissionError as error:
            if error.filename != str(self.path):
                raise
            cause = Text(
                "only user {uid} has access to the folder {store}", uid=os.lstat(self.path).st_uid, store=STORE
            )
            hint = Text(
                "ask the folder's owner to run `{command}`, or to give the folder the same mode as its parent folder"
                " (chmod)",
                CommandLine("recover"),
            )
            raise Problem(Kind.ENVIRONMENT, cause, str(self.path), hint) from error

    def _require_trusted(self, status: os.stat_result) -> None:
        """Raise Problem (ENVIRONMENT) unless the store folder with this ``status`` can be trusted.

        The store must be a real folder that only users who may change the root can have written.
        """
        if not stat.S_ISDIR(status.st_mode):
            _refuse(self.path, Text("{store} is a link or a file, not a folder", STORE))
        if reason := rights.distrust_reason(status, os.stat(self.root)):
            hint = Text("run rlpatch outside of the container")
            if rights.is_mapped("user", status.st_uid):
                hint = Text(
                    "inspect the folder, then take ownership (chown, chmod go-w) or move it away; {revert_hint}",
                    _revert_hint(),
                )
            raise Problem(
                Kind.ENVIRONMENT,
                Text("rlpatch does not trust what is in {store}: {reason}", store=STORE, reason=reason),
                str(self.path),
                hint,
            )

    def unfinished(self) -> bool:
        """Tell whether the store holds a journal or other remains of an interrupted command; False without a store.

        Raises Problem (ENVIRONMENT) if the store cannot be trusted or its registry is damaged.
        """
        try:
            with self.open() as folder:
                names = {name for name in folder.names() if not (_is_ours(name) and folder.is_folder(name))}
        except (FileNotFoundError, NotADirectoryError):  # or its last user has removed it this very moment
            return False
        if names & {JOURNAL, COMMITTED}:
            return True
        if STATE in names:
            return any(map(_is_ours, names - self.registry().digests()))
        return all(name in _STANDING or _is_ours(name) for name in names)

    def prepare(self) -> None:
        """Create the store's folder if it does not exist, without changing the times of the root.

        The mode follows that of the root, not the umask. Raises OSError and Problem (ENVIRONMENT).
        """
        if self.exists():
            return
        # Another may make it first, or sweep it away empty: the lock's loop looks again.
        with contextlib.suppress(FileExistsError, FileNotFoundError), opened(self.root) as root:
            status = root.status()
            shared = rights.is_shared(status)
            # Not the umask's business: whoever can write here can have any text put into the target.
            mode = 0o700 | status.st_mode & 0o055 | (0o2020 if shared else 0)
            os.mkdir(STORE, mode & 0o755, dir_fd=root.descriptor)
            root.set_times(status.st_atime_ns, status.st_mtime_ns)
            with self.open() as folder:
                if folder.names() or folder.status().st_uid != os.geteuid():  # it is another one by now
                    return
                if shared and folder.status().st_gid != status.st_gid:
                    try:
                        os.fchown(folder.descriptor, -1, status.st_gid)
                    except OSError:  # this user differs from the owner, or the container lacks the group
                        mode &= 0o755
                rights.replace_inherited_acl(folder.descriptor, root.descriptor if mode & 0o020 else None)
                os.fchmod(folder.descriptor, mode)

    def mark(self, run: str, name: str) -> str:
        """Put a marker with the text ``name`` into the store unless ``run`` has one there; return the marker's text.

        ``run`` is the id of a command over several machines. Machines that get the same text back see the same folder:
        device and inode numbers would not tell, as they differ over NFS. The marker is a link, created atomically, on
        NFS, too. Creates the store if it is missing. Raises Problem (ENVIRONMENT) and OSError.
        """
        link = f"{TREE}{run}"
        while True:
            self.root.stat()  # gone with all that is in it, it would not come back
            self.prepare()
            with contextlib.suppress(FileNotFoundError), self.open() as folder:  # else it was swept away meanwhile
                with contextlib.suppress(FileExistsError):
                    folder.make_link(name, link)
                return folder.link(link)

    def read(self, name: str) -> bytes | None:
        """Return the bytes of the file ``name`` of the store; None if it does not exist.

        Raises Problem (ENVIRONMENT) for a file that is not regular or not readable.
        """
        path = self.path / name
        try:
            with self.open() as folder, folder.reading(name) as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR):
                _refuse(path, Text("{file} is not a regular file", name))
            hint = Text(
                "find out why the file cannot be read, or move {store} away; {revert_hint}",
                store=STORE,
                revert_hint=_revert_hint(),
            )
            raise Problem(
                Kind.ENVIRONMENT, Text("cannot read the file: {error}", error.strerror), str(path), hint
            ) from error

    def write(self, name: str, content: bytes, state: PathState = _READABLE) -> None:
        """Atomically write one file of the store, with the owner and mode of ``state``; raises OSError."""
        with self.open() as folder:
            place(folder, name, state, content)

    def rename(self, name: str, to: str) -> None:
        """Rename a file of the store atomically and sync; raises OSError."""
        with self.open() as folder:
            folder.replace(name, to)
            folder.sync()

    def remove(self, name: str) -> None:
        """Remove a file of the store if it exists; raises OSError."""
        with self.open() as folder:
            folder.remove(name)

    def sync(self) -> None:
        """Sync the names in the store to the disk; raises OSError."""
        with self.open() as folder:
            folder.sync()

    def keep_backup(self, content: bytes, state: PathState) -> None:
        """Write a backup of ``content`` into the store, named by its sha256, with the owner and mode of ``state``.

        If this backup exists, its mode is only narrowed, because it may serve two originals. Raises OSError, and
        Problem (ENVIRONMENT) if the store cannot be trusted.
        """
        name = digest(content)
        if self.blob(name) is not None:
            with self.open() as folder:
                there = folder.status(name)
            if (state.uid if state.uid != -1 else os.geteuid(), state.gid) == (there.st_uid, there.st_gid):
                mode = there.st_mode & state.mode
            else:  # of two originals, or of one that has another owner by now
                mode = rights.without_group(there.st_mode) & rights.without_group(state.mode)
            if mode & 0o777 == there.st_mode & 0o777:
                return
            state = state._replace(mode=mode & 0o777)
        self.write(name, content, state)

    def blob(self, name: str) -> bytes | None:
        """Return the backup with the digest ``name``; None if it is missing or damaged."""
        content = self.read(name)
        return content if content is not None and digest(content) == name else None

    def entry(self, path: PurePosixPath) -> Entry | None:
        """Return the registry's entry for a file, or None. Raises Problem like `registry` and `locate`."""
        return self.registry().files.get(self.key(self.locate(path)))

    def key(self, path: Path) -> str:
        """Return the registry's key of the file at ``path``, which must contain no links."""
        return path.relative_to(self.root).as_posix()

    def locate(self, path: PurePosixPath) -> Path:
        """Return the path that a change of ``path`` replaces, with links in its folder resolved.

        A link to a file inside the root means that file; any other link is replaced itself. Raises Problem
        (FOREIGN_EDIT) if the file does not exist, Problem (ENVIRONMENT) if its path cannot be followed or its folder
        leads out of the root.
        """
        link = self.root / path
        try:
            parent, target = _resolve_existing(link.parent), _resolve_existing(link)
        except OSError as error:
            kind = Kind.FOREIGN_EDIT if isinstance(error, FileNotFoundError) else Kind.ENVIRONMENT
            hint = Text("check where the path's links lead, then run the command again")
            raise Problem(kind, Text("cannot find the file: {error}", error.strerror), str(link), hint) from error
        if parent != self.root and self.root not in parent.parents:
            hint = Text("use --path with the folder that the link leads to")
            raise Problem(
                Kind.ENVIRONMENT,
                Text("the path of the file contains a link that leads out of {root}", self.root),
                f"{link} -> {parent}",
                hint,
            )
        return target if self.root in target.parents else parent / link.name

    def compare(self, path: PurePosixPath, data: bytes) -> tuple[bytes | None, str, bool | None]:
        """Return (pristine bytes, changed rights, whether rlpatch wrote exactly ``data``) for a patched file.

        ``data`` are the bytes of the file ``path``. The pristine bytes are None without a readable backup. The changed
        rights are a text on mode, owner and attributes, "" if they are unchanged or unknown. The third is None if the
        registry does not know. Raises Problem: ENVIRONMENT for a damaged registry, FOREIGN_EDIT for a missing file.
        """
        entry = self.entry(path)
        if entry is None:
            return None, "", None
        try:
            pristine = self.blob(entry.digest)
        except Problem as problem:
            if not isinstance(problem.__cause__, PermissionError):  # this user may not read the original either
                raise
            pristine = None
        expected, present = entry.expected, observe(self.locate(path))[0]
        if expected is None or present is None:
            return pristine, "", expected and expected.digest == digest(data)
        if entry.numbering != rights.numbering():
            # Of a container's numbers nobody outside of it knows whose they are, and the other way round.
            expected = expected._replace(uid=present.uid, gid=present.gid)
        return pristine, differences(expected, present), expected.digest == digest(data)

    def registry(self) -> Registry:
        """Return the registry, empty without a store. Raises Problem (ENVIRONMENT) if it is damaged."""
        return self._parsed(STATE, self.read(STATE), registry_of) or Registry()

    def records(self) -> tuple[Record, ...]:
        """Return the applied patches in the order of application; () without a store.

        Raises Problem (ENVIRONMENT) if the registry is damaged or names a file outside of the root.
        """
        records = self.registry().records
        for file in {file for record in records for file in record.files}:
            self._below(file)
        return records

    def journal(self) -> Journal | None:
        """Return the unfinished transaction, None without one. Raises Problem (ENVIRONMENT) for a damaged journal."""
        before = self.read(JOURNAL)  # first, as it may be renamed meanwhile: then the other name has it
        after = self.read(COMMITTED)
        name, content = (JOURNAL, before) if after is None else (COMMITTED, after)
        journal = self._parsed(name, content, journal_of)
        return journal and journal._replace(committed=name == COMMITTED)

    def _parsed(self, name: str, content: bytes | None, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return ``parse`` of the JSON in ``content``, the bytes of the file ``name``; None for None.

        Raises Problem (ENVIRONMENT) for a damaged file or one of a newer rlpatch.
        """
        try:
            return None if content is None else read(content, parse)
        except NewerError as error:
            hint = Text("use the newer rlpatch; this version would lose data that the newer one stored")
            raise Problem(
                Kind.ENVIRONMENT,
                Text("{file} cannot be read: {error}", file=name, error=error),
                str(self.path / name),
                hint,
            ) from None
        except ValueError as error:
            _refuse(self.path / name, Text("{file} cannot be read: {error}", file=name, error=error))

    def commit(self) -> None:
        """Set the commit mark by one atomic rename; raises OSError."""
        self.rename(JOURNAL, COMMITTED)

    def inside(self, relative: str) -> Path:
        """Return the absolute path of ``relative``, a path in the registry that is relative to the root.

        Raises Problem (ENVIRONMENT) if a link is on the way. The store records paths without links, so a later link was
        made to lead rlpatch elsewhere.
        """
        if self._below(relative) != self.root / relative:
            _refuse(self.root / relative, Text("{path} is reached through a link", relative))
        return self.root / relative

    def _below(self, relative: str) -> Path:
        """Return the absolute path of ``relative``, a path below the root, with links in its folder resolved.

        Raises Problem (ENVIRONMENT) if the folder leads out of the root.
        """
        link = self.root / relative
        parent = resolved(link.parent)
        if parent != self.root and self.root not in parent.parents:
            _refuse(link, Text("{path} is outside of {root}", path=relative, root=self.root))
        return parent / link.name

    def sweep(self) -> None:
        """Remove rlpatch's files that the registry does not need, and the store itself if no patch is left.

        Files of others stay, and the root keeps its times. Do nothing during an unfinished transaction. Raises OSError
        and Problem (ENVIRONMENT).
        """
        if not self.exists() or self.journal() is not None:
            return
        registered = self.registry()
        needed = registered.digests()
        with self.open() as folder:
            for name in folder.names():
                if name not in needed and _is_ours(name) and not folder.is_folder(name):
                    folder.remove(name)
            if registered == Registry():
                for name in (STATE, IGNORE, CLAIM, LOCK):
                    folder.remove(name)
        if registered == Registry():
            with opened(self.root) as root:
                status = root.status()
                with contextlib.suppress(OSError):  # foreign files are in it, or the lock's next owner is
                    root.remove_folder(STORE)
                    root.set_times(status.st_atime_ns, status.st_mtime_ns)


def _is_ours(name: str) -> bool:
    """Tell whether rlpatch has given a file of the store its name."""
    return name.startswith((TEMPORARY, f"{CLAIM}.", TREE)) or name == NEXT or is_digest(name)


def _resolve_existing(path: Path) -> Path:
    """Return ``path`` with links followed. Raises OSError if it does not exist or is a loop of links."""
    try:
        return path.resolve(strict=True)
    except RuntimeError as error:  # what a loop of links is up to Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def _refuse(path: Path, cause: str) -> NoReturn:
    """Raise Problem (ENVIRONMENT) for ``path``, which is not as rlpatch created it; ``cause`` says what is wrong."""
    hint = Text(
        "something other than rlpatch created or changed {store}: find out what, then move {store} away; {revert_hint}",
        store=STORE,
        revert_hint=_revert_hint(),
    )
    raise Problem(Kind.ENVIRONMENT, cause, str(path), hint)
