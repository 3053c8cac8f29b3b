"""The file that `rlpatch bundle` writes: a zip that Python runs, with the store as it is here and the plans."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import patcher
from patcher.bundle.plans import NAME, Bundle, text_of
from patcher.messages import Kind, Problem, Text
from patcher.store.filesystem.files import put
from patcher.store.filesystem.opened import resolved
from patcher.store.filesystem.rights import PathState

_HERE = ("start", "archive", "originals", "tables", "catalogue", "columns")
"""Modules of the rooms below that are left out: only rlpatch itself uses them, and `start` is the main module."""
_ROOMS = ("bundle", "changes", "messages", "store", "targets")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(bundle: Bundle) -> bytes:
    """Return the bytes of a bundle, a zip that Python runs; equal plans give equal bytes."""
    stream = io.BytesIO(b"#!/usr/bin/env python3\n")
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in _members(bundle):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED, 9)
    return stream.getvalue()


def _members(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the bytes of each file of the archive: start script, plans, and the modules that it needs."""
    root = Path(patcher.__file__).parent
    yield "__main__.py", (root / "bundle" / "start.py").read_bytes()
    yield f"patcher/bundle/{NAME}", text_of(bundle)
    names = ("__init__", "digests", "interrupts", "commands/__init__", "commands/applied")
    modules = [root / f"{name}.py" for name in names]
    modules += [path for room in _ROOMS for path in sorted((root / room).rglob("*.py")) if path.stem not in _HERE]
    for path in modules:
        yield f"patcher/{path.relative_to(root).as_posix()}", path.read_bytes()


def _is_bundle(path: Path) -> bool:
    """Tell whether a file is a zip with a bundle's plans; False if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:  # a wheel is one, too, and so is much else
            return f"patcher/bundle/{NAME}" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically and make it executable.

    Raises Problem: USAGE if `path` is a folder or a file that is no bundle, ENVIRONMENT if it cannot be written.
    """
    if path.is_dir() or (path.exists() and not (path.is_file() and _is_bundle(path))):
        cause = Text("the output file {path} already exists and is not a bundle", path)
        if path.is_dir():
            cause = Text("the output path {path} is a folder", path)
        raise Problem(Kind.USAGE, cause, str(path), Text("choose another output file: -o patch.pyz"))
    try:
        put(resolved(path.parent) / path.name, PathState("", None, 0o755, -1, -1), content)
    except OSError as error:
        cause = Text("the bundle cannot be written: {strerror}", error.strerror)
        hint = Text("choose a file in a folder that you can write to: -o FILE")
        raise Problem(Kind.ENVIRONMENT, cause, str(path), hint) from None
