"""Traces without a device: one cause is put into each run, and its name and its milliseconds have to come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from patcher.traces import analysis, formats
from patcher.traces.model import CPU, Diagnosis, RankProfile, TraceReport
from tests.patcher.traces.recorded import MS, Range, Run

US = 1000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass
class Loop:
    """A loop on a CPU whose steps run a few operators of 1 ms, with what a case puts in."""

    now: int = 0
    operators: list[Range] = field(default_factory=list)
    annotations: list[Range] = field(default_factory=list)
    functions: list[Range] = field(default_factory=list)
    marks: list[Range] = field(default_factory=list)
    thread: int = 1

    def run(self, name: str, ns: int = MS) -> None:
        self.operators.append(Range(name, self.now, self.now + ns, self.thread))
        self.now += ns + 2 * US

    def sleep(self, ns: int) -> None:
        self.now += ns

    def within(self, kind: list[Range], name: str, do: Callable[[], None]) -> None:
        begin = self.now
        do()
        kind.append(Range(name, begin, self.now, self.thread))


Inject = Callable[[Loop, int], None]


def loader(loop: Loop, _: int) -> None:
    def samples() -> None:
        for _ in range(8):
            loop.sleep(2 * MS)
            loop.run("aten::randn", 10 * US)

    loop.within(loop.annotations, LOADER, samples)


def loader_with_stack(loop: Loop, _: int) -> None:
    def sample() -> None:
        for _ in range(4):
            loop.within(loop.functions, "<built-in function sleep>", lambda: loop.sleep(4 * MS))
            loop.run("aten::randn", 10 * US)

    def frame() -> None:
        loop.within(loop.functions, "data.py(7): __getitem__", sample)

    loop.within(loop.annotations, LOADER, frame)


def loader_as_operator(loop: Loop, number: int) -> None:
    """The same as torch_npu, and torch until 2021, record it."""
    annotations, loop.annotations = loop.annotations, loop.operators
    loader(loop, number)
    loop.annotations = annotations


def sleep(loop: Loop, _: int) -> None:
    loop.sleep(20 * MS)


def frame(loop: Loop, _: int) -> None:
    loop.within(loop.functions, "loop.py(12): reward", lambda: loop.sleep(20 * MS))


def items(loop: Loop, _: int) -> None:
    for _ in range(2000):
        loop.run("aten::item", 4 * US)


def pause(loop: Loop, number: int) -> None:
    if number == 5:
        loop.sleep(300 * MS)


def larger(loop: Loop, number: int) -> None:
    loop.run("aten::linear", 200 * MS if number == 5 else MS)


def more(loop: Loop, number: int) -> None:
    for _ in range(50 if number == 5 else 1):
        loop.run("aten::uniform_", 4 * MS)


def recompile(loop: Loop, number: int) -> None:
    if number >= 3:
        loop.within(loop.operators, "_compile.compile_inner (dynamo_timed)", lambda: loop.run("aten::mm", 100 * MS))


def big(loop: Loop, _: int) -> None:
    loop.run("aten::_linalg_svd", 200 * MS)


def autograd(loop: Loop, _: int) -> None:
    """Operators of another thread count, too, and are no time without one."""
    loop.thread = 2
    loop.run("aten::mm_backward", 30 * MS)
    loop.thread = 1


CASES: dict[str, tuple[Inject, str, int | None, str]] = {
    "a data loader": (loader, "host-idle", 16 * MS, LOADER[:12]),
    "a data loader in a trace with stacks": (loader_with_stack, "host-idle", 16 * MS, "built-in function sleep"),
    "a data loader that is recorded as an operator": (loader_as_operator, "host-idle", 16 * MS, LOADER[:12]),
    "a sleep without a stack": (sleep, "host-idle", 20 * MS, "before aten::randn"),
    "Python with a stack": (frame, "host-idle", 20 * MS, "loop.py(12): reward"),
    "thousands of small operators": (items, "host-small", 12 * MS, "aten::item (2,000)"),
    "a pause in one step": (
        pause,
        "outlier",
        300 * MS // 8,
        "300.00 ms of the difference is one stretch without operators",
    ),
    "larger inputs in one step": (larger, "outlier", 199 * MS // 8, "aten::linear 199.00 ms"),
    "more operators in one step": (more, "outlier", 49 * 4 * MS // 8, "It ran 53 operators, the median unit 4."),
    "compiling again": (recompile, "host-compile", 5 * 100 * MS // 8, "in 5 of 8 units"),
    "one large operator": (big, "host-operators", None, "aten::_linalg_svd (9"),
    "a backward on another thread": (autograd, "host-operators", None, "aten::mm_backward (9"),
}


def profile(inject: Inject, place: Path) -> RankProfile:
    loop = Loop()
    for number in range(8):
        begin = loop.now
        inject(loop, number)
        for name in ("aten::randn", "aten::linear", "aten::mul"):
            loop.run(name)
        loop.marks.append(Range(f"ProfilerStep#{number}", begin, loop.now))
    run = Run((), tuple(loop.marks), tuple(loop.operators), tuple(loop.annotations), functions=tuple(loop.functions))
    path = run.torch(place / "host_1.pt.trace.json")
    path.write_text(path.read_text().replace('[{"id": 0, "name": "NVIDIA H100"}]', "[]"))
    (read,) = formats.read(path)
    return analysis.checked(read, analysis.attributed(read))


def headline(report: TraceReport) -> Diagnosis:
    return next(finding for finding in report.findings if finding.title == report.verdict.title)


@pytest.mark.parametrize(("inject", "name", "saving", "says"), CASES.values(), ids=CASES)
def test_the_cause_that_was_put_in_is_the_headline(
    tmp_path: Path, inject: Inject, name: str, saving: int | None, says: str
) -> None:
    made = profile(inject, tmp_path)
    first = headline(analysis.reported([made]))
    assert made.device == CPU
    assert first.id == name
    assert says in first.evidence
    assert first.saving_ns == (None if saving is None else pytest.approx(saving, rel=0.02))


def test_a_slow_unit_is_no_headline_where_each_has_a_cause(tmp_path: Path) -> None:
    """As on a machine that others use, too."""

    def disturbed(loop: Loop, number: int) -> None:
        loop.run("aten::_linalg_svd", 400 * MS if number == 5 else 200 * MS)

    report = analysis.reported([profile(disturbed, tmp_path)])
    assert headline(report).id == "host-operators"
    assert {finding.id: finding.severity for finding in report.findings}["outlier"] == "note"


def test_a_short_pause_is_no_headline(tmp_path: Path) -> None:
    report = analysis.reported([profile(lambda loop, _: loop.sleep(MS), tmp_path)])
    assert {finding.id: finding.severity for finding in report.findings} == {
        "host-idle": "note", "host-operators": "note",
    }  # fmt: skip
    assert headline(report).id == "host-operators"


def test_the_time_of_a_step_is_that_of_its_operators_and_of_places_without_one(tmp_path: Path) -> None:
    for step in profile(loader, tmp_path).host_steps:
        short = step.idle_ns - sum(step.places.values())
        assert 0 <= short <= 12 * 2 * US
        assert sum(step.operators.values()) + step.idle_ns == step.ns


UNKNOWN_EVENTS: list[tuple[list[dict[str, Any]], str, bool]] = [
    ([], "nobody has events of another kind", True),
    (
        [{"ph": "X", "cat": "hpu_kernel", "name": "gemm", "ts": 1.0, "dur": 3.0, "pid": 0, "tid": 0}],
        "hpu_kernel (1)",
        False,
    ),
]


@pytest.mark.parametrize(("events", "says", "on_host"), UNKNOWN_EVENTS)
def test_events_of_an_unknown_accelerator_are_said(
    tmp_path: Path, events: list[dict[str, Any]], says: str, on_host: bool
) -> None:
    import json

    run = Run((), (Range("ProfilerStep#1", 0, 9 * MS),), (Range("aten::mm", MS, 8 * MS),))
    path = run.torch(tmp_path / "host_1.pt.trace.json")
    content = json.loads(path.read_text())
    content["deviceProperties"] = []
    content["traceEvents"] += events
    path.write_text(json.dumps(content))
    (read,) = formats.read(path)
    made = analysis.checked(read, analysis.attributed(read))
    report = analysis.reported([made])
    assert made.on_host == on_host
    assert any(says in line for line in report.verdict.withdrawn) != on_host
    assert any(finding.id == "host-operators" for finding in report.findings) == on_host
