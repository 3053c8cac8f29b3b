"""A commit that is refused."""

from __future__ import annotations

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.store import transaction as store


def fails(kind: Kind, edits, *words: str) -> Problem:
    """The problem of a commit, which has the kind and the words."""
    with pytest.raises(Problem) as caught:
        store.commit(edits)
    assert caught.value.kind is kind, caught.value
    for word in words:
        assert word in str(caught.value)
    return caught.value
