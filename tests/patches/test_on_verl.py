"""verl's real workers on a CPU, patched by ``rlpatch apply``: every bit as before, and in the trace exactly the units.

What a micro-batch or mini-batch holds is known from the driver: it labels each forward and each optimizer step, and
the labels are looked for in the trace. All windows of a patched tree are driven in one process, told apart by their
folders; the reference is the same runs on the tree as it was published, driven once for all of them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures import releases
from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.verl.host import drive
from patcher.cli import rlpatch
from tests.fixtures.verl.workers import ENDS, EVERYTHING
from tests.patches.torch_npu_runs import nested
from tests.patches.verl_runs import INTERLEAVED, MICRO, OURS, Case, Workers, traces, trees, unique

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--all-releases")
    if "name" in metafunc.fixturenames:
        cases = [
            (workers, name) for workers in (EVERYTHING if everything else ENDS) for name in trees(workers, everything)
        ]
        metafunc.parametrize(("workers", "name"), cases, ids=lambda one: one if isinstance(one, str) else "-".join(one))


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
    pipelines = any("pipeline" in case.settings for case in tree.cases) and MICRO in tree.units.values()
    assert (INTERLEAVED in after.log) == pipelines
    for case, calls in zip(tree.cases, after.runs, strict=True):
        assert calls == published(workers, case.run(workers)), f"{case.name}: patched and published differ"
        assert dict(traces(tmp_path / case.name)) == case.expected(calls, tree), f"{case.name}: {after.log}"


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
    """The window counts mini-batches; what is computed is the same to the bit. A call of the critic is recorded whole."""
    release, _ = marked
    tree = tmp_path / "tree"
    shutil.copytree(releases.release(release, "verl"), tree)
    for stage in (
        f"update-policy --mini-batch 1: --markers --module-ranges --module-pattern {pattern}",
        "update-critic --call 0:1 --markers",
    ):
        words = (
            "apply", f"verl=={release}", "--path", str(tree), "--stage", *stage.split(), "--tool", "torch",
            "--contents", "cpu", "--save-path", str(tmp_path / "traces"),
        )  # fmt: skip
        done = CliRunner().invoke(rlpatch, words)
        assert done.exit_code == 0, done.output
    run = Case("", "").run(marked)
    assert drive(release, tree, [run]).runs == [published(marked, run)]
    call, path = sorted(trace.find(tmp_path / "traces"), key=lambda path: "policy" in path.name)
    mini = "forward() forward() optimizer()"
    held = f"mini-batch 0({mini}) mini-batch 1({mini})" if marked[1] == "engine" else f"{mini} {mini}"
    assert marks(call) == f"update-critic critic step 1(call 0({held}))"
    assert marks(path) == (
        f"update-policy actor step 1(mini-batch 1(micro-batch 2({micro}) micro-batch 3({micro}) optimizer()){rest})"
    )


def marks(path: Path) -> str:
    """The ranges of a trace, nested, without the numbers of the driver."""
    found = [item for item in trace.read(path).ranges if item.kind == trace.RANGE and OURS.fullmatch(item.name)]
    return re.sub(r"(forward|optimizer) \d+ \d+", r"\1", nested(found))
