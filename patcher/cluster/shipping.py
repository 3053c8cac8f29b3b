"""rlpatch as one archive, which travels with the job: nothing is installed on the nodes, and nothing is downloaded."""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

import patcher
import patches

_ROOMS_HERE = frozenset(("bundle", "cli", "diagnosis", "hook", "page", "timeline", "traces", "workers"))
"""Packages and modules of ``patcher`` that no node needs."""
_UNCHECKED = (0b01).to_bytes(4, "little")
"""The flags of bytecode that Python does not hold against its source (PEP 552)."""


def archive() -> bytes:
    """Return a zip, importable by Python, of the modules of `patcher` and `patches` that nodes need, with bytecode."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name, path in _modules():
            source = path.read_bytes()
            out.writestr(name, source)
            out.writestr(f"{name}c", _bytecode(path, source))
    return packed.getvalue()


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, path) of each of rlpatch's Python modules that run on the nodes of a cluster."""
    for folder in (Path(patcher.__file__).parent, *map(Path, patches.__path__)):
        for path in sorted(folder.rglob("*.py")):
            if path.relative_to(folder).parts[0] not in _ROOMS_HERE:
                yield path.relative_to(folder.parent).as_posix(), path


def _bytecode(path: Path, source: bytes) -> bytes:
    """Return the bytecode of a module, from Python's cache if possible."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)
