"""Windows of nsys in real releases: between cudaProfilerStart and cudaProfilerStop lie exactly the units.

The drivers of the other tools run under ``fixtures.nsys``, which stands in for a GPU and nsys; what is expected is the
same as for torch.profiler.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fixtures import nsys, releases
from fixtures.trl import host as trl
from fixtures.verl.host import drive
from tests.fixtures.verl.workers import ENDS, EVERYTHING
from tests.matrix import MATRIX
from tests.patches.command_line import run
from tests.patches.labelled import recorded
from tests.patches.verl_runs import FIRST, Case, Workers, known, traces

pytestmark = [MATRIX, pytest.mark.usefixtures("unwatched")]

CASES = (
    Case("update-policy", "1:3"), Case("update-policy", "0:1"), Case("update-critic", "1:2"),
    Case("compute-log-prob", "1:3", "2"), Case("compute-values", "1:9"),
)  # fmt: skip


def names(folder: Path) -> list[list[str]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"*{nsys.NAMES}"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "workers" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("workers", EVERYTHING if everything else ENDS, ids="-".join)


def test_the_stages_of_verl(workers: Workers, tmp_path: Path) -> None:
    tree = FIRST._replace(cases=tuple(case for case in CASES if known(workers, FIRST, case)))
    patched = tree.apply(workers, tmp_path, "nsys")
    steered = [{**case.run(workers), "env": case.environment(tmp_path)} for case in tree.cases]
    after = drive(workers[0], patched, steered, script=("fixtures.nsys", "fixtures.verl.drive"))
    assert "Traceback" not in after.log
    for case, calls in zip(tree.cases, after.runs, strict=True):
        assert dict(traces(tmp_path / case.name)) == case.expected(calls, tree), f"{case.name}: {after.log}"
        for named in names(tmp_path / case.name):
            assert re.match(rf"rlpatch:{case.stage} \d+ \w+_rank0_\d+_\d+$", named[0])
            first = int(case.window.partition(":")[0])
            assert named[1].startswith("warm-up ") is bool(first)


@pytest.mark.parametrize("release", [trl.OLDEST, trl.NEWEST])
def test_a_trainer_of_trl(release: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(releases.release(release, "trl"), tree)
    for stage in ("update-policy", "compute-log-prob"):
        run("apply", f"trl=={release}", "--stage", stage, "--micro-batch", "0:1", "--tool", "nsys", "--path", tree)
    folder = tmp_path / "traces"
    env = {"RLPATCH_SAVE_PATH": str(folder), "RLPATCH_WINDOW": "0:2", "RLPATCH_TRAINING_STEPS": "2"}
    steered = {"trainer": "GRPO", "settings": {}, "env": env}
    after = trl.drive(release, tree, [steered], script=("fixtures.nsys", "fixtures.trl.drive"))
    assert "Traceback" not in after.log
    learned = {number - 2: [f"loss {number}", f"backward {number}"] for number in (2, 3)}
    held = dict(recorded(folder))
    assert held["update-policy", "actor", 2] == learned, after.log
    assert held["compute-log-prob", "ref", 2] == {0: ["infer 2"], 1: ["infer 3"]}
    assert len(held) == len(names(folder)) == 2
