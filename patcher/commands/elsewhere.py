"""The roots that this user has patched, for those that a search does not come by.

Nothing depends on them: an entry that cannot be written or read is left out. Others may have put anything into the
folder, so no link in it is followed, and only small regular files are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from patcher.store import STORE
from patcher.store.filesystem.opened import Opened, opened

GONE_S = 30 * 86400
"""How long a root that is not there, such as one on another disk, is remembered."""

LONGEST, MOST = 4096, 1000
"""Bytes of an entry, and entries that are read."""


class Remembered(NamedTuple):
    """The roots that still hold a store, and the entries that cannot be read."""

    roots: tuple[Path, ...] = ()
    unreadable: tuple[Path, ...] = ()


def remember(roots: Iterable[Path]) -> None:
    """Keep the names of ``roots``, each in a file of its own: so two commands are in nobody's way."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        path = _folder()
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        for made in (path.parent, path):
            with opened(made.parent) as above, suppress(FileExistsError):
                os.mkdir(made.name, dir_fd=above.descriptor)
        with opened(path) as folder:
            for root in roots:
                with suppress(OSError):  # the others are kept
                    _write(folder, os.fsencode(os.path.realpath(root)))


def _write(folder: Opened, root: bytes) -> None:
    import hashlib  # noqa: PLC0415  (3 ms, and status only reads)

    name = hashlib.sha256(root).hexdigest()[:16]
    new = f".{name}.{os.getpid()}"
    folder.remove(new)
    with open(folder.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:  # noqa: PTH123
        stream.write(root)
    try:
        folder.replace(new, name)
    except OSError:
        folder.remove(new)
        raise


def remembered() -> Remembered:
    """Read the roots that still hold a store; others are forgotten."""
    roots, unreadable = list[Path](), list[Path]()
    try:
        path = _folder()
    except (OSError, RuntimeError):
        return Remembered()
    try:
        with opened(path) as folder:
            names = sorted(name for name in folder.names() if not name.startswith("."))
            unreadable += [path / name for name in names[MOST:]]
            for name in names[:MOST]:
                try:
                    root = _read(folder, name)
                except (OSError, ValueError):
                    unreadable.append(path / name)
                else:
                    roots += [root] if root else []
    except OSError:
        if os.path.lexists(path):
            unreadable.append(path)
    return Remembered(tuple(roots), tuple(unreadable))


def _read(folder: Opened, name: str) -> Path | None:
    """The root that an entry names; None where it has no store any more. Raises OSError, or ValueError for no path."""
    with folder.reading(name) as stream:
        data = stream.read(LONGEST + 1)
    root = Path(os.fsdecode(data))
    if b"\0" in data or len(data) > LONGEST or (data and not root.is_absolute()):
        raise ValueError(f"no path: {name}")
    if data and os.path.isdir(root / STORE):  # noqa: PTH112  (False where it may not be searched)
        return root
    if root.is_dir() or time.time() - folder.status(name).st_mtime > GONE_S:
        folder.remove(name)
    return None


def state() -> Path:
    """Where rlpatch keeps what it knows of this user, by the XDG rules, which have a relative path ignored.

    Raises RuntimeError where there is no home.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "rlpatch"


def _folder() -> Path:
    """The folder of the entries; links above ``rlpatch`` are followed, since a home may be one."""
    above, own = os.path.split(state())
    return Path(os.path.realpath(above), own, "roots")
