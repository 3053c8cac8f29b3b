"""Edits that need no recipe: what takes patches out again, and how an edit is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from patcher.changes import lines, markers
from patcher.changes.change import Change, Edit, PatchId, Record

_BLOCK = rb"(?m)^(\+[ \t\f]*)(# >>> rlpatch .*\n)((?:\+.*\n)*?\+[ \t\f]*# <<< rlpatch .*\n)"


def revert(
    root: Path,
    read: Callable[[PurePosixPath], bytes | None],
    records: Iterable[Record],
    patches: Iterable[PatchId],
    backups: Mapping[str, bytes] = MappingProxyType({}),
) -> Edit:
    """Plan the removal of ``patches`` from every file that ``records`` list for them; write nothing.

    ``read`` returns a file's bytes; a file for which it returns None is skipped. A file with an entry in ``backups`` is
    restored to these bytes. A file without lines of the patches is planned unchanged: somebody may patch it before the
    commit. Raises :class:`Problem` (FOREIGN_EDIT) if somebody edited rlpatch's lines.
    """
    chosen = set(patches)
    reverted = [record for record in records if record.patch in chosen]
    changes = []
    for path in map(PurePosixPath, dict.fromkeys(path for record in reverted for path in record.files)):
        if (before := read(path)) is not None:
            where = str(root / path)
            after = pristine = backups.get(str(path))
            if after is None or pristine is None:
                after, pristine = (markers.strip(before, some, where=where) for some in (chosen, None))
            changes.append(Change(path, before, after, pristine))
    return Edit(root, tuple(changes), remove=tuple(dict.fromkeys(record.patch for record in reverted)))


def merge_by_root(edits: Iterable[Edit]) -> list[Edit]:
    """Merge ``edits``, each planned on the result of the earlier ones, into one per root and one change per file."""
    by_root: dict[Path, Edit] = {}
    for edit in edits:
        before = by_root.get(edit.root, Edit(edit.root, ()))
        changes = {change.path: change for change in before.changes}
        for change in edit.changes:
            earlier = changes.get(change.path, change)
            changes[change.path] = change._replace(before=earlier.before)
        merged = Edit(edit.root, tuple(changes.values()), before.add + edit.add, before.remove + edit.remove)
        by_root[edit.root] = merged
    return list(by_root.values())


def diff(path: str, pristine: bytes, after: bytes) -> bytes:
    """Return a unified diff, in the file's encoding, that ``git apply`` accepts; empty bytes if nothing changed."""
    if pristine == after:
        return b""
    import difflib  # noqa: PLC0415  (1 ms, and most commands show no diff)

    old, new = (lines.split(data.decode("utf-8", "surrogateescape")) for data in (pristine, after))
    diff_lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff_lines)
    return f"diff --git a/{path} b/{path}\n{text}".encode("utf-8", "surrogateescape")


def fold_blocks(diff: bytes) -> bytes:
    """Keep only the first line of each inserted block of a diff, and the number of lines; ``git apply`` rejects it."""

    def first_line(block: re.Match[bytes]) -> bytes:
        indent, opening, folded = block.groups()
        return b"%s%s%s# ... %d lines folded ...\n" % (indent, opening, indent, folded.count(b"\n"))

    return re.sub(_BLOCK, first_line, diff)
