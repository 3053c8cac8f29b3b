"""How a patched file stands today: what `rlpatch status` says of it."""

from __future__ import annotations

from typing import NamedTuple

from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Problem


class FileState(NamedTuple):
    """One file of an applied patch as it is now.

    ``state`` is one of intact, edited (others changed lines outside of ours), tampered (our own lines were
    changed or moved), lost (the marks are not there: reinstalled, checked out, restored) and missing (no such file).
    """

    path: str
    state: str
    detail: str = ""


def file_state(
    data: bytes | None, pristine: bytes | None, patch: PatchId, path: str, rights: str = "", left: bool | None = None
) -> FileState:
    """How the file ``path`` with the bytes ``data`` stands to ``patch``; ``pristine`` is the backup of the store.

    ``rights`` says in words what others have changed of its mode, owner and attributes; ``left`` tells whether the
    bytes are those that rlpatch wrote, where the store knows.
    """
    revert = CommandLine("revert")
    if data is None:
        return FileState(path, "missing", "the file is gone: was the package uninstalled?")
    try:
        found = {marked.patch: marked for marked in markers.marked(data, (patch,))}
    except Problem as problem:
        return FileState(path, "tampered", f"line {problem.where}: {problem.cause}")
    if patch not in found:
        return FileState(path, "lost", f"the file was replaced and has no line of this patch: {revert} forgets it")
    ours = [found[patch], *(found[shared] for shared in found[patch].uses)]
    if edited := [marked for marked in ours if not marked.intact]:
        line = edited[0].lines[0] + 1
        return FileState(path, "tampered", f"line {line}: our lines were edited: undo that, then {revert}")
    if pristine is not None and markers.strip(data, found) != pristine:
        changed = "; ".join(filter(None, ("others changed lines outside of ours", rights)))
        return FileState(path, "edited", f"{changed}; a revert leaves them as they are")
    if left is False:
        if pristine is None:
            return FileState(path, "edited", "it is not as rlpatch left it, and its backup cannot be read")
        moved = f"our lines are not where rlpatch put them: {revert} removes them, the same apply puts them back"
        return FileState(path, "tampered", moved)
    if left is None:
        return FileState(path, "intact", "as far as the marks show: only .rlpatch knew where the lines were")
    return FileState(path, "intact", rights and f"{rights}; a revert leaves that as it is")
