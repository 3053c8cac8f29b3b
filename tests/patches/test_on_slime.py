"""The functions of slime and miles on a CPU, patched by ``rlpatch apply``: every bit as before, in the trace the units.

What a unit holds is known from the driver: it labels each forward, backward and optimizer step. Megatron's schedule is
played by ``fixtures.slime.drive``, and the functions are of the shape of a release.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures.ascend import trace
from fixtures.slime import trees
from fixtures.slime.host import drive, loop
from tests.matrix import MATRIX
from tests.patches.command_line import run as rlpatch

MICRO, MINI, CALL = "micro-batch", "mini-batch", "call"
TRACE = re.compile(r"_((?:compute|update)_[a-z_]+)_(actor|ref|critic)_step(\d+)_rank0_")
LABEL = re.compile(r"(forward|backward|optimizer) \d")
STAGES = {
    ("forward_only", "actor"): "compute-log-prob",
    ("forward_only", "ref"): "compute-log-prob",
    ("forward_only", "critic"): "compute-values",
    ("train", "actor"): "update-policy",
    ("train", "critic"): "update-critic",
}

Units = dict[int, list[str]]


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"call": name, **more}


ACTOR = [call("forward_only", prefix="ref_"), call("forward_only", prefix="teacher_"), call("forward_only")]
CRITIC = [call("forward_only", role="critic"), call("train", role="critic")]
STEP = [*CRITIC, *ACTOR, call("train")]


class Case(NamedTuple):
    """What is driven, the window of all stages, and lines of the log; a rollout has mini-batches of 3 and of 2."""

    name: str
    calls: list[dict[str, Any]]
    window: str = "1:3"
    steps: str = "1"
    said: tuple[str, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    def environment(self, folder: Path) -> dict[str, str]:
        return {
            "RLPATCH_SAVE_PATH": str(folder / self.name),
            "RLPATCH_WINDOW": self.window,
            "RLPATCH_TRAINING_STEPS": self.steps,
        }

    def expected(self, calls: list[dict[str, Any]], units: dict[str, str]) -> dict[Any, Units]:
        """(stage, role, training step) → units, from the labels of what was driven."""
        found: dict[Any, Units] = {}
        counts: dict[Any, int] = {}
        first, end = map(int, self.window.split(":"))
        for one in calls:
            stage, role = STAGES.get((one["call"], one["role"]), ""), one["role"]
            step = counts[stage, role] = counts.get((stage, role), 0) + 1
            if stage and str(step) in self.steps.split(",") and not self.interleaved(stage, units[stage]):
                inside = dict(recorded(one["labels"], units[stage], first, end))
                found.update({(stage, role, step): inside} if inside else {})
        return found

    def interleaved(self, stage: str, unit: str) -> bool:
        overlaps = "overlap" in self.settings and stage.startswith("update")
        return unit == MICRO and (overlaps or bool({"pipeline", "chunks"} & set(self.settings)))


def recorded(labels: list[str], unit: str, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Unit → the labels that lie in it; an optimizer step stands between two micro-batches where both are recorded."""
    number, after_step = -1, True
    units: dict[int, list[str]] = {}
    for label in labels:
        kind = label.partition(" ")[0]
        if kind == "forward" and (unit == MICRO or (after_step and unit == MINI) or number < 0):
            number += 1
        after_step = kind == "optimizer"
        if first <= number < end and (unit != MICRO or kind != "optimizer" or number < end - 1):
            units.setdefault(number, []).append(label)
    yield from units.items()


NOT = "not recorded: Megatron's schedule interleaves the micro-batches (use --mini-batch or --call)"
CASES = (
    Case("first", STEP, "0:1", said=("complete, recorded 1 of 1 micro-batches",)),
    Case("steps", STEP * 3, "1:5", "2,3", said=("recorded 4 of 4 micro-batches with 1 optimizer steps between them",)),
    Case("all", STEP, "0:99", said=("the call ends, recorded 5 of ",)),
    Case("never", STEP, "20:30", said=("not recorded: the call ends after 5 micro-batches",)),
    Case("raised", [call("train", raise_at=1), call("train")], "0:9", said=("the loop ended early, recorded 2 of 9",)),
    Case("pipeline", STEP, "0:1", said=(NOT, NOT.replace("--mini-batch or ", "")), settings={"pipeline": 2}),
    Case("chunks", STEP, "0:1", said=(NOT,), settings={"chunks": 2}),
    Case("overlap", STEP, "0:1", said=(NOT,), settings={"overlap": True}),
)
PATCHED = {
    MICRO: dict.fromkeys(STAGES.values(), MICRO),
    MINI: {stage: MINI if stage.startswith("update") else CALL for stage in STAGES.values()},
    CALL: dict.fromkeys(STAGES.values(), CALL),
}

BRIEF = ("steps", "raised", "pipeline")
"""What tells a window of mini-batches or calls from one of micro-batches."""


@pytest.fixture(scope="module", params=trees.PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def published(package: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Case → what its calls do without a patch."""
    root = trees.checkout(tmp_path_factory.mktemp("published") / "checkout", package)
    found = drive(root, [{"calls": case.calls, **case.settings} for case in CASES], package)
    assert "rlpatch" not in found.log
    return {case.name: calls for case, calls in zip(CASES, found.runs, strict=True)}


@MATRIX
@pytest.mark.parametrize("unit", PATCHED)
def test_every_bit_is_as_before_and_the_trace_holds_the_window(
    unit: str, package: str, published: dict[str, Any], tmp_path: Path
) -> None:
    root, units = trees.checkout(tmp_path / "checkout", package), PATCHED[unit]
    for stage, one in units.items():
        words = ("--stage", stage, f"--{one}", "1:2", "--tool", "torch", "--contents", "cpu")
        rlpatch("apply", package, *words, "--path", root)
    cases = [case for case in CASES if unit == MICRO or case.name in BRIEF]
    runs = [{"calls": case.calls, **case.settings, "env": case.environment(tmp_path)} for case in cases]
    after = drive(root, runs, package)
    assert "Traceback" not in after.log
    for case, calls in zip(cases, after.runs, strict=True):
        assert calls == published[case.name], f"{case.name}: patched and published differ"
        assert dict(traces(tmp_path / case.name)) == case.expected(calls, units), f"{case.name}: {after.log}"
        for said in case.said if unit == MICRO else ():
            assert said in after.log, case.name


@MATRIX
@pytest.mark.parametrize(("every", "marked"), [(1, [1, 2, 3]), (2, [1, 2])])
def test_the_timeline_of_the_loop_has_its_steps_and_whom_the_driver_waits_for(
    package: str, every: int, marked: list[int], tmp_path: Path
) -> None:
    """Where the weights are not updated, a step ends as the next one begins; that of the last rollout goes on."""
    root, folder = trees.checkout(tmp_path / "checkout", package), tmp_path / "traces"
    rlpatch("apply", package, "--timeline", "--path", root, "--save-path", tmp_path / "elsewhere")
    log = loop(root, folder, package, rollouts=3, every=every)
    assert "Traceback" not in log
    timeline = json.loads(rlpatch("timeline", folder, "--json").stdout)["result"]
    assert [step["step"] for step in timeline["steps"]] == marked
    assert Counter(lane["role"] for lane in timeline["lanes"]) == {"driver": 1, "trainer": 2, "agent": 1}
    for step in timeline["steps"]:
        path = {(piece["role"], piece["kind"]) for piece in step["critical_path"]}
        synced = step["step"] % every == 0
        assert {("trainer", "unit"), ("agent", "sleep")} <= path
        assert (("trainer", "sync") in path) == synced
    assert any(piece["role"] in ("reward", "unrecorded") for piece in timeline["steps"][0]["critical_path"])
    updates = [piece for step in timeline["steps"] for piece in step["critical_path"] if "update" in piece["what"]]
    assert {piece["role"] for piece in updates} == {"driver", "trainer"}


def traces(folder: Path) -> Iterator[tuple[Any, Units]]:
    for path in trace.find(folder):
        name = TRACE.search(path.name)
        assert name, path.name
        held = trace.read(path)
        assert [item.name for item in held.outside if LABEL.match(item.name)] == [], path.name
        units = {one.number: [text for text in one.names() if LABEL.match(text)] for one in held.units}
        yield (name[1].replace("_", "-"), name[2], int(name[3])), units
