"""A whole training run of verl on CPUs, patched: exactly the units asked for, the same training, and every message seen.

``rlpatch apply`` patches copies of the installed packages, and ``fixtures.trainer`` runs verl's own trainer with them:
Ray, FSDP workers, a vLLM rollout. Each run takes minutes, so all of this stands behind ``--thorough``.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.trainer import run as training
from tests.patches.test_releases import run as rlpatch

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

ACTOR = "actor_rollout_ref.actor"
CLOCKS = ("timing", "perf/mfu", "perf/time_per_step", "perf/throughput", "perf/cpu_memory")


class Recorded(NamedTuple):
    """What one trace must hold: its units, and for each of them how often these operators ran."""

    name: str
    units: tuple[int, ...]
    forwards: int = 1
    backwards: int = 0


@dataclass(frozen=True)
class Scenario:
    """``applied`` are commands of rlpatch (targets, options), ``overrides`` settings of verl.

    With ``lent`` the one command is `rlpatch run`: nothing is applied.
    """

    applied: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    said: tuple[str, ...] = ()
    devices: int = 1
    critic: bool = False
    own: bool = False  # verl's own profiler is switched on
    lent: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


DECODE = Recorded(r"replica0_dp0_rank0", (3, 4, 5))
UPDATE = Recorded(r"update_policy_actor_step1_rank0", (0,), backwards=1)
OF_ACTOR = Recorded(r"compute_log_prob_actor_step1_rank0", (2, 3))
OF_REF = Recorded(r"compute_log_prob_ref_step1_rank0", (1, 2))
BOTH = ("vllm verl", "--decode 3:6 --stage update-policy --micro-batch 0:1")
LOG_PROBS = (
    ("verl", "--stage compute-log-prob --micro-batch 2:4 --role actor"),
    ("verl", "--stage compute-log-prob --micro-batch 1:3 --role ref"),
)
SCENARIOS = {
    "unpatched": Scenario(),
    "all-stages": Scenario((BOTH, *LOG_PROBS), recorded=(DECODE, UPDATE, OF_ACTOR, OF_REF)),
    "lent": Scenario((BOTH,), recorded=(DECODE, UPDATE), lent=True),
    "own-profiler": Scenario(
        (("verl", "--stage update-policy --micro-batch 0:1 --force"),),
        (
            *("global_profiler.tool=torch", "global_profiler.steps=[1]", "global_profiler.save_path=FOLDER/theirs"),
            *(f"{ACTOR}.profiler.enable=True", f"{ACTOR}.profiler.all_ranks=True"),
        ),
        own=True,
        said=(
            r"update-policy, actor, .*: not recorded: (verl's own torch profiler is running|another torch\.profiler)",
        ),
    ),
    "critic": Scenario(
        (
            ("verl", "--stage update-critic --micro-batch 0:1"),
            ("verl", "--stage compute-values --micro-batch 0:1"),
        ),
        critic=True,
        recorded=(
            Recorded(r"update_critic_critic_step1_rank0", (0,), backwards=1),
            Recorded(r"compute_values_critic_step1_rank0", (0,)),  # verl takes all in one,
        ),
    ),
    "two-devices": Scenario(
        (BOTH,),
        recorded=(DECODE, UPDATE, UPDATE._replace(name=UPDATE.name.replace("rank0", "rank1"))),
        devices=2,
        env={"RLPATCH_RANKS": "all"},
    ),
}
PATCHED = [name for name, scenario in SCENARIOS.items() if scenario.applied]


class Report(NamedTuple):
    """What a run left in its folder."""

    scenario: Scenario
    folder: Path
    outcome: training.Outcome

    @property
    def traces(self) -> list[Path]:
        return trace.find(self.folder / "traces")


@pytest.fixture(scope="session")
def ran(once: Once, pytestconfig: pytest.Config) -> Callable[[str], Report]:
    """A scenario, run once for all tests."""
    if not pytestconfig.getoption("--thorough"):
        pytest.skip("a training run takes minutes: --thorough")

    def found(name: str) -> Report:
        scenario = SCENARIOS[name]
        folder = once(f"trainer-{name}", lambda folder: _train(scenario, folder))
        return Report(scenario, folder, training.Outcome(0, (folder / "run" / "console").read_text()))

    return found


def _train(scenario: Scenario, folder: Path) -> None:
    """Patch, train, ask for the state, revert; the answers stay in the folder."""
    site = training.site(folder / "site")
    before = _files(site)
    lend: list[str] = []
    for targets, options in scenario.applied:
        words = (*options.split(), "--backend", "torch", "--save-path", folder / "traces", "--path", site)
        if scenario.lent:
            lend = [sys.executable, "-m", "patcher", "run", *targets.split(), *map(str, words), "--require", "--"]
        else:
            rlpatch("apply", *targets.split(), *words)
    settings = [setting.replace("FOLDER", str(folder)) for setting in scenario.overrides]
    settings += training.critic() if scenario.critic else []
    command = ("python", "-m", "verl.trainer.main_ppo", *training.settings(folder / "run"), *settings)
    rlpatch("check", "verl", "--path", site, "--", *command, code=8 if scenario.own else 0)
    outcome = training.train(folder / "run", site, *settings, devices=scenario.devices, through=lend, **scenario.env)
    assert outcome.code == 0, outcome.console[-6000:]
    if scenario.applied:
        if not scenario.lent:
            (folder / "status").write_text(rlpatch("status", "--path", site).output)
            rlpatch("revert", "--path", site)
        (folder / "same").write_text(str(_files(site) == before))


def _files(site: Path) -> dict[Path, tuple[bytes, int, int]]:
    """Bytes, mode and time of each file, but for the bytecode that Python keeps."""
    files = [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {
        path: (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in files
    }


@pytest.mark.parametrize("name", PATCHED)
def test_one_trace_of_each_stage_with_exactly_its_units(name: str, ran: Callable[[str], Report]) -> None:
    report = ran(name)
    expected = {one.name: one for one in report.scenario.recorded}
    assert len(report.traces) == len(expected), report.traces
    for path in report.traces:
        (one,) = [expected.pop(known) for known in [*expected] if f"_{known}_" in path.name]
        units = trace.units(path)
        assert tuple(unit.number for unit in units) == one.units
        for unit in units:
            names = unit.names(trace.OPERATOR)
            assert names.count("aten::embedding") == one.forwards
            assert names.count("aten::embedding_dense_backward") == one.backwards
        assert bool(trace.read(path).count(trace.OPERATOR)["aten::argmax"]) is ("replica" in one.name), "it samples"


@pytest.mark.parametrize("name", PATCHED)
def test_every_message_is_on_the_console_once(name: str, ran: Callable[[str], Report]) -> None:
    report = ran(name)
    said = report.outcome.said
    wanted = [rf"_{one.name}_\d+, .*: complete, recorded {len(one.units)} of" for one in report.scenario.recorded]
    wanted += report.scenario.said
    assert len(said) == len(wanted), said
    for words in wanted:
        assert len([line for line in said if re.search(words, line)]) == 1, (words, said)
    for path in report.traces:
        assert len([line for line in said if line.endswith(str(path))]) == 1


def test_the_training_is_the_same(ran: Callable[[str], Report]) -> None:
    first, second = (ran(name).outcome.metrics for name in ("unpatched", "all-stages"))
    for number, (plain, patched) in enumerate(zip(first, second, strict=True), 1):
        facts = {name: value for name, value in plain.items() if not any(clock in name for clock in CLOCKS)}
        assert len(facts) > 50
        if number == 1:
            assert facts == {name: patched[name] for name in facts}
        else:  # probabilities of the rollout against those of the training differ in the 7th digit
            assert facts == pytest.approx({name: patched[name] for name in facts}, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", PATCHED)
def test_the_patches_are_as_they_were_and_the_tree_too(name: str, ran: Callable[[str], Report]) -> None:
    report = ran(name)
    if report.scenario.lent:
        assert re.findall(r"rlpatch run: (\w+) was patched in \d+ process", report.outcome.console) == ["vllm", "verl"]
    else:
        status = (report.folder / "status").read_text()
        states = re.findall(r"^  (\w+) (?:vllm|verl)/", status, re.MULTILINE)
        assert set(states) == {"intact"}
    assert (report.folder / "same").read_text() == "True"
