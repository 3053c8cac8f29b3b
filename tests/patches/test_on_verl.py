"""verl's real workers on a CPU, patched by ``rlpatch apply``: every bit as before, and in the trace exactly the units.

What a micro-batch or mini-batch holds is known from the driver: it labels each forward and each optimizer step, and
the labels are looked for in the trace. All windows of a patched tree are driven in one process, told apart by their
folders; the reference is the same runs on the tree as it was published, driven once for all of them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from fixtures import releases
from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.verl.host import drive
from patcher.cli import rlpatch
from tests.fixtures.verl.test_drive import EVERYTHING, SAMPLE, STAGES, STRATEGIES, UPDATES
from tests.patches.test_on_torch_npu import nested

STAGE_OF = {
    "compute_log_prob": "compute-log-prob",
    "update_policy": "update-policy",
    "compute_values": "compute-values",
    "update_critic": "update-critic",
}
MICRO, MINI = "micro-batch", "mini-batch"
TRACE = re.compile(r"_(?P<stage>(compute|update)_[a-z_]+)_(?P<role>actor|ref|critic)_step(?P<step>\d+)_rank0_")

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

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
        stages = UPDATES if workers[1] == "megatron" else STAGES
        first = [
            {**call, "raise_at": self.raise_at} if STAGE_OF[call["call"]] == self.stage else call for call in stages
        ]
        return [*first, *max(map(int, self.steps.split(","))) * stages]

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
        for call in calls:
            stage = STAGE_OF[call["call"]]
            step = counts[stage, call["role"]] = counts.get((stage, call["role"]), 0) + 1
            asked = stage != "compute-log-prob" or tree.role in ("all", call["role"])
            counted = stage in tree.units and self.stage in ("", stage) and asked
            if counted and str(step) in self.steps.split(","):
                first, end = map(int, self.window.split(":"))
                inside = dict(recorded(call["labels"], tree.units[stage], first, end))
                found.update({(stage, call["role"], step): inside} if inside else {})
        return found


def recorded(labels: list[str], unit: str, first: int, end: int) -> Iterator[tuple[int, list[str]]]:
    """Unit → the labels that lie in it: an optimizer step belongs to the mini-batch before it, and stands between the
    micro-batches before and after it where both are recorded.
    """
    number, open_unit = -1, True
    units: dict[int, list[str]] = {}
    for label in labels:
        forward = label.startswith("forward")
        if unit == MICRO:
            number += forward
        elif forward and open_unit:
            number, open_unit = number + 1, False
        elif not forward:
            open_unit = True
        if first <= number < end and (unit == MINI or forward or number < end - 1):
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
                "--backend", backend, *(("--contents", "cpu") if backend == "torch" else ()),
                "--save-path", str(folder / "elsewhere"),
            )  # fmt: skip
            done = CliRunner().invoke(rlpatch, words)
            assert done.exit_code == 0, done.output
        return tree


EPOCHS = {"epochs": 2, "rows": 4, "mini": 2, "micro": 1}
DYNAMIC = {"dynamic": True, "tokens": 20, "mini": 8}
BOTH = {"compute-log-prob": MICRO, "compute-values": MICRO}
OTHERS = [{"strategy": name} for name in ("veomni", "torchtitan", "automodel")]

# What every one of the workers is driven through; the rest is for the sample, with --all-releases.
FIRST_BRIEF = (
    Case("update-policy", "0:1"), Case("update-policy", "1:3"), Case("update-policy", "2:9"),
    Case("update-policy", "1:3", settings=DYNAMIC), Case("update-policy", "1:4", raise_at=2),
    Case("update-critic", "1:2"), Case("compute-log-prob", "1:3", "2"),
    Case("compute-log-prob", "1:2", "1,3", settings={"lora": True}), Case("compute-values", "1:9"), Case("", "1:2"),
    *(Case("update-policy", "1:3", settings=settings) for settings in OTHERS),
)  # fmt: skip
SECOND_BRIEF = (
    Case("update-policy", "1:9"), Case("update-critic", "1:3", "2"), Case("compute-log-prob", "0:1"),
    Case("compute-log-prob", "1:2", "2", settings={"lora": True}), Case("", "1:2", "1,2,3"),
)  # fmt: skip
FIRST = Tree(
    {**BOTH, "update-policy": MICRO, "update-critic": MINI},
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
    {**BOTH, "update-policy": MINI, "update-critic": MICRO},
    "ref",
    (
        *SECOND_BRIEF,
        Case("update-policy", "0:1"), Case("update-policy", "1:2", "2"), Case("update-policy", "1:3", settings=EPOCHS),
        Case("update-policy", "0:2", raise_at=3), Case("update-critic", "0:1"), Case("update-critic", "2:9", "3"),
        Case("compute-log-prob", "1:3", "2"),
    ),
)  # fmt: skip
BRIEF = {"first": FIRST_BRIEF, "second": SECOND_BRIEF, "npu": (*FIRST_BRIEF[1:7:4], *FIRST_BRIEF[4:8:3])}
# What 0.7.1 has between two others is driven through one tree each.
BETWEEN = {("0.7.1", "legacy"): "first", ("0.7.1", "engine"): "second"}


def trees(workers: Workers, everything: bool) -> dict[str, Tree]:
    """The trees that these workers are patched to, by their names."""
    found = {name: SECOND if name == "second" else FIRST for name in BRIEF}
    if workers not in SAMPLE or not everything:
        found = {name: tree._replace(cases=BRIEF[name]) for name, tree in found.items()}
    if workers in BETWEEN and not everything:
        found = {BETWEEN[workers]: found[BETWEEN[workers]]}
    if workers[1] == "megatron":
        found = {
            name: tree._replace(units={stage: unit for stage, unit in tree.units.items() if unit == MINI})
            for name, tree in found.items()
        }
    return {
        name: tree._replace(cases=tuple(case for case in tree.cases if known(workers, tree, case)))
        for name, tree in found.items()
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--all-releases")
    if "name" in metafunc.fixturenames:
        cases = [
            (workers, name) for workers in (EVERYTHING if everything else SAMPLE) for name in trees(workers, everything)
        ]
        metafunc.parametrize(("workers", "name"), cases, ids=lambda one: one if isinstance(one, str) else "-".join(one))


def known(workers: Workers, tree: Tree, case: Case) -> bool:
    """Whether these workers have what the case drives."""
    release, implementation = workers
    if "strategy" in case.settings:
        return implementation == "engine" and case.settings["strategy"] in STRATEGIES[release]
    if implementation == "megatron":
        return case.stage in ("", *tree.units) and "dynamic" not in case.settings
    if "lora" in case.settings:
        return lora(workers)
    return not ("epochs" in case.settings and release.startswith("0.2"))  # which has no epochs


def lora(workers: Workers) -> bool:
    """From 0.4.1 on the workers compute the reference on an actor with adapters, the engine workers from 0.7.1."""
    release, implementation = workers
    at = releases.VERL.index(release)
    return bool(at >= releases.VERL.index("0.7.1" if implementation == "engine" else "0.4.1"))


@pytest.fixture(scope="session")
def published(once: Once, pytestconfig: pytest.Config) -> Callable[[Workers, dict[str, Any]], Any]:
    """What the calls of a run did on the tree as it was published, which is driven once, whatever it is patched to.

    It has no NPU, for with one all bits are the same (``tests/fixtures/verl/test_drive.py``).
    """
    everything = pytestconfig.getoption("--all-releases")

    def make(workers: Workers, folder: Path) -> None:
        runs = list(unique(case.run(workers) for tree in trees(workers, everything).values() for case in tree.cases))
        driven = drive(workers[0], releases.release(workers[0], "verl"), runs).runs
        (folder / "runs.json").write_text(json.dumps(list(zip(runs, driven, strict=True))))

    def of(workers: Workers, run: dict[str, Any]) -> Any:
        folder = once(f"verl-{'-'.join(workers)}", lambda folder: make(workers, folder))
        driven = json.loads((folder / "runs.json").read_text())
        return next(calls for one, calls in driven if one == run)

    return of


def unique(runs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    for run in runs:
        if run not in seen:
            seen.append(run)
            yield run


def test_every_bit_is_as_before_and_the_trace_holds_the_window(
    workers: Workers,
    name: str,
    published: Callable[[Workers, dict[str, Any]], Any],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    tree, backend = trees(workers, pytestconfig.getoption("--all-releases"))[name], "npu" if name == "npu" else "torch"
    patched = tree.apply(workers, tmp_path, backend)
    steered = [{**case.run(workers), "env": case.environment(tmp_path)} for case in tree.cases]
    after = drive(workers[0], patched, steered, npu=backend == "npu")
    assert "Traceback" not in after.log
    for case, calls in zip(tree.cases, after.runs, strict=True):
        assert calls == published(workers, case.run(workers)), f"{case.name}: patched and published differ"
        assert dict(traces(tmp_path / case.name)) == case.expected(calls, tree), f"{case.name}: {after.log}"


OURS = re.compile(
    r"update-policy actor step \d+|(mini|micro)-batch \d+|uncounted|(forward|optimizer) \d+ \d+|Model|Linear|\w+RMSNorm"
)


@pytest.mark.parametrize(
    ("marked", "pattern", "micro", "rest"),
    [
        (("0.6.1", "legacy"), "^Model|Lin", "Model(forward(Linear()))", " uncounted()"),
        (("0.9.1", "engine"), "RMSNorm$", "forward(Qwen2RMSNorm() Qwen2RMSNorm() Qwen2RMSNorm())", ""),
    ],
    ids=["0.6.1-legacy", "0.9.1-engine"],
)
def test_mini_batches_hold_their_micro_batches_and_those_their_modules(
    marked: Workers,
    pattern: str,
    micro: str,
    rest: str,
    published: Callable[[Workers, dict[str, Any]], Any],
    tmp_path: Path,
) -> None:
    """The window counts mini-batches; what is computed is the same to the bit."""
    release, _ = marked
    tree = tmp_path / "tree"
    shutil.copytree(releases.release(release, "verl"), tree)
    words = (
        "apply", f"verl=={release}", "--path", str(tree), "--stage", "update-policy", "--mini-batch", "1:", "--markers",
        "--module-ranges", "--module-pattern", pattern, "--backend", "torch", "--contents", "cpu",
        "--save-path", str(tmp_path / "traces"),
    )  # fmt: skip
    done = CliRunner().invoke(rlpatch, words)
    assert done.exit_code == 0, done.output
    run = Case("", "").run(marked)
    assert drive(release, tree, [run]).runs == [published(marked, run)]
    (path,) = trace.find(tmp_path / "traces")
    found = [item for item in trace.read(path).ranges if item.kind == trace.RANGE and OURS.fullmatch(item.name)]
    assert re.sub(r"(forward|optimizer) \d+ \d+", r"\1", nested(found)) == (
        f"update-policy actor step 1(mini-batch 1(micro-batch 2({micro}) micro-batch 3({micro}) optimizer()){rest})"
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
