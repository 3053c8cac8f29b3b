"""A whole training run of verl on CPUs, patched: exactly the units asked for, the same training, and every message seen.

``rlpatch apply`` patches copies of the installed packages, and ``fixtures.trainer`` runs verl's own trainer with them:
Ray, FSDP workers, a vLLM rollout. Each run takes minutes, so all of this stands behind ``--thorough``.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.trainer import run as training
from tests.patches.command_line import run as rlpatch

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

ACTOR = "actor_rollout_ref.actor"
CLOCKS = ("timing", "perf/mfu", "perf/time_per_step", "perf/throughput", "perf/cpu_memory")


class Recorded(NamedTuple):
    """What one trace must hold: its units, and for each of them how often these operators ran.

    ``held`` are the requests or the sequences of each, ``closing`` is how its message ends.
    """

    name: str
    units: tuple[int, ...]
    forwards: int = 1
    backwards: int = 0
    held: int | None = training.MICRO
    closing: str = "complete, recorded {} of"

    @property
    def decodes(self) -> bool:
        """Whether it is one of a rollout."""
        return self.name.startswith("replica")


@dataclass(frozen=True)
class Scenario:
    """``applied`` are commands of rlpatch (targets, options), ``overrides`` settings of verl.

    With ``lent`` the one command is `rlpatch run`: nothing is applied. ``triggered`` is typed while the run goes on.
    """

    applied: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    said: tuple[str, ...] = ()
    devices: int = 1
    critic: bool = False
    own: bool = False  # verl's own profiler is switched on
    lent: bool = False
    triggered: tuple[str, ...] = ()
    env: Mapping[str, Any] = field(default_factory=dict)


ANSWERS_EACH = training.ROLLOUT["answers"]
ANSWERS = training.ROLLOUT["batch"] * ANSWERS_EACH
DECODE = Recorded(r"replica0_dp0_rank0", (3, 4, 5), held=ANSWERS)
UPDATE = Recorded(r"update_policy_actor_step1_rank0", (0,), backwards=1)
MICROS = training.MINI * ANSWERS_EACH // training.MICRO
WHOLE_UPDATE = Recorded(
    r"update_policy_actor_step2_rank0",
    (0, 1),
    MICROS,
    MICROS,
    training.MINI * ANSWERS_EACH,
    "the call ends, recorded {} u",
)
SYNCS = tuple(
    Recorded(f"weight_sync_{side}_rank0", (0,), 0, 0, None, "complete, recorded: ")
    for side in ("trainer_sync1", "rollout_sync1_replica0")
)
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
    # The sixteen answers have a context of 32 tokens in decode step 4: counting begins with the one after it.
    "by-state": Scenario(
        (("vllm", "--decode 0:2,4:6 --at-load 16 --at-context 32"),),
        recorded=(DECODE._replace(units=(5, 6)), DECODE._replace(units=(9, 10))),
    ),
    "on-demand": Scenario(
        (("vllm", "--on-demand"), ("verl", "--stage update-policy --on-demand")),
        overrides=("trainer.total_epochs=10", "trainer.total_training_steps=20"),  # some time to ask in
        recorded=(DECODE, UPDATE._replace(name=r"update_policy_actor_step\d+_rank0")),
        triggered=("--decode 3:6", "verl --stage update-policy --micro-batch 0:1"),
    ),
    "v1-sync": Scenario(
        (
            ("vllm", "--decode 3:6 --rollout 1"),
            ("verl", "--stage update-policy --mini-batch 0: --training-steps 2"),
            ("verl", "--stage weight-sync --sync 1"),
        ),
        ("trainer.use_v1=True", "trainer.total_training_steps=3", "trainer.total_epochs=3"),
        recorded=(DECODE, WHOLE_UPDATE, *SYNCS),
    ),
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
            # verl's critic takes as many as fit: here a mini-batch, and all of them.
            Recorded(r"update_critic_critic_step1_rank0", (0,), backwards=1, held=training.MINI * ANSWERS_EACH),
            Recorded(r"compute_values_critic_step1_rank0", (0,), held=ANSWERS),
        ),
    ),
    "two-devices": Scenario(
        (BOTH,),
        recorded=(
            DECODE._replace(held=ANSWERS // 2),  # the other replica has the others
            *(UPDATE, UPDATE._replace(name=UPDATE.name.replace("rank0", "rank1"))),
        ),
        devices=2,
        env={"RLPATCH_RANKS": "all"},
    ),
}
PATCHED = [name for name, scenario in SCENARIOS.items() if scenario.applied]
RECORDED = [name for name, scenario in SCENARIOS.items() if scenario.recorded]


class Report(NamedTuple):
    """What a run left in its folder."""

    scenario: Scenario
    folder: Path
    outcome: training.Outcome

    @property
    def traces(self) -> list[Path]:
        return traces(self.folder)

    def read(self, command: str) -> dict[str, Any]:
        """What a command printed of these traces."""
        return dict(json.loads((self.folder / f"{command}.json").read_text())["result"])


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


def traces(folder: Path) -> list[Path]:
    return trace.find(folder / "traces")


def _train(scenario: Scenario, folder: Path) -> None:
    """Patch, train, ask for the state, revert; the answers stay in the folder."""
    site = training.site(folder / "site")
    before = _files(site)
    lend: list[str] = []
    for targets, options in scenario.applied:
        words = (*options.split(), "--tool", "torch", "--save-path", folder / "traces", "--path", site)
        if scenario.lent:
            lend = [sys.executable, "-m", "patcher", "run", *targets.split(), *map(str, words), "--require", "--"]
        else:
            rlpatch("apply", *targets.split(), *words)
    settings = [setting.replace("FOLDER", str(folder)) for setting in scenario.overrides]
    settings += training.critic() if scenario.critic else []
    command = ("python", "-m", "verl.trainer.main_ppo", *training.settings(folder / "run"), *settings)
    rlpatch("check", "verl", "--path", site, "--", *command, code=8 if scenario.own else 0)
    asking = Thread(target=_trigger, args=(scenario.triggered, folder / "traces"))
    asking.start()
    outcome = training.train(folder / "run", site, *settings, devices=scenario.devices, through=lend, **scenario.env)
    asking.join()
    assert outcome.code == 0, outcome.console[-6000:]
    if scenario.applied:
        if not scenario.lent:
            (folder / "status").write_text(rlpatch("status", "--path", site).output)
            rlpatch("revert", "--path", site)
        (folder / "same").write_text(str(_files(site) == before))
    if scenario.recorded:
        asked: list[tuple[Any, ...]] = [
            ("watch", folder / "traces", "--once"),
            ("traces", folder / "traces"),
            ("report", *traces(folder)),
        ]
        for words in asked:
            (folder / f"{words[0]}.json").write_text(rlpatch(*words, "--json").stdout)


def _trigger(asked: Iterable[str], traces: Path) -> None:
    """Type each request as soon as one of its workers is there."""
    for options in asked:
        command = [sys.executable, "-m", "patcher", "trigger", *options.split(), "--save-path", str(traces)]
        for _ in range(2000):
            if (traces / ".rlpatch").exists() and subprocess.run(command, capture_output=True).returncode == 0:
                break
            time.sleep(0.5)


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
    expected = [*report.scenario.recorded]
    assert len(report.traces) == len(expected), report.traces
    for path in report.traces:
        units = trace.units(path)
        numbers = tuple(unit.number for unit in units)
        (one,) = [one for one in expected if re.search(f"_{one.name}_", path.name) and one.units == numbers]
        expected.remove(one)
        for unit in units:
            names = unit.names(trace.OPERATOR)
            assert names.count("aten::embedding") == one.forwards
            assert names.count("aten::embedding_dense_backward") == one.backwards
        assert bool(trace.read(path).count(trace.OPERATOR)["aten::argmax"]) is one.decodes, "it samples"


@pytest.mark.parametrize("name", PATCHED)
def test_every_message_is_on_the_console_once(name: str, ran: Callable[[str], Report]) -> None:
    report = ran(name)
    said = report.outcome.said
    wanted = Counter(rf"_{one.name}_\d+, .*: {one.closing.format(len(one.units))}" for one in report.scenario.recorded)
    wanted.update(report.scenario.said)
    for words, often in wanted.items():
        assert len([line for line in said if re.search(words, line)]) == often, (words, said)
    assert len(said) == wanted.total(), said
    for path in report.traces:
        assert len([line for line in said if line.endswith(str(path).removesuffix(".gz"))]) == 1


@pytest.mark.parametrize("name", RECORDED)
def test_what_watch_traces_and_report_read_there(name: str, ran: Callable[[str], Report]) -> None:
    """Who saved, which captures there are, and what the units held: all as the run recorded it."""
    report = ran(name)
    recorded = sorted(one.units for one in report.scenario.recorded)
    workers = report.read("watch")["workers"]
    assert {worker["outcome"] for worker in workers if worker["traces"]} == {"done"}
    assert sum(len(worker["traces"]) for worker in workers) == len(recorded)
    captures = report.read("traces")["captures"]
    assert sorted(tuple(one["units"]) for one in captures for _ in one["traces"]) == recorded
    assert {one["state"] for one in captures} == {"whole"}
    read = report.read("report")["captures"]
    assert sorted(tuple(unit["number"] for unit in one["units"]) for one in read) == recorded
    for one in read:
        numbers = tuple(unit["number"] for unit in one["units"])
        wanted = (w for w in report.scenario.recorded if re.search(f"_{w.name}_", one["source"]) and w.units == numbers)
        expected = next(wanted)
        requests, sequences = (expected.held, None) if expected.decodes else (None, expected.held)
        assert {unit["requests"] for unit in one["units"]} == {requests}
        assert {unit.get("sequences") for unit in one["facts"]["units"]} == {sequences}


def test_a_training_step_is_that_of_verls_log(ran: Callable[[str], Report]) -> None:
    """Also where its newer trainer runs: the tokens in the trace of step 2 are those that verl says of its step 2."""
    report = ran("v1-sync")
    lengths = [step["global_seqlen/min"] for step in report.outcome.metrics]
    (update,) = [one for one in report.read("report")["captures"] if one["facts"]["stage"] == "update-policy"]
    assert len(set(lengths)) == 3
    assert sum(unit["tokens"] for unit in update["units"]) == lengths[1]
    assert update["facts"]["parameter_version"] == 1


def test_both_sides_of_a_weight_sync_are_told_by_phase(ran: Callable[[str], Report]) -> None:
    captures = ran("v1-sync").read("report")["captures"]
    phases = {
        one["facts"]["role"]: {row["name"] for row in one["modules"]} for one in captures if "sync" in one["facts"]
    }
    assert phases["trainer"] >= {"update_weights", "gather", "bucket", "send"}
    assert phases["rollout"] >= {"update_weights_from_ipc", "receive", "load"}


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
