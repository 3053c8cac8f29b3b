"""Runs of verl's real workers: what is applied, what they train, and what is expected of the traces."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from fixtures import releases
from fixtures.ascend import trace
from patcher.cli import rlpatch
from tests.fixtures.verl.workers import SAMPLE, STAGES, STRATEGIES

STAGE_OF = {
    "compute_log_prob": "compute-log-prob",
    "update_policy": "update-policy",
    "compute_values": "compute-values",
    "update_critic": "update-critic",
    "fine_tune": "update-policy",
    "in_parts": "update-policy",
}
# What calls the worker beside a synchronous trainer of RL, and how it drives two training steps: an asynchronous one
# calls it twice in each.
SFT, TINKER, ASYNC = {"implementation": "sft"}, {"implementation": "tinker"}, {"sync": 2}
CALLS = (
    (SFT, [{"call": "fine_tune"}]),
    (TINKER, 2 * [{"call": "in_parts"}]),
    (ASYNC, 4 * [{"call": "update_policy"}]),
)
MICRO, MINI, CALL = "micro-batch", "mini-batch", "call"
TRACE = re.compile(r"_(?P<stage>(compute|update)_[a-z_]+)_(?P<role>actor|ref|critic)_step(?P<step>\d+)_rank0_")

Workers = tuple[str, str]
Units = dict[int, list[str]]


class Case(NamedTuple):
    """One run: which stage is recorded ("" for all), its window and training steps, and what is driven."""

    stage: str
    window: str
    steps: str = "1"
    raise_at: int | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012  (never changed)

    @property
    def name(self) -> str:
        words = [self.stage or "all", self.window.replace(":", "_"), self.steps, str(self.raise_at)]
        return "-".join([*words, *(f"{key}_{value}" for key, value in self.settings.items())]).replace(",", "_")

    def calls(self, workers: Workers) -> list[dict[str, Any]]:
        """The training steps up to one after the last that is recorded; its stage raises in the first, if at all."""
        for settings, calls in CALLS:
            if self.settings == settings:
                return calls
        first = [
            {**call, "raise_at": self.raise_at} if STAGE_OF[call["call"]] == self.stage else call for call in STAGES
        ]
        return [*first, *max(map(int, self.steps.split(","))) * STAGES]

    def run(self, workers: Workers) -> dict[str, Any]:
        """What is driven, patched or not."""
        return {"implementation": workers[1], "calls": self.calls(workers), **self.settings}

    def environment(self, folder: Path) -> dict[str, str]:
        found = {
            "RLPATCH_WINDOW": self.window, "RLPATCH_TRAINING_STEPS": self.steps,
            "RLPATCH_SAVE_PATH": str(folder / self.name),
        }  # fmt: skip
        others = [stage for stage in STAGE_OF.values() if self.stage not in ("", stage)]
        return found | {f"RLPATCH_{stage.upper().replace('-', '_')}_RANKS": "7" for stage in others}

    def expected(self, calls: list[dict[str, Any]], tree: Tree) -> dict[Any, Units]:
        """(stage, role, training step) → units, from the labels of what was driven."""
        found: dict[Any, Units] = {}
        counts: dict[tuple[str, str], int] = {}
        for call in by_step(calls, self.settings.get("sync", 1)):
            stage = STAGE_OF[call["call"]]
            step = counts[stage, call["role"]] = counts.get((stage, call["role"]), 0) + 1
            asked = stage != "compute-log-prob" or tree.role in ("all", call["role"])
            counted = stage in tree.units and self.stage in ("", stage) and asked
            counted = counted and not ("pipeline" in self.settings and tree.units[stage] == MICRO)
            if counted and str(step) in self.steps.split(","):
                first, end = map(int, self.window.split(":"))
                inside = dict(recorded(call["labels"], tree.units[stage], first, end))
                found.update({(stage, call["role"], step): inside} if inside else {})
        return found


def by_step(calls: list[dict[str, Any]], sync: int) -> Iterator[dict[str, Any]]:
    """A call for each training step: ``sync`` of them are one, and the trainer for fine-tuning has several in its one,
    each with an optimizer step.
    """
    for at in range(0, len(calls), sync):
        labels = [label for call in calls[at : at + sync] for label in call["labels"]]
        steps = calls[at]["call"] == "fine_tune"
        ends = [end for end, label in enumerate(labels, 1) if steps and label.startswith("optimizer")] or [len(labels)]
        for first, end in zip([0, *ends], ends, strict=False):
            yield {**calls[at], "labels": labels[first:end]}


def recorded(labels: list[str], unit: str, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Unit → the labels that lie in it: an optimizer step belongs to the mini-batch before it, and stands between the
    micro-batches before and after it where both are recorded.
    """
    number, open_unit = -1, True
    units: dict[int, list[str]] = {}
    for label in labels:
        forward = label.startswith("forward")
        if unit == CALL:
            number = 0
        elif unit == MICRO:
            number += forward
        elif forward and open_unit:
            number, open_unit = number + 1, False
        elif not forward:
            open_unit = True
        if first <= number < end and (unit != MICRO or forward or number < end - 1):
            units.setdefault(number, []).append(label)
    yield from units.items()


class Tree(NamedTuple):
    """A patched tree: the unit of each stage, and the role of compute-log-prob."""

    units: dict[str, str]
    role: str
    cases: tuple[Case, ...]

    def apply(self, workers: Workers, folder: Path, backend: str) -> Path:
        tree = folder / "tree"
        shutil.copytree(releases.release(workers[0], "verl"), tree)
        for stage, unit in self.units.items():
            role = ("--role", self.role) if stage == "compute-log-prob" else ()
            words = (
                "apply", f"verl=={workers[0]}", "--path", str(tree), "--stage", stage, f"--{unit}", "0:1", *role,
                "--tool", backend, *(("--contents", "cpu") if backend == "torch" else ()),
                "--save-path", str(folder / "elsewhere"),
            )  # fmt: skip
            done = CliRunner().invoke(rlpatch, words)
            assert done.exit_code == 0, done.output
        return tree


EPOCHS = {"epochs": 2, "rows": 4, "mini": 2, "micro": 1}
DYNAMIC = {"dynamic": True, "tokens": 20, "mini": 8}
OTHERS = [{"strategy": name} for name in ("veomni", "torchtitan", "automodel", "megatron")]
# The schedule of a worker, and of an engine, that says of itself that it is one of two stages.
PIPELINES: dict[str, dict[str, Any]] = {"megatron": {"pipeline": 2}, "engine": {"pipeline": 2, "strategy": "megatron"}}
INTERLEAVED = "not recorded: Megatron's schedule interleaves the micro-batches"

# What every one of the workers is driven through; the rest is for the sample, with --all-releases.
FIRST_BRIEF = (
    Case("update-policy", "0:1"), Case("update-policy", "1:3"), Case("update-policy", "2:9"),
    Case("update-policy", "1:3", settings=DYNAMIC), Case("update-policy", "1:4", raise_at=2),
    Case("update-critic", "1:2"), Case("compute-log-prob", "1:3", "2"),
    Case("compute-log-prob", "1:2", "1,3", settings={"lora": True}), Case("compute-values", "1:9"), Case("", "1:2"),
    *(Case("update-policy", "1:3", settings=settings) for settings in OTHERS),
    Case("update-policy", "1:2", "2", settings=SFT), Case("update-policy", "1:3", "2", settings=TINKER),
    Case("update-policy", "5:7", "2", settings=ASYNC),
    *(Case("", "1:2", settings=settings) for settings in PIPELINES.values()),
)  # fmt: skip
SECOND_BRIEF = (
    Case("update-policy", "1:9"), Case("update-critic", "1:3", "2"), Case("compute-log-prob", "0:1"),
    Case("compute-log-prob", "0:1", "2", settings={"lora": True}), Case("", "1:2", "1,2,3"), Case("", "0:1"),
    Case("update-policy", "0:1", "1,2", settings=SFT), Case("update-policy", "0:9", "2", settings=TINKER),
    Case("update-policy", "3:4", "2", settings=ASYNC),
)  # fmt: skip
FIRST = Tree(
    {"compute-log-prob": MICRO, "compute-values": MICRO, "update-policy": MICRO, "update-critic": MINI},
    "all",
    (
        *FIRST_BRIEF,
        Case("update-policy", "1:7", settings=EPOCHS), Case("update-policy", "1:3", "2"),
        Case("update-policy", "0:2", "2,3"), Case("update-critic", "0:1"), Case("update-critic", "1:9"),
        Case("update-critic", "1:3", settings=EPOCHS), Case("update-critic", "0:2", raise_at=3),
        Case("update-critic", "1:2", "2"), Case("compute-log-prob", "0:1"), Case("compute-log-prob", "2:9"),
        Case("compute-log-prob", "0:2", settings=DYNAMIC), Case("compute-log-prob", "1:3", raise_at=2),
        Case("compute-values", "0:1"), Case("compute-values", "1:3", "3"), Case("compute-values", "0:3", raise_at=1),
        Case("compute-values", "1:2", settings=DYNAMIC), Case("", "0:9", "2"), Case("", "5:6"),
        *(Case("compute-log-prob", "1:9", "2", settings=settings) for settings in OTHERS),
        *(Case("update-policy", "1:3", raise_at=2, settings=settings) for settings in OTHERS),
    ),
)  # fmt: skip
SECOND = Tree(
    {"compute-log-prob": CALL, "compute-values": CALL, "update-policy": MINI, "update-critic": MICRO},
    "ref",
    (
        *SECOND_BRIEF,
        Case("update-policy", "0:1"), Case("update-policy", "1:2", "2"), Case("update-policy", "1:3", settings=EPOCHS),
        Case("update-policy", "0:2", raise_at=3), Case("update-critic", "0:1"), Case("update-critic", "2:9", "3"),
        Case("compute-log-prob", "0:2", "1,2", raise_at=2), Case("compute-values", "0:1", "1,2"),
    ),
)  # fmt: skip
BRIEF = {"first": FIRST_BRIEF, "second": SECOND_BRIEF, "npu": (*FIRST_BRIEF[1:7:4], *FIRST_BRIEF[4:8:3])}


def trees(workers: Workers, everything: bool) -> dict[str, Tree]:
    """The trees that these workers are patched to, by their names."""
    found = {name: SECOND if name == "second" else FIRST for name in BRIEF}
    if workers not in SAMPLE or not everything:
        found = {name: tree._replace(cases=BRIEF[name]) for name, tree in found.items()}
    return {name: tree._replace(cases=tuple(in_order(workers, tree))) for name, tree in found.items()}


def in_order(workers: Workers, tree: Tree) -> list[Case]:
    """What these workers have. What is known of training steps stays in the process: that comes last."""
    there = [case for case in tree.cases if known(workers, tree, case)]
    return sorted(there, key=lambda case: case.settings == ASYNC)


def known(workers: Workers, tree: Tree, case: Case) -> bool:
    """Whether these workers have what the case drives."""
    release, implementation = workers
    if "implementation" in case.settings:
        return implementation == "engine" and (case.settings == SFT or release.startswith("0.9."))
    if case.settings == ASYNC:
        return release not in releases.VERL[:12]
    if "pipeline" in case.settings:
        return case.settings == PIPELINES.get(implementation)
    if "strategy" in case.settings:
        return implementation == "engine" and case.settings["strategy"] in STRATEGIES[release]
    if implementation == "megatron" and "dynamic" in case.settings:
        return False
    if "lora" in case.settings:
        return lora(workers)
    return not ("epochs" in case.settings and release.startswith("0.2"))  # which has no epochs


def lora(workers: Workers) -> bool:
    """From 0.4.1 on FSDP's workers compute the reference on an actor with adapters, all others from 0.7.1 on."""
    release, implementation = workers
    at = releases.VERL.index(release)
    return bool(at >= releases.VERL.index("0.4.1" if implementation == "legacy" else "0.7.1"))


def unique(runs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for run in runs:
        if run not in seen:
            seen.append(run)
            yield run


OURS = re.compile(
    r"update-policy actor step \d+|update-critic critic step \d+|((mini|micro)-batch|call) \d+|uncounted|(forward|optimizer) \d+ \d+|Model|Linear|\w+RMSNorm"
)


def traces(folder: Path) -> Iterator[tuple[Any, Units]]:
    for path in trace.find(folder):
        name = TRACE.search(path.name)
        assert name, path.name
        held = trace.read(path)
        units = {
            unit.number: [text for text in unit.names() if text.startswith(("forward ", "optimizer "))]
            for unit in held.units
        }
        outside = [item.name for item in held.outside if item.name.startswith(("forward ", "optimizer "))]
        assert outside == [], path.name
        yield (name["stage"].replace("_", "-"), name["role"], int(name["step"])), units
