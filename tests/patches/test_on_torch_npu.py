"""Real torch_npu: the patched workers of released vllm-ascend versions record exactly the window.

``rlpatch apply`` patches a copy of a release. Its worker is imported with stand-ins for what needs a chip and
driven by a scheduler that knows the truth about each iteration (``fixtures/ascend``), on the real torch_npu over
the fake CANN and, without any fake, on torch.profiler. What is compared with the truth is read from the traces.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.ascend import trace
from fixtures.cache import Once
from tests.matrix import MATRIX, thinned
from tests.patches.torch_npu_runs import (
    BACKENDS,
    EVERYTHING,
    ON_TORCH,
    SAMPLE,
    SHORT,
    TABLES,
    Report,
    Worker,
    _drive,
    check,
    nested,
    ranges,
)

pytestmark = pytest.mark.usefixtures("unwatched")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = EVERYTHING if metafunc.config.getoption("--all-releases") else SAMPLE
    workers = [
        Worker(*release, backend)
        for release in chosen
        for backend in BACKENDS
        if backend == "npu" or release in ON_TORCH or chosen is EVERYTHING
    ]
    short = [worker for worker in workers if worker[:2] in SHORT and worker.backend == "npu"]
    if "scenario" not in metafunc.fixturenames:
        metafunc.parametrize("worker", thinned(workers, short), ids=str)
        return
    cases = [
        pytest.param(worker, scenario, id=f"{worker}-{scenario.name}", marks=[] if worker in short else MATRIX)
        for worker in workers
        for scenario in TABLES[metafunc.function.__name__]
        if scenario.fits(worker)
    ]
    metafunc.parametrize(("worker", "scenario"), cases)


@pytest.fixture(scope="session")
def drive(npu_python: Path, once: Once) -> Callable[[Worker], Report]:
    """The report of a worker, driven once for all tests."""

    @functools.cache
    def report(worker: Worker) -> Report:
        # The profiler takes only letters, digits and underscores.
        name = re.sub(r"\W", "_", str(worker))
        return Report(once(name, lambda folder: _drive(worker, folder, npu_python)))

    return report


def test_the_patched_worker_runs_to_its_end(drive, worker):
    """The first tests of this file, so that the workers are driven side by side and all others only compare."""
    report = drive(worker)
    assert (report.folder / "exit_code").read_text() == "0", (report.folder / "output").read_text()


def test_decode_and_prefill_units_are_counted(drive, worker, scenario):
    check(drive(worker), scenario)


def test_preempted_requests_are_counted_right(drive, worker, scenario):
    check(drive(worker), scenario)


def test_the_window_of_the_chosen_rollout_is_recorded(drive, worker, scenario):
    check(drive(worker), scenario)


def test_beside_another_profiler(drive, worker, scenario):
    report = drive(worker)
    check(report, scenario)
    # Ours has said its last word before theirs starts.
    events = [line for line in report.events(scenario) if line["what"] in ("log", "framework")]
    for before, event in itertools.pairwise(events):
        if "the framework's own profiler was called" in before.get("text", ""):
            assert event["call"] == "start"


def test_only_the_chosen_ranks_record(drive, worker, scenario):
    check(drive(worker), scenario)


def test_settings_reach_the_profiler(drive, worker, scenario):
    check(drive(worker), scenario)


def test_a_failure_is_logged_once_as_an_error(drive, worker, scenario):
    report = drive(worker)
    check(report, scenario)
    failed = [line["failed"] for line in report.of(scenario, "log") if "cannot be written" not in line["text"]]
    assert failed.count(True) == 1
    assert failed[0]


def test_every_way_to_end_a_run_closes_the_trace(drive, worker, scenario):
    check(drive(worker), scenario)


def test_ranges_of_modules(drive, worker, scenario):
    """Of the iterations in the window, and of no other; the exception of a module passes through its range."""
    report = drive(worker)
    check(report, scenario)
    found, (recorded,) = ranges(report, scenario, worker), scenario.recorded
    modules = "DecoderLayer(Attention())" if "some" in scenario.name else "DecoderLayer(Router() Attention())"
    assert nested(found) == " ".join([modules] * (recorded.end - recorded.first))
    if worker.backend == "torch":
        (path,) = report.traces(scenario)
        forwards = [item for item in trace.read(path).ranges if item.name.startswith("forward:")]
        layers = [item for item in found if item.name == "DecoderLayer"]
        assert all(forward.holds(layer) for forward, layer in zip(forwards, layers, strict=True))
        return
    assert {item.kind for item in found} == {"Module"}
    iterations = report.of(scenario, "iteration")
    starts = [line["ns"] for line in iterations if line["numbers"].get("decode", -1) >= recorded.first]
    layers = [item for item in found if item.name == "DecoderLayer"]
    for layer, (start, end) in zip(layers, itertools.pairwise([*starts, float("inf")]), strict=False):
        assert start < layer.start < layer.end < end


def test_every_iteration_has_its_marker(drive, worker, scenario):
    """With torch_npu without CPU operators and at level_none."""
    report = drive(worker)
    check(report, scenario)
    (recorded,) = scenario.recorded
    units = [
        f"{'decode' if line['kind'] == 'decode' else 'prefill'} {line['numbers']['iterations']}()"
        for line in report.of(scenario, "iteration")
        if line["rollout"] == recorded.rollout and line["kind"]
        if recorded.first <= line["numbers"]["iterations"] < recorded.end
    ]
    assert len(units) > recorded.end - recorded.first - 2
    found = ranges(report, scenario, worker)
    assert nested(found) == f"rollout {recorded.rollout}({' '.join(units)})"
    if worker.backend == "npu":
        assert {item.kind for item in found} == {"default"}
        (path,) = report.traces(scenario)
        assert not [*path.glob("FRAMEWORK/torch.op_range")]


def test_starts_of_the_engine_are_recorded_graph_by_graph(drive, worker, scenario):
    report = drive(worker)
    found = report.traces(scenario, starts=True)
    check(report, scenario)
    assert len(found) == len(scenario.graphs)
    for path, runs in zip(found, scenario.graphs, strict=True):
        held = trace.read(path)
        (unit,) = held.units
        assert unit.number == 0
        assert [item.name for item in unit.ranges if item.kind == trace.RANGE] == list(runs)
        assert unit.names(trace.OPERATOR).count("aten::mm") == len(runs)
        assert [item.name for item in held.outside if item.kind == trace.RANGE] == []


def test_the_device_of_the_worker_stays_current(drive, worker, scenario):
    report = drive(worker)
    check(report, scenario)
    before, after = report.of(scenario, "device")
    # Other threads of torch_npu look at device 0 when they please.
    mine = [call for call in report.calls if call["pid"] == call["tid"] == before["pid"]]
    assert [call for call in mine if call["ns"] < before["ns"]] == []
    ours = [call for call in mine if after["ns"] < call["ns"] < report.of(scenario, "end")[0]["ns"]]
    assert {call["device"] for call in ours if "device" in call} == {1}
    assert [call["call"] for call in ours if call["call"] in ("aclprofStart", "aclprofStop")] == [
        "aclprofStart",
        "aclprofStop",
    ]


def test_the_device_is_synchronised_at_both_edges_of_the_window(drive, worker, scenario):
    """Before the profiler starts, before the first unit, and before the last one is closed."""
    report = drive(worker)
    check(report, scenario)
    calls = [line["call"] for line in report.of(scenario, "profiler")]
    window = ["synchronize", "step", "step", "step"]
    # torch_npu 2.13 does it by itself in the closing step; it did not before 2.9.0.post9.
    theirs = ["synchronize"] if worker.backend == "npu" else []
    assert calls == ["synchronize", "start", "step", *window, "synchronize", "step", *theirs, "stop"]
