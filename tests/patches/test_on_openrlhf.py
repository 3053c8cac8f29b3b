"""OpenRLHF's real trainers and workers on a CPU, patched: every bit as before, and in the trace exactly the units.

What happens is labelled by the driver (``fixtures.openrlhf.drive``), which plays DeepSpeed: forwards, backwards and
the optimizer's steps, each with the number of its call. The timeline goes with the windows of micro-batches.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures import releases
from fixtures.openrlhf.host import drive
from patches.openrlhf import RELEASES
from tests.matrix import ends
from tests.patches.command_line import run as rlpatch
from tests.patches.labelled import Recorded, Units, recorded
from tests.patches.probes.timelines import files_of

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

INFERENCE = ("compute-log-prob", "compute-values")
STAGES = ("update-policy", "update-critic", *INFERENCE)


class Case(NamedTuple):
    """What is driven, the window and the training steps of all stages, and what is recorded and written."""

    name: str
    run: dict[str, Any]
    recorded: Recorded
    window: str
    steps: str = "1"
    said: str = ""

    def environment(self, folder: Path) -> dict[str, str]:
        where = {"RLPATCH_SAVE_PATH": str(folder / self.name)}
        return {**where, "RLPATCH_WINDOW": self.window, "RLPATCH_TRAINING_STEPS": self.steps}


def learned(call: int, *numbers: int, optimizer: int | None = None) -> list[str]:
    """The labels of these micro-batches of a call, and of the optimizer's step behind them."""
    passes = [f"{kind} {call} {number}" for number in numbers for kind in ("forward", "backward")]
    return passes if optimizer is None else [*passes, f"optimizer {call} {optimizer}"]


ACTOR = {"role": "actor", "calls": ["forward", "update", "forward", "update"], "epochs": 2}
CRITIC = {"role": "critic", "calls": ["forward", "update"]}
DYNAMIC = {"role": "actor", "calls": ["update"], "dynamic": True}  # of 4 batches, steps behind the third and the fourth
EPOCHS: Units = {3: learned(3, 3, optimizer=1), 4: learned(3, 4), 5: learned(3, 5, optimizer=2)}
MICRO = (
    Case(
        "over-epochs",
        ACTOR,
        {("update-policy", "actor", 2): EPOCHS, ("compute-log-prob", "actor", 2): {3: ["forward 2 3"]}},
        window="3:6",
        steps="2",
        said="complete, recorded 3 of 3 micro-batches with 0 optimizer steps between them",
    ),
    Case(
        "critic",
        CRITIC,
        {("update-critic", "critic", 1): {0: learned(1, 0)}, ("compute-values", "critic", 1): {0: ["forward 0 0"]}},
        window="0:1",
    ),
    Case(
        "dynamic",
        DYNAMIC,
        {("update-policy", "actor", 1): {2: learned(0, 2, optimizer=0), 3: learned(0, 3, optimizer=1)}},
        window="2:9",
        said="the call ends, recorded 2 of 7 micro-batches",
    ),
)
MINI = (
    Case(
        "over-epochs",
        ACTOR,
        {("update-policy", "actor", 1): {1: learned(1, 2, 3, optimizer=1), 2: learned(1, 4, 5, optimizer=2)}},
        window="1:3",
    ),
    Case("critic", CRITIC, {("update-critic", "critic", 1): {0: learned(1, 0, 1, optimizer=0)}}, window="0:1"),
    Case(
        "dynamic",
        DYNAMIC,
        {("update-policy", "actor", 1): {0: learned(0, 0, 1, 2, optimizer=0), 1: learned(0, 3, optimizer=1)}},
        window="0:2",
    ),
)


@pytest.mark.parametrize("unit", ["micro-batch", "mini-batch"])
@pytest.mark.parametrize("release", ends(RELEASES))
def test_every_bit_is_as_before_and_the_trace_holds_the_window(
    release: str, unit: str, tmp_path: Path, thorough: bool
) -> None:
    if (release, unit) == (RELEASES[0], "mini-batch") and not thorough:
        pytest.skip("--thorough: a minute, for what the mini-batches of the newest release show, too")
    cases, tree = MINI if unit == "mini-batch" else MICRO, tmp_path / "tree"
    published = releases.release(release, "openrlhf")
    shutil.copytree(published, tree)
    common = ("--tool", "torch", "--contents", "cpu", "--path", tree, "--save-path", tmp_path / "elsewhere")
    for stage in STAGES:
        if unit == "micro-batch" or stage not in INFERENCE:
            rlpatch("apply", f"openrlhf=={release}", "--stage", stage, f"--{unit}", "0:1", *common)
    if unit == "micro-batch":
        rlpatch("apply", f"openrlhf=={release}", "--timeline", *common[-4:])
    before = drive(published, [case.run for case in cases])
    assert "rlpatch" not in before.log
    after = drive(tree, [{**case.run, "env": case.environment(tmp_path)} for case in cases])
    assert "Traceback" not in after.log
    for case, theirs, ours in zip(cases, before.runs, after.runs, strict=True):
        assert ours == theirs, f"{case.name}: patched and published differ"
        assert dict(recorded(tmp_path / case.name)) == case.recorded, f"{case.name}: {after.log}"
        assert case.said in after.log, case.name
    if unit == "micro-batch":
        the_timeline_has_every_unit(tmp_path / cases[0].name, before.runs)


def the_timeline_has_every_unit(folder: Path, runs: list[list[dict[str, Any]]]) -> None:
    """Each micro-batch has one forward; those of a worker lie in its work, the updates are called without theirs."""
    (lines,) = files_of(folder)
    spans = [row for line in lines[1:] for row in line.get("spans", ())]
    works = {row[0]: row[3] for row in spans if row[2] == "work"}
    assert [*works.values()] == ["PolicyModelActor.forward"] * 2 + ["CriticModelActor.forward"]
    units = Counter(row[1] for row in spans if row[2:4] == ["unit", "micro-batch"])
    labels = [label for run in runs for call in run for label in call["labels"]]
    updated = sum(label.startswith("backward ") for label in labels)
    assert units == Counter({**dict.fromkeys(works, 4), 0: updated})
    assert units.total() == sum(label.startswith("forward ") for label in labels)
