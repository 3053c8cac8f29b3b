"""Real SGLang code: the patched scheduler, worker and model runner of a release record exactly the window.

``rlpatch apply`` patches a copy of a release. Its scheduler, its worker with its overlapped thread, and
``ModelRunner.forward`` run with stand-ins for all around them (``fixtures/engines/sglang_drive.py``), on the real
torch_npu over the fake CANN, on torch.profiler, and under a stand-in for nsys. What the driver knows of each batch is
compared with the traces.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from fixtures import environments, nsys, releases
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY, Once
from patcher.cli import rlpatch
from tests.matrix import MATRIX, thinned
from tests.patches.torch_npu_runs import COUNTED

pytestmark = pytest.mark.usefixtures("unwatched")

# Each structure of the scheduler, and each shape of ModelRunner.forward, once.
SAMPLE = ("0.4.0", "0.4.7", "0.5.3", "0.5.5", "0.5.10", "0.5.15", "0.5.23")
BACKENDS = ("npu", "torch", "nsys")
# What differs between the backends does not depend on the release, but the thread of the forward is gone after 0.5.3.
ON_TORCH = ("0.4.0", "0.5.3", "0.5.23")
OPTIONS = {
    "decode": ("--decode", "3:6"),
    "prefill": ("--prefill", "1:3"),
    "iterations": ("--iterations", "2:5"),
    "repeat": ("--decode", "2:4", "--rollout", "1", "--repeat", "2"),
}


class Recorded(NamedTuple):
    """What one trace must hold: units ``first`` to ``end - 1`` of a rollout."""

    rollout: int
    first: int
    end: int
    uncounted: int = 0


@dataclass(frozen=True)
class Scenario:
    """A script (see the driver), its settings, and what must come of it.

    ``said`` are regular expressions for the lines of the log, one for each; None stands for complete windows. The
    releases from ``since`` on have what it is about.
    """

    name: str
    script: str
    recorded: tuple[Recorded, ...] = ()
    said: tuple[str, ...] | None = None
    site: str = "decode"
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dropped: bool = True
    since: str = "0.4.0"

    @property
    def folder(self) -> str:
        return re.sub(r"\W+", "_", self.name)

    def as_job(self, folder: Path) -> dict[str, Any]:
        env = {"RLPATCH_SAVE_PATH": str(folder / self.folder), **self.env}
        script = [line.strip() for line in self.script.split(";")]
        return {"name": self.name, "site": self.site, "script": script, "env": env, **self.options}


DECODE = (Recorded(0, 3, 6),)
ALONE = {"overlap": False}
COUNTING = (
    Scenario("in the middle", "prefill; chunk 2; decode 9; idle", DECODE),
    Scenario("not overlapped", "prefill; chunk 2; decode 9; idle", DECODE, options=ALONE),
    Scenario("from the first step", "prefill 2; decode 5; idle", (Recorded(0, 1, 3),), env={"RLPATCH_WINDOW": "1:3"}),
    Scenario("up to the last step", "prefill; decode 5; idle", DECODE, ("the engine is idle, recorded 3 of 3",)),
    Scenario("mixed batches", "prefill; decode 3; mixed; decode; mixed 2; decode 5", (Recorded(0, 3, 6, 3),)),
    Scenario("mixed around the window", "prefill; mixed; decode 2; mixed; decode 3; mixed; decode", DECODE),
    Scenario("a prefill in layers", "prefill; decode 3; split 2; decode 9", (Recorded(0, 3, 6, 2),), since="0.5.5"),
    Scenario("speculation", "prefill 2; speculate 9; idle", DECODE, options=ALONE, since="0.4.3"),
    Scenario("other replicas work", "other 2; prefill; decode 2; other; decode 2; other 2; decode 9", (Recorded(0, 3, 6, 2),)),
    Scenario("prefilled elsewhere", "prebuilt; decode 4; prebuilt; decode 9", DECODE, since="0.5.10"),
    Scenario("health checks", "health; idle; prefill; decode; health; decode 3; health; decode 9; idle", (Recorded(0, 3, 6, 2),)),
    Scenario("prefill", "prefill; decode 2; chunk; mixed; decode; prefill; idle", (Recorded(0, 1, 3),), site="prefill"),
    Scenario("prefill from the first", "health; idle; prefill; decode; mixed; decode 3; prefill 2", (Recorded(0, 0, 3, 4),),
        site="prefill", env={"RLPATCH_WINDOW": "0:3"}),
    Scenario("iterations", "prefill; mixed; decode 2; mixed; decode 2; idle", (Recorded(0, 2, 5),), site="iterations"),
    Scenario("far from the start", "prefill; decode 65; idle", (Recorded(0, 30, 60),), env={"RLPATCH_WINDOW": "30:60"}),
)  # fmt: skip

TWO = (Recorded(1, 2, 4), Recorded(2, 2, 4))
ONE_ROLLOUT = "prefill; decode 6; idle; idle"
ROLLOUTS = (
    Scenario("only the first rollout", f"{ONE_ROLLOUT}; {ONE_ROLLOUT}", DECODE),
    Scenario("two of four rollouts", "; ".join([ONE_ROLLOUT] * 4), TWO, site="repeat"),
    Scenario("rollouts end at release", "; ".join(["prefill; decode 6; release"] * 4), TWO, site="repeat", since="0.4.1.post6"),
    Scenario("release and idle", "; ".join(["prefill; decode 6; release; idle"] * 4), TWO, site="repeat", since="0.4.1.post6"),
    Scenario("the warm-up of the server", f"prefill; decode 7; idle; {ONE_ROLLOUT}", (Recorded(1, 3, 6),),
        env={"RLPATCH_ROLLOUT": "1"}),
    Scenario("a request waits", "prefill; decode 4; stalled; decode 6; idle", DECODE),
    Scenario("the rollout ends in the window", f"prefill; decode 4; idle; {ONE_ROLLOUT}", (Recorded(0, 3, 5),),
        ("the engine is idle, recorded 2 of 3 decode steps with 0",)),
    Scenario("the rollout ends before the window", f"prefill; decode 1; idle; {ONE_ROLLOUT}", (),
        ("not recorded: the engine is idle after 1 decode steps; lower RLPATCH_WINDOW",)),
)  # fmt: skip

STARTS = "the framework's own profiler starts, recorded 2 of 3 decode steps"
FRAMEWORK = (
    Scenario("start_profile in the window", "prefill; decode 4; profile on; decode 2; profile off; decode 9; idle",
        (Recorded(0, 3, 5),), (STARTS,)),
    Scenario("start_profile before the window", "profile on; prefill; profile off; decode 9; idle", DECODE),
    Scenario("start_profile stays on", "profile on; prefill; decode 9; idle", (),
        ("not recorded: the framework's own profiler was started and not stopped",)),
)  # fmt: skip

RUN = "prefill; decode 9; idle"
RANKS = (
    Scenario("rank 1 by default", RUN, (), (), options={"world": [2, 1]}),
    Scenario("rank 1 of all", RUN, DECODE, env={"RLPATCH_RANKS": "all"}, options={"world": [2, 1]}),
    Scenario("replica 1 is not rank 0", RUN, (), (), options={"replica": 1, "world": [2, 0]}),
    Scenario("replica 1 has rank 3", RUN, DECODE, (r"_dp1_rank3_\d+, decode 3:6 of rollout 0: complete",),
        env={"RLPATCH_RANKS": "3"}, options={"replica": 1, "world": [2, 1]}),
    Scenario("replicas in one world", RUN, DECODE, (r"_dp1_rank3_\d+, decode 3:6 of rollout 0: complete",),
        env={"RLPATCH_RANKS": "3"}, options={"replica": 1, "attention": True, "world": [4, 3]}, since="0.4.10"),
)  # fmt: skip

TABLES: Mapping[str, tuple[Scenario, ...]] = {
    "test_decode_and_prefill_units_are_counted": COUNTING,
    "test_the_window_of_the_chosen_rollout_is_recorded": ROLLOUTS,
    "test_beside_sglangs_own_profiler": FRAMEWORK,
    "test_only_the_chosen_ranks_record": RANKS,
}
SCENARIOS = [scenario for table in TABLES.values() for scenario in table]


class Run(NamedTuple):
    """A release that is driven, patched for one backend."""

    release: str
    backend: str

    def has(self, scenario: Scenario) -> bool:
        if self.backend == "nsys" and scenario not in COUNTING:  # what else there is does not depend on the tool
            return False
        return bool(releases.SGLANG.index(self.release) >= releases.SGLANG.index(scenario.since))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = releases.SGLANG if metafunc.config.getoption("--all-releases") else SAMPLE
    driven = [
        Run(release, backend)
        for release in chosen
        for backend in BACKENDS
        if backend == "npu" or release in ON_TORCH or chosen is releases.SGLANG
    ]
    short: list[Run] = []  # the short run drives a worker of vllm-ascend
    if "scenario" not in metafunc.fixturenames:
        metafunc.parametrize("driven", thinned(driven, short), ids="-".join)
        return
    table = TABLES[metafunc.function.__name__]
    cases = [
        pytest.param(r, s, id=f"{'-'.join(r)}-{s.name}", marks=[] if r in short else MATRIX)
        for r in driven
        for s in table
        if r.has(s)
    ]
    metafunc.parametrize(("driven", "scenario"), cases)


class Report:
    """What the driver wrote down, and where the traces are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "report"
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def of(self, scenario: Scenario, *what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["scenario"] == scenario.name and line["what"] in what]


@pytest.fixture(scope="session")
def drive(npu_python: Path, once: Once) -> Callable[[Run], Report]:
    """The report of a release, driven once for all tests."""

    @functools.cache
    def report(driven: Run) -> Report:
        name = re.sub(r"\W", "_", "sglang " + " ".join(driven))
        return Report(once(name, lambda folder: _drive(driven, folder, npu_python)))

    return report


def _drive(driven: Run, folder: Path, python: Path) -> None:
    sites, scenarios = {}, [scenario for scenario in SCENARIOS if driven.has(scenario)]
    for name in {scenario.site for scenario in scenarios}:
        sites[name] = str(shutil.copytree(releases.release(driven.release, "sglang"), folder / "sites" / name))
        words = ["apply", f"sglang=={driven.release}", *OPTIONS[name], "--tool", driven.backend, "--path", sites[name]]
        applied = CliRunner().invoke(rlpatch, words)
        assert applied.exit_code == 0, applied.output
    jobs = [scenario.as_job(folder) for scenario in scenarios]
    job = {"backend": driven.backend, "sites": sites, "scenarios": jobs, "report": str(folder / "report")}
    (folder / "job.json").write_text(json.dumps(job))
    # Without a compiler the functions that SGLang compiles run as they are.
    variables = environments.variables(npu=driven.backend == "npu", PYTHONPATH=str(REPOSITORY), TORCHDYNAMO_DISABLE="1")
    done = subprocess.run(
        [str(python), "-m", "fixtures.engines.sglang_drive", str(folder / "job.json")],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    (folder / "output").write_text(done.stdout + done.stderr)
    (folder / "exit_code").write_text(str(done.returncode))


def check(report: Report, scenario: Scenario) -> None:
    """Compare the log and every trace of a scenario with what is expected and with what the driver knows."""
    ended = report.of(scenario, "end")
    assert [line["dropped"] for line in ended] == [scenario.dropped]
    said = [line["text"] for line in report.of(scenario, "log")]
    expected = scenario.said
    if expected is None:
        each = ", recorded {0} of {0} {2} with {1} uncounted iterations between them: /"
        counted = COUNTED.get(OPTIONS[scenario.site][0][2:], "iterations")
        expected = tuple(each.format(r.end - r.first, r.uncounted, counted) for r in scenario.recorded)
    assert len(said) == len(expected), said
    for line, pattern in zip(said, expected, strict=True):
        assert re.search(pattern, line), line
    found = trace.find(report.folder / scenario.folder)
    assert len(found) == len(scenario.recorded), found
    for path, recorded in zip(found, scenario.recorded, strict=True):
        assert any(str(path).removesuffix(".gz").removesuffix(".pt.trace.json") in line for line in said)
        compare(path, recorded, OPTIONS[scenario.site][0][2:], report.of(scenario, "batch"))


def compare(path: Path, recorded: Recorded, unit: str, batches: list[dict[str, Any]]) -> None:
    """Each unit of the trace holds its own batch from drafts to sampling, and what is not a unit is marked as such."""
    mine = [batch for batch in batches if batch["rollout"] == recorded.rollout]
    wanted = {batch["numbers"][unit]: batch["label"] for batch in mine if unit in batch["numbers"]}
    held = trace.read(path)
    assert [step.number for step in held.units] == list(range(recorded.first, recorded.end))
    marks = [item for item in held.ranges if item.name == "rlpatch:uncounted"]
    assert len(marks) == recorded.uncounted
    for names in path.parent.glob(f"{path.name.partition('.')[0]}{nsys.NAMES}"):
        assert json.loads(names.read_text()).count("rlpatch:uncounted") == recorded.uncounted
    for step in held.units:
        ours = [item for item in step.ranges if re.match("(draft|forward|sample):", item.name)]
        own = [item.name for item in ours if not any(mark.holds(item) for mark in marks)]
        label = wanted[step.number]
        assert set(own) - {f"draft:{label}"} == {f"forward:{label}", f"sample:{label}"}
        assert own[-2:] == [f"forward:{label}", f"sample:{label}"]
        aside = {item.name.partition(":")[2] for item in ours if item.name not in own}
        assert aside.isdisjoint(wanted[n] for n in range(recorded.first, recorded.end))
    between = {item.name for mark in marks for item in held.ranges if mark.holds(item) and item.name[:8] == "forward:"}
    assert len(between) == recorded.uncounted
    assert [item.name for item in held.outside if re.match("(draft|forward|sample):", item.name)] == []


def test_the_patched_scheduler_runs_to_its_end(drive: Callable[[Run], Report], driven: Run) -> None:
    """The first tests of this file, so that the releases are driven side by side and all others only compare."""
    report = drive(driven)
    assert (report.folder / "exit_code").read_text() == "0", (report.folder / "output").read_text()


def test_decode_and_prefill_units_are_counted(drive: Callable[[Run], Report], driven: Run, scenario: Scenario) -> None:
    check(drive(driven), scenario)


def test_the_window_of_the_chosen_rollout_is_recorded(
    drive: Callable[[Run], Report], driven: Run, scenario: Scenario
) -> None:
    check(drive(driven), scenario)


def test_beside_sglangs_own_profiler(drive: Callable[[Run], Report], driven: Run, scenario: Scenario) -> None:
    report = drive(driven)
    check(report, scenario)
    # Ours has said its last word before theirs starts, though another thread may record it.
    events = [line["what"] for line in report.of(scenario, "log", "framework")]
    assert scenario.name != "start_profile in the window" or events == ["log", "framework", "framework"]


def test_only_the_chosen_ranks_record(drive: Callable[[Run], Report], driven: Run, scenario: Scenario) -> None:
    check(drive(driven), scenario)


def test_speculation_drafts_within_its_unit(drive: Callable[[Run], Report], driven: Run) -> None:
    (scenario,) = (one for one in COUNTING if one.name == "speculation")
    for path in trace.find(drive(driven).folder / scenario.folder):
        for step in trace.read(path).units:
            kinds = [
                item.name.partition(":")[0] for item in step.ranges if re.match("(draft|forward|sample):", item.name)
            ]
            assert kinds == ["draft", "draft", "forward", "sample"]
