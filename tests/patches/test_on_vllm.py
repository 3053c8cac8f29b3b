"""The real vLLM engine on a CPU: patched, it records exactly the window, and answers as it did before.

``rlpatch apply`` patches a copy of the installed package. The engine is driven in process, and with two worker
processes, by the scripts below (``fixtures.engines.drive``). What the traces hold is compared with what the model
runner was given (``fixtures.engines.marks``), which knows nothing of rlpatch.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import REPOSITORY, Once
from fixtures.engines.drive import BUDGET, MODEL, write_model
from fixtures.engines.overlay import overlay
from tests.patches.command_line import run as rlpatch
from tests.patches.test_on_torch_npu import nested

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]

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
    With ``lent`` nothing is applied: the processes get the same bytes by ``rlpatch run``.
    """

    capture: tuple[str, ...]
    engines: tuple[Engine, ...]
    processes: bool = False
    code: int = 0
    npu: bool = False
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
COMPLETE = "complete, recorded 30 of 30 units with 0 uncounted iterations"
IN_PROCESS = (
    Engine("several-prompts", "generate 100,7,65 70", (Recorded(30, 60),), COMPLETE),
    Engine(
        "last-chunk-of-one-token",
        "generate 65 6",
        (Recorded(1, 4),),
        "complete, recorded 3 of 3 units",
        {"RLPATCH_WINDOW": "1:4"},
    ),
    Engine(
        "arrivals",
        "add 9 70; step 35; add 100 10; run",
        (Recorded(30, 60, uncounted=2),),
        "complete, recorded 30 of 30 units with 2 uncounted iterations",
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
        "all requests have finished, recorded 10 of 30 units",
    ),
    Engine("never", "generate 9 20; generate 9 3", (), "not recorded: all requests have finished after 19 units"),
    Engine("warm-up", "warmup; generate 9 70", (Recorded(30, 60),), COMPLETE),
    Engine(
        "own-profiler-meanwhile",
        "add 9 70; step 40; profile on; step 5; profile off; run",
        (Recorded(30, 40),),
        "the framework's own profiler starts, recorded 10 of 30 units",
        arguments=OWN,
    ),
    Engine(
        "own-profiler-before",
        "profile on; generate 9 40; profile off",
        (),
        "not recorded: the framework's own profiler was started and not stopped",
        arguments=OWN,
    ),
    Engine("switched-off", "generate 9 70", env={"RLPATCH": "0"}),
    Engine("exit", "add 9 70; step 40; exit", (Recorded(30, 40),), "the process ends, recorded 10 of 30 units"),
)
WORKERS = Engine(
    "two-workers",
    "generate 100,7,65 8; renew RLPATCH_RANKS=all; generate 9 8; generate 9 2",
    (Recorded(3, 6), Recorded(3, 6, rollout=1), Recorded(3, 6, rollout=1, rank=1)),
    "complete, recorded 3 of 3 units",
    {"RLPATCH_WINDOW": "3:6", "VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    {"tensor_parallel_size": 2},
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
COMPILED_WORKERS = replace(
    WORKERS,
    name="two-compiled-workers",
    script="generate 100,7,65 8; generate 9 8",
    recorded=(Recorded(3, 6),),
    env={**WORKERS.env, "VLLM_CACHE_ROOT": "FOLDER/cache", "TORCHINDUCTOR_CACHE_DIR": "FOLDER/inductor"},
    arguments={**WORKERS.arguments, "enforce_eager": False, "compilation_config": COMPILATION},
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
    "prefill": Run(
        ("--prefill", "1:3"),
        (Engine("prefill", "generate 100,7,65 5", (Recorded(1, 3),), "complete, recorded 2 of 2 units"),),
    ),
    "iterations": Run(
        ("--iterations", "2:5"),
        (Engine("iterations", "generate 100,7,65 5", (Recorded(2, 5),), "complete, recorded 3 of 3 units"),),
    ),
    "ranges": Run(
        ("--iterations", "0:", "--markers", "--module-ranges", "--module-pattern", "Attention$|MLP$"),
        (Engine("ranges", "generate 65 6", (Recorded(0, 7),), "the process ends, recorded 7 units with 0"),),
    ),
    "npu": Run(
        ("--decode", "30:60", "--backend", "npu"),
        (Engine("npu", "generate 100,7,65 70", (Recorded(30, 60),), COMPLETE),),
        npu=True,
    ),
    "workers": Run(("--decode", "30:60"), (WORKERS,), processes=True),
    "unpatched-workers": Run((), (WORKERS, COMPILED_WORKERS), processes=True),
    "lent-workers": Run(("--decode", "30:60"), (WORKERS, COMPILED_WORKERS), processes=True, lent=True),
    "terminated": Run(
        ("--decode", "30:900"),
        (
            Engine(
                "terminated",
                "add 9 1000; step 40; terminate handled",
                (Recorded(30, None),),
                r"all requests have finished, recorded \d+ of 870 units",
                pace=0.05,
            ),
        ),
        processes=True,
        code=143,
    ),
}


class Iteration(NamedTuple):
    """What the model runner was given: the number, decode or prefill, and the tokens of each request."""

    n: int
    kind: str
    requests: dict[str, int]


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


@pytest.fixture(scope="session")
def ran(once: Once) -> Callable[[str, str], Report]:
    """A run of RUNS on a release, made once for all tests."""
    return lambda name, version: Report(
        once(f"vllm-{version}-{name}", lambda folder: _drive(RUNS[name], folder, version))
    )


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
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(
            [*map(str, lend), str(python), "-m", "fixtures.engines.drive", str(folder / "job.json")],
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("version", (NEWEST, *EARLIER) if everything else (NEWEST,))


@pytest.mark.parametrize(("run", "engine"), CASES, ids=str)
def test_exactly_the_window(run: str, engine: Engine, version: str, ran: Callable[[str, str], Report]) -> None:
    report = ran(run, version)
    said = report.log(engine)
    wanted = engine.said.split("|") if engine.said else []
    assert len(said) >= len(wanted)
    assert all(any(re.match(pattern, line) for line in said) for pattern in wanted), said
    assert all(any(re.match(pattern, line) for pattern in wanted) for line in said), said

    traces = trace.find(report.folder / engine.name)
    assert len(traces) == len(engine.recorded) == len([line for line in said if ": /" in line])
    kinds = {"decode": {"decode"}, "prefill": {"prefill"}, "iterations": {"decode", "prefill"}}
    kind = RUNS[run].capture[0].removeprefix("--")
    for path, recorded in zip(sorted(traces), engine.recorded, strict=True):  # by rank, then by time
        assert f"_dp0_rank{recorded.rank}_" in path.name
        rollout = report.rollouts(engine, recorded.rank)[recorded.rollout]
        counted = [iteration for iteration in rollout if iteration.kind in kinds[kind]]
        first = recorded.first - (kind == "decode")
        found = trace.read(path)
        end = recorded.end or found.units[-1].number + 1
        expected = counted[first : first + end - recorded.first]
        between = [i for i in rollout if expected[0].n < i.n < expected[-1].n and i not in expected]
        assert (len(expected), len(between)) == (end - recorded.first, recorded.uncounted)
        _check(found, range(recorded.first, end), expected, between)


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


@pytest.mark.parametrize(("run", "engine"), STARTS, ids=str)
def test_what_compiles_while_the_engine_starts(
    run: str, engine: Engine, version: str, ran: Callable[[str, str], Report]
) -> None:
    """The warm-up in which torch.compile does its work, with shapes; nothing of what comes before and after it."""
    report, ranks = ran(run, version), {recorded.rank for recorded in engine.recorded}
    said, traces = report.started(engine)
    assert [call for call, _ in said] == ["warming_up_model()"] * len(ranks)
    assert sorted(line for _, line in said) == sorted(f"{engine.said}, recorded: {path}" for path in traces)
    calls = [json.loads(line) for line in (report.folder / "starting.jsonl").read_text().splitlines()]
    for path, rank in zip(traces, sorted(ranks), strict=True):
        pid = re.match(rf"\w+_graph_capture_dp0_rank{rank}_(\d+)\.", path.name)
        assert pid
        mine = [line["call"] for line in calls if line["pid"] == int(pid[1])]
        assert (
            mine
            == ["load_model", "warming_up_model", "profile_run", "initialize_kv_cache"][
                : 4 if RUNS[run].code == 0 else 3
            ]
        )
        found = trace.read(path)
        (unit,) = found.units
        assert unit.number == 0
        assert [name for name in unit.names() if name in mine or name.startswith("forward ")] == mine[1:3]
        assert not [item for item in found.outside if item.name in mine or item.name.startswith("forward ")]
        (run_,) = (item for item in unit.ranges if item.name == "profile_run")
        names = [item.name for item in found.within(run_)]
        assert names.count(ATTENTION) > MODEL["num_hidden_layers"]  # run, and before that traced by Dynamo
        assert [name for name in names if name.startswith("entire_frame_compile")]
        assert f'"Input Dims": [[{BUDGET}, {MODEL["hidden_size"]}]' in gzip.decompress(path.read_bytes()).decode()


def test_a_start_that_compiles_nothing_leaves_no_trace_and_the_rollout_has_its_own(
    version: str, ran: Callable[[str, str], Report]
) -> None:
    report = ran("starts", version)
    _, traces = report.started(EAGER)
    assert len(traces) == int(version == "0.27.0")  # where it is called, and returns at once
    assert not [path for path in traces if "profile_run" in trace.read(path).count(trace.RANGE)]
    for engine in (COMPILES, EAGER):
        (path,) = [path for path in trace.find(report.folder / engine.name) if "_graph_capture_" not in path.name]
        assert [unit.number for unit in trace.read(path).units] == [3, 4, 5]
        assert len(report.log(engine)) == 1


def test_an_engine_whose_start_fails_ends(version: str, ran: Callable[[str, str], Report]) -> None:
    report = ran("starts-not", version)
    out = (report.folder / "out").read_text()
    assert "injected: the warm-up failed" in out
    assert "Engine core initialization failed" in out
    assert not (report.folder / "outputs.jsonl").exists()


def test_the_same_tokens_where_the_start_was_recorded(version: str, ran: Callable[[str, str], Report]) -> None:
    outputs = ran("starts", version).outputs(COMPILES)
    assert outputs == ran("unpatched", version).outputs(COMPILES)
    assert outputs
    assert all(outputs)


def test_every_iteration_is_marked_and_holds_its_modules(version: str, ran: Callable[[str, str], Report]) -> None:
    report, (engine,) = ran("ranges", version), RUNS["ranges"].engines
    (path,) = trace.find(report.folder / engine.name)
    ours = re.compile(r"rollout \d+|(prefill|decode) \d+|\w*(Attention|MLP)")
    found = [item for item in trace.read(path).ranges if item.kind == trace.RANGE and ours.fullmatch(item.name)]
    (rollout,) = report.rollouts(engine)
    modules = " ".join(["LlamaAttention(Attention()) LlamaMLP()"] * MODEL["num_hidden_layers"])
    units = [f"{iteration.kind} {number}({modules})" for number, iteration in enumerate(rollout)]
    assert nested(found) == f"rollout 0({' '.join(units)})"
    same = next(engine for engine in IN_PROCESS if engine.name == "last-chunk-of-one-token")
    assert report.outputs(engine) == ran("unpatched", version).outputs(same)


@pytest.mark.parametrize(
    ("patched", "engine"),
    [
        *(("decode", engine) for engine in IN_PROCESS),
        ("workers", WORKERS),
        *(("lent-workers", engine) for engine in (WORKERS, COMPILED_WORKERS)),
    ],
    ids=str,
)
def test_the_same_tokens_as_without_the_patch(
    patched: str, engine: Engine, version: str, ran: Callable[[str, str], Report]
) -> None:
    unpatched = "unpatched-workers" if RUNS[patched].processes else "unpatched"
    outputs = ran(patched, version).outputs(engine)
    assert outputs == ran(unpatched, version).outputs(engine)
    assert outputs
    assert all(outputs)


def test_where_the_bytes_were_lent_the_tree_and_the_caches_are_as_before(
    version: str, ran: Callable[[str, str], Report]
) -> None:
    """vLLM has compiled nothing that carries our lines, but what it compiles without them; neither has Python."""
    folder, unpatched = (ran(name, version).folder for name in ("lent-workers", "unpatched-workers"))
    site = folder / "site"
    assert digests(site) == json.loads((folder / "before.json").read_text())
    kernels = _kernels(folder)
    assert kernels == _kernels(unpatched)
    assert bool(kernels) == INDUCTOR
    for cache in (site, folder / "cache", folder / "inductor"):
        assert not [file for file in cache.rglob("*") if file.is_file() and b"_rlpatch_" in file.read_bytes()]
    assert re.search(r"rlpatch run: vllm was patched in \d+ processes", (folder / "out").read_text())


def _kernels(folder: Path) -> dict[str, str]:
    """The sources of inductor's kernels, which vLLM keeps among its own; the folder above them is named by the run."""
    return {file.name: file.read_text() for file in (folder / "cache").glob("**/inductor_cache/*/*.cpp")}


def test_the_prompt_that_is_one_token_too_long_ends_with_a_chunk_of_one(
    version: str, ran: Callable[[str, str], Report]
) -> None:
    engine = next(engine for engine in IN_PROCESS if engine.name == "last-chunk-of-one-token")
    (rollout,) = ran("decode", version).rollouts(engine)
    assert [(i.kind, *i.requests.values()) for i in rollout[:3]] == [("prefill", 64), ("prefill", 1), ("decode", 1)]


def test_the_warm_up_of_the_second_model_runner_passed_through_the_worker(
    version: str, ran: Callable[[str, str], Report]
) -> None:
    lines = (ran("decode", version).folder / "warm-up-rank0.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines if "_warmup_" in line]
    assert {"prefill", "decode"} == {*kinds}


def test_both_profilers_leave_a_trace_where_the_engines_own_one_starts_in_the_window(
    version: str, ran: Callable[[str, str], Report]
) -> None:
    report = ran("decode", version)
    own = trace.find(report.folder / "own-traces")
    assert len(own) == 2  # of two engines
    marked = [{name for name in trace.read(path).count(trace.RANGE) if name.startswith("forward")} for path in own]
    assert {"forward 40", "forward 44"} <= set().union(*marked)


def test_the_cached_environment_stays_as_it_was(version: str, ran: Callable[[str, str], Report]) -> None:
    site = ran("decode", version).folder / "site"
    (package,) = environments.vllm_cpu_env(version).parents[1].glob("lib/python3*/site-packages/vllm")
    (record,) = site.glob("vllm_cpu-*.dist-info/RECORD")
    original, patched = package.parent / WORKER, site / WORKER
    assert patched.read_bytes() != original.read_bytes()
    assert patched.stat().st_ino != original.stat().st_ino
    digest = base64.urlsafe_b64encode(hashlib.sha256(original.read_bytes()).digest()).rstrip(b"=").decode()
    assert f"{WORKER},sha256={digest}," in record.read_text()
