"""Weight syncs of trainers' real functions, patched: the same bits arrive, and the traces hold the syncs that were chosen.

The rollout is played by ``fixtures.weight_syncs``, which labels each tensor that arrives.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures import driven, environments, releases
from fixtures.slime import trees
from fixtures.trl.host import NEWEST, OLDEST
from patches import areal, openrlhf
from tests.matrix import ends, thinned
from tests.patches.command_line import run as rlpatch

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]
SYNCS, FIRST, REPEAT = 5, 1, 2
TRACE = re.compile(r"_weight_sync_(trainer|rollout)_sync(\d+)_(?:replica0_)?rank0_")


Ranges = dict[str, dict[str, int]]
"""Way of the weights → how often a trace of one sync has each range of rlpatch ({}: it has no trace)."""


class Case(NamedTuple):
    """A release and its ways; those of ``workers`` are gone in the rollout."""

    name: str
    release: str
    ways: Ranges
    environment: environments.Recipe = environments.VERL
    workers: tuple[str, ...] = ()


TENSORS = 4
SCRIPTS = {"miles": "slime"}
OPENRLHF: Ranges = {
    "broadcast": {"broadcast_to_vllm": 1, "send": TENSORS},
    "ipc": {"broadcast_to_vllm": 1, "send": TENSORS},
    "worker 0": {"update_weight": TENSORS},
    "worker 1": {},  # of another engine
}
CASES = (
    Case(
        "trl",
        OLDEST,
        {"colocate": {"_move_model_to_vllm": 1}, "server": {"_move_model_to_vllm": 1, "send": TENSORS}},
    ),
    Case(
        "trl",
        NEWEST,
        {
            "colocate": {"sync_weights": 1, "load": TENSORS},
            "server": {"sync_weights": 1, "send": 1, "gather": TENSORS + 1},
        },
        environments.TRL,
    ),
    Case("areal", areal.RELEASES[-1], {"xccl": {"update_weights": 1, "gather": TENSORS, "send": 2 * 2}}),
    *(
        Case(package, "", {"tensor": {"update_weights": 1, "gather": TENSORS, "send": sends}}, environments.TORCH_NPU)
        for package, sends in (("slime", 2 * TENSORS), ("miles", TENSORS))
    ),
    *(Case("openrlhf", release, OPENRLHF, workers=("worker 0",)) for release in ends(openrlhf.RELEASES)),
)


def ranges(trace: Path) -> list[str]:
    """The names of all ranges in a trace, which may not be compressed yet, but for those of torch."""
    data = trace.read_bytes()
    events = json.loads(gzip.decompress(data) if trace.suffix == ".gz" else data)["traceEvents"]
    names = (event["name"] for event in events if event.get("cat") == "user_annotation")
    return [name for name in names if not name.startswith(("ProfilerStep#", "gloo:"))]


@pytest.mark.parametrize("case", thinned(CASES, [CASES[-1]]), ids=lambda case: "-".join(case[:2]))
def test_the_same_weights_arrive_and_a_trace_holds_each_chosen_sync(case: Case, tmp_path: Path, thorough: bool) -> None:
    if case.release in (OLDEST, openrlhf.RELEASES[0]) and not thorough:
        pytest.skip("--thorough: a minute, for what the syncs of the newest release show, too")
    published, tree = tmp_path / "published", tmp_path / "tree"
    for folder in (published, tree):
        if case.release:
            shutil.copytree(releases.release(case.release, case.name), folder)
        else:
            trees.checkout(folder, case.name)
    chosen = ("--stage", "weight-sync", "--sync", FIRST, "--repeat", REPEAT, "--tool", "torch", "--contents", "cpu")
    rlpatch("apply", case.name, *chosen, "--path", tree, "--save-path", tmp_path / "traces")
    asked, script = (
        {"ways": [*case.ways], "syncs": SYNCS},
        (f"fixtures.{SCRIPTS.get(case.name, case.name)}.weights", case.name),
    )
    before, after = (driven.drive(case.environment, script, asked, paths=(path,)) for path in (published, tree))
    assert "rlpatch" not in before.log
    assert "Traceback" not in after.log
    assert after.runs == before.runs
    assert [len({sync["arrived"] for sync in syncs}) for syncs in after.runs] == [SYNCS] * len(case.ways)
    files = (path for path in (tmp_path / "traces").iterdir() if path.name.endswith((".trace.json", ".trace.json.gz")))
    recorded = sorted(map(described, files))
    assert recorded == sorted(
        (side, sync, sorted({f"tensor {sync}": TENSORS, **phases}.items()))
        for way, phases in case.ways.items()
        if phases
        for side in ["rollout" if way in case.workers else "trainer"]
        for sync in range(FIRST, FIRST + REPEAT)
    ), after.log


def described(trace: Path) -> tuple[str, int, list[tuple[str, int]]]:
    """The side and the number of the sync that a trace holds, and how often it has each range."""
    name = TRACE.search(trace.name)
    assert name, trace.name
    return name[1], int(name[2]), sorted(Counter(map(label, ranges(trace))).items())


def label(text: str) -> str:
    """A range of rlpatch without its prefix, or that of a driver without the number of the tensor."""
    return " ".join(text.removeprefix("rlpatch:").split()[:2])
