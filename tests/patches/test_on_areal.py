"""AReaL's real actors, critics and FSDP engines on a CPU, patched: every bit as before, and in the trace the units.

What happens is labelled by the driver (``fixtures.areal.drive``): forwards, backwards and the optimizer's steps, each
with the number of its call. The timeline goes with the windows: all runs are in one process, and in one file.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures import releases
from fixtures.areal.host import drive
from patches.areal import RELEASES
from tests.matrix import ends
from tests.patches.command_line import run as rlpatch
from tests.patches.labelled import Recorded, recorded
from tests.patches.probes.timelines import files_of

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

WINDOWS = {
    "update-policy": "--micro-batch",
    "compute-log-prob": "--micro-batch",
    "update-critic": "--mini-batch",
    "compute-values": "--micro-batch",
}


class Case(NamedTuple):
    """What is driven, the window and the training step of all stages, and what is recorded and written."""

    name: str
    run: dict[str, Any]
    recorded: Recorded
    window: str
    step: str
    said: str

    def environment(self, folder: Path) -> dict[str, str]:
        where = {"RLPATCH_SAVE_PATH": str(folder / self.name)}
        return {**where, "RLPATCH_WINDOW": self.window, "RLPATCH_TRAINING_STEPS": self.step}


def learned(call: int, *numbers: int) -> list[str]:
    """The labels of these micro-batches of a call."""
    return [f"{kind} {call} {number}" for number in numbers for kind in ("forward", "backward")]


CASES = (
    Case(
        "actor",
        {"role": "actor", "calls": ["forward", "update", "forward", "update"]},
        {
            ("update-policy", "actor", 2): {1: learned(3, 1), 2: learned(3, 2)},
            ("compute-log-prob", "actor", 2): {1: ["forward 2 1"]},
        },
        window="1:3",
        step="2",
        said="complete, recorded 2 of 2 micro-batches with 1 optimizer steps between them",
    ),
    Case(  # whose weights have version 6 says so, and the log has step 7
        "after-a-checkpoint",
        {"role": "actor", "calls": ["update", "update"], "version": 6},
        {("update-policy", "actor", 8): {0: learned(1, 0)}},
        window="0:1",
        step="8",
        said="update-policy, actor, micro-batch 0:1 of training step 8: complete",
    ),
    Case(
        "behind-it",
        {"role": "actor", "calls": ["update"], "version": 6},
        {},
        window="0:1",
        step="6",
        said="training step 7: not recorded: the first call is already in training step 7",
    ),
    Case(
        "without-versions",
        {"role": "actor", "calls": ["update", "update"], "version": None},
        {("update-policy", "actor", 2): {0: learned(1, 0)}},
        window="0:1",
        step="2",
        said="complete",
    ),
    Case(
        "reference",
        {"role": "ref", "calls": ["forward", "forward"], "version": None},
        {("compute-log-prob", "ref", 2): {1: ["forward 1 1"]}},
        window="1:9",
        step="2",
        said="the call ends, recorded 1 of 8 micro-batches",
    ),
    Case(
        "critic",
        {"role": "critic", "calls": ["forward", "update"]},
        {
            ("update-critic", "critic", 1): {1: [*learned(1, 2, 3), "optimizer 1 1"]},
            ("compute-values", "critic", 1): {1: ["forward 0 1"]},
        },
        window="1:2",
        step="1",
        said="complete",
    ),
)


@pytest.mark.parametrize("release", dict.fromkeys(ends(RELEASES)))
def test_every_bit_is_as_before_and_the_trace_holds_the_window(release: str, tmp_path: Path) -> None:
    published, tree = releases.release(release, "areal"), tmp_path / "tree"
    shutil.copytree(published, tree)
    common = ("--tool", "torch", "--contents", "cpu", "--path", tree, "--save-path", tmp_path / "elsewhere")
    for stage, window in WINDOWS.items():
        rlpatch("apply", f"areal=={release}", "--stage", stage, window, "0:1", *common)
    rlpatch("apply", f"areal=={release}", "--timeline", *common[-4:])
    runs = [{**case.run, "env": case.environment(tmp_path)} for case in CASES]
    driven = drive([published, tree], runs)
    assert "Traceback" not in driven.log
    before, after = driven.runs[: len(CASES)], driven.runs[len(CASES) :]
    for case, theirs, ours in zip(CASES, before, after, strict=True):
        assert ours == theirs, f"{case.name}: patched and published differ"
        assert dict(recorded(tmp_path / case.name)) == case.recorded, f"{case.name}: {driven.log}"
        assert case.said in driven.log, case.name
    the_timeline_has_every_unit(tmp_path / CASES[0].name, before)


def the_timeline_has_every_unit(folder: Path, runs: list[list[dict[str, Any]]]) -> None:
    """Each micro-batch has one forward, and lies in the work that the trainer called for, as optimizer steps do."""
    (lines,) = files_of(folder)
    spans = [row for line in lines[1:] for row in line.get("spans", ())]
    works = {row[0]: row[3] for row in spans if row[2] == "work"}
    forwards = {"critic": "compute_values"}
    called = [
        "ppo_update" if call == "update" else forwards.get(case.run["role"], "compute_logp")
        for case in CASES
        for call in case.run["calls"]
    ]
    assert [*works.values()] == called
    units = Counter((row[1], row[3]) for row in spans if row[2] == "unit")
    reports = [call for run in runs for call in run]
    for number, call in zip(works, reports, strict=True):
        done = Counter(label.partition(" ")[0] for label in call["labels"])
        assert units[number, "micro-batch"] == done["forward"] > 0
        assert units[number, "optimizer-step"] == done["optimizer"]
    assert {work for work, _ in units} == {*works}
