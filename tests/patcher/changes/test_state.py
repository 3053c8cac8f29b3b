"""States of a file in `rlpatch status`."""

from __future__ import annotations

import pytest

from patcher.changes.state import file_state
from tests.patcher.marked import BODY, ONE, TWO, marked

PRISTINE = BODY.encode()


@pytest.mark.parametrize(
    ("data", "pristine", "left", "state", "detail"),
    [
        (marked(BODY), PRISTINE, True, "intact", ""),
        (marked(BODY), None, True, "intact", ""),
        (
            marked(BODY),
            None,
            None,
            "intact",
            "only the marker comments were checked",
        ),
        (marked(BODY), PRISTINE, False, "tampered", "then insert them again with `rlpatch apply`"),
        (
            marked(BODY),
            None,
            False,
            "edited",
            "changed after rlpatch wrote it",
        ),
        (marked(marked(BODY).decode(), TWO), PRISTINE, True, "intact", ""),
        (b"import os\n" + marked(BODY), PRISTINE, False, "edited", "revert keeps these edits"),
        (marked(BODY).replace(b"y = 2", b"y = 3"), PRISTINE, False, "tampered", "were edited"),
        (
            marked(marked(BODY).decode(), TWO).replace(b"y = 2", b"y = 3", 1),
            PRISTINE,
            False,
            "tampered",
            f"the lines of patch {TWO} were edited",
        ),
        (
            marked(BODY).replace(b"# <<<", b"# <<"),
            PRISTINE,
            False,
            "tampered",
            "line 5: an rlpatch marker comment begins",
        ),
        (
            BODY.replace("X = 1", f"g()  # rlpatch: {ONE}").encode(),
            PRISTINE,
            False,
            "tampered",
            "line 6: an rlpatch marker comment",
        ),
        (
            marked(BODY, TWO),
            PRISTINE,
            True,
            "lost",
            "to make rlpatch forget the patch: rlpatch revert",
        ),
        (PRISTINE, PRISTINE, False, "lost", "was replaced"),
        (None, None, None, "missing", "was the package uninstalled?"),
    ],
)
def test_each_edit_of_a_patched_file_has_its_state(
    data: bytes | None, pristine: bytes | None, left: bool | None, state: str, detail: str
) -> None:
    found = file_state(data, pristine, ONE, "worker.py", "", left)
    assert (found.path, found.state) == ("worker.py", state)
    assert detail in found.detail
