"""The files that may be the configuration of this folder; what reads one is loaded only where there is one."""

from __future__ import annotations

import os
from pathlib import Path

OWN, SHARED = "rlpatch.toml", "pyproject.toml"


def candidates() -> list[Path]:
    """Return existing `rlpatch.toml` and `pyproject.toml` files in the working directory and above, nearest first."""
    try:
        folder = Path.cwd()
    except OSError:  # the command itself says so
        return []
    files = (parent / name for parent in (folder, *folder.parents) for name in (OWN, SHARED))
    return [file for file in files if os.path.lexists(file)]  # False for one below a folder that is closed, too
