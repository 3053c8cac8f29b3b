"""RLPATCH variables that have no effect on a run, or that switch its recording off."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
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
        ("RLPATCH_TRAINING_STEPS=0", "is not valid"),
        ("RLPATCH_MAX_TIMELINE_MB=1.5", "is not valid"),
    ],
)
def test_a_variable_is_warned_of(variable: str, said: str) -> None:
    name, _, value = variable.partition("=")
    notes = steering.variable_warnings({name: value, "PATH": "/bin"}).notes
    assert [note.level for note in notes] == (["warning"] if said else [])
    assert all(note.text.startswith(name) and said in note.text for note in notes)


LOOSER = {"_WINDOW", "_REPLICAS"}
"""Variables whose pattern depends on the recorder: what one of them takes is no mistake here."""


def read_by_recorders() -> dict[str, ast.expr]:
    """Return each variable that a probe reads, by the end of its name, with the pattern that its value must have."""
    files = map(Path.read_bytes, sorted((REPOSITORY / "patches/probes").glob("*.py")))
    calls = [node for file in files for node in ast.walk(ast.parse(file)) if isinstance(node, ast.Call)]
    settings = [call.args for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "setting"]
    return {
        name.value.removeprefix("RLPATCH"): pattern
        for name, _, pattern in settings
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in steering._OTHERS
    }


def test_the_variables_are_those_that_the_recorders_read() -> None:
    read = read_by_recorders()
    states = {name for name in steering._VALUES if name.startswith("_AT_")}  # one call reads all of them
    assert read.keys() | states == steering._VALUES.keys()
    patterns = {name: ast.literal_eval(pattern) for name, pattern in read.items() if name not in LOOSER}
    assert patterns == {name: steering._VALUES[name] for name in patterns}
