"""Traces that our own probes recorded in real engines, through every command: it says what the engine says of itself.

The schedulers' logs and the labels of the drivers tell what ran; the lengths of the marks and the calls of operators
are counted in the recorded bytes by ``fixtures.ascend.trace``, which shares nothing with the report.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures import environments
from fixtures.ascend import trace
from fixtures.cache import Once
from fixtures.engines.drive import MODEL
from fixtures.verl.host import drive
from patcher.cli import rlpatch
from tests.patches import torch_npu_runs as npu
from tests.patches import verl_runs as verl
from tests.patches import vllm_runs as vllm
from tests.patches import vllm_states as states

pytestmark = pytest.mark.engine

US = 1000


def told(*words: object, code: int = 0) -> Any:
    """The result of a command with --json."""
    said = CliRunner().invoke(rlpatch, [*map(str, words), "--json"])
    assert said.exit_code == code, said.output
    return json.loads(said.stdout)["result"]


def marks(path: Path) -> dict[int, float]:
    """Unit → how long its mark is, up to what does not count, in nanoseconds."""
    found = trace.read(path)
    steps = [one for one in found.ranges if one.kind == trace.STEP]
    return {one.number: _end(found, one) - one.start for one in steps}


def _end(found: trace.Trace, step: trace.Range) -> float:
    aside = [one.start for one in found.ranges if one.name == "rlpatch:uncounted" and step.holds(one)]
    return min([step.end, *aside])


def calls(path: Path) -> dict[str, int]:
    """Operator → how often it was called in the units, but for what does not count.

    To torch_npu a range of the user is an operator, too.
    """
    kinds = (trace.OPERATOR, trace.RANGE) if path.is_dir() else (trace.OPERATOR,)
    found, counted = trace.read(path), dict[str, int]()
    steps = [(one.start, _end(found, one)) for one in found.ranges if one.kind == trace.STEP]
    for one in found.ranges:
        if one.kind in kinds and any(begin <= one.start < end for begin, end in steps):
            counted[one.name] = counted.get(one.name, 0) + 1
    return counted


def agrees(capture: Any, path: Path) -> None:
    """Units, their lengths and the calls of operators are those in the recorded bytes."""
    lengths = marks(path)
    assert [unit["number"] for unit in capture["units"]] == list(lengths)
    for unit in capture["units"]:
        assert unit["host_ns"] == pytest.approx(lengths[unit["number"]], abs=US)
        assert unit["device_ns"] == unit["kernels"] == 0
    counted = {one["name"]: one["calls"] for one in capture["operators"]}
    assert counted
    assert counted == calls(path)
    (failed,) = (check for check in capture["checks"] if not check["ok"])
    assert failed["id"] == "kernels"


def compared(before: Path, after: Path, *reasons: str, of: tuple[Path, ...] = ()) -> Any:
    """The comparison by the host's times; it is refused for the ``reasons``, if there are any, and goes on if it must.

    ``of`` are the traces of which the two were made, where they are not traces themselves.
    """
    if reasons:
        said = told("compare", before, after, code=4)["refused"]
        assert [reason for reason in reasons if not any(reason in one for one in said)] == []
    forced = told("compare", before, after, *(("--force",) if reasons else ()))
    assert forced["clock"] == "host"
    assert bool(forced["refused"]) == bool(reasons)
    for at, path in enumerate(of or (before, after)):
        lengths = sorted(marks(path).values())
        assert forced["median_ns"][at] == pytest.approx(lengths[(len(lengths) - 1) // 2], abs=US)
    return forced


# ---------------------------------------------------------------- vLLM on a CPU


@pytest.fixture(scope="session")
def several(once: Once) -> vllm.Report:
    """Three windows of one rollout, to which requests come and from which they go."""
    run, _ = states.RUNS["several"]
    return vllm.Report(once("states-several", lambda folder: vllm._drive(run, folder, vllm.NEWEST)))


def test_three_windows_of_a_rollout(several: vllm.Report) -> None:
    run, windows = states.RUNS["several"]
    (engine,) = run.engines
    folder = several.folder / engine.name
    rows = told("traces", folder)["captures"]
    asked = [f"{window.first}:{window.end}" for window in windows]
    assert [(row["target"], row["release"], row["stage"]) for row in rows] == [("vllm", vllm.NEWEST, "rollout")] * 3
    assert [(row["asked"], row["got"], row["state"], row["rollout"]) for row in rows] == [
        (window, window, "whole", 0) for window in asked
    ]
    captures = {one["source"]: one for one in told("report", folder)["captures"]}
    (rollout,) = several.rollouts(engine)
    scheduled = states.seen(rollout, {"decode"}, 1)
    for row, window in zip(rows, windows, strict=True):
        path = row["traces"][0]["path"]
        agrees(captures[path], Path(path))
        units = captures[path]["units"]
        for unit, one in zip(units, states.wanted(scheduled, window), strict=True):
            assert (unit["number"], unit["requests"]) == (one.number, len(one.contexts))
            assert unit["tokens"] == sum(one.iteration.requests.values())
            assert (unit["longest"], unit["context"]) == (max(one.contexts.values()), sum(one.contexts.values()))
        between = [one for one in scheduled if one.number < 0 and _within(one, states.wanted(scheduled, window))]
        assert sum(unit["uncounted"] for unit in units) == len(between) == sum(row["uncounted"].values())
        attention = next(one for one in captures[path]["operators"] if one["name"] == vllm.ATTENTION)
        assert attention["calls"] == MODEL["num_hidden_layers"] * len(units)
    first, second, _ = (Path(row["traces"][0]["path"]) for row in rows)
    compared(first, second, "different recording windows: 3:6 before, 12:15 after")


def _within(one: states.Seen, units: list[states.Seen]) -> bool:
    return units[0].iteration.n < one.iteration.n < units[-1].iteration.n


def test_ranges_of_modules_are_the_modules_of_the_model(once: Once) -> None:
    run = vllm.RUNS["ranges"]
    (engine,) = run.engines
    name = f"vllm-{vllm.NEWEST}-ranges"
    report = vllm.Report(once(name, lambda folder: vllm._drive(run, folder, vllm.NEWEST)))
    (path,) = trace.find(report.folder / engine.name)
    (capture,) = told("report", path)["captures"]
    agrees(capture, path)
    (rollout,) = report.rollouts(engine)
    assert [unit["tokens"] for unit in capture["units"]] == [sum(one.requests.values()) for one in rollout]
    layers = MODEL["num_hidden_layers"] * len(rollout)
    assert {one["name"]: one["calls"] for one in capture["modules"]} == dict.fromkeys(
        ("LlamaAttention", "LlamaMLP", "Attention"), layers
    )


# ---------------------------------------------------------------- verl's workers on a CPU


def test_micro_batches_of_an_update(tmp_path: Path) -> None:
    workers, case = ("0.9.1", "engine"), verl.Case("update-policy", "1:3")
    tree = verl.FIRST.apply(workers, tmp_path, "torch")
    driven = drive(workers[0], tree, [{**case.run(workers), "env": case.environment(tmp_path)}])
    ((_, units),) = case.expected(driven.runs[0], verl.FIRST).items()
    (path,) = trace.find(tmp_path / case.name)
    (row,) = told("traces", path.parent)["captures"]
    assert (row["target"], row["release"], row["stage"], row["role"]) == ("verl", "0.9.1", "update-policy", "actor")
    assert (row["step"], row["asked"], row["got"], row["state"]) == (1, "1:3", "1:3", "whole")
    (capture,) = told("report", path)["captures"]
    agrees(capture, path)
    assert [unit["number"] for unit in capture["units"]] == list(units)
    assert all(unit["sequences"] and unit["tokens"] for unit in capture["units"])
    same = compared(path, path)
    assert same["change"][1] == 0


# ---------------------------------------------------------------- torch_npu over the fake CANN


@pytest.fixture
def parsed(once: Once, npu_python: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[npu.Scenario], tuple[Any, Path]]:
    """What `analyse` says of the trace of a scenario, which it parses into text and db, and the trace."""
    scenarios = [
        one
        for one in npu.COUNTING
        if one.name
        in (
            "in the middle",
            "arrivals in the window",
        )
    ]

    def record(folder: Path) -> None:
        worker = npu.Worker("0.11.0rc1", "C", "npu")
        files = npu.patched(worker, folder, {"decode": npu.CAPTURES["decode"]})
        npu.play(worker, files, scenarios, folder, npu_python)

    def found(scenario: npu.Scenario) -> tuple[Any, Path]:
        (path,) = npu.Report(once("our-traces-npu", record)).traces(scenario)
        before = told("traces", path)["captures"][0]["state"]
        assert before in ("not parsed", "whole")
        return told("analyse", path, "--python", npu_python, "--export", "text,db"), path

    monkeypatch.setenv("PATH", environments.variables()["PATH"])
    return found


@pytest.mark.parametrize(
    "name",
    [
        "in the middle",
        "arrivals in the window",
    ],
)
def test_text_and_db_of_torch_npu_tell_the_same(name: str, parsed: Callable[[npu.Scenario], tuple[Any, Path]]) -> None:
    (scenario,) = (one for one in npu.COUNTING if one.name == name)
    (recorded,) = scenario.recorded
    analysed, path = parsed(scenario)
    (row,) = told("traces", path)["captures"]
    assert (row["target"], row["release"], row["state"]) == ("vllm-ascend", "0.11.0rc1", "whole")
    assert (row["asked"], row["got"]) == ("3:6", "3:6")
    assert sum(row["uncounted"].values()) == recorded.uncounted
    (held,) = analysed["held"]
    output = path / "ASCEND_PROFILER_OUTPUT"
    (database,) = output.glob("ascend_pytorch_profiler*.db")
    (text,), (db,) = (told("report", one)["captures"] for one in (output / "trace_view.json", database))
    assert (text["form"], db["form"]) == ("ascend-text", "ascend-db")
    for capture in (text, db):
        agrees(capture, path)
        assert [unit["number"] for unit in capture["units"]] == [3, 4, 5]
        requests = [unit["requests"] for unit in capture["units"]]
        assert [min(requests), max(requests)] == held["requests"]
        assert sum(unit["uncounted"] for unit in capture["units"]) == recorded.uncounted
    assert [unit["host_ns"] for unit in db["units"]] == [round(length) for length in marks(path).values()]
    compared(output / "trace_view.json", database, "no kernel was recorded", of=(path, path))


def test_what_our_probe_recorded_on_a_cpu_is_read(recorded: Path) -> None:
    captures = told("report", recorded / "torch", code=4)["captures"]  # one of them is empty
    units = {
        Path(one["source"]).name.partition("_rank")[0]: [unit["number"] for unit in one["units"]] for one in captures
    }
    assert [3, 4] in units.values()
    assert all(one["operators"] and one["device"] == "CPU" for one in captures if one["units"])
