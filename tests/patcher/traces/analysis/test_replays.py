"""Replayed graphs get the operators, modules and shapes of their capture, and nothing where the two differ."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patcher.commands.reports import reporting
from patcher.messages.report import json_of
from patcher.traces import analysis, formats, page
from patcher.traces.analysis import replays
from patcher.traces.analysis.nested import HostThread, NestedRanges
from patcher.traces.analysis.replays import CapturedCall
from patcher.traces.analysis.segments import Split
from patcher.traces.model import RankProfile
from patcher.traces.rank_trace import RankTrace
from patcher.traces.trace_columns import UNKNOWN, CapturedLaunches, RangeColumns
from tests.patcher.traces.recorded import NO_CAPTURES, SHARED

KERNELS = ("ampere_gemm", "rms_norm_kernel", "Memcpy DtoD (Device -> Device)", "ampere_gemm")
"""What a graph of the model below holds: a matmul, a norm that copies, and a matmul."""

NAMED, BARE = True, False


def event(cat: str, name: str, begin: float, ns: float, *, tid: int = 9, **args: object) -> dict[str, Any]:
    pid = 0 if cat in ("kernel", "gpu_memcpy") else 4711
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": ns, "args": args}


def operator(name: str, begin: float, ns: float, dims: list[list[int]]) -> dict[str, Any]:
    args = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
    return event("cpu_op", name, begin, ns) | {"args": args}


def captured(size: int, begin: float, *, named: bool, kernels: Sequence[str] = KERNELS) -> list[dict[str, Any]]:
    """What kineto has of one graph: HIP names the kernel of a launch, CUDA does not."""
    calls = []
    for at, kernel in enumerate(kernels):
        copy = kernel.startswith("Memcpy")
        name = "cudaMemcpyAsync" if copy else "hipModuleLaunchKernel" if named else "cudaLaunchKernel"
        calls.append(event("cuda_runtime", name, begin + 12 + 10 * at, 2, correlation=int(begin) + at))
        if named and not copy:
            calls[-1]["args"]["kernel"] = kernel
    norm = [[size, 64], [size, 64], [64]]
    return [
        event("python_function", "nn.Module: Model_0", begin - 5, 110),
        event("cuda_runtime", "cudaStreamBeginCapture", begin, 1, correlation=int(begin) + 90),
        event("python_function", "nn.Module: Layer_0", begin + 5, 80),
        operator("aten::linear", begin + 9, 9, [[size, 64], [32, 64]]),
        operator("aten::mm", begin + 10, 7, [[size, 64], [64, 32]]),
        operator("_C::rms_norm", begin + 20, 18, norm),
        operator("aten::mm", begin + 40, 9, [[size, 32], [32, 64]]),
        *calls,
        event("cuda_runtime", "cudaStreamEndCapture", begin + 95, 1, correlation=int(begin) + 91),
        # What is launched behind it runs, and is no part of any graph.
        event("cuda_runtime", "cudaLaunchKernel", begin + 97, 1, correlation=int(begin) + 92),
    ]


def replayed(number: int, tokens: int, *, kernels: Sequence[str] = KERNELS, graphs: int = 1) -> list[dict[str, Any]]:
    begin = 1000.0 * number
    found = [event("user_annotation", f"execute_context_0(0)_generation_{tokens}({tokens})", begin, 900)]
    for graph in range(graphs):
        launch, key = begin + 100 * graph + 10, number * 10 + graph
        found.append(event("cuda_runtime", "cudaGraphLaunch", launch, 5, correlation=key))
        for at, kernel in enumerate(kernels):
            cat = "gpu_memcpy" if kernel.startswith("Memcpy") else "kernel"
            times = (launch + 20 + 10 * at, 8)
            found.append(event(cat, kernel, *times, tid=7, device=0, stream=7, correlation=key))
    return found


def written(file: Path, *events: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    file.write_text(json.dumps({**header, "traceEvents": [one for some in events for one in some]}))
    return file


def report(folder: Path, captures: list[list[dict[str, Any]]], *units: list[dict[str, Any]]) -> Any:
    written(folder / "node_graph_capture_dp0_rank0_7.1.pt.trace.json", *captures)
    written(folder / "a_node_dp0_rank0_7.2.pt.trace.json", *units)
    return reporting.report([folder], reporting.ReadOptions())


def profile(result: Any) -> RankProfile:
    found: RankProfile = next(one for one in result.data.captures if one.stage == "rollout")
    return found


def told(found: RankProfile) -> dict[str, tuple[int, int, int]]:
    return {one.name: (one.calls, one.kernels, one.ns) for one in found.operators}


@pytest.mark.parametrize("named", [NAMED, BARE])
def test_a_replay_has_the_operators_modules_and_shapes_of_its_capture(tmp_path: Path, named: bool) -> None:
    """Three tokens are padded to four; the graph for eight is another one."""
    captures = [captured(8, 5000, named=named), captured(4, 6000, named=named)]
    result = report(tmp_path, captures, replayed(1, 3), replayed(2, 4))
    found = profile(result)
    assert json_of(found.replays) == {"count": 2, "joined": 2, "why": []}
    assert told(found) == {"aten::mm": (4, 4, 32_000), "_C::rms_norm": (2, 4, 32_000)}
    # Model is around the capture, and so would be around each replay.
    modules = [(one.name, one.calls, one.kernels, one.ns) for one in found.modules]
    assert modules == [("Layer", 2, 8, 64_000), ("Model", 1, 8, 64_000)]
    assert sorted((one.operator, one.shapes[0], one.calls, one.ns) for one in found.rates) == [
        ("_C::rms_norm", (4, 64), 2, 32_000), ("aten::mm", (4, 32), 2, 16_000), ("aten::mm", (4, 64), 2, 16_000),
    ]  # fmt: skip
    shown = "2 of 2 graph replays were matched with the operators, modules and shapes of their capture"
    assert shown in " ".join(" ".join(result.lines).split())
    assert f"{shown}." in page.page(result.data)


def test_what_launches_a_replay_has_none_of_its_kernels(tmp_path: Path) -> None:
    """But those of a replay that differs from its capture, whose operators nobody knows."""
    around = [operator("vllm::replay", 1005, 30, [[4, 64]]), event("python_function", "nn.Module: Runner_0", 1003, 40)]
    joined = profile(report(tmp_path / "joined", [captured(4, 5000, named=NAMED)], [*replayed(1, 4), *around]))
    assert told(joined) == {"aten::mm": (2, 2, 16_000), "_C::rms_norm": (1, 2, 16_000), "vllm::replay": (1, 0, 0)}
    modules = [(one.name, one.calls, one.kernels, one.ns) for one in joined.modules]
    assert modules == [("Layer", 1, 4, 32_000), ("Model", 1, 4, 32_000), ("Runner", 1, 0, 0)]
    other = profile(
        report(tmp_path / "other", [captured(4, 5000, named=NAMED)], [*replayed(1, 4, kernels=KERNELS[1:]), *around])
    )
    assert told(other) == {"vllm::replay": (1, 3, 24_000)}
    assert [(one.name, one.kernels) for one in other.modules] == [("Runner", 3)]


def test_pieces_of_one_size_are_joined_in_their_order(tmp_path: Path) -> None:
    bare = captured(4, 5500, named=BARE, kernels=KERNELS[2:3])  # what replays one kernel looks like any other launch
    unknown = [one for one in captured(4, 6000, named=BARE) if one["cat"] != "cpu_op"]
    pieces = [captured(4, 5000, named=BARE), bare, unknown]
    whole = [captured(8, 7000, named=BARE), captured(4, 8000, named=BARE, kernels=KERNELS[:3])]
    found = profile(report(tmp_path, [*pieces, *whole], replayed(1, 4, graphs=2), replayed(2, 4, kernels=KERNELS[:3])))
    assert json_of(found.replays) == {"count": 3, "joined": 3, "why": []}
    assert told(found) == {"aten::mm": (3, 3, 24_000), "_C::rms_norm": (2, 4, 32_000)}


@pytest.mark.parametrize(
    ("captures", "unit", "why"),
    [
        ([captured(4, 5000, named=BARE)], replayed(1, 8), "a step has more tokens than fit into the largest captured graph, or the number of tokens in the step is unknown"),
        (
            [captured(4, 5000, named=BARE)], replayed(1, 4, kernels=KERNELS[1:]),
            "a replayed graph has 3 kernels, but 4 were captured",
        ),
        (
            [captured(4, 5000, named=BARE)], replayed(1, 4, graphs=2),
            "a step replays 2 graphs, but 1 graphs of its batch size were captured",
        ),
        (
            [captured(4, 5000, named=NAMED)], replayed(1, 4, kernels=(KERNELS[1], KERNELS[0], *KERNELS[2:])),
            "the kernels of a graph replay differ from those recorded at capture, or come in another order",
        ),
        (
            [captured(4, 5000, named=BARE)], replayed(1, 4, kernels=(*KERNELS[:2], KERNELS[3], KERNELS[2])),
            "the kernels of a graph replay differ from those recorded at capture, or come in another order",
        ),
    ],
)  # fmt: skip
def test_what_differs_is_not_joined_and_that_is_said(
    tmp_path: Path, captures: list[list[dict[str, Any]]], unit: list[dict[str, Any]], why: str
) -> None:
    result = report(tmp_path, captures, unit)
    found = profile(result)
    assert found.replays is not None
    assert (found.replays.joined, found.replays.why) == (0, (why,))
    assert (found.operators, found.modules, found.rates) == ((), (), ())
    assert f"not matched with a capture: {why}" in " ".join(" ".join(result.lines).split())


def test_kernels_that_overlap_are_joined_by_their_names_alone(tmp_path: Path) -> None:
    unit = replayed(1, 4)
    unit[3]["dur"] = 15
    bare, named = (
        profile(report(tmp_path / str(own), [captured(4, 5000, named=own)], unit)).replays for own in (BARE, NAMED)
    )
    assert bare is not None
    assert named is not None
    assert (bare.joined, named.joined) == (0, 1)
    assert bare.why == (
        "the captured kernels have no names, and the kernels of a replay overlap, so rlpatch cannot match captured and replayed kernels by name or by order",
    )


@pytest.mark.parametrize("dims", ["[" * 1990, "[[], [[4]], 7, [true, 2]]", '{"a": 1}', "[[4.5, 2]]"])
def test_shapes_that_nobody_can_read_tell_no_size(tmp_path: Path, dims: str) -> None:
    graph = captured(4, 5000, named=BARE)
    written(tmp_path / "graph_capture.json", graph)
    (found,) = formats.read(tmp_path / "graph_capture.json")
    found.shapes = {number: (dims, *others) for number, (_, *others) in found.shapes.items()}
    assert found.shapes
    assert analysis.captured_sets(found) == ()


def test_a_captured_launch_has_the_operator_and_the_modules_around_it() -> None:
    operators, modules = RangeColumns(), RangeColumns()
    for begin, end, name in ((10, 30, 0), (15, 20, 1)):
        operators.add(begin, end, name)
    for begin, end, name in ((0, 99, 2), (10, 18, 3)):
        modules.add(begin, end, name)
    launches = CapturedLaunches(1, 5)
    for time, kernel, copies in ((16, 4, False), (18, UNKNOWN, True), (40, UNKNOWN, False)):
        launches.add(time, kernel, copy=copies)
    trace: Any = SimpleNamespace(
        names=SimpleNamespace(texts=["aten::linear", "aten::mm", "Model", "Linear", "gemm"]), shapes={1: ("[[4, 8]]",)}
    )
    around = HostThread(NestedRanges(operators), NestedRanges(modules))
    inner, outer, matmul = ("Linear", 10), ("Model", UNKNOWN), ("aten::mm", "[[4, 8]]")
    first, second, third = replays._captured_calls(trace, around, launches)
    assert (first.kernel, first.copy, first.operator, first.call, {*first.modules}) == (
        "gemm",
        False,
        matmul,
        15,
        {inner, outer},
    )
    assert second == CapturedCall("", True, matmul, 15, (outer,))
    assert third == CapturedCall("", False, (), UNKNOWN, (outer,))


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        ([[[4, 64]], [[4, 32]], [[8, 64]]], 4), ([[[4, 64]], [[8, 64]]], 8), ([[[64], [8, 2]]], 8), ([[], [[64]]], None),
        ([None, [[4, 64]]], 4), ([], None),
    ],
)  # fmt: skip
def test_the_size_of_a_graph_is_that_of_most_operators(shapes: list[Any], size: int | None) -> None:
    graph = [
        CapturedCall("", False, ("mm",) if dims is None else ("mm", json.dumps(dims)), at, ())
        for at, dims in enumerate(shapes)
    ]
    assert replays._batch_size([*graph, *graph]) == size


def test_operators_of_a_replay_are_told_apart_by_name_and_by_inputs_if_these_are_known() -> None:
    trace = RankTrace("a", "torch")
    operators = [("aten::mm",), ("aten::add",), ("aten::add",), ("aten::add", "[[4]]"), ("aten::add", "[[8]]")]
    for at in range(5):
        trace.add_task(10 * at, 10 * at + 5 + at, "compute", "k", "stream 7", 1)
    joined = replays.Replays(trace)
    joined.add_replay(range(5), [CapturedCall("k", False, operator, at, ()) for at, operator in enumerate(operators)])
    assert {
        (trace.names.texts[name], trace.shapes.get(name)): tuple(row[:3]) for name, row in joined.operators.items()
    } == {
        ("aten::mm", None): (1, 1, 5), ("aten::add", None): (2, 2, 13), ("aten::add", ("[[4]]",)): (1, 1, 8),
        ("aten::add", ("[[8]]",)): (1, 1, 9),
    }  # fmt: skip


def test_without_a_capture_nothing_is_said_of_replays(tmp_path: Path) -> None:
    assert profile(report(tmp_path, [], replayed(1, 4))).replays is None


PUBLIC = SHARED / "gpu" / "tracelens-inference"
TOLD: dict[str, dict[str, tuple[int, float]]] = {
    "vllm_decode_full": {
        "vllm::moe_forward": (24, 7171.532), "aten::addmm": (72, 953.878), "SortTokens": (24, 375.118),
        "vllm::unified_attention_with_output": (24, 724.361), "aiter::rmsnorm2d_fwd_with_add_ck": (48, 326.038),
        "triton_poi_fused__to_copy_1": (23, 292.374), "aten::mm": (1, 276.678), "aten::copy_": (10, 45.149),
    },
    "vllm_prefilldecode_piecewise": {
        "vllm::moe_forward": (24, 124885.786), "aten::addmm": (72, 17301.817), "SortTokens": (24, 431.372),
        "vllm::unified_attention_with_output": (24, 5146.907), "aiter::rmsnorm2d_fwd_with_add_ck": (48, 3367.738),
        "triton_poi_fused__to_copy_1": (23, 435.696), "aten::mm": (1, 346.637), "aten::copy_": (11, 79.196),
    },
    "sglang_decode": {
        "aten::mm": (145, 5782.254), "aiter::add_rmsnorm": (72, 346.842), "aiter::rmsnorm": (73, 337.122),
        "sgl_kernel::silu_and_mul": (36, 324.367), "sglang::store_cache": (36, 173.543), "aten::argmax": (1, 53.840),
    },
}  # fmt: skip
"""Trace of TraceLens → operator → its calls, and the µs of the kernels that it launched, as TraceLens publishes them."""


@pytest.mark.parametrize("name", TOLD)
def test_the_operators_of_public_replays_are_those_that_tracelens_finds(name: str) -> None:
    if not (PUBLIC / name / "capture_traces").is_dir():
        pytest.skip(NO_CAPTURES)
    result = reporting.report([PUBLIC / name], reporting.ReadOptions())
    (found,) = (one for one in result.data.captures if one.replays is not None)
    assert found.replays.joined == found.replays.count == (25 if "piecewise" in name else 1)
    own = {one.name: (one.calls, one.ns / 1000) for one in found.operators}
    for operator, (calls, us) in TOLD[name].items():
        assert own[operator] == (calls, pytest.approx(us, abs=0.001 * calls + 0.001))


@pytest.mark.parametrize("chosen", [{0}, {1}, {0, 1}, set()])
def test_tasks_of_one_launch_in_a_chosen_segment_are_a_replay(chosen: set[int]) -> None:
    """Launches in the order of their calls; without a key in common, tasks are none, nor is a single one."""
    tasks = (
        (0, 5),
        (0, 4),
        (0, 5),
        (0, UNKNOWN),
        (0, UNKNOWN),
        (0, 6),
        (1, 5),
        (1, 5),
        (0, 4),
        (UNKNOWN, 8),
        (UNKNOWN, 8),
    )
    trace = RankTrace("a", "torch")
    times = {4: 10, 5: 20, 6: 1, 8: 2, UNKNOWN: 0}
    columns = SimpleNamespace(key=[key for _, key in tasks], enqueued=[times[key] for _, key in tasks])
    trace.tasks = columns  # type: ignore[assignment]
    cuts = Split("", [], array("i", [segment for segment, _ in tasks]), range(len(tasks)))
    expected = {0: [[1, 8], [0, 2]], 1: [[6, 7]]}
    assert replays._replays(trace, cuts, chosen) == {at: expected[at] for at in chosen}


@pytest.mark.parametrize(
    ("tokens", "kernels", "joined"), [(3, 2, 1), (4, 2, 1), (5, 3, 1), (8, 3, 1), (9, 2, 0), (None, 2, 0), (3, 3, 0), (5, 2, 0)]
)  # fmt: skip
def test_a_replay_is_compared_with_the_smallest_graph_that_holds_its_tokens(
    tokens: int | None, kernels: int, joined: int
) -> None:
    """Graphs for four and eight tokens have two and three kernels."""
    trace = RankTrace("a", "torch")
    for at in range(kernels):
        trace.add_task(10 * at, 10 * at + 5, "compute", "k", "stream 7", 1)
    cuts = Split("", [], array("i", [0] * kernels), range(kernels))
    calls = [CapturedCall("k", False, (), UNKNOWN, ()) for _ in range(3)]
    captured = [replays.CapturedSet(8, (tuple(calls),)), replays.CapturedSet(4, (tuple(calls[:2]),))]
    found = replays.join_replays(trace, cuts, {0}, {0: tokens}, captured)
    assert (found.count, found.joined, len(found.tasks), sum(found.why.values())) == (
        1,
        joined,
        kernels * joined,
        1 - joined,
    )
    assert replays.join_replays(trace, cuts, {0}, {0: tokens}, []).result is None


@pytest.mark.parametrize(
    ("names", "end", "matched"),
    [
        (("a", "b"), 20, True),
        (("", ""), 10, True),
        (("", ""), 11, False),
        (("a", ""), 11, False),
        (("a", "c"), 10, False),
    ],
)
def test_captured_kernels_without_names_are_matched_if_none_overlap(
    names: tuple[str, str], end: int, matched: bool
) -> None:
    trace = RankTrace("a", "torch")
    for name, begin, until in (("a", 0, end), ("b", 10, 30)):
        trace.add_task(begin, until, "compute", name, "stream 7", 5)
    graph = [CapturedCall(name, False, (), UNKNOWN, ()) for name in names]
    assert (replays._why_unmatched(trace, [[0, 1]], [graph]) == "") == matched


@pytest.mark.parametrize(("length", "captures"), [(189, True), (191, False)])
def test_steps_that_mostly_capture_graphs_are_said_to(tmp_path: Path, length: int, captures: bool) -> None:
    """The capture takes 95 µs, and the only kernel runs after it."""
    kernel = event("kernel", "gemm", 5098, 5, tid=7, device=0, stream=7, correlation=5092)
    mark = event("user_annotation", "ProfilerStep#4", 4995, length)
    found = reporting.report(
        [written(tmp_path / "a.json", captured(4, 5000, named=BARE), [kernel, mark])], reporting.ReadOptions()
    )
    title = found.data.verdict.title
    assert title.startswith("Most of the time, the host captures graphs: 50 %") == captures
