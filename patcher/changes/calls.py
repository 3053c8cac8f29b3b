"""A diff for people who look for the call sites: each inserted block is folded to its first line and a count."""

from __future__ import annotations

import re

from patcher.changes.lines import split

_BEGIN, _END = re.compile(rb"\+\s*# >>> rlpatch "), re.compile(rb"\+\s*# <<< rlpatch ")


def folded(diff: bytes) -> bytes:
    """A unified diff in which of each inserted block only its first line stands, and how many follow it.

    Blocks that are cut off, and all other lines, stay as they are. ``git apply`` takes what comes out for no diff.
    """
    lines = split(diff)
    shown: list[bytes] = []
    at = 0
    while at < len(lines):
        shown.append(lines[at])
        end = _end(lines, at) if _BEGIN.match(lines[at]) else at
        if end > at:
            indent = re.match(rb"\+\s*", lines[at])
            shown.append(b"%s# ... %d lines folded ...\n" % (indent[0] if indent else b"+", end - at))
        at = end + 1
    return b"".join(shown)


def _end(lines: list[bytes], begin: int) -> int:
    """Where the block that begins at ``begin`` ends; there, if it does not end as one that was inserted."""
    for at in range(begin + 1, len(lines)):
        if not lines[at].startswith(b"+"):
            return begin
        if _END.match(lines[at]):
            return at
    return begin
