"""Ranges around modules and units as a table, over a backend that writes down which of them begin and end.

What the real profilers make of them is proven in ``test_on_torch_npu``, ``test_on_verl`` and ``test_on_vllm``.
"""

from __future__ import annotations

import contextlib
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from patches.probes.ranges import (
    ModuleRanges,
    NpuRanges,
    RolloutMarkers,
    TorchRanges,
    TrainingMarkers,
)
from tests.patches.rollout_workers import V1Worker, batch, rollout
from tests.patches.standin import Console
from tests.patches.training_stages import Failed, Stage

pytestmark = pytest.mark.usefixtures("stand_in_torch")


class Module:
    """Stands for ``torch.nn.Module``, whose ``__call__`` every module has."""

    def __init__(self, *inner: Module, fails: bool = False) -> None:
        self.inner, self.fails = inner, fails

    def __call__(self, value: int, *, more: int = 0) -> int:
        if self.fails:
            raise Failed
        return sum([inner(value, more=more) for inner in self.inner], value + more)


class Attention(Module):
    """A module of a model."""


class DecoderLayer(Module):
    """Another one, around the first."""


CALL = Module.__call__
compiling = False


@pytest.fixture(autouse=True)
def torch(stand_in_torch: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of torch as the ranges of modules need."""
    found: Any = sys.modules["torch"]
    found.nn = SimpleNamespace(Module=Module)
    found.compiler = SimpleNamespace(is_compiling=lambda: compiling)
    monkeypatch.setattr(Module, "__call__", CALL)
    return found


class Written:
    """Ranges that are written down in the order of time; the one that ends must be the innermost."""

    written: list[str]
    fails = False
    reason = ""

    def begin_range(self, name: str, *domain: str) -> str:
        if self.fails:
            raise OSError("no ranges")
        handle = "/".join((*domain, name))
        self.written.append(f"{handle} [")
        return handle

    def end_range(self, handle: str, *domain: str) -> None:
        assert handle.rpartition("/")[0] == "".join(domain)
        open_ones: list[str] = []
        for line in self.written:
            open_ones = [*open_ones, line[:-2]] if line.endswith("[") else open_ones[:-1]
        assert handle == open_ones[-1]
        self.written.append(f"{handle} ]")

    def domain_obstacle(self) -> str:
        return self.reason


RANGES = (TorchRanges,)
MARKERS = RolloutMarkers
MODULE_RANGES = ModuleRanges


def engine(*layers: type, **constants: Any) -> tuple[V1Worker, list[str]]:
    written: list[str] = []
    return V1Worker(layers=(*RANGES, *layers), parts=(Written,), written=written, **constants), written


def nested(written: list[str]) -> str:
    """The ranges on one line, each with what lies in it in parentheses."""
    text = " ".join(line.replace(" [", "(") if line.endswith("[") else ")" for line in written)
    return text.replace("( ", "(").replace(" )", ")")


def test_the_rollout_its_units_and_what_lies_between_them() -> None:
    worker, written = engine(MARKERS, WINDOW="2:4")
    worker.iterate(batch({"a": 9}, {"a": 9}), "")
    for n in (1, 2):
        worker.iterate(batch({"a": 1}), f"decode {n}")
    worker.iterate(batch({"a": 1, "b": 5}, {"b": 5}), "")
    assert written == ["rollout 0 [", "decode 2 [", "decode 2 ]", "uncounted prefill ["]
    worker.iterate(batch({"a": 1, "b": 1}), "decode 3")
    worker.iterate(batch({"a": 1, "b": 1}), "decode 4")
    assert written[3:] == ["uncounted prefill [", "uncounted prefill ]", "decode 3 [", "decode 3 ]", "rollout 0 ]"]


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ({"WINDOW": "1:3"}, ["rollout 0", "decode 1", "decode 2"]),
        ({"WINDOW": "2:", "ROLLOUT": "1"}, ["rollout 1", *(f"decode {n}" for n in range(2, 6))]),
        (
            {"WINDOW": "0:", "UNIT": "iterations", "FIRST": 0},
            ["rollout 0", "prefill 0", *(f"decode {n}" for n in range(1, 6))],
        ),
        ({"WINDOW": "0:1", "UNIT": "prefill", "FIRST": 0}, ["rollout 0", "prefill 0"]),
        ({"WINDOW": "7:9"}, []),
    ],
)
def test_a_unit_has_the_number_of_its_step(constants: dict[str, Any], expected: list[str]) -> None:
    worker, written = engine(MARKERS, **constants)
    rollout(worker, 5)
    rollout(worker, 5, done=("a",), name="b")
    worker.iterate(batch({}, done=("b",)), "")
    assert [line[:-2] for line in written if line.endswith("[")] == expected
    assert sorted(line[:-2] for line in written if line.endswith("]")) == sorted(expected)


def trained(unit: str, window: str, **update: Any) -> str:
    written: list[str] = []
    layers = (TorchRanges, TrainingMarkers)
    stage = Stage(layers=layers, parts=(Written,), UNIT=unit, WINDOW=window, written=written)
    with contextlib.suppress(Failed):
        stage.update(micros=2, **update)
    stage.update(micros=2)
    return nested(written)


STEP = "update-policy actor step 1"
MINI_0 = "mini-batch 0(micro-batch 0() micro-batch 1())"
MINI_1 = "mini-batch 1(micro-batch 2() micro-batch 3())"
UNCOUNTED = "uncounted()"


@pytest.mark.parametrize(
    ("unit", "window", "update", "expected"),
    [
        ("mini-batch", "0:", {}, f"{STEP}({MINI_0} {MINI_1} {UNCOUNTED})"),
        ("mini-batch", "0:2", {}, f"{STEP}({MINI_0} {MINI_1})"),
        ("mini-batch", "0:1", {}, f"{STEP}({MINI_0})"),
        ("mini-batch", "1:2", {}, f"{STEP}({MINI_1})"),
        ("mini-batch", "0:", {"minis": 1, "epochs": 2}, f"{STEP}({MINI_0} {UNCOUNTED} {MINI_1} {UNCOUNTED})"),
        # The range of a mini-batch that is going on begins with the window.
        (
            "micro-batch", "1:3", {},
            f"{STEP}(mini-batch 0(micro-batch 1() {UNCOUNTED}) mini-batch 1(micro-batch 2()))",
        ),
        ("mini-batch", "0:", {"fail": "micro 1.0"}, f"{STEP}({MINI_0} mini-batch 1(micro-batch 2()))"),
        ("mini-batch", "0:", {"fail": "step 0"}, f"{STEP}({MINI_0})"),
        ("mini-batch", "5:6", {}, ""),
    ],
)  # fmt: skip
def test_mini_batches_hold_their_micro_batches_whatever_is_counted(
    unit: str, window: str, update: dict[str, Any], expected: str
) -> None:
    assert trained(unit, window, **update) == expected


def model(*, fails: bool = False) -> Module:
    return DecoderLayer(Attention(fails=fails), Attention())


def windowed(**constants: Any) -> tuple[V1Worker, list[str]]:
    """An engine within decode step 3 of a window 3:5, and what was written until then: nothing."""
    worker, written = engine(MODULE_RANGES, WINDOW="3:5", **constants)
    rollout(worker, 2)
    assert Module.__call__ is CALL, "not before the window, nor in its warm-up"
    worker.iterate(batch({"a": 1}), "decode 3")
    return worker, written


MODULES = "Module/DecoderLayer(Module/Attention() Module/Attention())"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", MODULES),
        ("Decoder|Attention$", MODULES),
        ("Attn|tention", "Module/Attention() Module/Attention()"),
        ("^Decoder", "Module/DecoderLayer()"),
        ("^Layer", ""),
    ],
)
def test_modules_nest_and_a_pattern_chooses_among_them(pattern: str, expected: str) -> None:
    _, written = windowed(MODULES=pattern)
    assert model()(1, more=2) == 9
    assert nested(written) == expected


def test_a_window_holds_the_calls_of_its_units_and_leaves_nothing_behind() -> None:
    worker, written = windowed()
    model()(1)
    worker.iterate(batch({"a": 1}), "decode 4")
    model()(1)
    assert nested(written) == f"{MODULES} {MODULES}"
    worker.iterate(batch({"a": 1}), "decode 5")
    assert Module.__call__ is CALL
    assert model()(1) == 3
    assert len(written) == 12


@pytest.mark.parametrize(
    "end",
    [
        lambda worker: worker._rlpatch_stage("close", "the process ends"),
        lambda worker: worker._rlpatch_stage("close", "the framework's own profiler was called"),
        lambda worker: worker._rlpatch_stage("end_rollout", "sleep()"),
        lambda worker: worker._rlpatch_stage("nothing of that name"),
    ],
    ids=["exit", "another profiler", "sleep", "failure"],
)
def test_however_a_window_ends(end: Any) -> None:
    worker, _ = windowed()
    assert Module.__call__ is not CALL
    end(worker)
    assert Module.__call__ is CALL


def test_an_exception_passes_through_and_its_ranges_end() -> None:
    _, written = windowed()
    with pytest.raises(Failed):
        model(fails=True)(1)
    assert nested(written) == "Module/DecoderLayer(Module/Attention())"


def test_whoever_wraps_the_call_meanwhile_keeps_it_and_ours_only_passes_on() -> None:
    worker, written = windowed()
    ours = Module.__call__

    def theirs(module: Module, *args: Any, **kwargs: Any) -> int:
        return ours(module, *args, **kwargs)

    Module.__call__ = theirs  # type: ignore[assignment, method-assign]
    model()(1)
    worker._rlpatch_stage("end_rollout", "sleep()")
    assert Module.__call__ is theirs
    assert model()(1) == 3
    assert nested(written) == MODULES


def test_a_compiled_graph_holds_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    _, written = windowed()
    monkeypatch.setattr(sys.modules[__name__], "compiling", True)
    assert model()(1) == 3
    assert written == []


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({"reason": "no domains"}, "the trace has no module ranges: no domains"),
        ({"fails": True}, "no more module ranges, the run goes on"),
    ],
)
def test_without_ranges_the_window_is_recorded_all_the_same(
    constants: dict[str, Any], said: str, console: Console
) -> None:
    worker, written = windowed(**constants)
    assert model()(1) == 3
    (message,) = console.messages
    assert re.match(rf"rlpatch: \w+_dp0_rank0_\d+, {said}", message)
    assert Module.__call__ is CALL
    worker.iterate(batch({"a": 1}), "decode 4")
    worker.iterate(batch({"a": 1}), "decode 5")
    assert written == []
    assert [profiler.recorded for profiler in worker.made] == [{3: ["decode 3"], 4: ["decode 4"]}]


def test_markers_and_modules_together() -> None:
    worker, written = engine(MODULE_RANGES, MARKERS, WINDOW="3:4")
    rollout(worker, 3)
    model()(1)
    worker.iterate(batch({"a": 1}), "decode 4")
    assert nested(written) == f"rollout 0(decode 3({MODULES}))"
    assert Module.__call__ is CALL


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (lambda message, stream=None, domain="default": 7, ""),
        (lambda message, stream=None: 7, "torch_npu before 2.7"),
    ],
)
def test_torch_npu_tells_by_its_signature_whether_it_knows_domains(
    start: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    npu: Any = ModuleType("torch_npu")
    npu.npu = SimpleNamespace(mstx=SimpleNamespace(range_start=start, range_end=lambda *call: ended.append(call)))
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    ranges: Any = object.__new__(NpuRanges)
    assert ranges.domain_obstacle().startswith(reason)
    assert bool(ranges.domain_obstacle()) == bool(reason)
    handle = ranges.begin_range("decode 3")
    ranges.end_range(handle)
    if not reason:
        ranges.end_range(ranges.begin_range("Attention", "Module"), "Module")
    assert ended == [(7,), (7, "Module")][: 2 - bool(reason)]


def test_torch_has_ranges_of_its_own() -> None:
    ranges: Any = object.__new__(TorchRanges)
    assert ranges.domain_obstacle() == ""
    handle = ranges.begin_range("Attention", "Module")
    assert handle.enter_result == "Attention"
    ranges.end_range(handle, "Module")
