"""MindSpeed-RL's classes on a CPU, patched by ``rlpatch apply``: every bit as before, in the trace exactly the units.

What a unit holds is known from the driver: it labels each forward, backward, optimizer step and iteration of vLLM's
worker. Megatron, Ray and vLLM are played by ``fixtures.mindspeed_rl.world``. By default the classes are of the shape
of a release, with ``--mindspeed-rl DIR`` also the real ones.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures.ascend import trace
from fixtures.mindspeed_rl.host import drive
from tests.matrix import thinned
from tests.patches import mindspeed
from tests.patches.command_line import run as rlpatch
from tests.patches.mindspeed import Tree

MICRO, MINI, CALL = "micro-batch", "mini-batch", "call"
STAGES = {
    "compute_log_prob": ("compute-log-prob", "actor"),
    "compute_ref_log_prob": ("compute-log-prob", "ref"),
    "update": ("update-policy", "actor"),
    "compute_values": ("compute-values", "critic"),
    "update_critic": ("update-critic", "critic"),
}
KINDS = ("forward", "backward", "optimizer", "prefill", "decode")
TRACE = re.compile(r"_((?:compute|update)_[a-z_]+)_(actor|ref|critic)_step(\d+)_rank0_|_dp0_rank0_")

Units = dict[int, list[str]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mindspeed.parametrize(metafunc)
    if "patched" in metafunc.fixturenames:
        everything = any(map(metafunc.config.getoption, ("--all-releases", "--mindspeed-rl")))
        chosen = PATCHED if everything else PATCHED[:2]
        metafunc.parametrize("patched", thinned(chosen, []), ids=lambda one: one.name)


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"call": name, **more}


ROLLOUT, LOG_PROB, REF, UPDATE = (
    call("generate", tokens=8), call("compute_log_prob"), call("compute_ref_log_prob"), call("update"),
)  # fmt: skip
STEP = [ROLLOUT, LOG_PROB, REF, UPDATE]
CRITIC = [call("compute_values"), call("update_critic")]
PARTS = {"parts": [4, 4]}


class Case(NamedTuple):
    """What is driven, the windows of the rollout and of all other stages, and lines of the log.

    ``only`` is the one training stage that is recorded, "" for all of them.
    """

    name: str
    calls: list[dict[str, Any]]
    decode: str = "2:5"
    window: str = "1:3"
    steps: str = "1"
    only: str = ""
    said: tuple[str, ...] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    @property
    def run(self) -> dict[str, Any]:
        """For ``fixtures.mindspeed_rl.drive``."""
        return {"calls": self.calls, **self.settings}

    def environment(self, folder: Path) -> dict[str, str]:
        stages = {stage for stage, _ in STAGES.values()}
        others = stages - {self.only} if self.only else set()
        return {
            "RLPATCH_SAVE_PATH": str(folder / self.name),
            "RLPATCH_ROLLOUT_WINDOW": self.decode,
            **{f"RLPATCH_{stage.upper().replace('-', '_')}_WINDOW": self.window for stage in stages},
            **{f"RLPATCH_{stage.upper().replace('-', '_')}_RANKS": "7" for stage in others},
            "RLPATCH_TRAINING_STEPS": self.steps,
        }

    def expected(self, calls: list[dict[str, Any]], units: dict[str, str]) -> dict[Any, Units]:
        """(stage, role, training step) or "rollout" → units, from the labels of what was driven."""
        found: dict[Any, Units] = {}
        counts: dict[str, int] = {}
        first, end = map(int, self.window.split(":"))
        pipeline = bool({"pipeline", "chunks"} & set(self.settings))
        for one in calls:
            name = one["call"]
            step = counts[name] = counts.get(name, 0) + 1
            if name == "generate" and step == 1:
                at, to = map(int, self.decode.split(":"))
                decodes = [label for label in one["labels"] if label.startswith("decode")]
                inside = {n: [label] for n, label in enumerate(decodes, 1) if at <= n < to}
                found.update({"rollout": inside} if inside else {})
            stage, role = STAGES.get(name, ("", ""))
            unit = units.get(stage, "")
            counted = bool(unit) and self.only in ("", stage) and not (pipeline and unit == MICRO)
            if counted and str(step) in self.steps.split(","):
                inside = dict(recorded(one["labels"], unit, first, end))
                found.update({(stage, role, step): inside} if inside else {})
        return found


def recorded(labels: list[str], unit: str, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Unit → the labels that lie in it: an optimizer step belongs to the mini-batch before it, and stands between the
    micro-batches before and after it where both are recorded.
    """
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


CASES = (
    Case("two-steps", [*STEP, *STEP], said=("complete, recorded 3 of 3 decode steps",)),
    Case("second", [*STEP, call("compute_image_embeds"), *STEP, *STEP], steps="2", window="0:2"),
    Case("first-and-third", [LOG_PROB, REF] * 3, steps="1,3", window="3:4"),
    Case(
        "parts", [{**one, **PARTS} for one in (LOG_PROB, REF, UPDATE)], window="1:4",
        said=("recorded 3 of 3 micro-batches with 1 pauses between them",),
    ),
    Case("epochs", [UPDATE, UPDATE], window="1:7", settings={"epochs": 2}),
    Case("all", STEP, decode="1:99", window="0:99", said=("the call ends, recorded 4 of ",)),
    Case("never", STEP, decode="20:30", window="20:30", said=("not recorded: the call ends after 4 micro-batches",)),
    Case("dynamic", [LOG_PROB, REF, UPDATE], settings={"dynamic": True}, window="1:7"),
    Case(
        "raised", [{**UPDATE, "raise_at": 2}, LOG_PROB, UPDATE], window="1:9", said=("the loop ended early",),
        only="update-policy",
    ),
    Case(
        "raised-forward", [{**LOG_PROB, "raise_at": 2}, REF], window="1:9", said=("the loop ended early",),
        only="compute-log-prob",
    ),
    Case("freed", [call("generate", tokens=4), UPDATE], decode="2:9", said=("free_cache_engine(), recorded 2 of 7",)),
    Case(
        "left-open", [call("generate", tokens=4, asynchronous=True), LOG_PROB], decode="2:9",
        said=("compute-log-prob starts, recorded 2 of 7",),
    ),
    Case("pipeline", STEP, settings={"pipeline": 2}, said=("not recorded: pipeline parallelism interleaves the micro-batches",)),
    Case("chunks", [UPDATE], settings={"chunks": 2}),
    Case("whole", STEP, settings={"pipeline": 2}, window="0:1"),
)  # fmt: skip
WITH_CRITIC = (
    Case("critic", [*CRITIC, *CRITIC], window="1:2", steps="2"),
    Case("critic-raises", [{**CRITIC[1], "raise_at": 3}, CRITIC[0]], window="0:9", said=("the loop ended early",)),
)
EVERY = frozenset(case.name for case in (*CASES, *WITH_CRITIC))
BRIEF = frozenset({"two-steps", "parts", "epochs", "raised", "critic-raises", "pipeline", "whole"})
# What is counted does not depend on the profiler: on torch_npu these show how it is opened, closed and left.
ON_NPU = frozenset({"two-steps", "raised", "critic-raises"})


class Patched(NamedTuple):
    """The unit of each training stage, and how much is driven through it."""

    name: str
    update: str
    critic: str
    infer: str = MICRO
    cases: frozenset[str] = EVERY
    npu: bool = False

    @property
    def units(self) -> dict[str, str]:
        inferred = dict.fromkeys(("compute-log-prob", "compute-values"), self.infer)
        return {**inferred, "update-policy": self.update, "update-critic": self.critic}

    def apply(self, tree: Tree, root: Path) -> dict[str, str]:
        """Patch every stage of the checkout and return the unit of each."""
        found = {stage: unit for stage, unit in self.units.items() if tree.critic or "log" in stage or "pol" in stage}
        target = f"mindspeed-rl=={tree.version}" if tree.version else "mindspeed-rl"
        backend = ("--tool", "npu") if self.npu else ("--tool", "torch", "--contents", "cpu")
        for stage, unit in {"rollout": "decode", **found}.items():
            words = ("--stage", stage, f"--{unit}", "1:2", *backend, "--save-path", root.parent / "elsewhere")
            rlpatch("apply", target, "--path", root, *words)
        return found


def driven(tree: Tree) -> list[Case]:
    """What this release has the classes for."""
    if tree.critic:
        return [*CASES, *WITH_CRITIC]
    return [case for case in CASES if call("compute_image_embeds") not in case.calls]


@functools.cache
def published(tree: Tree, names: frozenset[str]) -> dict[str, Any]:
    """Case → what its calls do without a patch."""
    cases = [case for case in driven(tree) if case.name in names]
    with tempfile.TemporaryDirectory() as folder:
        found = drive(tree.checkout(Path(folder) / "checkout"), [case.run for case in cases])
    assert "rlpatch" not in found.log
    return {case.name: calls for case, calls in zip(cases, found.runs, strict=True)}


PATCHED = (
    Patched("first", MICRO, MINI),
    Patched("npu", MICRO, MICRO, cases=ON_NPU, npu=True),
    Patched("second", MINI, MICRO, CALL, cases=BRIEF),
)


def test_every_bit_is_as_before_and_the_trace_holds_the_window(newest: Tree, patched: Patched, tmp_path: Path) -> None:
    cases = [case for case in driven(newest) if case.name in patched.cases]
    root = newest.checkout(tmp_path / "checkout")
    units = patched.apply(newest, root)
    after = drive(root, [{**case.run, "env": case.environment(tmp_path)} for case in cases], npu=patched.npu)
    assert "Traceback" not in after.log
    for case, calls in zip(cases, after.runs, strict=True):
        assert calls == published(newest, patched.cases)[case.name], f"{case.name}: patched and published differ"
        assert dict(traces(tmp_path / case.name)) == case.expected(calls, units), f"{case.name}: {after.log}"
        for said in case.said if units["update-policy"] == MICRO else ():
            assert said in after.log, case.name


def traces(folder: Path) -> Iterator[tuple[Any, Units]]:
    for path in trace.find(folder):
        name = TRACE.search(path.name)
        assert name, path.name
        held = trace.read(path)
        units = {
            unit.number: [text for text in unit.names() if text.partition(" ")[0] in KINDS and " " in text]
            for unit in held.units
        }
        outside = [item.name for item in held.outside if re.match(rf"({'|'.join(KINDS)}) \d", item.name)]
        assert outside == [], path.name
        yield (name[1].replace("_", "-"), name[2], int(name[3])) if name[1] else "rollout", units
