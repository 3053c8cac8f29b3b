"""RLPATCH variables that have no effect on a run, or that switch its recording off."""

from __future__ import annotations

import pytest

from patcher.commands.patching import steering


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("RLPATCH_WINDOW=30:60", ""),
        ("RLPATCH_WINDOW=30:,80:90", ""),
        ("RLPATCH_WINDOW=", ""),
        ("RLPATCH_UPDATE_POLICY_WINDOW=0:1", ""),
        ("RLPATCH_RANKS=all", ""),
        ("RLPATCH=0", ""),
        ("RLPATCH_LANG=zh", ""),
        ("RLPATCH_ANYTHING_ELSE=1", ""),
        ("RLPATCH_WINDOWS=30:60", "did you mean RLPATCH_WINDOW?"),
        ("RLPATCH_ROLOUT=2", "did you mean RLPATCH_ROLLOUT?"),
        ("RLPATCH_WINDOW=60:30", "is not valid"),
        ("RLPATCH_ROLLOUT_WINDOW=30-60", "is not valid"),
        ("RLPATCH_RANKS=0-7", "is not valid"),
        ("RLPATCH_SAVE_PATH=traces", "is not valid"),
        ("RLPATCH=off", "is not valid"),
    ],
)
def test_a_variable_is_warned_of(variable: str, said: str) -> None:
    name, _, value = variable.partition("=")
    notes = steering.variables({name: value, "PATH": "/bin"}).notes
    assert [note.level for note in notes] == (["warning"] if said else [])
    assert all(note.text.startswith(name) and said in note.text for note in notes)
