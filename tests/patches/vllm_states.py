"""Runs of the real engine of vLLM whose windows begin by a state or a request."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY
from fixtures.engines.drive import write_model
from fixtures.engines.overlay import overlay
from patcher.workers.folder import StateFolder
from tests.patches.command_line import run as rlpatch
from tests.patches.vllm_runs import NEWEST, Engine, Iteration, Run, _end_group

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


def check_facts(path: Path, window: Window, expected: list[Seen], steps: list[trace.Range]) -> None:
    """The file beside the trace says what the scheduler handed out, and when by the clock of the trace."""
    facts = json.loads(Path(f"{path}.rlpatch.json").read_text())
    assert (facts["target"], facts["release"], facts["rollout"]) == ("vllm", NEWEST, window.rollout)
    assert facts["window"] == f"{window.first}:{window.end}"
    for held, one in zip(facts["units"], expected, strict=True):
        assert (held["number"], held["requests"], held["tokens"]) == (
            one.number,
            len(one.contexts),
            sum(one.iteration.requests.values()),
        )
        assert (held["longest"], held["context"]) == (max(one.contexts.values()), sum(one.contexts.values()))
    assert trace.outside_steps(Path(f"{path}.rlpatch.json"), steps, trace.base(path)) == []


def _replicas(folder: Path) -> None:
    """Two replicas, as verl starts them, in one save folder, and `rlpatch trigger` while they run.

    vLLM itself refuses data parallelism for a dense model offline ("not supported/useful for dense models").
    """
    script, traces = f"{RAMP}; await; {RAMP}; {RAMP}", folder / "traces"

    def asked(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        states = StateFolder(traces)
        while len(states.read().workers) < 2 and all(process.poll() is None for process in processes):
            time.sleep(0.2)
        rlpatch("trigger", "--save-path", traces, "--decode", "2:5")

    engines = [Engine(f"replica{number}", script, env={"VERL_REPLICA_RANK": number}) for number in "01"]
    _together(folder, ("--on-demand", "--replicas", "all"), engines, asked)


def _group(folder: Path) -> None:
    """The two ranks of a data-parallel group: the one that has nothing to do runs dummy batches beside the other.

    vLLM takes a model whose configuration names experts for one whose ranks have to run in step. This one has none.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {"VLLM_DP_SIZE": "2", "VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": port}
    engines = [
        Engine(f"rank{rank}", script, env={**group, "VLLM_DP_RANK": rank, "VLLM_DP_RANK_LOCAL": rank})
        for rank, script in (("0", "generate 9 5; generate 30 3"), ("1", "generate 9 12; generate 100 4"))
    ]
    _together(folder, ("--aligned", "3:9", "--ranks", "all"), engines, num_local_experts=4)


def _together(
    folder: Path,
    capture: tuple[str, ...],
    engines: Sequence[Engine],
    meanwhile: Callable[[Sequence[subprocess.Popen[bytes]]], None] = lambda _: None,
    **model: Any,
) -> None:
    """Engines in a process each, side by side, which save into one folder."""
    python = environments.vllm_cpu_env(NEWEST)
    site = overlay(python, folder / "site")
    rlpatch("apply", f"vllm=={NEWEST}", *capture, "--path", site)
    config = write_model(folder / "model") / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **model}))
    processes = []
    for engine in engines:
        env = {**engine.env, "RLPATCH_SAVE_PATH": str(folder / "traces")}
        (folder / engine.name).mkdir()
        engines_job = [replace(engine, env=env).as_job(folder)]
        job = {"model": str(config.parent), "report": str(folder / engine.name), "engines": engines_job}
        (folder / f"{engine.name}.json").write_text(json.dumps(job))
        variables = environments.variables(PYTHONPATH=f"{site}:{REPOSITORY}", VLLM_ENABLE_V1_MULTIPROCESSING="0")
        with (folder / f"{engine.name}.out").open("w") as out:
            command = [str(python), "-m", "fixtures.engines.drive", str(folder / f"{engine.name}.json")]
            processes.append(
                subprocess.Popen(command, env=variables, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )
    try:
        meanwhile(processes)
        codes = [process.wait(timeout=300) for process in processes]
    finally:
        for process in processes:
            _end_group(process.pid)
    assert codes == [0, 0], "".join((folder / f"{engine.name}.out").read_text()[-3000:] for engine in engines)
