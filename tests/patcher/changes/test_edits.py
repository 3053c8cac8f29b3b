"""The diff that shows the call sites."""

from __future__ import annotations

from patcher.changes import edits
from patcher.changes.edits import fold_blocks

BEFORE = b"class Worker:\n    def run(self):\n        work()\n"
BLOCK = (
    b"    # >>> rlpatch toy rollout 0.1.0 0123456789abcdef\n    class _Rlpatch:\n        A = 1\n\n"
    b"    # <<< rlpatch toy rollout\n"
)
CALL = b"        self._rlpatch()  # rlpatch: toy rollout\n"
AFTER = BEFORE.replace(b"        work", CALL + b"        work") + BLOCK


def test_a_block_is_its_first_line_and_a_count_and_every_call_site_is_whole() -> None:
    assert fold_blocks(edits.diff("a.py", BEFORE, AFTER)).splitlines() == [
        b"diff --git a/a.py b/a.py",
        b"--- a/a.py",
        b"+++ b/a.py",
        b"@@ -1,3 +1,9 @@",
        b" class Worker:",
        b"     def run(self):",
        b"+        self._rlpatch()  # rlpatch: toy rollout",
        b"         work()",
        b"+    # >>> rlpatch toy rollout 0.1.0 0123456789abcdef",
        b"+    # ... 4 lines folded ...",
    ]


def test_each_of_several_blocks_is_folded() -> None:
    two = AFTER + BLOCK.replace(b"toy rollout", b"toy update ref")
    shown = fold_blocks(edits.diff("a.py", BEFORE, two) + edits.diff("b.py", BEFORE, two))
    assert shown.count(b"4 lines folded") == 4
    assert shown.count(b"+        self._rlpatch()") == 2
    assert b"<<<" not in shown


def test_what_is_no_whole_block_stays_as_it_is() -> None:
    for after in (AFTER.replace(b"# <<< rlpatch", b"# rlpatch"), AFTER.replace(CALL, b"").replace(BLOCK, b"")):
        diff = edits.diff("a.py", BEFORE, after)
        assert fold_blocks(diff) == diff
    taken_out = edits.diff("a.py", AFTER, BEFORE)
    assert fold_blocks(taken_out) == taken_out
    across = edits.diff("a.py", BEFORE + BLOCK[-30:], BEFORE + BLOCK)
    assert fold_blocks(across) == across


def test_bytes_that_are_no_text_and_lone_carriage_returns_stay() -> None:
    odd = b"# \xe9\r\xff\n"
    assert odd in fold_blocks(edits.diff("a.py", odd + BEFORE, odd + AFTER))
