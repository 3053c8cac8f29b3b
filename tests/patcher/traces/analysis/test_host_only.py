"""Traces without a device: one cause is put into each run, and its name and its milliseconds have to come out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from patcher.traces import analysis, formats
from patcher.traces.analysis import host_only
from patcher.traces.analysis.host_only import (
    idle_host,
    late_ranks,
    longest_operators,
    measures,
    small_operators,
    step_excess,
    trends,
    wording,
)
from patcher.traces.model import CPU, CallSums, Diagnosis, HostPlace, HostStep, RankProfile, RecordedUnit, TraceReport
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


def busy_elsewhere(loop: Loop, number: int) -> None:
    """Another thread has more operators; the frames of the one with the marks count."""
    loop.thread = 2
    for _ in range(9):
        loop.run("aten::mm_backward", 30 * US)
    loop.thread = 1
    frame(loop, number)


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


def validate(loop: Loop, number: int) -> None:
    if number == 5:
        loop.within(loop.annotations, "validate", lambda: more(loop, number))


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


def state(loop: Loop, number: int, tensors: int = 6) -> None:
    """A checkpoint on a CPU: nothing of what writes it is an operator."""
    if number == 5:
        for _ in range(tensors):
            loop.run("aten::detach", 2 * US)
        loop.sleep(300 * MS)


def collect(loop: Loop, number: int) -> None:
    if number == 5:
        loop.within(loop.functions, "Python GC", lambda: loop.sleep(300 * MS))


def collections(loop: Loop, number: int) -> None:
    """Several within a frame and before it, the last of which calls one."""
    if number == 5:
        loop.within(loop.functions, "Python GC", lambda: loop.sleep(100 * MS))
        loop.within(loop.functions, "loop.py(7): sample", lambda: collect(loop, number))
        loop.within(
            loop.functions,
            "Python GC",
            lambda: loop.within(loop.functions, "loop.py(9): __del__", lambda: loop.sleep(700 * MS)),
        )


def judge(loop: Loop, _: int) -> None:
    """A wait deep in Python's own library."""

    def select() -> None:
        loop.within(loop.functions, "<built-in method poll of select.epoll object at 0x7>", lambda: loop.sleep(20 * MS))

    def wait() -> None:
        loop.within(loop.functions, "selectors.py(468): select", select)

    loop.within(loop.functions, "reward.py(3): ask_judge", wait)


def compiles_first(loop: Loop, number: int) -> None:
    if not number:
        loop.within(loop.operators, "_compile.compile_inner (dynamo_timed)", lambda: loop.sleep(900 * MS))


CASES: dict[str, tuple[Inject, str, int | None, str, str]] = {
    "a data loader": (loader, "host-idle", 16_014_000, LOADER[:12], "19.10 16.02 84 16.01"),
    "a data loader in a trace with stacks": (loader_with_stack, "host-idle", 16_006_000, "built-in function sleep", "19.05 16.01 84 16.01"),
    "a data loader that is recorded as an operator": (loader_as_operator, "host-idle", 16_014_000, LOADER[:12], "19.10 16.02 84 16.01"),
    "a sleep without a stack": (sleep, "host-idle", 20 * MS, "before the first operator (aten::randn)", "23.01 20.01 87 20.00"),
    "Python with a stack": (frame, "host-idle", 20 * MS, "loop.py(12): reward", "23.01 20.01 87 12 20.00"),
    "Python beside a busy thread": (busy_elsewhere, "host-idle", 20_002_000, "loop.py(12): reward", "23.29 20.02 86 12 20.00"),
    "thousands of small operators": (items, "host-small", 12_006_000, "aten::item (2,000)", "15.01 2,003 0.1 12.01 2,000 1 1"),
    "a pause in one step": (pause, "outlier", 37_500_000, "Outside of all operators, the host spends 300.00 ms more than in the median step", "5 303.01 100.8 300.00"),
    "a checkpoint in one step": (state, "outlier", 37_503_000, "state_dict()", "5 303.03 100.8 300.00"),
    "garbage collection in a trace with stacks": (collect, "outlier", 300 * MS // 8, "garbage collection", "5 303.01 100.8 300.00"),
    "garbage collections inside and around frames": (collections, "outlier", 1100 * MS // 8, "garbage collection", "5 1,103.01 366.9 1,100.00"),
    "larger inputs in one step": (larger, "outlier", 24_875_000, "aten::linear 199.00 ms", "5 203.01 50.7 199.00"),
    "more operators in one step": (more, "outlier", 24_512_250, "aten::uniform_ 196.00 ms", "5 203.11 29.0 196.00 53 4"),
    "a range in one step": (validate, "outlier", 25_012_500, "is spent in validate", "5 203.11 67.6 200.10 53 3"),
    "compiling again": (recompile, "host-compile", 62_501_250, "torch.compile", "500.01 5 8 95"),
    "one large operator": (big, "host-operators", None, "aten::_linalg_svd", "100 203.00 99 0 0"),
    "a backward on another thread": (autograd, "host-operators", None, "aten::mm_backward", "100 33.00 91 3 3"),
}  # fmt: skip


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


@pytest.mark.parametrize(("inject", "name", "saving", "says", "numbers"), CASES.values(), ids=CASES)
def test_the_cause_that_was_put_in_is_the_headline(
    tmp_path: Path, inject: Inject, name: str, saving: int | None, says: str, numbers: str
) -> None:
    made = profile(inject, tmp_path)
    first = headline(analysis.reported([made]))
    assert made.device == CPU
    assert first.id == name
    assert says in first.evidence
    assert " ".join(re.findall(r"\d[\d,.]*\d|\d", first.evidence)) == numbers
    assert (first.saving_ns, first.severity) == (saving, "problem" if saving else "note")


@pytest.mark.parametrize(
    ("inject", "named"),
    [
        (loader, LOADER[:12]), (frame, "loop.py(12): reward"), (state, "state_dict()"), (collect, "garbage collection"),
        (judge, "built-in method poll (within reward.py(3): ask_judge)"),
    ],
)  # fmt: skip
def test_the_headline_names_what_the_file_names(tmp_path: Path, inject: Inject, named: str) -> None:
    assert named in headline(analysis.reported([profile(inject, tmp_path)])).title


def critic(loop: Loop, number: int, *, count: int = 20) -> None:
    """Another model in every third step."""
    if number % 3 == 1:
        for _ in range(count):
            loop.run("aten::uniform_", 10 * MS)


def draw_and_pause(loop: Loop, number: int) -> None:
    """One more operator in every third step, and a pause after it."""
    critic(loop, number, count=1)
    loop.sleep(200 * MS * (number % 3 == 1))


def longer_or_pause(loop: Loop, number: int) -> None:
    """A longer operator in one step, and a pause in another one."""
    loop.run("aten::uniform_", (400 if number == 5 else 1) * MS)
    loop.sleep(200 * MS * (number == 2))


def save_or_validate(loop: Loop, number: int) -> None:
    """A pause in one step, and more operators in another one."""
    if number == 5:
        loop.sleep(300 * MS)
    if number == 2:
        critic(loop, 1)


SLOW_STEPS: dict[str, tuple[Inject, str, int]] = {
    "another model": (
        critic,
        "Steps of two kinds alternate, and 3 of 8 take much longer than the others: most of the additional time is spent in",
        3 * 200,
    ),
    "a model that grows": (
        lambda loop, number: critic(loop, number, count=20 + number),
        "3 of 8 steps take much longer than the others: most of the additional time is spent in aten::uniform_",
        210 + 240 + 270,
    ),
    "another model in two steps": (
        lambda loop, number: critic(loop, number % 7),
        "2 of 8 steps take much longer than the others: most of the additional time is spent in aten::uniform_",
        2 * 200,
    ),
    "another model in successive steps": (
        lambda loop, number: critic(loop, number in (2, 3, 4)),
        "3 of 8 steps take much longer than the others: most of the additional time is spent in aten::uniform_",
        3 * 200,
    ),
    "a range": (
        lambda loop, number: loop.within(loop.annotations, "validate", lambda: critic(loop, number)),
        "3 of 8 steps take much longer than the others: most of the additional time is spent in validate",
        3 * 200,
    ),
    "a pause beside another operator": (
        draw_and_pause,
        "3 of 8 steps take much longer than the others: most of the additional time is spent between aten::uniform_ and",
        3 * 210,
    ),
    "longer operators": (
        lambda loop, number: loop.run("aten::uniform_", (200 if number % 3 == 1 else 1) * MS),
        "3 of 8 steps take much longer than the others",
        3 * 199,
    ),
    "a cause of the other step alone": (longer_or_pause, "2 of 8 steps take much longer than the others", 399 + 200),
    "two causes": (
        save_or_validate,
        "2 of 8 steps take much longer than the others; in the slowest step, most of the additional time is spent before",
        300 + 200,
    ),
}


@pytest.mark.parametrize(("inject", "title", "longer_ms"), SLOW_STEPS.values(), ids=SLOW_STEPS)
def test_slow_steps_with_work_or_causes_of_their_own_are_told_apart(
    tmp_path: Path, inject: Inject, title: str, longer_ms: int
) -> None:
    first = headline(analysis.reported([profile(inject, tmp_path)]))
    assert first.title.startswith(title)
    assert ("in the slowest one" in first.title) == ("in the slowest one" in title)
    assert first.saving_ns == pytest.approx(longer_ms * MS / 8, rel=0.05)


@pytest.mark.parametrize(("count", "paused", "more"), [(50, 0, True), (2, 0, True), (1, 0, False), (50, 18, False)])
def test_a_step_that_runs_more_operators_does_more(tmp_path: Path, count: int, paused: int, more: bool) -> None:
    """Unless the host pauses for most of the additional time, here for ``paused`` ms after each operator."""

    def inject(loop: Loop, number: int) -> None:
        for at in range(count if number == 5 else 1):
            loop.run(f"aten::op{at % 7}", 4 * MS if number != 5 else 400 * MS // count)
            loop.sleep(paused * MS if number == 5 else 0)

    assert (
        "does more work than the median step" in headline(analysis.reported([profile(inject, tmp_path)])).advice
    ) == more


def test_few_detached_tensors_are_no_checkpoint(tmp_path: Path) -> None:
    first = headline(analysis.reported([profile(lambda loop, number: state(loop, number, 3), tmp_path)]))
    assert "state_dict" not in f"{first.title} {first.evidence}"
    assert "To see what Python does during this time, record again" in first.evidence


def test_a_unit_has_the_shapes_of_its_operators(tmp_path: Path) -> None:
    profile(lambda loop, _: None, tmp_path)
    path = tmp_path / "host_1.pt.trace.json"
    content = json.loads(path.read_text())
    linears = [event for event in content["traceEvents"] if event.get("name") == "aten::linear"]
    for number, event in enumerate(linears):
        event["args"] = {"Input Dims": [[number, 8], [8, 8]], "Input type": ["float", "float"]}
    path.write_text(json.dumps(content))
    (read,) = formats.read(path)
    steps = analysis.attributed(read).profile.host_steps
    assert [set(step.inputs["aten::linear"]) for step in steps] == [{f"[[{at}, 8], [8, 8]]"} for at in range(8)]


SMALL, LARGE = "[[64, 256], [256, 256]]", "[[2048, 256], [256, 256]]"


@pytest.mark.parametrize(
    ("shapes", "title", "says"),
    [
        (
            (LARGE, SMALL),
            "larger inputs than in the median step",
            "have the shapes [[2048, 256], [256, 256]]; in the median step, they have [[64, 256]",
        ),
        (
            ("[[65, 256], [256, 256]]", SMALL),
            "",
            "have the shapes [[65, 256], [256, 256]]; in the median step, they have [[64,",
        ),
        (
            (SMALL, SMALL),
            "on inputs of the same sizes, these operators took longer: aten::linear;",
            "Why some took longer was not recorded",
        ),
        (("", ""), "", "--contents cpu,shapes"),
    ],
)
def test_sizes_of_inputs_tell_more_work_from_an_interruption(
    tmp_path: Path, shapes: tuple[str, str], title: str, says: str
) -> None:
    made = profile(larger, tmp_path)
    steps = [
        replace(step, inputs={"aten::linear": {text: 1}} if (text := shapes[step.number != 5]) else {})
        for step in made.host_steps
    ]
    first = headline(analysis.reported([replace(made, host_steps=tuple(steps))]))
    assert says in first.evidence
    assert title in first.title
    assert (":" in first.title) == bool(title)
    assert ("OMP_NUM_THREADS" in first.advice) == title.startswith("on inputs of the same sizes")


@pytest.mark.parametrize(("ms", "named"), [(16, True), (17, False)])
def test_an_operator_with_half_of_the_additional_time_is_the_cause(tmp_path: Path, ms: int, named: bool) -> None:
    made = profile(larger, tmp_path)
    steps = [
        replace(
            step, ns=(1 + ms * (step.number == 5)) * MS, operators={"aten::mm": (9 if step.number == 5 else 1) * MS}, calls={"aten::mm": 1}, places={},
            inputs={"aten::mm": {SMALL: 1}},
        )
        for step in made.host_steps
    ]  # fmt: skip
    found = step_excess.excess(replace(made, host_steps=tuple(steps)), slowest=5, usual=1)
    assert found.cause.endswith("these operators took longer: aten::mm; the reason was not recorded") == named
    assert bool(found.cause) == named


LONG, WIDE = "[[448, 256], [256, 256]]", "[[64, 1024], [1024, 1024]]"


@pytest.mark.parametrize(
    ("slow", "usual", "title", "advice"),
    [
        ({SMALL: 3, LONG: 1}, {SMALL: 4}, "larger inputs than in the median step", "similar in size"),
        (
            {SMALL: 3, WIDE: 1},
            {SMALL: 4},
            "layers whose weights are larger than in the median step",
            "another model",
        ),
        ({SMALL: 1, LONG: 3}, {SMALL: 3, LONG: 1}, "", "special about this step"),
        (
            {SMALL: 4},
            {SMALL: 4},
            "on inputs of the same sizes, these operators took longer: aten::linear; the reason was not recorded",
            "OMP_NUM_THREADS",
        ),
    ],
    ids=["one longer micro-batch", "another model", "the same sizes more often", "the same"],
)
def test_a_step_with_one_more_size_does_not_run_on_the_same_sizes(
    tmp_path: Path, slow: dict[str, int], usual: dict[str, int], title: str, advice: str
) -> None:
    made = profile(larger, tmp_path)
    steps = [replace(step, inputs={"aten::linear": slow if step.number == 5 else usual}) for step in made.host_steps]
    first = headline(analysis.reported([replace(made, host_steps=tuple(steps))]))
    assert first.title == ": ".join(filter(None, ("One step takes much longer than the others", title)))
    assert advice in first.advice


@pytest.mark.parametrize(
    ("frames", "ms"),
    [
        ((), 10), ((Range("tok.py(3): encode", 40, 60),), 30), ((Range("tok.py(3): encode", 60, 95),), 35),
        ((Range("torch/profiler/profiler.py(7): __enter__", 0, 30), Range("main.py(1): <module>", 0, 100)), 70),
        (
            (
                Range("torch/profiler/profiler.py(7): start", 0, 30), Range("main.py(1): <module>", 0, 100),
                Range("torch/profiler/profiler.py(9): stop", 90, 100),
            ),
            60,
        ),
        ((Range("main.py(1): <module>", 0, 100, 2),), 10),
    ],
    ids=["no frames", "before operators", "after them", "from the profiler's start on", "up to its stop", "another thread"],
)  # fmt: skip
def test_python_around_all_operators_is_part_of_a_trace_without_marks(
    tmp_path: Path, frames: tuple[Range, ...], ms: int
) -> None:
    scaled = [replace(frame, begin=frame.begin * MS, end=frame.end * MS) for frame in frames]
    run = Run((), (), (Range("aten::mm", 60 * MS, 70 * MS, 1),), functions=tuple(scaled))
    path = run.torch(tmp_path / "host_1.pt.trace.json")
    path.write_text(path.read_text().replace('[{"id": 0, "name": "NVIDIA H100"}]', "[]"))
    (read,) = formats.read(path)
    (step,) = analysis.attributed(read).profile.host_steps
    assert step.ns == ms * MS


def test_steps_with_other_sizes_alternate(tmp_path: Path) -> None:
    made = profile(lambda loop, number: loop.run("aten::linear", (200 if number % 2 else 1) * MS), tmp_path)
    steps = [
        replace(step, inputs={"aten::linear": {WIDE if step.number % 2 else SMALL: 1}}) for step in made.host_steps
    ]
    first = headline(analysis.reported([replace(made, host_steps=tuple(steps))]))
    assert first.title == (
        "Steps of two kinds alternate, and 4 of 8 take much longer than the others: layers whose weights are larger than in"
        " the median step"
    )


@pytest.mark.parametrize(
    ("more_ms", "shapes", "first"), [(10, LONG, "outlier"), (2, LONG, "host-operators"), (10, SMALL, "host-operators")]
)
def test_a_step_that_does_more_work_is_the_headline_from_a_tenth_of_the_time_on(
    tmp_path: Path, more_ms: int, shapes: str, first: str
) -> None:
    """Without more work, other processes on the CPU cores may make a step so much longer."""

    def batches(loop: Loop, number: int) -> None:
        loop.within(
            loop.annotations, "micro_batch_2", lambda: loop.run("aten::linear", (1 + more_ms * (number == 5)) * MS)
        )

    made = profile(batches, tmp_path)
    steps = [
        replace(step, inputs={"aten::linear": {SMALL: 1, shapes if step.number == 5 else SMALL: 1}})
        for step in made.host_steps
    ]
    found = headline(analysis.reported([replace(made, host_steps=tuple(steps))]))
    assert found.id == first
    if first == "outlier":
        assert found.title.endswith(
            "larger inputs than in the median step; most of the additional time is spent in micro_batch_2"
        )


@pytest.mark.parametrize("recorded", [False, True])
def test_recorded_sizes_are_not_asked_for(tmp_path: Path, recorded: bool) -> None:
    """Those of some operators are not read."""
    made = profile(larger, tmp_path)
    first = headline(analysis.reported([replace(made, settings={"shapes": "1"} if recorded else {})]))
    assert ("also records the shapes" in first.evidence) != recorded


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


def in_range(loop: Loop, name: str, ns: int) -> None:
    loop.within(loop.annotations, name, lambda: loop.sleep(ns))


def load_and_judge(loop: Loop, _: int) -> None:
    in_range(loop, "load", 24 * MS)
    in_range(loop, "judge", 18 * MS)


def load_and_pause(loop: Loop, _: int) -> None:
    in_range(loop, "load", 24 * MS)
    loop.sleep(18 * MS)


def load_and_rest(loop: Loop, _: int) -> None:
    loop.sleep(2 * MS)
    in_range(loop, "load", 30 * MS)
    in_range(loop, "log", 5 * MS)


def take_turns(loop: Loop, _: int) -> None:
    """Two frames alternate in a range; pauses between the calls of one are its own."""

    def turns() -> None:
        for _ in range(6):
            for name in ("decode", "decode", "parse"):
                loop.within(loop.functions, f"read.py(7): {name}", lambda: loop.sleep(2 * MS))
                loop.sleep(10 * US)

    loop.within(loop.annotations, "read", turns)


IN_ONE_STRETCH: list[tuple[Inject, str, dict[HostPlace, int]]] = [
    (load_and_judge, ": in load 24.00 ms, in judge 18.00 ms",
     {HostPlace("load"): 24_000_000, HostPlace("judge"): 18_000_000}),
    (load_and_pause, ": in load 24.00 ms, before the first operator (aten::randn) 18.00 ms",
     {HostPlace("load"): 24_000_000, HostPlace("", "", "", "aten::randn"): 18_000_000}),
    (load_and_rest, ", mostly in load",
     {HostPlace("load"): 30_000_000, HostPlace("", "", "", "aten::randn"): 2_000_000, HostPlace("log"): 5_000_000}),
    (take_turns, ": in read.py(7): decode (within read) 24.11 ms, in read.py(7): parse (within read) 12.07 ms",
     {HostPlace("read.py(7): decode", "read"): 24_110_000, HostPlace("read.py(7): parse", "read"): 12_070_000}),
]  # fmt: skip


@pytest.mark.parametrize(("inject", "ending", "places"), IN_ONE_STRETCH)
def test_each_range_in_a_stretch_without_operators_has_its_own_time(
    tmp_path: Path, inject: Inject, ending: str, places: dict[HostPlace, int]
) -> None:
    made = profile(inject, tmp_path)
    assert {place: ns for place, ns in made.host_steps[1].places.items() if ns > MS} == places
    assert headline(analysis.reported([made])).title.endswith(f"the host runs no operator{ending}")


@pytest.mark.parametrize(
    ("outside", "longer", "named"),
    [(0, 0, True), (60, 0, True), (0, 10, True), (0, 0, False), (3000, 0, False)],
    ids=["alone", "a few others", "beside a long one", "no range", "as many others"],
)
def test_many_small_operators_in_one_range_name_it(tmp_path: Path, outside: int, longer: int, named: bool) -> None:
    def update(loop: Loop) -> None:
        for _ in range(500):
            for name in ("add_", "lerp_", "mul_", "sqrt", "div_"):
                loop.run(f"aten::{name}", 4 * US)

    def inject(loop: Loop, _: int) -> None:
        loop.within(loop.annotations if named or outside else [], "Optimizer.step#Adam.step", lambda: update(loop))
        for at in range(outside):
            loop.run(f"aten::op{at}", 4 * US)
        if longer:
            loop.run("aten::mm", longer * MS)

    first = headline(analysis.reported([profile(inject, tmp_path)]))
    assert first.id == "host-small"
    assert first.title.endswith("mostly in the range Optimizer.step#Adam.step") == named
    assert ("15.00 ms of the step passes in the range Optimizer.step#Adam.step" in first.evidence) == named


@pytest.mark.parametrize(
    ("outside", "longer", "inside", "saving"),
    [
        (0, 0, 0, "15.00 ms"), (60, 0, 0, "15.00 ms"), (3000, 0, 0, ""), (0, 20, 0, ""), (0, 0, 20, ""),
    ],
    ids=["alone", "a few others", "as many others", "a third of the step", "mostly a long operator"],
)  # fmt: skip
def test_many_small_operators_in_one_function_name_it(
    tmp_path: Path, outside: int, longer: int, inside: int, saving: str
) -> None:
    """A function of a library within it is not named."""

    def render(loop: Loop) -> None:
        for _ in range(500):
            for name in ("select", "lt", "abs", "ne", "div"):
                loop.run(f"aten::{name}", 4 * US)

    def dump(loop: Loop) -> None:
        loop.within(loop.functions, "torch/_tensor_str.py(1): _str", lambda: render(loop))
        if inside:
            loop.run("aten::mm", inside * MS)

    def inject(loop: Loop, _: int) -> None:
        loop.within(loop.functions, "train.py(9): dump", lambda: dump(loop))
        for at in range(outside):
            loop.run(f"aten::op{at}", 4 * US)
        if longer:
            loop.run("aten::mm", longer * MS)

    report = analysis.reported([profile(inject, tmp_path)])
    first = headline(report)
    small = next(finding for finding in report.findings if finding.id == "host-small")
    assert first.title.endswith("mostly in the function train.py(9): dump") == bool(saving)
    assert (f"{saving} of the step passes in the function train.py(9): dump" in small.evidence) == bool(saving)
    assert ("call this function less often" in small.advice) == bool(saving)
    assert not saving or small.saving_ns == pytest.approx(15 * MS, rel=0.001)


def test_a_recursive_function_counts_once_and_one_around_the_step_not_at_all(tmp_path: Path) -> None:
    def render(loop: Loop, depth: int) -> None:
        if depth:
            loop.within(loop.functions, "train.py(9): show", lambda: render(loop, depth - 1))
        for _ in range(10):
            loop.run("aten::select", 4 * US)

    def inject(loop: Loop, number: int) -> None:
        if number == 0:
            loop.functions.append(Range("train.py(1): run", 0, 999 * MS, loop.thread))
        render(loop, 3)

    made = profile(inject, tmp_path)
    assert [set(step.functions) for step in made.host_steps] == [{"train.py(9): show"}] * 8
    assert {step.functions["train.py(9): show"] for step in made.host_steps} == {30 * 6 * US}
    assert {step.small_functions["train.py(9): show"] for step in made.host_steps} == {30 * 6 * US}


def test_the_time_of_a_step_is_that_of_its_operators_and_of_places_without_one(tmp_path: Path) -> None:
    steps = profile(loader, tmp_path).host_steps
    assert [step.number for step in steps] == [*range(8)]
    for step in steps:
        assert (step.ns, step.idle_ns, step.small_ns, step.compiling_ns) == (19_102_000, 16_022_000, 88_000, 0)
        assert {name: ns for name, ns in step.operators.items() if ns} == {
            "aten::randn": 1_080_000,
            "aten::linear": MS,
            "aten::mul": MS,
        }
        assert step.calls == {"aten::randn": 9, "aten::linear": 1, "aten::mul": 1}
        assert step.places == {HostPlace(LOADER): 16_014_000}


STRETCHES: list[tuple[dict[str, int], str, str]] = [
    ({"a": 100}, "10.00 10.00 100 10.00", "warning"),
    ({"a": 50, "b": 30, "c": 10, "d": 10}, "10.00 10.00 100 5.00 3.00 1.00", "warning"),
    ({"a": 49, "b": 9}, "10.00 5.80 58 4.90", "warning"),
    ({"a": 40, "b": 9}, "10.00 4.90 49 4.00", "note"),
    ({"a": 20, "b": 18, "c": 15}, "10.00 5.30 53 2.00 1.80 1.50", "warning"),
    ({"a": 9}, "", ""),
]


@pytest.mark.parametrize(("shares", "numbers", "severity"), STRETCHES)
def test_stretches_without_an_operator_are_named_from_a_tenth_on(
    shares: dict[str, int], numbers: str, severity: str
) -> None:
    """Most of the time without operators, if that is half a step, is a warning, the problem; at most three are named."""
    found = [
        one for one in diagnosed({name: share * MS // 10 for name, share in shares.items()}) if one.id == "host-idle"
    ]
    assert [" ".join(re.findall(r"\d[\d.]*\d|\d", finding.evidence)) for finding in found] == [numbers] * bool(numbers)
    assert [finding.severity for finding in found] == [severity] * bool(severity)


def test_operators_that_run_for_less_than_half_are_no_verdict(tmp_path: Path) -> None:
    """As where each unit waits somewhere else."""

    def inject(loop: Loop, number: int) -> None:
        for at in range(8):
            loop.run(f"aten::op{at}")
            loop.sleep(40 * MS if at == number else 0)

    first = headline(analysis.reported([profile(inject, tmp_path)]))
    assert "at different places in different steps" in first.title
    assert "between aten::op7 and aten::randn, 40.00 ms in step 7" in first.evidence


def test_a_single_short_operator_is_not_many(tmp_path: Path) -> None:
    made = profile(lambda loop, _: None, tmp_path)
    step = replace(made.host_steps[0], ns=9 * US, operators={"aten::mm": 9 * US}, calls={"aten::mm": 1}, places={})
    assert headline(analysis.reported([replace(made, host_steps=(step,))])).id == "host-operators"


@pytest.mark.parametrize("devices", ["", '"deviceProperties": [], '])
def test_a_file_that_was_cut_off_has_no_device_only_if_it_says_so(tmp_path: Path, devices: str) -> None:
    Run((), (Range("ProfilerStep#1", 0, 9 * MS),), (Range("aten::mm", MS, 8 * MS),)).torch(tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    (tmp_path / "a.json").write_text(f'{{"schemaVersion": 1, {devices}"traceEvents": {json.dumps(events)[:-1]},')
    (read,) = formats.read(tmp_path / "a.json")
    assert read.cut
    assert (read.device == CPU) == bool(devices)


@pytest.mark.parametrize(("calls", "small", "idle", "named"), [
    (500, 3 * MS, 4 * MS, ["host-small", "host-idle"]), (500, 3 * MS, 3 * MS, ["host-small"]), (500, 3 * MS, 2 * MS, ["host-small"]),
    (499, 3 * MS, 2 * MS, ["host-idle"]), (500, 3 * MS, 0, ["host-small"]),
])  # fmt: skip
def test_pauses_are_named_beside_small_operators_only_if_they_take_longer(
    calls: int, small: int, idle: int, named: list[str]
) -> None:
    assert [one.id for one in diagnosed({"a": idle}, calls, small)] == [*named, "host-operators"]


def diagnosed(places: dict[str, int], calls: int = 1, small: int = 0) -> list[Diagnosis]:
    """Return the diagnoses of a step of 10 ms with these stretches without an operator (ns by frame)."""
    step = HostStep(
        number=0, ns=10 * MS, operators={"aten::mm": 10 * MS - sum(places.values())}, calls={"aten::mm": calls},
        places={HostPlace(name): ns for name, ns in places.items()}, small_ns=small, compiling_ns=0,
    )  # fmt: skip
    made = RankProfile("a", "torch", 0, CPU, (RecordedUnit(number=0, host_ns=10 * MS, kernels=0),), host_steps=(step,))
    return [*host_only.diagnoses(replace(made, operators=(CallSums("aten::mm", 1, 0, 0, MS),)))]


_CALL = {"ph": "X", "cat": "cuda_runtime", "ts": 1.0, "dur": 3.0, "pid": 0, "tid": 0, "args": {"correlation": 7}}
UNKNOWN_EVENTS: list[tuple[list[dict[str, Any]], str, bool]] = [
    ([], "nobody has events of another kind", True),
    (
        [{"ph": "X", "cat": "hpu_kernel", "name": "gemm", "ts": 1.0, "dur": 3.0, "pid": 0, "tid": 0}],
        "hpu_kernel (1)",
        False,
    ),
    (
        [{**_CALL, "name": "cudaLaunchKernel"}],
        "1 of 1 launches have no kernel",
        False,
    ),
    ([{**_CALL, "name": "cudaGetDeviceCount"}], "nobody has events of another kind", True),
    ([{**_CALL, "cat": "cpu_op", "name": "aten::mkldnn_linear"}], "nobody has events of another kind", True),
    (
        [{**_CALL, "cat": "cpu_op", "name": f"aten::{name}"} for name in ("mkldnn_linear", "cudnn_is_acceptable")],
        "nobody has events of another kind",
        True,
    ),
    ([{**_CALL, "cat": "cpu_op", "name": "aten::cudnn_convolution"}], "no kernel was recorded for 1 of 1 steps", False),
]


@pytest.mark.parametrize(("events", "says", "on_host"), UNKNOWN_EVENTS)
def test_a_device_without_kernels_that_are_known_is_said(
    tmp_path: Path, events: list[dict[str, Any]], says: str, on_host: bool
) -> None:
    run = Run((), (Range("ProfilerStep#1", 0, 9 * MS),), (Range("aten::mm", MS, 8 * MS),))
    path = run.torch(tmp_path / "host_1.pt.trace.json")
    content = json.loads(path.read_text())
    content["deviceProperties"] = [{"id": 0, "name": "H100"}] if on_host and events else []
    content["traceEvents"] += events
    path.write_text(json.dumps(content))
    (read,) = formats.read(path)
    made = analysis.checked(read, analysis.attributed(read))
    report = analysis.reported([made])
    assert made.on_host == on_host
    assert any(says in line for line in report.verdict.withdrawn) != on_host
    unknown = "hpu_kernel" in says
    assert any(finding.id == "host-operators" for finding in report.findings) != unknown
    assert ("78 % of the time is spent in aten::mm" in report.verdict.title) != unknown
    assert ("the host may be waiting for the device" in report.verdict.title) != (on_host or unknown)


PLACES: dict[HostPlace, tuple[str, str]] = {
    HostPlace("f.py(3): g"): ("in f.py(3): g", "make this code faster"), HostPlace("a", "b"): ("in a (within b)", "make this code faster"),
    HostPlace("", "", "aten::mm", "aten::add"): ("between aten::mm and aten::add", "stack"),
    HostPlace("", "", "aten::mm"): ("after the last operator (aten::mm)", "stack"), HostPlace("", "", "", "aten::add"): ("before the first operator (aten::add)", "stack"),
    HostPlace("", "", "aten::detach", "aten::add", saving=True): ("state_dict()", "save or send"),
    HostPlace("enumerate(DataLoader)#x"): ("in enumerate(DataLoader)#x", "num_workers"),
    HostPlace("sleep", "enumerate(DataLoader)#x"): ("in sleep (within", "num_workers"),
    HostPlace("Python GC"): ("garbage collection", "gc.freeze()"), HostPlace("Python GC", "step"): ("garbage collection (within step)", "gc.freeze()"),
    HostPlace("threading.py(1125): _wait_for_tstate_lock", "f.py(3): g"): ("in threading.py(1125)", "it waits for"),
    HostPlace("built-in function collect"): ("garbage collection", "gc.freeze()"),
    HostPlace("built-in method acquire"): ("in built-in method acquire", "it waits for"), HostPlace("built-in method recv_into"): ("recv_into", "it waits for"),
    HostPlace("built-in function waitpid"): ("waitpid", "it waits for"),
    HostPlace("<frozen importlib._bootstrap>(1165): _find_and_load", "f.py(3): g"): ("in an import of Python modules (within f.py(3): g)", "before the first step"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_each_place_without_an_operator_has_words_and_advice(place: HostPlace) -> None:
    words, advice = PLACES[place]
    assert words in wording.place_words(place)
    assert advice in wording.advice_on(place)
    assert sum(word in wording.advice_on(place) for word in {advice for _, advice in PLACES.values()}) == 1


def test_a_collective_is_not_within_itself() -> None:
    assert wording.place_words(HostPlace("gloo:recv", "gloo:recv")) == "during gloo:recv"


SPLIT: dict[str, tuple[list[dict[str, int]], str]] = {
    "two halves in turn": ([{"sort": 9, "ex": 0}, {"sort": 0, "ex": 9}] * 3, "ex"),
    "an inner one throughout": ([{"sort": 8, "ex": 1}] * 6, "sort"),
    "nothing in common": ([{"sort": 0, "ex": 0}] * 6, ""),
}


@pytest.mark.parametrize("name", SPLIT)
def test_a_frame_around_places_that_differ_is_named(name: str) -> None:
    rows, frame = SPLIT[name]
    steps = []
    for number, row in enumerate(rows):
        places = {HostPlace(inside): ns * MS for inside, ns in row.items() if ns}
        places |= {} if places else {HostPlace(f"f{number}"): 9 * MS}
        inner = {place: ns for place, ns in places.items() if place.inside == "sort"}
        frames = {"ex": places, "sort": inner} if any(row.values()) else {}
        steps.append(HostStep(
            number=number, ns=10 * MS, operators={"aten::mm": 10 * MS - sum(places.values())}, calls={"aten::mm": 1},
            places=places, small_ns=0, compiling_ns=0, frames=frames,
        ))  # fmt: skip
    made = RankProfile("a", "torch", 0, CPU, tuple(RecordedUnit(number=0, host_ns=10 * MS, kernels=0) for _ in steps))
    made = replace(made, host_steps=tuple(steps), operators=(CallSums("aten::mm", 1, 0, 0, MS),))
    found = [one.headline for one in host_only.diagnoses(made) if one.id == "host-idle"]
    assert [f"mostly in {frame}" in headline for headline in found] == [True] * bool(frame)


def test_the_frame_of_a_program_is_named_before_those_of_libraries_in_it() -> None:
    wait, put = HostPlace("built-in method acquire"), HostPlace("built-in method put")
    frames = {
        "numpy/lib/_format_impl.py(9): write_array": {wait: 7, put: 2},
        "f.py(1): scores": {wait: 7, put: 3}, "queue.py(9): get": {wait: 7, put: 2},
        "concurrent/futures/_base.py(9): result": {wait: 7, put: 3}, "f.py(9): other": {put: 3},
    }  # fmt: skip
    step = HostStep(
        number=0, ns=20, operators={}, calls={}, places={wait: 7, put: 3}, small_ns=0, compiling_ns=0, frames=frames
    )
    assert idle_host._typical_frame([step]) == ("f.py(1): scores", 10, [(wait.inside, 7), (put.inside, 3)])
    unit = RecordedUnit(number=0, host_ns=20, kernels=0)
    operators = (CallSums("aten::mm", 1, 0, 0, MS),)
    made = RankProfile("a", "torch", 0, CPU, (unit,), host_steps=(step,), operators=operators)
    (idle,) = (found for found in host_only.diagnoses(made) if found.id == "host-idle")
    assert (idle.saving_ns, idle.advice.partition(":")[0]) == (10, "the host waits in this call")


TRENDS: dict[str, tuple[list[int], tuple[int, int] | None]] = {
    "rising": ([1, 2, 3, 4, 5, 6], (1, 5)), "falling": ([9, 8, 6, 4, 3, 2], (8, 2)), "level": ([5] * 6, None),
    "too few": ([1, 2, 3, 4], None), "too little": ([10, 11, 12, 13, 14], None), "one long step": ([1, 1, 1, 9, 1, 1], None),
    "up and down": ([1, 9, 2, 8, 3, 7], None), "long at the end": ([5, 3, 4, 2, 1, 9], None),
    "one long first step": ([35, 8, 7, 6, 5], None), "most of it at first": ([32, 8, 7, 6, 4], (32, 4)),
    "half as long again": ([10, 10, 12, 13, 15, 15], (10, 15)), "not quite": ([100, 100, 120, 130, 149, 149], None),
    "grows faster and faster": ([1, 2, 4, 8, 16, 32], (1, 16)), "falls after a longer step": ([15, 9, 8, 7, 6, 5], (9, 5)),
    "falls after a far longer step": ([16, 9, 8, 7, 6, 5], None), "nine of ten pairs": ([1, 2, 4, 3, 9], (1, 9)), "eight of ten pairs": ([1, 3, 4, 2, 9], None),
    "a tenth of it at first": ([100, 100, 110, 110, 200, 200], (100, 200)), "less at first": ([100, 100, 109, 109, 200, 200], None),
}  # fmt: skip


@pytest.mark.parametrize("name", TRENDS)
def test_steps_that_get_longer_or_shorter_throughout_have_a_trend(name: str) -> None:
    times, trend = TRENDS[name]
    assert trends.trend(times) == trend


def growing(loop: Loop, number: int) -> None:
    loop.run("aten::addmm", (10 + 3 * number) * MS)


@pytest.mark.parametrize("others", [0, 1, 2])
def test_further_places_are_named_only_if_there_are_some(others: int) -> None:
    places = {"a": 5 * MS, **dict.fromkeys("bc"[:others], MS)}
    (finding,) = (one for one in diagnosed(places) if one.id == "host-idle")
    assert [name for name in "bc" if f"in {name} 1.00 ms" in finding.evidence] == [*"bc"[:others]]
    assert finding.evidence.count(":") == 1 + bool(others)


def test_units_that_wait_at_no_common_place_are_told_with_the_longest_stretch(tmp_path: Path) -> None:
    made = profile(lambda loop, _: None, tmp_path)
    steps = [
        replace(
            step, ns=100, operators={"aten::mm": 40}, places={HostPlace(f"f.py({step.number}): g"): 50 + step.number}
        )
        for step in made.host_steps
    ]
    whole = replace(made, host_steps=tuple(steps))
    finding = idle_host.diagnose_scattered_places(whole, 800, 480)
    assert re.findall(r"\b7\b|f.py\(7\): g|\b60 %", finding.evidence) == ["60 %", "f.py(7): g", "7"]
    assert "make this code faster" in finding.advice
    nowhere = idle_host.diagnose_scattered_places(replace(made, host_steps=()), 800, 480)
    assert (nowhere.advice, re.findall(r"\d+", nowhere.evidence)) == ("", ["60"])


def test_units_that_are_unknown_have_no_excess(tmp_path: Path) -> None:
    made = profile(pause, tmp_path)
    assert step_excess.excess(made, 5, 99) == step_excess.excess(made, 99, 5) == step_excess.HostExcess("")
    assert step_excess.excess(made, 5, 4).evidence


@pytest.mark.parametrize(
    ("tenths", "severity"),
    [
        ([50], "warning"), ([40], "note"), ([25, 25], "warning"), ([20, 10, 10, 10], "warning"), ([20, 10, 10], "note"), ([10] * 8, "note"),
        ([10] * 6, "warning"), ([30, 20], "warning"), ([9] * 5, None),
    ],
)  # fmt: skip
def test_places_without_an_operator_matter_where_they_take_half_of_the_step_or_of_its_idle_time(
    tenths: list[int], severity: str | None
) -> None:
    found = diagnosed({f"place {at}": part * MS // 10 for at, part in enumerate(tenths)})
    assert next((one.severity for one in found if one.id == "host-idle"), None) == severity


@pytest.mark.parametrize(("longest", "further", "named"), [(4, 4, True), (4, 5, False), (5, 0, True), (3, 4, False)])
def test_a_place_with_half_of_the_idle_time_is_the_headline(longest: int, further: int, named: bool) -> None:
    """A tenth of the time is spread over places that are too short to name."""
    places = {"a": longest * MS, **{f"b{at}": MS // 2 for at in range(2 * further)}}
    (finding,) = (one for one in diagnosed(places) if one.id == "host-idle")
    assert finding.headline.endswith(("mostly in a", "of this is in a")) == named
    assert finding.culprit == ("a" if named else "")
    assert finding.saving_ns == longest * MS


@pytest.mark.parametrize(
    ("shapes", "count"),
    [("[[2, 3], [4]]", 10), ("[[], [4]]", 4), ("[]", 0), ("x", 0), ("[[2, 3], 7]", 6), ("[[0, 3], [5]]", 5)],
)
def test_elements_of_inputs_are_counted(shapes: str, count: int) -> None:
    assert measures.elements(shapes) == count


@pytest.mark.parametrize(
    ("whole", "calls", "small", "said"), [(20, 1000, 7, True), (20.001, 1000, 7, False), (2, 100, 1, True), (1.9, 99, 1, False)]
)  # fmt: skip
def test_many_small_operators_are_a_hundred_of_20_us_each(whole: float, calls: int, small: int, said: bool) -> None:
    step = HostStep(
        number=0, ns=round(whole * MS), operators={}, calls={"aten::a": calls - 1, "aten::b": 1}, places={}, small_ns=small, compiling_ns=0
    )  # fmt: skip
    found = small_operators.diagnose_small_operators(RankProfile("a", "torch", 0, CPU, (), host_steps=(step,)))
    assert (found and (found.id, found.severity, found.saving_ns, found.source)) == (
        ("host-small", "warning", small, "a") if said else None
    )
    if found:
        assert f"aten::a ({calls - 1:,}), aten::b (1)" in found.evidence


@pytest.mark.parametrize(
    ("calls", "small", "named"),
    [
        ({"a": 700, "b": 300}, 9, "90 % of the time goes to many small operators (mostly a, b)"), ({"a": 950, "b": 50}, 9, "(mostly a)"),
        ({"a": 900, "b": 100}, 9, "(mostly a, b)"), ({"a": 950, "b": 50}, 5, "50 % of the time goes to many small operators (mostly a)"),
        ({"a": 950, "b": 50}, 4, ""),
        ({"a": 250, "b": 240, "c": 230, "d": 280}, 9, "(mostly d, a)"), (dict.fromkeys("abcde", 200), 9, ""),
        ({"a": 600, "long": 60, "b": 300}, 9, ""), ({"a": 250, "b": 250, "c": 170, "d": 170, "e": 160}, 9, "(mostly a, b)"),
    ],
)  # fmt: skip
def test_the_headline_names_small_operators_with_half_of_the_calls_and_time(
    calls: dict[str, int], small: int, named: str
) -> None:
    operators = {name: count * (100 if name == "long" else 1) for name, count in calls.items()}
    step = HostStep(
        number=0, ns=10 * MS, operators=operators, calls=calls, places={}, small_ns=small * MS, compiling_ns=0
    )
    found = small_operators.diagnose_small_operators(RankProfile("a", "torch", 0, CPU, (), host_steps=(step,)))
    assert found
    assert named in found.headline
    assert bool(found.headline) == bool(named)
    assert "fewer and larger operators" in found.advice


@pytest.mark.parametrize(
    ("compiling", "numbers", "saving"),
    [((0, 0), [], None), ((19, 0), [], None), ((20, 0), ["1", "2", "10"], 10), ((20, 2), ["1", "2", "11"], 11), ((20, 10), ["2", "2", "15"], 15), ((21, 7), ["2", "2", "14"], 14), ((22, 7), ["1", "2", "14"], 14)],
)  # fmt: skip
def test_torch_compile_is_told_from_a_tenth_of_the_time_on(
    compiling: tuple[int, int], numbers: list[str], saving: int | None
) -> None:
    """A step counts that has half of what is usual."""
    steps = tuple(
        HostStep(number=at, ns=100, operators={}, calls={}, places={}, small_ns=0, compiling_ns=ns)
        for at, ns in enumerate(compiling)
    )
    found = host_only._diagnose_compilation(RankProfile("a", "torch", 0, CPU, (), host_steps=steps))
    assert (found and found.saving_ns) == saving
    assert (re.findall(r"\b\d+\b(?!\.| ms)", found.evidence.partition("ms")[2]) if found else []) == numbers


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([{}], ("", 0)), ([{"f": 9, "g": 8}], ("g", 8)), ([{"f": 10, "g": 8}], ("g", 8)), ([{"f": 11, "g": 8}], ("f", 11)),
        ([{"f": 9}, {"f": 5}, {}], ("f", 5)), ([{"f": 9}, {}, {}], ("", 0)), ([{"f": 4}, {"f": 6}], ("f", 4)),
    ],
)  # fmt: skip
def test_the_frame_with_most_of_the_time_is_the_innermost_with_most_of_it(
    frames: list[dict[str, int]], expected: tuple[str, int]
) -> None:
    steps = [
        HostStep(
            number=at, ns=100, operators={}, calls={}, places={}, small_ns=0, compiling_ns=0,
            frames={name: {HostPlace("inner"): ns - 1, HostPlace("other"): 1} for name, ns in row.items()},
        )
        for at, row in enumerate(frames)
    ]  # fmt: skip
    frame, ns, parts = idle_host._typical_frame(steps)
    assert (frame, ns) == expected
    assert [name for name, _ in parts] == (["inner", "other"] if frame else [])


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"aten::mm": 50}, "50 %|aten::mm"), ({"aten::mm": 49}, ""), ({"aten::mm": 30, "aten::addmm": 20}, "50 %|matmuls"),
        ({"aten::mm": 30, "aten::addmm": 19}, ""), ({"aten::add": 60}, "60 %|aten::add"), ({"aten::add": 30, "aten::mul": 40}, ""), ({}, ""),
    ],
)  # fmt: skip
def test_an_operator_or_a_family_with_half_of_the_time_is_the_headline(times: dict[str, int], named: str) -> None:
    rows = tuple(CallSums(name, 1, 0, 0, ns) for name, ns in times.items())
    headline = longest_operators.dominant_operator(RankProfile("a", "torch", 0, CPU, (), operators=rows), 100)
    assert all(part in headline for part in named.split("|"))
    assert bool(headline) == bool(named)


def in_collectives(rank: int, ms: float, step_ms: int = 100, place: str = "c10d::allreduce_") -> RankProfile:
    """A rank without a device that spends so many of the ms of each step in a collective."""
    steps = [
        HostStep(
            number=number, ns=step_ms * MS, operators={}, calls={}, small_ns=0, compiling_ns=0,
            places={HostPlace(place): round(ms * MS), HostPlace("g"): MS},
        )
        for number in range(3)
    ]  # fmt: skip
    units = (RecordedUnit(number=0, host_ns=step_ms * MS, kernels=0),)
    return RankProfile(
        f"/{rank}", "torch", rank, CPU, units, host_steps=tuple(steps), operators=(CallSums("aten::mm", 1, 0, 0, MS),)
    )


@pytest.mark.parametrize(
    ("ranks", "saving"),
    [
        ([(0, 20), (1, 30)], 10), ([(0, 30), (1, 20)], 10), ([(0, 20.1), (1, 30)], None), ([(0, 10), (1, 19.9)], None),
        ([(0, 10), (1, 20)], 10), ([(0, 10), (1, 50), (2, 20), (3, 30)], 20), ([(0, 10), (1, 50), (2, 20)], 10), ([(0, 10)], None),
        ([(0, 10), (0, 50)], None),
    ],
)  # fmt: skip
def test_the_others_wait_half_as_long_again_for_a_straggler(
    ranks: list[tuple[int, float]], saving: float | None
) -> None:
    profiles = [in_collectives(rank, ms) for rank, ms in ranks]
    found = late_ranks.diagnose_straggler(profiles)
    assert (found and (found.id, found.saving_ns)) == (saving and ("slow-rank", round(saving * MS)))
    assert found is None or found.source == f"/{min(ranks, key=lambda rank: rank[1])[0]}"
    assert found is None or found.advice.startswith("check what")  # that the host is idle is a note alone
    assert late_ranks.diagnose_straggler([in_collectives(rank, ms, place="c10d::send") for rank, ms in ranks]) is None


def test_a_place_counts_zero_in_the_steps_without_it() -> None:
    steps = [replace(in_collectives(0, 1).host_steps[0], places={HostPlace(name): 7}) for name in "aab"]
    assert idle_host._typical_places(steps) == [(HostPlace("a"), 7), (HostPlace("b"), 0)]


@pytest.mark.parametrize(
    ("lengths", "found"), [((60, 20), ["a", "b"]), ((50, 9), ["a"]), ((49, 20), ["f"]), ((49, 0), ["a"]), ((9, 9), [])]
)
def test_a_frame_around_places_counts_where_none_has_half(lengths: tuple[int, int], found: list[str]) -> None:
    """At least 10 ns count, and half are 50."""
    places = {HostPlace(name): ns for name, ns in zip("ab", lengths, strict=True)}
    step = replace(in_collectives(0, 1).host_steps[0], places=places, frames={"f": places})
    chosen, within = idle_host._places_or_frame([step], 10, 50)
    assert [place.inside for place, _ in chosen] == found
    assert [(name, ns) for name, ns in within] == ([("a", 49), ("b", 20)] if found == ["f"] else [])


def test_the_evidence_on_one_of_two_ranks_begins_with_its_label() -> None:
    profiles = [replace(in_collectives(rank, 10 * rank + 10), label=f"rank {rank}") for rank in range(2)]
    for count in (1, 2):
        findings = analysis.reported(profiles[:count]).findings
        assert findings
        assert {one.evidence.startswith(("rank 0: ", "rank 1: ")) for one in findings} == {count == 2}


US = 1_000


def test_a_step_has_the_long_ranges_around_its_long_ranges(tmp_path: Path) -> None:
    def fit(loop: Loop) -> None:
        loop.sleep(MS)
        loop.within(loop.functions, "f.py(1): g", lambda: loop.sleep(2 * MS))

    def epoch(loop: Loop) -> None:
        loop.sleep(MS)
        loop.within(loop.annotations, "fit", lambda: fit(loop))

    def phases(loop: Loop, number: int) -> None:
        loop.within(loop.annotations, f"epoch {number}", lambda: epoch(loop))
        loop.within(loop.annotations, "score", lambda: loop.sleep(2 * MS))
        loop.within(loop.annotations, "short", lambda: loop.sleep(MS // 9))

    step = profile(phases, tmp_path).host_steps[1]
    assert step.around == {"epoch 1": set(), "fit": {"epoch 1"}, "f.py(1): g": {"epoch 1", "fit"}, "score": set()}
