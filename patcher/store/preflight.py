"""What stands in the way of a change, found out before anything is written.

Which file a path means: a symlink to a file inside the same root (strict editable installs) means that file.
Any other symlink is itself what is replaced, and its text is remembered: behind it lies a package cache, or a
tree that was not asked for. A search for ``.git`` above it would not tell the two apart, since uv puts an
empty one into its cache; whoever wants the tree behind a link gives that tree as the root.
"""

# The calls of `os` are what the tests answer for, and Path methods hide them.
# ruff: noqa: PTH208
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from patcher.change import Change, Edit
from patcher.errors import Kind, Problem
from patcher.store import bytecode
from patcher.store.files import BYTECODE, Node, observe, read
from patcher.store.folder import StoreFolder

_COMPILED = (".so", ".pyd", ".dylib")


def preflight(edits: Sequence[Edit]) -> None:
    """Refuse what cannot be changed. Nothing is written.

    Raises Problem(ENVIRONMENT) for zipped, compiled, read-only or somebody else's files, folders that lead
    out of the root and a store that is not ours; Problem(FOREIGN_EDIT) for a file that is not as planned.
    """
    for edit in edits:
        store = StoreFolder(edit.root)
        if not store.root.is_dir():
            raise Problem(
                Kind.ENVIRONMENT,
                "the root is not a folder: zipped packages cannot be patched",
                where=str(edit.root),
                hint="install the package unpacked",
            )
        for change in edit.changes:
            path = store.locate(change.path)
            node, _content = current(path, change)
            if change.before != change.after:
                _permitted(path, node)
                if change.after != change.pristine:  # what was compiled later must not stop a revert
                    _importable(path)
        _writable(store.path if store.exists() else store.root)


def current(path: Path, change: Change) -> tuple[Node, bytes]:
    """What lies at ``path`` and the bytes that are imported from there.

    Raises Problem(FOREIGN_EDIT) when they are not those that planning read, Problem(ENVIRONMENT) when they
    cannot be read.
    """
    try:
        node, content = observe(path)
        if node is not None and node.link is not None:
            content = read(Path(os.path.realpath(path)))[1]
    except OSError as error:
        raise Problem(Kind.ENVIRONMENT, f"cannot read it: {error.strerror}", where=str(path)) from error
    if node is None or content != change.before:
        raise Problem(
            Kind.FOREIGN_EDIT,
            "the file is not the one that was looked at a moment ago",
            where=str(path),
            hint="run the command again",
        )
    return node, content


def _permitted(path: Path, node: Node) -> None:
    if os.geteuid() not in (0, node.uid):
        raise Problem(
            Kind.ENVIRONMENT,
            f"the file belongs to user {node.uid}, and a replaced one would not",
            where=str(path),
            hint="run rlpatch as its owner, or install the package into an environment of your own",
        )
    if node.link is None:
        _writable(path)
    _writable(path.parent)
    folder = path.parent / BYTECODE
    if folder.is_symlink():
        raise Problem(Kind.ENVIRONMENT, "the bytecode folder is a symlink", where=str(folder))
    if bytecode.beside(path) and folder.is_dir():
        _writable(folder)


def _writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise Problem(
            Kind.ENVIRONMENT,
            f"no permission to write {'in this folder' if path.is_dir() else 'this file'}",
            where=str(path),
            hint="make it writable, or install the package into an environment of your own",
        )


def _importable(path: Path) -> None:
    for name in os.listdir(path.parent):
        sibling = path.parent / name
        compiled = name.startswith(f"{path.stem}.") and name.endswith(_COMPILED)
        if compiled or (name == path.stem and (sibling / "__init__.py").exists()):
            raise Problem(
                Kind.ENVIRONMENT,
                f"Python imports {name} instead of this file",
                where=str(path),
                hint="install the package without the compiled module",
            )
