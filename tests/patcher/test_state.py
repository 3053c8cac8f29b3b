"""What `rlpatch status` says of a file."""

from __future__ import annotations

import pytest

from patcher.state import file_state
from tests.patcher.test_markers import BODY, ONE, TWO, marked

PRISTINE = BODY.encode()


@pytest.mark.parametrize(
    ("data", "pristine", "state", "detail"),
    [
        (marked(BODY), PRISTINE, "intact", ""),
        (marked(BODY), None, "intact", ""),
        (marked(marked(BODY).decode(), TWO), PRISTINE, "intact", ""),
        (b"import os\n" + marked(BODY), PRISTINE, "edited", "a revert leaves them"),
        (marked(BODY).replace(b"y = 2", b"y = 3"), PRISTINE, "tampered", "line 5: our lines were edited"),
        (marked(BODY).replace(b"# <<<", b"# <<"), PRISTINE, "tampered", "line 5: a mark of rlpatch begins"),
        (marked(BODY, TWO), PRISTINE, "lost", "rlpatch revert forgets it"),
        (PRISTINE, PRISTINE, "lost", "was replaced"),
        (None, None, "missing", "was the package uninstalled?"),
    ],
)
def test_states(data: bytes | None, pristine: bytes | None, state: str, detail: str) -> None:
    found = file_state(data, pristine, ONE, "worker.py")
    assert (found.path, found.state) == ("worker.py", state)
    assert detail in found.detail
