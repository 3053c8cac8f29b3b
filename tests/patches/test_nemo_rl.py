"""NeMo-RL: a checkout patched and put back, and its policy workers on a CPU: every bit as before, in the trace the units.

It is installed from checkouts, so the tests run on one of the same shape (``fixtures/nemo_rl``); ``test_checkouts``
patches real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.nemo_rl import trees
from fixtures.nemo_rl.host import drive
from patches.nemo_rl import RELEASES
from patches.projects import upstream
from tests.matrix import MATRIX, ends, thinned
from tests.patches.command_line import run as rlpatch
from tests.patches.command_line import there_and_back
from tests.patches.labelled import Recorded, recorded

UPSTREAM = upstream("nemo-rl")
V2 = "dtensor_policy_worker_v2"
MICRO, MINI, CALL = "micro-batch", "mini-batch", "call"
CALLS = ["reference", "log_probs", "validate", "train", "reference", "log_probs", "train"]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("release", thinned(RELEASES, [RELEASES[-1]]))
def test_apply_and_revert_restore_every_byte(release: str, tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", release)
    for stage, unit in (("update-policy", MINI), ("compute-log-prob", CALL)):
        warned = "differs from the code that was released as"
        there_and_back(UPSTREAM, release, stage, unit, root, tmp_path, warned=warned)


def test_micro_batches_are_those_of_the_worker_whose_loop_has_them(tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", RELEASES[-1])
    rlpatch("apply", "nemo-rl", "--micro-batch", "0:2", "--path", root)
    patched = [worker for worker in trees.WORKERS if "_rlpatch" in source(root, RELEASES[-1], worker)]
    assert patched == [V2]
    refused = rlpatch("apply", "nemo-rl", "--micro-batch", "0:2", "--strategy", "megatron", "--path", root, code=2)
    assert "Megatron's schedule" in refused.stderr
    assert "--mini-batch" in refused.stderr


def source(root: Path, release: str, worker: str) -> str:
    return (root / (trees.module(release, worker).replace(".", "/") + ".py")).read_text()


def labels(call: int, *kinds: str, first: int = 0, optimizer: int | None = None) -> list[str]:
    """The labels of three micro-batches from the number ``first`` on, and of an optimizer step behind them."""
    passes = [f"{kind} {call} {number}" for number in range(first, first + 3) for kind in kinds]
    return passes if optimizer is None else [*passes, f"optimizer {call} {optimizer}"]


LEARNT = [labels(6, "forward", "backward", first=first, optimizer=at) for at, first in enumerate((0, 3))]
FORWARD = [label for first in (0, 3) for label in labels(4, "forward", first=first)]
OWN = [label.replace(" 4 ", " 5 ") for label in FORWARD]
EXPECTED: dict[str, Recorded] = {
    MINI: {("update-policy", "actor", 2): {1: LEARNT[1]}},
    CALL: {
        ("update-policy", "actor", 2): {0: [*LEARNT[0], *LEARNT[1]]},
        ("compute-log-prob", "ref", 2): {0: FORWARD},
        ("compute-log-prob", "actor", 2): {0: OWN},
    },
    MICRO: {
        ("update-policy", "actor", 2): {2: LEARNT[0][4:6], 3: LEARNT[1][:2]},
        ("compute-log-prob", "ref", 2): {2: FORWARD[2:3], 3: FORWARD[3:4]},
        ("compute-log-prob", "actor", 2): {2: OWN[2:3], 3: OWN[3:4]},
    },
}
WINDOWS = {MINI: "1:2", CALL: "0:1", MICRO: "2:4"}


def windows(release: str, worker: str) -> list[str]:
    """The kinds of windows that a worker of a release has: micro-batches only where the loop over them is its own."""
    return [unit for unit in WINDOWS if unit != MICRO or (worker == V2 and release == RELEASES[-1])]


@MATRIX
@pytest.mark.parametrize("worker", trees.WORKERS)
@pytest.mark.parametrize("release", ends(RELEASES))
def test_every_bit_is_as_before_and_the_trace_holds_the_window(release: str, worker: str, tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", release)
    published = drive(root, release, worker, [{"calls": CALLS, "env": {}}])
    assert "rlpatch" not in published.log
    for unit in windows(release, worker):
        for stage in {stage for stage, _, _ in EXPECTED[unit]}:
            words = ("--stage", stage, f"--{unit}", WINDOWS[unit], "--tool", "torch", "--contents", "cpu")
            rlpatch("apply", "nemo-rl", *words, "--path", root)
        environ = {"RLPATCH_SAVE_PATH": str(tmp_path / unit), "RLPATCH_TRAINING_STEPS": "2"}
        after = drive(root, release, worker, [{"calls": CALLS, "env": environ}])
        assert "Traceback" not in after.log
        assert after.runs == published.runs
        assert dict(recorded(tmp_path / unit)) == EXPECTED[unit], after.log
        rlpatch("revert", "--path", root)
