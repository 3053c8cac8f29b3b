"""Failures in a probe, at any line: the run goes on, and no profiler stays open."""

from __future__ import annotations

import ast
import inspect
import linecache
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from patches.probes import ranges
from patches.probes.pieces import LimitedPieces
from patches.probes.timeline_recorder import VllmTimeline
from tests.matrix import MATRIX, thinned
from tests.patches.graph_workers import Worker as Capturing
from tests.patches.rollout_workers import V0Worker, V1Worker, batch, rollout
from tests.patches.sglang_schedulers import Scheduler
from tests.patches.standin import Profiler
from tests.patches.step_metadata import Traces, with_lists
from tests.patches.training_stages import Stage

pytestmark = [
    pytest.mark.usefixtures("stand_in_torch"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
]

FAULTS: tuple[type[Exception], ...] = (ValueError, OSError, StopIteration, MemoryError)
PASSING_ON = {"_rlpatch_stage", "_rlpatch_stage_units", "prepare_input"}
"""Functions of the patched class: they call `dispatch`, which catches everything."""

Scenario = Callable[[Path, list[Profiler]], None]


def v1(folder: Path, made: list[Profiler], **constants: Any) -> None:
    settings: dict[str, Any] = {"METADATA": True, "SAVE_PATH": str(folder), "parts": (Traces, Silent)}
    worker = V1Worker(WINDOW="2:6", IDENTITY=("rank", "units"), **{**settings, **constants})
    worker.made = made
    worker._RlpatchStage.made = made
    worker.iterate(batch({"a": 1}, {"a": 1}), "prefill")
    for n in range(1, 4):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    worker.iterate(with_lists(batch({"a": 1, "b": 1}, {"b": 1}), "a"), "prefill")
    for n in range(4, 9):
        worker.iterate(with_lists(batch({"a": 1}), "a"), f"decode {n}")
    worker._rlpatch_stage("end_rollout", "sleep()")
    worker._rlpatch_stage("exit")


class Silent:
    """Ranges of a profiler that knows none."""

    def begin_range(self, name: str, *domain: str) -> Any:
        return name

    def end_range(self, handle: Any, *domain: str) -> None:
        pass


def pieces(folder: Path, made: list[Profiler]) -> None:
    layers = (LimitedPieces, ranges.TorchRanges, ranges.RolloutMarkers)
    v1(folder, made, layers=layers, PIECES=True, FIRST_PIECE=2, UNIT_STALL_MS=1, MAX_TRACE_GB="1")


def v0(_folder: Path, made: list[Profiler]) -> None:
    worker = V0Worker(WINDOW="1:3")
    worker.made = worker._RlpatchStage.made = made
    for prefills in (1, 0, 0, 0, 0):
        metadata = SimpleNamespace(
            num_prefills=prefills,
            max_prefill_seq_len=1,
            max_decode_seq_len=1,
            num_prefill_tokens=1,
            num_decode_tokens=1,
        )
        request = SimpleNamespace(finished_requests_ids=(), request_ids_to_seq_ids={"a": [1]}, attn_metadata=metadata)
        worker.execute((request,), f"{prefills}")
    worker.execute(None, "nothing")


def sglang(_folder: Path, made: list[Profiler]) -> None:
    scheduler = Scheduler(WINDOW="2:4")
    scheduler.made = scheduler._RlpatchStage.made = made
    scheduler.rollout(6)
    scheduler._rlpatch_stage("idle")


def training(_folder: Path, made: list[Profiler]) -> None:
    stage = Stage(WINDOW="1:4", UNIT="micro-batch")
    stage.made = stage._RlpatchStage.made = made
    stage.update()
    stage.update()


def whole_call(_folder: Path, made: list[Profiler]) -> None:
    stage = Stage(UNIT="call")
    stage.made = stage._RlpatchStage.made = made
    stage.update()


def capture(_folder: Path, made: list[Profiler]) -> None:
    Capturing(made).start("capture")


SCENARIOS: dict[str, Scenario] = {
    "vLLM V1": v1, "in pieces": pieces, "vLLM V0": v0, "SGLang": sglang, "training": training,
    "a whole call": whole_call, "graph capture": capture,
}  # fmt: skip


class Injected:
    """Raises ``fault`` at a line of the inserted code; without one, it notes the lines that are run."""

    def __init__(self, line: tuple[str, int] | None = None, fault: type[Exception] | None = None) -> None:
        self.line, self.fault, self.raised = line, fault, False
        self.lines: dict[tuple[str, int], None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != "<patched>" or frame.f_code.co_name in PASSING_ON:
            return None
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
            return None
        if type(frame.f_locals.get("self")).__name__ == "Loop":  # it passes on what it iterates over
            return None
        key = (frame.f_code.co_name, frame.f_lineno - frame.f_code.co_firstlineno)
        if event == "line" and not (frame.f_code.co_name == "dispatch" and key[1] <= TRY):
            self.lines[key] = None
            if key == self.line and not self.raised and self.fault is not None:
                self.raised = True
                raise self.fault("injected")
        return self

    def run(self, scenario: Scenario, folder: Path) -> list[Profiler]:
        made: list[Profiler] = []
        sys.settrace(self)
        try:
            scenario(folder, made)
        finally:
            sys.settrace(None)
        return made


TRY = 2
"""The line of `dispatch` behind which everything is caught: its decorator and its head come before."""


def still_open(profilers: list[Profiler]) -> list[Profiler]:
    return [profiler for profiler in profilers if "start" in profiler.calls and "stop" not in profiler.calls]


def kinds() -> Iterator[Any]:
    for number in range(len(FAULTS)):
        yield pytest.param(number, marks=() if number == 0 else MATRIX, id=FAULTS[number].__name__)


@pytest.mark.parametrize("kind", [*kinds()])
@pytest.mark.parametrize("name", thinned([*SCENARIOS], [*SCENARIOS][::2]))
def test_each_line_of_a_probe_may_raise_once(name: str, kind: int, tmp_path: Path) -> None:
    plain = Injected()
    assert plain.run(SCENARIOS[name], tmp_path / "plain")
    assert len(plain.lines) > 50
    for number, line in enumerate(plain.lines):
        fault = FAULTS[(number + kind) % len(FAULTS)]
        injected = Injected(line, fault)
        made = injected.run(SCENARIOS[name], tmp_path / "plain")  # to another one it would be rendered anew
        assert injected.raised, line
        assert not still_open(made), (line, fault)


class Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("injected")

    def handleError(self, record: logging.LogRecord) -> None:
        raise


def closed_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = (tmp_path / "stderr").open("w")
    file.close()
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def no_stderr(monkeypatch: pytest.MonkeyPatch, _tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def failing_handler(monkeypatch: pytest.MonkeyPatch, _tmp_path: Path) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [Failing()])


def failing_logger(monkeypatch: pytest.MonkeyPatch, _tmp_path: Path) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("injected")

    monkeypatch.setattr(logging, "getLogger", fail)


@pytest.mark.parametrize("second_fault", [False, True])
@pytest.mark.parametrize("sink", [closed_stderr, no_stderr, failing_handler, failing_logger])
def test_a_log_that_fails_stops_nothing(
    sink: Callable[..., None], second_fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = V1Worker(WINDOW="2:5")
    with monkeypatch.context() as patched:  # pytest writes to the same logs
        sink(patched, tmp_path)
        rollout(worker, 3)
        if second_fault:
            patched.setattr(Profiler, "step", lambda *_: 1 / 0)
        for n in range(4, 9):
            worker.iterate(batch({"a": 1}), f"decode {n}")
    assert not still_open(worker.made)
    assert worker._rlpatch_stage_probe is None


def test_nothing_private_of_a_profiler_is_replaced() -> None:
    """Of torch_npu a release has renamed what was replaced, and the window that had begun was lost."""
    replaced = []
    for file in Path(__file__).parents[3].joinpath("patches", "probes").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Assign):
                targets = [name for target in node.targets for name in ast.walk(target)]
                replaced += [name.attr for name in targets if isinstance(name, ast.Attribute)]
            elif isinstance(node, ast.Call) and "setattr" in ast.unparse(node):
                names = [name.value for name in node.args if isinstance(name, ast.Constant)]
                replaced += [name for name in names if isinstance(name, str)]
    assert "start" in replaced, "that of a profiler's class is public"
    private = [name for name in replaced if name.startswith("_") and not name.startswith(("__", "_rlpatch_"))]
    assert private == [], "`__call__` of modules is public, too"
    for module in ("recorder", "tools", "pieces", "ranges", "rollout", "training"):
        text = Path(__file__).parents[3].joinpath("patches", "probes", f"{module}.py").read_text()
        assert "_ProfInterface" not in text
        assert "_prepare_trace" not in text


# --- the timeline ---

CALLED = {"span", "step", "requested", "start", "stop", "records_rank", "iteration", "say", "setting"}
"""What the lines at call sites of the timeline call, and what these call."""
CALLED_FILES = ("probes/timeline_recorder.py", "probes/steering.py")


class InjectedTimeline(Injected):
    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(CALLED_FILES) or code.co_name not in CALLED:
            return None
        key = (code.co_name, frame.f_lineno - code.co_firstlineno)
        text = linecache.getline(code.co_filename, frame.f_lineno).strip()
        if event == "line" and text != "try:" and not text.removeprefix("return ").startswith("self.span("):
            self.lines[key] = None
            if key == self.line and not self.raised and self.fault is not None:
                self.raised = True
                raise self.fault("injected")
        return self


def timeline(folder: Path, _made: list[Profiler]) -> None:
    sys.__dict__.pop("_rlpatch_timeline_1", None)
    recorder = VllmTimeline()
    recorder.SAVE_PATH = str(folder)
    recorder.register = lambda _end: None  # type: ignore[method-assign,assignment]
    parallel = SimpleNamespace(data_parallel_index=0)
    worker = SimpleNamespace(rank=0, vllm_config=SimpleNamespace(parallel_config=parallel))
    for _ in range(2):
        recorder.iteration(worker, with_lists(batch({"a": 1}, {"a": 1}), "a"))
        recorder.requested("request", "generate", None, [1, 2])
        recorder.step(1, {"stale": 1.5}, "stale")
    recorder.stop("the test is over")
    sys.__dict__.pop("_rlpatch_timeline_1", None)


@pytest.mark.parametrize("kind", range(len(FAULTS)))
def test_each_line_of_the_timeline_may_raise_once(kind: int, tmp_path: Path) -> None:
    plain = InjectedTimeline()
    plain.run(timeline, tmp_path / "plain")
    assert {name for name, _ in plain.lines} >= {"span", "step", "requested", "start", "stop", "iteration"}
    for number, line in enumerate(plain.lines):
        if line[0] in ("stop", "say"):  # of an ended timeline, by the test itself
            continue
        injected = InjectedTimeline(line, FAULTS[(number + kind) % len(FAULTS)])
        injected.run(timeline, tmp_path / str(number))
        assert injected.raised, line
