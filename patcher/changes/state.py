"""The state of a patched file today, as `rlpatch status` says it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.messages import SEMICOLON, CommandLine, Problem, Text, joined


class FileState(NamedTuple):
    """Present state of one file of an applied patch.

    ``state`` is one of: intact; edited (somebody changed other lines); tampered (lines of rlpatch were changed or
    moved); lost (no marks: the file was reinstalled, checked out or restored); missing (no such file). ``detail`` says
    why, or what else was changed, such as the mode of an intact file. It may be "".
    """

    path: str
    state: str
    detail: str = ""


def file_state(
    data: bytes | None,
    pristine: bytes | None,
    patch: PatchId,
    path: str,
    rights: str = "",
    in_place: bool | None = None,
) -> FileState:
    """Return the state of ``path``, a file of ``patch`` whose bytes are ``data`` (None: no such file).

    ``pristine`` is the store's backup, None without a readable one. ``rights`` says what others changed of mode, owner
    and attributes, which leaves a file intact. ``in_place`` tells whether the bytes are the ones rlpatch wrote (None:
    unknown).
    """
    state, revert = partial(FileState, path), CommandLine("revert")
    if data is None:
        return state(Text("missing"), Text("the file no longer exists: was the package uninstalled?"))
    try:
        marks = {marked.patch: marked for marked in markers.marked(data, (patch,))}
    except Problem as problem:
        return state(Text("tampered"), Text("line {line}: {cause}", line=problem.where, cause=problem.cause))
    if patch not in marks:
        why = Text("the file was replaced and no longer has this patch (to make rlpatch forget the patch: {command})")
        return state(Text("lost"), why.filled(revert))
    # An edit of another patch in the file prevents the revert of this one, too.
    if edited := [mark for mark in (marks[patch], *marks.values()) if not mark.intact]:
        why = Text("the lines of patch {patch} were edited: undo the edit, then run {command}")
        return state(Text("tampered"), why.filled(patch=edited[0].patch, command=revert))
    if pristine is not None and markers.strip(data, marks) != pristine:
        changed = joined(SEMICOLON, (Text("the file has other edits, too"), rights))
        return state(Text("edited"), Text("{edits}; revert keeps these edits", changed))
    if in_place is False and pristine is None:
        why = Text(
            "the file was changed after rlpatch wrote it. Its backup is missing or cannot be read, so rlpatch cannot"
            " tell what was changed"
        )
        return state(Text("edited"), why)
    if in_place is False:
        why = Text(
            "rlpatch's lines were moved: remove them with {command}, then insert them again with `rlpatch apply`"
        )
        return state(Text("tampered"), why.filled(revert))
    if in_place is None:
        why = Text(
            "only the marker comments were checked: the folder .rlpatch, which stores the inserted lines, is missing"
        )
        return state(Text("intact"), why)
    return state(Text("intact"), rights and Text("{rights}; `rlpatch revert` does not undo this change", rights))
