"""How a patched file stands today: what `rlpatch status` says of it."""

from __future__ import annotations

from typing import NamedTuple

from patcher import markers
from patcher.change import PatchId
from patcher.errors import Problem


class FileState(NamedTuple):
    """One file of an applied patch as it is now.

    ``state`` is one of intact, edited (others changed lines outside of ours), tampered (our own lines were
    changed), lost (the marks are not there: reinstalled, checked out, restored) and missing (no such file).
    """

    path: str
    state: str
    detail: str = ""


def file_state(data: bytes | None, pristine: bytes | None, patch: PatchId, path: str, rights: str = "") -> FileState:
    """How the file ``path`` with the bytes ``data`` stands to ``patch``; ``pristine`` is the backup of the store.

    ``rights`` says in words what others have changed of its mode, owner and attributes.
    """
    if data is None:
        return FileState(path, "missing", "the file is gone: was the package uninstalled?")
    try:
        found = {marked.patch: marked for marked in markers.marked(data, (patch,))}
    except Problem as problem:
        return FileState(path, "tampered", f"line {problem.where}: {problem.cause}")
    if patch not in found:
        return FileState(path, "lost", "the file was replaced and has no line of this patch: rlpatch revert forgets it")
    ours = [found[patch], *(found[shared] for shared in found[patch].uses)]
    if edited := [marked for marked in ours if not marked.intact]:
        line = edited[0].lines[0] + 1
        return FileState(path, "tampered", f"line {line}: our lines were edited: undo that, then rlpatch revert")
    if pristine is not None and markers.strip(data, found) != pristine:
        changed = "; ".join(filter(None, ("others changed lines outside of ours", rights)))
        return FileState(path, "edited", f"{changed}; a revert leaves them as they are")
    return FileState(path, "intact", rights and f"{rights}; a revert leaves that as it is")
