"""The compiled files of a source file, so that no interpreter goes on with the code of before.

A ``.pyc`` is taken for current when the second and the size of the source are equal, and one with an
unchecked hash (PEP 552) always: so none may outlive a change, whatever its tag or optimisation level.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from patcher.store.filesystem.files import BYTECODE, CLOSED


def beside(source: Path) -> list[Path]:
    """Return the ``.pyc`` files of ``source`` in ``__pycache__`` and, as in Python 2, next to ``source``."""
    paths = [path for path in (source.with_suffix(".pyc"),) if os.path.lexists(path)]
    return paths + _compiled_in(source.stem, source.parent / BYTECODE)


def prefixed_bytecode(source: Path) -> list[Path]:
    """Return the ``.pyc`` files of ``source`` below PYTHONPYCACHEPREFIX, else `sys.pycache_prefix`, sorted.

    Return [] if neither is set.
    """
    prefix = os.environ.get("PYTHONPYCACHEPREFIX") or sys.pycache_prefix
    if not prefix:
        return []
    folder = source.parent
    return _compiled_in(source.stem, Path(prefix).absolute() / folder.relative_to(folder.anchor))


def _compiled_in(stem: str, folder: Path) -> list[Path]:
    """Return the files and links in ``folder`` named ``stem``.*.pyc, such as ``worker.cpython-311.pyc``; sorted.

    Return an empty list for a folder that is missing or closed to this user.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except CLOSED:  # another user's bytecode is stale by the time of its source
        return []
    paths = (folder / name for name in names if name.startswith(f"{stem}.") and name.endswith(".pyc"))
    return [path for path in paths if path.is_symlink() or path.is_file()]
