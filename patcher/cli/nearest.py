"""The configuration of a project: ``rlpatch.toml``, or the table ``tool.rlpatch`` of a pyproject.toml."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patcher.messages.errors import Kind, Problem

OWN, SHARED = "rlpatch.toml", "pyproject.toml"


class Table(NamedTuple):
    """A file and the table that it has for rlpatch; None for the file of another user, which is not read."""

    file: Path
    values: Mapping[str, Any] | None


def nearest() -> Table | None:
    """The configuration of the working directory, or of the nearest folder above it; None also where that is gone.

    It may name an interpreter to start, so a file of another user than root is not read. Raises Problem (USAGE) for
    one that is no TOML, and OSError.
    """
    try:
        folder = Path.cwd()
    except OSError:  # the command itself says so
        return None
    for place in (folder, *folder.parents):
        for path in (place / OWN, place / SHARED):
            if not os.path.isfile(path):  # noqa: PTH113  (which is false for one below a folder that is closed, too)
                continue
            ours = path.stat().st_uid in (0, os.geteuid())
            if path.name == OWN:
                return Table(path, _table(path, path.read_bytes()) if ours else None)
            if ours and b"[tool.rlpatch" in (content := path.read_bytes()):
                return Table(path, _table(path, content).get("tool", {}).get("rlpatch", {}))
    return None


def _table(path: Path, content: bytes) -> Mapping[str, Any]:
    # Most folders have no configuration: it takes 5 ms to load what reads one.
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Problem(Kind.USAGE, f"the configuration cannot be read: {error}", str(path), "fix that line") from None
