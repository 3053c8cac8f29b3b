"""Runs of the real engine of vLLM, and what they leave."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY
from fixtures.engines.drive import MODEL, write_model
from fixtures.engines.overlay import overlay
from tests.patches.command_line import run as rlpatch

WORKER = "vllm/v1/worker/gpu_worker.py"
ATTENTION = "vllm::unified_attention_with_output"
NEWEST, EARLIER = "0.32.0", ("0.27.0",)


class Recorded(NamedTuple):
    """What one trace must hold: units ``first`` to ``end - 1`` of a rollout; ``end`` None is where the log says."""

    first: int
    end: int | None
    uncounted: int = 0
    rollout: int = 0
    rank: int = 0


@dataclass(frozen=True)
class Engine:
    """A script, the settings of the engine, and what must come of it: traces, and lines of the log."""

    name: str
    script: str
    recorded: tuple[Recorded, ...] = ()
    said: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pace: float = 0.0

    def __str__(self) -> str:
        return self.name

    def as_job(self, folder: Path) -> dict[str, Any]:
        script = [line.strip() for line in self.script.split(";")]
        env, arguments = json.loads(json.dumps([dict(self.env), dict(self.arguments)]).replace("FOLDER", str(folder)))
        env = {"RLPATCH_SAVE_PATH": str(folder / self.name), **env}
        return {"name": self.name, "script": script, "env": env, "arguments": arguments, "pace": self.pace}


class Run(NamedTuple):
    """Engines in one process, or each with processes of its own; an empty ``capture`` leaves the package unpatched.

    ``beside`` is applied before ``capture``. With ``npu`` the real torch_npu stands beside the engine, over the fake CANN.
    With ``nsys`` the engine runs under its stand-in. With ``lent`` nothing is applied: the processes get the same bytes
    by ``rlpatch run``.
    """

    capture: tuple[str, ...]
    engines: tuple[Engine, ...]
    processes: bool = False
    code: int = 0
    npu: bool = False
    nsys: bool = False
    beside: tuple[str, ...] = ()
    lent: bool = False

    @property
    def starts(self) -> bool:
        """Whether the start of the engine is what is looked at."""
        return self.capture[:2] == GRAPHS[:2]


GRAPHS = ("--stage", "graph-capture", "--contents", "npu,cpu,shapes")
OWN = {
    "profiler_config": {
        "profiler": "torch",
        "torch_profiler_dir": "FOLDER/own-traces",
        "torch_profiler_with_stack": False,
    }
}
COMPLETE = "complete, recorded 30 of 30 decode steps with 0 uncounted iterations"
IN_PROCESS = (
    Engine("several-prompts", "generate 100,7,65 70", (Recorded(30, 60),), COMPLETE),
    Engine(
        "last-chunk-of-one-token",
        "generate 65 6",
        (Recorded(1, 4),),
        "complete, recorded 3 of 3 decode steps",
        {"RLPATCH_WINDOW": "1:4"},
    ),
    Engine(
        "arrivals",
        "add 9 70; step 35; add 100 10; run",
        (Recorded(30, 60, uncounted=2),),
        "complete, recorded 30 of 30 decode steps with 2 uncounted iterations",
    ),
    Engine(
        "two-rollouts",
        "generate 9 20; generate 9,7 70",
        (Recorded(30, 60, rollout=1),),
        COMPLETE,
        {"RLPATCH_ROLLOUT": "1"},
    ),
)
PATCHED_ONLY = (
    Engine(
        "fewer-tokens",
        "generate 9 40; generate 9 5",
        (Recorded(30, 40),),
        "all requests have finished, recorded 10 of 30 decode steps",
    ),
    Engine(
        "never", "generate 9 20; generate 9 3", (), "not recorded: all requests have finished after 19 decode steps"
    ),
    Engine(
        "aborted",  # and what goes on afterwards is a new request with all tokens that there were by then
        "add 9 70; step 20; abort; add 29 70; run",
        (Recorded(30, 60, rollout=1),),
        COMPLETE,
        {"RLPATCH_ROLLOUT": "1"},
    ),
    Engine("warm-up", "warmup; generate 9 70", (Recorded(30, 60),), COMPLETE),
    Engine(
        "own-profiler-meanwhile",
        "add 9 70; step 40; profile on; step 5; profile off; run",
        (Recorded(30, 40),),
        "the framework's own profiler was called, recorded 10 of 30 decode steps",
        arguments=OWN,
    ),
    Engine(
        "own-profiler-before",
        "profile on; generate 9 40; profile off",
        (),
        "not recorded: another torch.profiler is recording",
        arguments=OWN,
    ),
    Engine("switched-off", "generate 9 70", env={"RLPATCH": "0"}),
    Engine("exit", "add 9 70; step 40; exit", (Recorded(30, 40),), "the process ends, recorded 10 of 30 decode steps"),
)
# What CPUs have instead of a capture: torch.compile, with the backend that takes the least time.
COMPILED = {
    "enforce_eager": False,
    "compilation_config": {"mode": 2, "backend": "eager"},
    "worker_extension_cls": "fixtures.engines.starting.Marked",
}
STARTING = {"STARTING": "FOLDER/starting.jsonl", "RLPATCH_WINDOW": "3:6"}
# Two workers under torch.compile, whose caches are looked at: inductor's too, where there is a compiler for its C++.
INDUCTOR = shutil.which("g++") is not None
COMPILATION = {"mode": 2, "backend": "inductor" if INDUCTOR else "eager"}
WORKERS = Engine(
    "two-workers",
    "generate 100,7,65 8; renew RLPATCH_RANKS=all; generate 9 8; generate 9 2",
    (Recorded(3, 6), Recorded(3, 6, rollout=1), Recorded(3, 6, rollout=1, rank=1)),
    "complete, recorded 3 of 3 units",
    {
        "RLPATCH_WINDOW": "3:6",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_CACHE_ROOT": "FOLDER/cache",
        "TORCHINDUCTOR_CACHE_DIR": "FOLDER/inductor",
    },
    {"tensor_parallel_size": 2, "enforce_eager": False, "compilation_config": COMPILATION},
)
COMPILES = Engine("compiles", "generate 9 8", (Recorded(3, 6),), "complete", STARTING, COMPILED)
EAGER = Engine("eager", "generate 9 8", (Recorded(3, 6),), "", {**STARTING, "STARTING": "FOLDER/eager.jsonl"})
RUNS = {
    "unpatched": Run((), (*IN_PROCESS, COMPILES)),
    "starts": Run(GRAPHS, (COMPILES, EAGER), beside=("--decode", "30:60")),
    "starts-workers": Run(
        GRAPHS,
        (
            Engine(
                "starts-workers",
                "generate 9 8",
                (Recorded(0, 1), Recorded(0, 1, rank=1)),
                "complete",
                {**STARTING, "RLPATCH_RANKS": "all", "VLLM_CPU_OMP_THREADS_BIND": "0|1"},
                {**COMPILED, "tensor_parallel_size": 2},
            ),
        ),
        processes=True,
    ),
    "starts-not": Run(
        GRAPHS,
        (
            Engine(
                "starts-not", "", (Recorded(0, 1),), "the process ends", {**STARTING, "STARTING_FAILS": "1"}, COMPILED
            ),
        ),
        processes=True,
        code=1,
    ),
    "decode": Run(("--decode", "30:60"), (*IN_PROCESS, *PATCHED_ONLY)),
    "ends-workers": Run(
        ("--decode", "30:60"),
        (
            Engine(
                "ends-workers",
                "generate 9 20",
                (),
                "not recorded: the process ends before rollout 4",
                {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "RLPATCH_ROLLOUT": "4"},
                {"tensor_parallel_size": 2},
            ),
        ),
        processes=True,
    ),
    "prefill": Run(
        ("--prefill", "1:3"),
        (
            Engine("prefill", "generate 100,7,65 5", (Recorded(1, 3),), "complete, recorded 2 of 2 prefill iterations"),
            Engine(
                "ends",  # the last one: whose process ends
                "generate 9 20",
                (),
                "not recorded: the process ends after 1 prefill iterations",
                {"RLPATCH_WINDOW": "30:60"},
            ),
        ),
    ),
    "iterations": Run(
        ("--iterations", "2:5"),
        (Engine("iterations", "generate 100,7,65 5", (Recorded(2, 5),), "complete, recorded 3 of 3 iterations"),),
    ),
    "ranges": Run(
        ("--iterations", "0:", "--markers", "--module-ranges", "--module-pattern", "Attention$|MLP$"),
        (Engine("ranges", "generate 65 6", (Recorded(0, 7),), "the process ends, recorded 7 iterations with 0"),),
    ),
    "npu": Run(
        ("--decode", "30:60", "--tool", "npu"),
        (Engine("npu", "generate 100,7,65 70", (Recorded(30, 60),), COMPLETE),),
        npu=True,
    ),
    "nsys": Run(
        ("--decode", "30:60", "--tool", "nsys"),
        (replace(IN_PROCESS[0], name="nsys"), replace(IN_PROCESS[2], name="nsys-arrivals")),
        nsys=True,
    ),
    "workers": Run(("--decode", "30:60"), (WORKERS,), processes=True),
    "unpatched-workers": Run((), (WORKERS,), processes=True),
    "lent-workers": Run(("--decode", "30:60"), (WORKERS,), processes=True, lent=True),
    "terminated": Run(
        ("--decode", "30:900"),
        (
            Engine(
                "terminated",
                "add 9 1000; step 40; terminate handled",
                (Recorded(30, None),),
                r"all requests have finished, recorded \d+ of 870 decode steps",
                pace=0.05,
            ),
        ),
        processes=True,
        code=143,
    ),
}


THOROUGH = ("ends-workers", "starts-workers", "workers")
"""Runs that take a minute: two workers record as one process does (prefill, starts) and as those do that are lent to."""


class Iteration(NamedTuple):
    """What the model runner was given: the number, decode or prefill, the tokens of each request, and when (seconds)."""

    n: int
    kind: str
    requests: dict[str, int]
    at: float


class Report:
    """What a run left in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def outputs(self, engine: Engine) -> list[list[int]]:
        lines = map(json.loads, (self.folder / "outputs.jsonl").read_text().splitlines())
        return [line["tokens"] for line in lines if line["engine"] == engine.name]

    def rollouts(self, engine: Engine, rank: int = 0) -> list[list[Iteration]]:
        """The iterations, split where no request goes on; those of the warm-up left out."""
        found: list[list[Iteration]] = []
        for line in (self.folder / f"{engine.name}-rank{rank}.jsonl").read_text().splitlines():
            iteration = Iteration(**json.loads(line))
            if any("_warmup_" in request for request in iteration.requests):
                continue
            if not found or not {*iteration.requests} & {*found[-1][-1].requests}:
                found.append([])
            found[-1].append(iteration)
        return found

    def log(self, engine: Engine) -> list[str]:
        """What rlpatch said of an engine."""
        said = (self.folder / "out").read_text().partition(f"--- {engine.name}\n")[2].partition("\n--- ")[0]
        return re.findall(r"rlpatch: \w+, [\w+]+ \d+:\d* of rollout \d+: (.*)", said)

    def started(self, engine: Engine) -> tuple[list[tuple[str, str]], list[Path]]:
        """What rlpatch said of an engine's start (what was called, and the report), and its traces, by rank."""
        said = (self.folder / "out").read_text().partition(f"--- {engine.name}\n")[2].partition("\n--- ")[0]
        found = [path for path in trace.find(self.folder / engine.name) if "_graph_capture_" in path.name]
        return re.findall(r"rlpatch: \w+_graph_capture_\w+, (\w+\(\)): (.*)", said), found


def _drive(run: Run, folder: Path, version: str) -> None:
    python = environments.vllm_cpu_env(version)
    site = overlay(python, folder / "site")
    lend: tuple[object, ...] = ()
    if run.lent:
        lend = (
            sys.executable,
            "-m",
            "patcher",
            "run",
            f"vllm=={version}",
            *run.capture,
            "--path",
            site,
            "--require",
            "--",
        )
        (folder / "before.json").write_text(json.dumps(digests(site)))
    for capture in filter(None, () if run.lent else (run.beside, run.capture)):
        rlpatch("apply", f"vllm=={version}", *capture, "--path", site)
    if run.npu:
        environments.refuse_cuda(python)
        (torch_npu,) = environments.torch_npu_env().parents[1].glob("lib/python3*/site-packages/torch_npu")
        (site / "torch_npu").symlink_to(torch_npu)
    engines = [engine.as_job(folder) for engine in run.engines]
    job = {"model": str(write_model(folder / "model")), "report": str(folder), "engines": engines}
    (folder / "job.json").write_text(json.dumps(job))
    modules = ("fixtures.nsys", "fixtures.engines.drive")[not run.nsys :]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [*map(str, lend), str(python), "-m", *modules, str(folder / "job.json")],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environments.variables(
                npu=run.npu,
                TORCH_DEVICE_BACKEND_AUTOLOAD="0",  # else `import torch` imports torch_npu
                PYTHONPATH=f"{site}:{REPOSITORY}",
                VLLM_ENABLE_V1_MULTIPROCESSING=str(int(run.processes)),
            ),
        )
        try:
            code = process.wait(timeout=600)
        finally:
            _end_group(process.pid)
    assert code == run.code, (folder / "out").read_text()[-6000:]


def digests(root: Path) -> dict[str, list[object]]:
    """Each file below ``root``: its time of change, and a digest of its bytes."""
    return {
        str(file.relative_to(root)): [file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest()]
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)  # vLLM's processes outlive a main process that is killed


CASES = [(name, engine) for name, run in RUNS.items() if run.capture and not run.starts for engine in run.engines]
STARTS = [(name, engine) for name, run in RUNS.items() if run.starts for engine in run.engines if engine is not EAGER]


def _check(found: trace.Trace, numbers: range, expected: list[Iteration], between: list[Iteration]) -> None:
    assert [unit.number for unit in found.units] == list(numbers)
    marks = re.compile(r"(forward|sampling) \d+")
    for unit, iteration in zip(found.units, expected, strict=True):
        uncounted = [item for item in unit.ranges if item.name == "rlpatch:uncounted"]
        names = [item.name for item in unit.ranges if marks.fullmatch(item.name)]
        aside = [i.name for i in unit.ranges if marks.fullmatch(i.name) and any(u.holds(i) for u in uncounted)]
        assert [name for name in names if name not in aside] == [f"forward {iteration.n}", f"sampling {iteration.n}"]
        forward, sampling = (
            next(item for item in unit.ranges if item.name == f"{word} {iteration.n}")
            for word in ("forward", "sampling")
        )
        assert [item.name for item in found.within(forward)].count(ATTENTION) == MODEL["num_hidden_layers"]
        assert [item.name for item in found.within(sampling) if item.name.endswith("argmax")]
    assert found.count(trace.RANGE)["rlpatch:uncounted"] == len(between)
    ranges = [item for item in found.ranges if marks.fullmatch(item.name)]
    assert {int(item.name.split()[1]) for item in ranges} == {i.n for i in (*expected, *between)}
    assert not [item for item in found.outside if marks.fullmatch(item.name)]


def _kernels(folder: Path) -> dict[str, str]:
    """The sources of inductor's kernels, which vLLM keeps among its own; the folder above them is named by the run."""
    return {file.name: file.read_text() for file in (folder / "cache").glob("**/inductor_cache/*/*.cpp")}
