"""The classes of work of a unit, on a device and on a host without one; they add up to the unit."""

from __future__ import annotations

from collections import Counter

import pytest

from patcher.traces import analysis
from patcher.traces.analysis import unit_classes
from patcher.traces.analysis.segments import Segment
from patcher.traces.model import RecordedUnit
from patcher.traces.operator_families import operator_family
from patcher.traces.sidecar import Metadata, UnitMetadata
from tests.patcher.traces.recorded import Range, Run, Task, timeline


def units(run: Run) -> tuple[RecordedUnit, ...]:
    return analysis.attributed(timeline(run)).profile.units


def two_units(*tasks: Task, operators: tuple[Range, ...] = ()) -> tuple[RecordedUnit, ...]:
    marks = (Range("ProfilerStep#1", 0, 1000), Range("ProfilerStep#2", 1000, 2000))
    return units(Run(tasks=tasks, marks=marks, operators=operators))


def test_kernels_divide_the_time_that_computes_and_what_is_idle_has_a_reason() -> None:
    first, last = two_units(
        Task(100, 200, name="gemm_bf16", launch=50),
        Task(200, 260, name="flash_fwd_kernel", launch=60),
        Task(300, 340, "communication", "AllReduce", stream=8, launch=70),  # 40 idle before it: launched long ago
        Task(340, 350, "copy", "Memcpy", stream=9, launch=80),
        Task(500, 600, name="gemm_bf16", launch=450),  # host-bound from 350 to 450, then launch latency
        Task(
            1300, 1400, name="gemm_bf16", launch=1200
        ),  # outside the forward pass from 600 to 1200, then launch latency
    )
    assert first.classes == {
        "gemm": 200, "attention": 60, "collective": 40, "copy": 10, "host-bound": 100 + 50 + 100,
        "outside-forward": 600, "other": 40,
    }  # fmt: skip
    assert sum(first.classes.values()) == first.device_ns
    assert last.classes == {"gemm": 100}


def test_kernels_that_overlap_share_the_time() -> None:
    first, _ = two_units(
        Task(100, 200, name="gemm_bf16", launch=50),
        Task(100, 400, name="flash_fwd_kernel", stream=8, launch=50),
        Task(1300, 1400, name="gemm_bf16", launch=1200),
    )
    computing = first.compute_ns + first.overlap_ns
    assert (first.classes["gemm"], first.classes["attention"]) == (computing // 4, computing * 3 // 4)


def test_a_host_without_a_device_is_divided_by_the_outermost_operators() -> None:
    operators = (
        Range("aten::empty", 10, 20),
        Range("aten::linear", 100, 200), Range("aten::addmm", 110, 190),
        Range("vllm::unified_attention", 250, 300),
        Range("aten::linear", 300, 400),
        Range("aten::argmax", 450, 500),
        Range("aten::copy_", 700, 750),
        Range("aten::linear", 1100, 1200),
    )  # fmt: skip
    first, last = two_units(operators=operators)
    assert first.classes == {
        "outside-forward": 100 + 500,
        "gemm": 200,
        "host-bound": 50,
        "attention": 50,
        "sampling": 100,
    }
    assert sum(first.classes.values()) == first.host_ns
    assert last.classes == {"outside-forward": 900, "gemm": 100}


@pytest.mark.parametrize(
    ("operators", "classes"),
    [
        ((), {"outside-forward": 1000}),
        ((Range("aten::mul", 100, 200), Range("aten::add", 300, 400)), {"elementwise": 200, "host-bound": 100, "outside-forward": 700}),
        ((Range("Torch-Compiled Region: 0/0", 0, 900), Range("aten::mm", 100, 800)), {"gemm": 700, "outside-forward": 300}),
        ((Range("aten::linear", 900, 1100),), {"outside-forward": 900, "gemm": 100}),
    ],
    ids=["no operator", "no matmul", "compiled", "an operator beyond the end"],
)  # fmt: skip
def test_a_host_with_odd_operators(operators: tuple[Range, ...], classes: dict[str, int]) -> None:
    (unit,) = units(Run(tasks=(), marks=(Range("ProfilerStep#1", 0, 1000),), operators=operators))
    assert unit.classes == classes


def test_a_step_has_the_operators_of_the_thread_with_its_mark() -> None:
    operators = (Range("aten::linear", 100, 300), Range("aten::mul", 400, 500, thread=2))
    trace = timeline(Run(tasks=(), marks=(Range("ProfilerStep#1", 0, 1000),), operators=operators))
    ((thread, mark),) = trace.marks
    trace.marks.insert(0, (1 - thread, mark._replace(family="execute_", begin=5, end=900)))
    (unit,) = analysis.attributed(trace).profile.units
    assert unit.classes == {"gemm": 200, "outside-forward": 800}


BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


@pytest.mark.parametrize(("sequences", "behind"), [(4, "elementwise"), (None, "sampling")])
def test_a_backward_is_told_by_what_it_calls_and_a_micro_batch_samples_nothing(
    sequences: int | None, behind: str
) -> None:
    operators = (
        Range("aten::mm", 100, 200), Range("aten::_softmax", 200, 250), Range("aten::mm", 250, 300),
        Range(BACKWARD, 300, 500), Range("MmBackward0", 310, 490), Range("aten::mm", 320, 480),
        Range("aten::_log_softmax", 500, 600),
    )  # fmt: skip
    trace = timeline(Run(tasks=(), marks=(Range("ProfilerStep#1", 0, 1000),), operators=operators))
    trace.metadata = Metadata(raw={}, units={1: UnitMetadata(sequences=sequences)})
    (unit,) = analysis.attributed(trace).profile.units
    elementwise = Counter({"elementwise": 50})
    elementwise[behind] += 120
    assert unit.classes == {"gemm": 310, "host-bound": 20, "outside-forward": 500, **elementwise}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("aten::linear", "gemm"), ("aten::_scaled_mm", "gemm"), ("onednn_mm", "gemm"), ("aten::bmm", "gemm"),
        ("aten::scaled_dot_product_attention", "attention"), ("_C::reshape_and_cache", "attention"),
        ("vllm::moe_forward", "moe"), ("aten::topk", "sampling"), ("aten::copy_", "copy"),
        ("c10d::allreduce_", "collective"), ("aten::silu", "elementwise"),
    ],
)  # fmt: skip
def test_operators_have_families(name: str, family: str) -> None:
    assert operator_family(name) == family


@pytest.mark.parametrize(
    ("total", "amounts", "parts"),
    [
        (100, {"a": 1}, {"a": 100}), (100, {"a": 1, "b": 3}, {"a": 25, "b": 75}), (10, {"a": 1, "b": 2}, {"a": 3, "b": 7}),
        (10, {"b": 2, "a": 1}, {"b": 7, "a": 3}), (100, {"a": 0}, {"a": 100}), (0, {"a": 5}, {"a": 0}),
    ],
)  # fmt: skip
def test_parts_in_proportion_add_up(total: int, amounts: dict[str, int], parts: dict[str, int]) -> None:
    assert unit_classes._divide_proportionally(total, Counter(amounts)) == parts


@pytest.mark.parametrize(
    ("late", "late_at_end", "classes"),
    [
        (30, 10, {"gemm": 40, "collective": 7, "copy": 3, "host-bound": 20 + 5 + 6, "outside-forward": 10, "other": 9}),
        (30, 0, {"gemm": 40, "collective": 7, "copy": 3, "host-bound": 41, "other": 9}),
        (30, 99, {"gemm": 40, "collective": 7, "copy": 3, "host-bound": 11, "outside-forward": 30, "other": 9}),
    ],
)
def test_host_bound_time_behind_the_last_kernel_is_outside_of_the_forward(
    late: int, late_at_end: int, classes: dict[str, int]
) -> None:
    unit = RecordedUnit(
        number=0, host_ns=200, kernels=1, compute_ns=30, overlap_ns=10, communication_ns=7, copy_ns=3,
        free_host_late_ns=late, free_latency_ns=5, free_blocked_ns=6, free_waiting_ns=9,
    )  # fmt: skip
    assert unit_classes._divide_device_time(unit, Counter({"gemm": 1}), late_at_end) == classes
    assert unit_classes._divide_device_time(unit, Counter(), late_at_end)["other"] == 49


@pytest.mark.parametrize(
    ("launch", "last", "ns"), [(60, 50, 10), (60, 60, 0), (60, 70, 0), (200, 50, 50), (60, 20, 20), (-1, 50, 0)]
)
def test_the_end_of_a_unit_is_late_from_its_last_kernel_to_the_next_launch(launch: int, last: int, ns: int) -> None:
    segment = Segment(0, 90, None, starts=40, ends=100, last=last)
    assert unit_classes._late_at_end(segment, {100: launch}) == ns


@pytest.mark.parametrize(
    ("families", "places"),
    [
        ("", (0, -1, -1)), ("e", (0, 0, 0)), ("eee", (0, 2, 2)), ("ege", (1, 1, 1)), ("gegese", (0, 2, 4)), ("sgs", (1, 1, 2)),
        ("gsses", (0, 0, 4)), ("egsg", (1, 3, 3)),
    ],
)  # fmt: skip
def test_the_forward_reaches_from_the_first_to_the_last_matmul(families: str, places: tuple[int, int, int]) -> None:
    words = {"e": "elementwise", "g": "gemm", "s": "sampling"}
    operators = [unit_classes.OutermostOperator(words[letter], at, at + 1) for at, letter in enumerate(families)]
    assert unit_classes._forward_bounds(operators) == places


def test_a_step_without_a_task_has_no_classes_beside_one_on_the_device() -> None:
    first, last = two_units(Task(100, 200, name="gemm_bf16", launch=50), operators=(Range("aten::linear", 1100, 1200),))
    assert (first.classes, last.classes) == ({"gemm": 100}, {})


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("Optimizer.step#SGD.step", {"optimizer": 80, "forward": 20}), ("AddmmBackward0", {"backward": 80, "forward": 20}), ("aten::add", {}),
    ],
)  # fmt: skip
def test_a_step_trains_if_it_has_a_backward_or_an_optimizer(name: str, phases: dict[str, int]) -> None:
    tasks = Task(100, 120, launch=10), Task(120, 200, launch=50)
    (first, _) = two_units(*tasks, operators=(Range("aten::linear", 5, 15), Range(name, 40, 60)))
    assert {phase: ns for phase, ns in first.phases.items() if ns} == phases
