"""Windows by state, several windows and requests on the real vLLM engine, held against its own scheduler's log.

The load ramps up, holds and drains: requests are added while others decode, and end one after the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.ascend import trace
from fixtures.cache import Once
from tests.patches.vllm_runs import NEWEST, Report, _drive
from tests.patches.vllm_states import RUNS, _group, _replicas, check_facts, seen, wanted

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("unwatched")]


@pytest.fixture(scope="session")
def ran(once: Once, pytestconfig: pytest.Config) -> Callable[[str], Report]:
    """A run of RUNS, made once for all tests."""

    def report(name: str) -> Report:
        if name == "load" and not pytestconfig.getoption("--thorough"):
            pytest.skip("--thorough: half a minute, for what the tail and a request at a load show")
        return Report(once(f"states-{name}", lambda folder: _drive(RUNS[name][0], folder, NEWEST)))

    return report


@pytest.mark.parametrize("name", RUNS)
def test_the_steps_are_those_of_the_schedulers_log(name: str, ran: Callable[[str], Report]) -> None:
    run, windows = RUNS[name]
    report, (engine,) = ran(name), run.engines
    kinds, first = ({"decode", "prefill"}, 0) if "--iterations" in run.capture else ({"decode"}, 1)
    traces = sorted(trace.find(report.folder / engine.name), key=lambda path: int(path.name.split(".")[1]))  # the time
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


def test_requests_that_nobody_can_serve_are_reported(ran: Callable[[str], Report]) -> None:
    said = (ran("asked").folder / "out").read_text()
    refused = re.findall(r"request refused: (.*)", said)
    half, late, doctored = refused
    assert half.startswith("Unterminated string")
    assert late == "the request is for rollout or step 2, and this worker is at 5"
    assert doctored.startswith("RLPATCH_REQUEST='../f' is not valid")
    (file,) = (ran("asked").folder / "asked" / ".rlpatch").glob("rollout_*.json")
    state = json.loads(file.read_text())
    assert (state["request"], len(state["traces"])) == ("g", 5)


def test_the_same_tokens_with_and_without_requests(ran: Callable[[str], Report]) -> None:
    asked, plain = (ran(name).outputs(RUNS[name][0].engines[0]) for name in ("asked", "tail"))
    per_rollout = len(plain)
    assert [asked[n : n + per_rollout] for n in range(0, len(asked), per_rollout)] == [plain] * 8


def test_replicas_take_the_same_window_of_the_same_rollout(once: Once) -> None:
    folder = once("states-replicas", _replicas)
    found = sorted(trace.find(folder / "traces"))
    held = [json.loads(Path(f"{path}.rlpatch.json").read_text()) for path in found]
    said = [(one["replica"], one["rank"], one["rollout"], one["window"], "complete" in one["why"]) for one in held]
    assert said == [("0", 0, 1, "2:5", True), ("1", 0, 1, "2:5", True)]
    assert [[unit.number for unit in trace.units(path)] for path in found] == [[2, 3, 4]] * 2


def test_ranks_of_a_group_that_runs_in_step_record_the_same_iterations(once: Once) -> None:
    """Rank 0 has five of the twelve steps that rank 1 has: it runs dummy batches beside the others."""
    found = sorted(trace.find(once("states-group", _group) / "traces"))
    held = [json.loads(Path(f"{path}.rlpatch.json").read_text()) for path in found]
    assert [(one["dp"], one["rank"], one["rollout"], "complete" in one["why"]) for one in held] == [
        (0, 0, 0, True),
        (1, 1, 0, True),
    ]
    requests = [[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    for path, facts, own in zip(found, held, requests, strict=True):
        units = trace.units(path)
        assert [unit.number for unit in units] == [3, 4, 5, 6, 7, 8]
        assert [unit["requests"] for unit in facts["units"]] == own
        assert [any(name.startswith("forward ") for name in unit.names()) for unit in units] == [*map(bool, own)]
    begins = [[unit["begin"] for unit in facts["units"]] for facts in held]
    ends = [[*begin[1:], facts["units"][-1]["end"]] for begin, facts in zip(begins, held, strict=True)]
    for step in zip(*begins, *ends, strict=True):  # at some time both were in it
        assert max(step[:2]) < min(step[2:])
