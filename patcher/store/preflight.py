"""The checks of a change before anything is written.

Which file a path means: a symlink to a file inside the same root (strict editable installs) means that file.
Any other symlink is itself what is replaced, and its text is remembered: it may lead into a package cache,
or to a tree that the user did not name. A search for ``.git`` above it would not tell the two apart, since uv puts an
empty one into its cache; whoever wants the tree to which a link leads gives that tree as the root.
"""

# The calls of `os` are what the tests answer for, and Path methods hide them.
# ruff: noqa: PTH116, PTH208
from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from patcher.changes.change import Change, Edit
from patcher.messages import Kind, Note, Problem, Text
from patcher.store.filesystem import bytecode, mounts, rights
from patcher.store.filesystem.files import BYTECODE, observe
from patcher.store.filesystem.opened import resolved
from patcher.store.filesystem.rights import PathState
from patcher.store.folder import StoreFolder
from patcher.store.registry import Entry

_COMPILED = (".so", ".pyd", ".dylib")


def preflight(edits: Sequence[Edit]) -> tuple[Note, ...]:
    """Check that ``edits`` can be written, and return notes on what will not be restored exactly; write nothing.

    Raises Problem (ENVIRONMENT) for zipped, compiled, read-only or somebody else's files, for rights that a replacement
    would not have, for folders that lead out of the root and for a store that cannot be trusted. Raises Problem
    (FOREIGN_EDIT) for a file that is not as planned.
    """
    folders: list[Path] = []
    notes: list[Note] = []
    for edit in edits:
        store = StoreFolder(edit.root)
        if not store.root.is_dir():
            cause = Text("the package is in a zip archive, not in a folder, and cannot be patched")
            raise Problem(Kind.ENVIRONMENT, cause, str(edit.root), Text("install the package as a folder (not zipped)"))
        for change in edit.changes:
            path = store.locate(change.path)
            state, file = current_states(path, change)
            if change.before != change.after:
                _require_replaceable(store, path, state, file)
                if group := rights.lost_group(state.gid, path):
                    lost = Text(
                        "the group of {file} will change, and revert will not restore the old group; nobody loses"
                        " access",
                        path.name,
                    )
                    notes.append(Note(lost, Text("{path} belongs to {group}", path=path, group=group)))
                folders.append(path.parent)
                if change.after != change.pristine:  # what was compiled later must not stop a revert
                    _require_source_imported(path)
                elif target := lost_link(path, store.entry(change.path)):
                    lost = Text(
                        "the original was a link to a file that no longer exists, so rlpatch restores a regular file"
                        " instead"
                    )
                    notes.append(Note(lost, f"{path} -> {target}"))
        _require_writable(store.path if store.exists() else store.root)
        if not store.exists():
            folders.append(store.root)
    new = Text("a folder of another user will get a new modification time, because rlpatch cannot restore the old one")
    for folder in dict.fromkeys(folders):
        owner = os.stat(folder).st_uid
        if os.geteuid() not in (0, owner):
            why = Text(
                "{folder} belongs to user {uid}: only that user can restore its modification time",
                folder=folder,
                uid=owner,
            )
            notes.append(Note(new, why))
    return tuple(notes)


def lost_link(path: Path, entry: Entry | None) -> str:
    """Return where the original link at ``path`` led, if that file no longer exists; else "".

    ``entry`` is the registry entry of the file; without one, or if the original was no link, return "".
    """
    link = entry.pristine.link if entry else None
    try:
        os.stat(path.parent / (link or "."))
    except (FileNotFoundError, NotADirectoryError):
        return link or ""
    except OSError:  # this user may not see it
        pass
    return ""


def current_states(path: Path, change: Change) -> tuple[PathState, PathState]:
    """Return the state of ``path`` itself, and of the file that Python imports from there; they differ for a link.

    Raises Problem (FOREIGN_EDIT) if there is no file or its bytes are not those that planning read, Problem
    (ENVIRONMENT) if they cannot be read.
    """
    try:
        state, content = observe(path)
        file = state
        if state is not None and state.link is not None:
            file, content = observe(resolved(path))
    except OSError as error:
        hint = Text("check why the file cannot be read, and where links in its path lead")
        raise Problem(
            Kind.ENVIRONMENT, Text("cannot read the file: {error}", error.strerror), str(path), hint
        ) from error
    if state is None or file is None or content != change.before:
        raise not_as_planned(path)
    return state, file


def not_as_planned(path: Path) -> Problem:
    """Return the problem that a file is not as planning read it."""
    cause = Text("the file was replaced after rlpatch had read it")
    return Problem(Kind.FOREIGN_EDIT, cause, str(path), Text("run the command again"))


def _require_replaceable(store: StoreFolder, path: Path, state: PathState, file: PathState) -> None:
    """Raise Problem (ENVIRONMENT) unless this user may replace the file at ``path`` and remove its bytecode.

    ``state`` and ``file`` are those that `current_states` returns. A replacement must keep the rights, and the file
    must not be a mount nor the bytecode folder a link.
    """
    plain = rights.replacement(state, file, resolved(path), store.root)
    if lost := rights.unkept_rights(plain, file, path):
        hint = Text(
            "run rlpatch as the owner of the file, or as root on the host (not in a container), or install the package"
            " into your own environment"
        )
        raise Problem(Kind.ENVIRONMENT, lost, str(path), hint)
    if source := mounts.mounted_source(resolved(path)):
        cause = Text("the file is mounted from {source}, so rlpatch cannot replace it", source)
        hint = Text(
            "patch the package at the mount's source (--path), mount the folder instead of the file, or use `rlpatch"
            " run`, which changes no files"
        )
        raise Problem(Kind.ENVIRONMENT, cause, str(path), hint)
    if state.link is None:
        _require_writable(path)
    _require_writable(path.parent)
    folder = path.parent / BYTECODE
    if folder.is_symlink():
        hint = Text("delete the link; Python then creates a real folder for its bytecode")
        raise Problem(Kind.ENVIRONMENT, Text("the bytecode folder is a symlink"), str(folder), hint)
    compiled = bytecode.beside(path)
    if compiled and folder.is_dir():
        _require_writable(folder)
    for cached in compiled:
        with contextlib.suppress(FileNotFoundError):  # it went this moment
            _require_removable(cached)


def _require_removable(compiled: Path) -> None:
    """Raise Problem (ENVIRONMENT) if a sticky folder prevents this user from removing the ``compiled`` file."""
    owner, above = os.lstat(compiled).st_uid, os.stat(compiled.parent)
    sticky = above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, above.st_uid, owner)
    if sticky:
        cause = Text("this bytecode file belongs to user {owner}, and you have no permission to delete it", owner)
        hint = Text("ask the owner of the bytecode file to delete it; Python will create it again")
        raise Problem(Kind.ENVIRONMENT, cause, str(compiled), hint)


def _require_writable(path: Path) -> None:
    """Raise Problem (ENVIRONMENT) if ``path`` exists and this user may not write it."""
    # What is not there any more may be a store that another process has removed with the last patch.
    if not os.access(path, os.W_OK) and os.path.lexists(path):
        cause = Text("you have no permission to write this file")
        if path.is_dir():
            cause = Text("you have no permission to write in this folder")
        hint = Text(
            "get write permission, install the package into your own environment, or use `rlpatch run`, which changes"
            " no files"
        )
        raise Problem(Kind.ENVIRONMENT, cause, str(path), hint)


def _require_source_imported(path: Path) -> None:
    """Raise Problem (ENVIRONMENT) if Python would import a compiled module or a package instead of ``path``."""
    for name in os.listdir(path.parent):
        sibling = path.parent / name
        compiled = name.startswith(f"{path.stem}.") and name.endswith(_COMPILED)
        if compiled or (name == path.stem and (sibling / "__init__.py").exists()):
            hint = Text(
                "reinstall the package so that Python imports {file}, not {module}", file=path.name, module=name
            )
            raise Problem(
                Kind.ENVIRONMENT,
                Text("Python imports {module} instead of this file", name),
                str(path),
                hint,
            )
