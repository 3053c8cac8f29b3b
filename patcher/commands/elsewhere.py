"""The roots that this user has patched, for those that a search does not come by.

Nothing depends on them: an entry that cannot be written or read is left out.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from patcher.store import STORE

GONE_S = 30 * 86400
"""How long a root that is not there, such as one on another disk, is remembered."""


def remember(roots: Iterable[Path]) -> None:
    """Keep the names of ``roots``, each in a file of its own: so two commands are in nobody's way."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        for root in roots:
            name = os.fsencode(os.path.realpath(root))
            (folder / hashlib.sha256(name).hexdigest()[:16]).write_bytes(name)


def remembered() -> list[Path]:
    """The roots that still hold a store; others are forgotten."""
    found: list[Path] = []
    with suppress(OSError, RuntimeError):
        for entry in sorted(_folder().iterdir()):
            root = Path(os.fsdecode(entry.read_bytes()))
            if os.path.isdir(root / STORE) and root.is_absolute():  # noqa: PTH112  (False where it may not be searched)
                found.append(root)
            elif root.is_dir() or time.time() - entry.stat().st_mtime > GONE_S:
                entry.unlink()
    return found


def state() -> Path:
    """Where rlpatch keeps what it knows of this user, by the XDG rules, which have a relative path ignored.

    Raises RuntimeError where there is no home.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "rlpatch"


def _folder() -> Path:
    return state() / "roots"
