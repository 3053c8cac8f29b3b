"""Outcomes of the store, in the words of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.messages.errors import Kind, Problem
from patcher.messages.notes import Note
from patcher.store import outcomes, transaction
from patcher.store.transaction import Outcome, Recovered

RUNS = (Recovered(Path("/a"), forward=True), Recovered(Path("/b"), forward=False, left=("x.py",)))
LINES = ["completed an interrupted command in /a", "undid an interrupted command in /b"]


@pytest.mark.parametrize(
    ("node", "lines", "where"),
    [
        ("", LINES, "in the folder /b"),
        ("n1", [f"n1: {line}" for line in LINES], "in the folder /b on n1"),
    ],
)
def test_a_report_names_the_runs_that_were_ended(node: str, lines: list[str], where: str) -> None:
    step = outcomes.recovery_messages(RUNS, node)
    assert (list(step.lines), list(step.done)) == (lines, lines)
    assert step.notes == (
        (
            "warning",
            "rlpatch did not touch x.py: somebody changed the file after an rlpatch command was interrupted",
            where,
        ),
    )


def test_a_commit_tells_all_that_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Outcome((Path("/a/x.py"),), RUNS[:1], (Note("its group is another", "by the folder"),))
    monkeypatch.setattr(transaction, "commit", lambda edits, on_wait: done)
    step = outcomes.commit([], "patched", lambda _line: None)
    assert step.done == ("patched /a/x.py", LINES[0])
    assert list(step.lines) == LINES[:1]
    assert [note.text for note in step.notes] == ["its group is another"]


def test_a_commit_that_fails_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(edits: object, on_wait: object) -> Outcome:
        raise Problem(Kind.ENVIRONMENT, "no space")

    monkeypatch.setattr(transaction, "commit", fail)
    with pytest.raises(Problem):
        outcomes.commit([], "patched", lambda _line: None)
