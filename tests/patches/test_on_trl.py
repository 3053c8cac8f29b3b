"""TRL's real trainers on a CPU, patched by ``rlpatch apply``: every bit as before, and in the trace exactly the units.

What happens is labelled by the driver (``fixtures.trl.drive``): generating, forwards without gradients, and in
training the loss, the backward and the optimizer's step. The oldest release runs on transformers 4, the newest on 5.
The timeline goes with the windows of micro-batches: all runs are in one process, and in one file.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures import releases
from fixtures.trl.host import NEWEST, OLDEST, drive
from patcher.timeline import files
from patcher.timeline.join import join
from patcher.timeline.runs import survey
from tests.patches.command_line import run as rlpatch
from tests.patches.labelled import Recorded, Units, recorded

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]


class Case(NamedTuple):
    """What is driven, the window and the training steps of both stages, and what is recorded and written.

    ``recorded`` has stage, role and training step of each trace with the labels of its units, ``said`` a part of the log.
    """

    trainer: str
    recorded: Recorded
    window: str = "0:2"
    steps: str = "1"
    settings: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    options: dict[str, bool] = {}  # noqa: RUF012
    said: str = ""

    @property
    def name(self) -> str:
        settings = [f"{key}_{value}" for key, value in {**self.settings, **self.options}.items()]
        return "-".join([self.trainer, self.window.replace(":", "_"), self.steps, *settings])

    @property
    def run(self) -> dict[str, Any]:
        return {"trainer": self.trainer, "settings": self.settings, **self.options}

    def environment(self, folder: Path) -> dict[str, str]:
        where = {"RLPATCH_SAVE_PATH": str(folder / self.name)}
        return {**where, "RLPATCH_WINDOW": self.window, "RLPATCH_TRAINING_STEPS": self.steps}


def update(step: int, units: Units) -> Recorded:
    return {("update-policy", "actor", step): units}


def log_prob(role: str, step: int, units: Units) -> Recorded:
    return {("compute-log-prob", role, step): units}


def learned(*numbers: int) -> list[str]:
    return [f"{kind} {number}" for number in numbers for kind in ("loss", "backward")]


EVALUATED = {"gradient_accumulation_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
OFTEN, SELDOM = {"steps_per_generation": 1}, {"steps_per_generation": 4}
MICRO = (
    Case(
        "GRPO",
        update(2, {0: learned(2), 1: learned(3)}) | log_prob("ref", 2, {0: ["infer 2"], 1: ["infer 3"]}),
        steps="2",
        said="complete, recorded 2 of 2 micro-batches with 1 pauses between them",
    ),
    # Between the steps TRL evaluates: it generates, and computes log-probabilities and losses, in the same methods.
    Case(
        "RLOO",
        update(2, {1: ["loss 8", "backward 4"]})
        | log_prob("actor", 2, {1: ["infer 19"]})
        | log_prob("ref", 2, {1: ["infer 22"]}),
        window="1:2",
        steps="2",
        settings=EVALUATED,
    ),
    Case(
        "GRPO",
        update(1, {0: learned(0), 1: learned(1)}) | log_prob("ref", 1, {0: ["infer 0"]}),
        settings=OFTEN,
        options={"lora": True},
        said="the call ends, recorded 1 of 2 micro-batches",
    ),
    Case(
        "GRPO",
        log_prob("actor", 1, {2: ["infer 2"], 3: ["infer 3"]}) | log_prob("ref", 1, {2: ["infer 6"], 3: ["infer 7"]}),
        window="2:4",
        settings=SELDOM,
        said="update-policy, actor, micro-batch 2:4 of training step 1: the training step ends, recorded 0 of 2 micro-batches",
    ),
    Case(
        "GRPO",
        update(1, {0: learned(0), 1: learned(1)}),
        settings={"beta": 0.0},
        said="of training step 1: not recorded: the process ends, and actor and ref computed no log-probs",
    ),
    Case(
        "SFT", update(1, {0: learned(0), 1: learned(1)}), window="0:9", said="the training step ends, recorded 2 of 9"
    ),
    Case(
        "SFT",
        update(1, {0: learned(0), 1: learned(1)}),  # of the run that saves its first step
        options={"resumed": True},
        said="of training step 2: not recorded: the first call is already in training step 2",
    ),
)
NEWER = (
    Case("DPO", update(1, {1: ["loss 1", "infer 1", "backward 1"]}), window="1:2"),
    Case("KTO", update(2, {0: ["loss 2", "infer 6", "infer 7", "infer 8", "backward 2"]}), window="0:1", steps="2"),
)
MINI = (
    Case("GRPO", update(2, {0: [*learned(2, 3), "optimizer 1"]}), window="0:1", steps="2"),
    Case("RLOO", update(1, {0: [*learned(0, 1, 2), "optimizer 0"]}), window="0:9", settings=EVALUATED),
    Case("GRPO", {}, settings=OFTEN, said="not recorded: with steps_per_generation below gradient_accumulation_steps"),
    Case("SFT", update(1, {0: [*learned(0, 1), "optimizer 0"]}), window="0:1"),
)


@pytest.mark.parametrize("unit", ["micro-batch", "mini-batch"])
@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_every_bit_is_as_before_and_the_trace_holds_the_window(
    release: str, unit: str, tmp_path: Path, thorough: bool
) -> None:
    if (release, unit) == (OLDEST, "mini-batch") and not thorough:
        pytest.skip("--thorough: a minute, for what the mini-batches of the newest release show, too")
    cases = MINI if unit == "mini-batch" else (*MICRO, *(NEWER if release == NEWEST else ()))
    published = releases.release(release, "trl")
    patched = patch(release, unit, tmp_path)
    before = drive(release, published, [case.run for case in cases])
    assert "rlpatch" not in before.log
    after = drive(release, patched, [{**case.run, "env": case.environment(tmp_path)} for case in cases])
    assert "Traceback" not in after.log
    for case, theirs, ours in zip(cases, before.runs, after.runs, strict=True):
        assert ours == theirs, f"{case.name}: patched and published differ"
        assert dict(recorded(tmp_path / case.name)) == case.recorded, f"{case.name}: {theirs} {after.log}"
        assert case.said in after.log, case.name
    (facts,) = (tmp_path / cases[0].name).glob("*update_policy*.rlpatch.json")
    sizes = [one.get("padded") for one in json.loads(facts.read_text())["units"]]
    assert sizes == ([None] if unit == "mini-batch" else [[2, 6], [2, 6]])  # 2 and 4 tokens of prompts and answers
    if unit == "micro-batch":
        the_timeline_has_every_step(tmp_path / cases[0].name, [case.trainer for case in cases])


def the_timeline_has_every_step(folder: Path, trainers: list[str]) -> None:
    """Two steps of each trainer, by the number of its log, and what they were spent on."""
    ((found, processes),) = survey(files.paths(folder)).runs
    joined = join(found, processes)
    assert [(lane.role, lane.rank) for lane in joined.lanes] == [("trainer", None)]
    assert [step.step for step in joined.steps] == [1, 2] * len(trainers)
    for trainer, steps in zip(trainers, zip(joined.steps[::2], joined.steps[1::2], strict=True), strict=True):
        spent = {one.what for step in steps for one in step.critical_path}
        rollout = {"generate", "calculate_rewards", "get_per_token_logps_and_entropies", "training_step"}
        assert spent >= {"train", "compute_loss", "log"}
        assert spent >= (rollout if trainer in ("GRPO", "RLOO") else {"micro-batch"})
        for step in steps:
            assert sum(one.seconds for one in step.critical_path) == pytest.approx(step.seconds, abs=0.001)
    assert joined.missing == ()
    assert sum("recording windows" in note for note in joined.notes) == 1  # they held the steps back
    assert sum(step.pause_seconds > 0 for step in joined.steps) >= len(trainers)
    assert "optimizer step and callbacks" in {one.what for step in joined.steps for one in step.critical_path}


def patch(release: str, unit: str, folder: Path) -> Path:
    """A copy of the release in which update-policy is recorded in this unit, and compute-log-prob in its only one."""
    tree = folder / "tree"
    shutil.copytree(releases.release(release, "trl"), tree)
    common = ("--tool", "torch", "--contents", "cpu", "--path", tree, "--save-path", folder / "elsewhere")
    timeline = ("--timeline",) if unit == "micro-batch" else ()  # in one command: it has the window's pauses
    rlpatch("apply", f"trl=={release}", "--stage", "update-policy", f"--{unit}", "0:1", *timeline, *common)
    if unit == "micro-batch":
        rlpatch("apply", f"trl=={release}", "--stage", "compute-log-prob", "--micro-batch", "0:1", *common)
    return tree
