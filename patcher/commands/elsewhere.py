"""The roots that this user has patched, for those that a search does not come by.

Nothing depends on them: an entry that cannot be written or read is left out. Others may have put anything into the
folder, so no link in it is followed, and only small regular files are read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from patcher.store import STORE
from patcher.store.filesystem.opened import Opened, opened

GONE_S = 30 * 86400
"""Seconds for which a missing root, such as one on another disk, is remembered."""

LONGEST, MOST = 4096, 1000
"""Most bytes of an entry, and most entries, that are read."""


class Remembered(NamedTuple):
    """Remembered roots that still hold a store, and the entries that cannot be read."""

    roots: tuple[Path, ...] = ()
    unreadable: tuple[Path, ...] = ()


def remembered_roots() -> Remembered:
    """Return the roots that this user has patched and that still hold a store, and the entries that cannot be read.

    An entry whose root has no store any more is deleted: at once if the root exists, else after 30 days.
    """
    roots, unreadable = list[Path](), list[Path]()
    try:
        path = folder()
    except (OSError, RuntimeError):
        return Remembered()
    try:
        with opened(path) as entries:
            names = sorted(name for name in entries.names() if not name.startswith("."))
            unreadable += [path / name for name in names[MOST:]]
            for name in names[:MOST]:
                try:
                    root = _read_entry(entries, name)
                except (OSError, ValueError):
                    unreadable.append(path / name)
                else:
                    if root is not None:
                        roots.append(root)
    except OSError:
        if os.path.lexists(path):
            unreadable.append(path)
    return Remembered(tuple(roots), tuple(unreadable))


def _read_entry(folder: Opened, name: str) -> Path | None:
    """Return the root that the file `name` in `folder` holds, None (and delete it) if that root has no store any more.

    Raises OSError, and ValueError if the file holds no absolute path.
    """
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
    """Return rlpatch's folder of user state; ignore a relative XDG_STATE_HOME. Raises RuntimeError without a home."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "rlpatch"


def folder() -> Path:
    """Return the folder of the entries; links above `rlpatch` are resolved, because a home may be a link."""
    above, name = os.path.split(state())
    return Path(os.path.realpath(above), name, "roots")
