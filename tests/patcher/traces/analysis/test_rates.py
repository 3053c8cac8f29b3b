"""Operators of GPUs against the roofline of their device."""

from __future__ import annotations

import gzip
import json
import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports import first_screen, reporting
from patcher.messages.report import json_of
from patcher.traces import analysis, page
from patcher.traces.analysis.devices import DEVICES, device_of
from patcher.traces.analysis.rates import rates_by_operator, unaligned_size
from patcher.traces.formats import torch
from patcher.traces.measured import COVERED, OperatorRate, rate_words
from patcher.traces.model import Kernel, RankProfile, RecordedUnit
from tests.patcher.traces.recorded import MS, SHARED, Range, Run, Task, shared

HALF = '["c10::BFloat16", "c10::BFloat16"]'
LARGE, NARROW = "[[8192, 8192], [8192, 8192]]", "[[8, 8192], [8192, 8192]]"
FLOPS = 2 * 8192**3


@pytest.mark.parametrize(
    ("name", "half", "tb_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4, 3.35), ("NVIDIA H100 PCIe", 756, 2.0), ("NVIDIA H100 NVL", 835, 3.9),
        ("NVIDIA H800", None, None), ("NVIDIA H200", 989.4, 4.8), ("NVIDIA H20", 148, 4.0), ("NVIDIA B200", 2250, 8.0),
        ("NVIDIA A100-SXM4-80GB", 312, 2.039), ("NVIDIA A100 80GB PCIe", 312, 1.935), ("NVIDIA A100-PG509-200", 312, 1.555),
        ("NVIDIA A800-SXM4-80GB", 312, 2.039), ("Tesla V100-SXM2-16GB", 125, 0.9), ("NVIDIA L40S", 362, 0.864),
        ("AMD Instinct MI300X VF", 1307.4, 5.3), ("AMD Instinct MI325X", 1307.4, 6.0), ("NVIDIA GB200", None, None),
        ("NVIDIA GeForce RTX 4090", None, None), ("", None, None), ("CPU", None, None),
    ],
)  # fmt: skip
def test_a_device_is_known_by_its_name(name: str, half: float | None, tb_per_s: float | None) -> None:
    found = device_of(name)
    assert (found and found.half, found and found.tb_per_s) == (half, tb_per_s)


def test_every_device_has_its_source_and_is_reached() -> None:
    assert all(one.source and one.tb_per_s < 10 and one.half > one.single for one in DEVICES)
    assert len({one.pattern for one in DEVICES}) == len(DEVICES)


@pytest.mark.parametrize(
    ("shapes", "types", "bound", "least_us"),
    [
        (LARGE, HALF, "compute", FLOPS / 989.4e6),
        (NARROW, HALF, "memory", 2 * (8 * 8192 * 2 + 8192**2) / 3.35e6),
        (LARGE, '["float", "float"]', "compute", FLOPS / 494.7e6),
        (LARGE, '["double", "double"]', None, None),
    ],
)
def test_the_roofline_is_the_later_of_compute_and_memory(
    shapes: str, types: str, bound: str | None, least_us: float | None
) -> None:
    rows: dict[tuple[str, ...], tuple[int, ...]] = {("aten::mm", shapes, types): (3, 3, 9_000_000, 0)}
    (one,) = rates_by_operator(rows, "NVIDIA H100 80GB HBM3")
    assert (one.bound, one.least_ns) == (bound, least_us and pytest.approx(3000 * least_us, abs=1))
    assert one.tflops == pytest.approx(3 * one.flops / 9e9)
    assert one.share == (least_us and pytest.approx(least_us / 3000, abs=1e-6))


def test_calls_on_the_host_and_of_unknown_work_do_not_count() -> None:
    rows: dict[tuple[str, ...], tuple[int, ...]] = {
        ("aten::mm", LARGE, HALF): (9, 6, 12_000_000, 0), ("aten::mm", NARROW, HALF): (9, 0, 0, 5),
        ("aten::mm", "[[1]]", HALF): (1, 1, 50, 5), ("aten::add", "[[4]]", '["float"]'): (2, 4, 50, 0),
    }  # fmt: skip
    assert [(one.operator, one.calls, one.ns, one.bound) for one in rates_by_operator(rows, "a device that nobody knows")] == [
        ("aten::mm", 6, 12_000_000, None), ("aten::add", 2, 50, None),
    ]  # fmt: skip


def product(
    first: tuple[int, ...], second: tuple[int, ...], ns: int, operator: str = "aten::mm", kind: str = "c10::BFloat16"
) -> OperatorRate:
    inner = (first[-1],) if operator == "aten::linear" else second[:1]
    shapes = ((second[-1],), first, second) if operator == "aten::addmm" else (first, second)
    flops = 2 * math.prod(first) * math.prod(second) // math.prod(inner)
    return OperatorRate(operator, shapes, (kind,) * len(shapes), 1, 1, ns, flops, 1, None, None)


BODY = product((4096, 1024), (1024, 4096), 50)
BACKWARD = product((4096, 5001), (5001, 1024), 90), product((5001, 4096), (4096, 1024), 90)
UNALIGNED: dict[str, tuple[list[OperatorRate], int, tuple[int, int, str] | None]] = {
    "a head": ([BODY, product((4096, 1024), (1024, 5001), 90)], 200, (5001, 90, "aten::mm")),
    "a head and its backward": ([BODY, product((4096, 1024), (1024, 5001), 90), *BACKWARD], 400, (5001, 270, "aten::mm")),
    "with a bias": ([BODY, product((4096, 1024), (1024, 5001), 90, "aten::addmm", "c10::Half")], 200, (5001, 90, "aten::addmm")),
    "linear": ([BODY, product((4, 1024, 1024), (5001, 1024), 90, "aten::linear")], 200, (5001, 90, "aten::linear")),
    "a fifth": ([BODY, product((4096, 1024), (1024, 5001), 90)], 450, (5001, 90, "aten::mm")),
    "less than a fifth": ([BODY, product((4096, 1024), (1024, 5001), 90)], 451, None),
    "tokens": ([BODY, product((5001, 1024), (1024, 4096), 90), product((1024, 5001), (5001, 4096), 90)], 200, None),
    "an aligned size": ([BODY, product((4096, 1024), (1024, 5000), 90)], 200, None),
    "single precision": ([BODY, product((4096, 1024), (1024, 5001), 90, kind="float")], 200, None),
    "as fast as others": ([BODY, product((4096, 1024), (1024, 5001), 70)], 200, None),
    "no other products": ([product((4096, 1024), (1024, 5001), 90)], 200, None),
    "a small size": ([BODY, product((4096, 1024), (1024, 63), 90)], 200, None),
    "an operator that is no product": ([BODY, replace(product((4096, 1024), (1024, 5001), 90), operator="aten::add")], 200, None),
    "nothing": ([], 200, None),
}  # fmt: skip


@pytest.mark.parametrize("name", UNALIGNED)
def test_a_size_of_a_weight_that_is_no_multiple_of_8_is_found(name: str) -> None:
    rates, whole, size = UNALIGNED[name]
    kernels = (Kernel("gemm", "compute", 9, whole), Kernel("Memcpy", "copy", 9, 10 * whole))
    found = unaligned_size(RankProfile("a", "torch", 0, "H100", (), rates=tuple(rates), kernels=kernels))
    assert found == size


@pytest.mark.parametrize("norms", [89, 90])
def test_products_of_an_unaligned_size_are_in_the_headline_and_padded_unless_elementwise_kernels_take_longer(
    norms: int,
) -> None:
    unit = RecordedUnit(number=0, host_ns=300 * MS, kernels=9, compute_ns=300 * MS)
    kernels = (Kernel("gemm", "compute", 9, 200 * MS), Kernel("rms_norm", "compute", 9, norms * MS))
    rates = [replace(rate, ns=rate.ns * MS) for rate in (BODY, product((4096, 1024), (1024, 5001), 90))]
    profile = RankProfile("a", "torch", 0, "H100", (unit,), rates=tuple(rates), kernels=kernels)
    text = " ".join(" ".join(first_screen.first_screen(analysis.reported([profile]))).split())
    assert "; matmuls (aten::mm) with a size of 5,001, no multiple of 8: 90.00 ms (30 %) 1 trace" in text
    assert ("pad the size 5,001 to a multiple of 64 or 128, such as 5,120" in text) == (norms == 89)


def recorded(
    folder: Path, shapes: Sequence[str], device: str = "NVIDIA H100 80GB HBM3", *, indent: int | None = None
) -> Path:
    """A step of matmuls of these shapes, each 2 ms on the device, called from a linear without any."""
    ms = 1_000_000
    tasks = tuple(Task(at * 2 * ms + 10, at * 2 * ms + 10 + 2 * ms, launch=at * 10 + 5) for at in range(len(shapes)))
    calls = tuple(Range("aten::mm", at * 10 + 4, at * 10 + 8) for at in range(len(shapes)))
    run = Run(tasks, (Range("ProfilerStep#1", 0, 5000),), (Range("aten::linear", 3, 4000), *calls))
    file = folder / "run.json"
    content = json.loads(run.torch(file).read_text(), parse_float=str)
    matmuls = [event for event in content["traceEvents"] if event["name"] == "aten::mm"]
    for event, own in zip(matmuls, shapes, strict=True):
        event["args"] |= {"Input Dims": json.loads(own), "Input type": json.loads(HALF)} if own else {}
    content["deviceProperties"][0]["name"] = device
    file.write_text(re.sub(r'"((?:ts|dur)": )"([\d.]+)"', r'"\1\2', json.dumps(content, indent=indent)))
    return file


def reported(path: Path) -> RankProfile:
    (found,) = reporting.report([path], reporting.ReadOptions()).data.captures
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("indent", [None, 2])
def test_operators_are_told_apart_by_their_shapes(tmp_path: Path, indent: int | None) -> None:
    found = reported(recorded(tmp_path, [LARGE, NARROW, LARGE, ""], indent=indent))
    assert [(one.shapes, one.types, one.calls, one.ns) for one in found.rates] == [
        (((8192, 8192), (8192, 8192)), ("c10::BFloat16", "c10::BFloat16"), 2, 4_000_000),
        (((8, 8192), (8192, 8192)), ("c10::BFloat16", "c10::BFloat16"), 1, 2_000_000),
    ]
    assert [(one.name, one.calls, one.kernels, one.ns) for one in found.operators] == [
        ("aten::mm", 4, 4, 8_000_000), ("aten::linear", 1, 0, 0),
    ]  # fmt: skip


def test_more_shapes_than_are_kept_go_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "MOST_SHAPES", 1)
    found = reported(recorded(tmp_path, [LARGE, NARROW, LARGE]))
    assert [one.calls for one in found.rates] == [2]
    assert [(one.name, one.calls) for one in found.operators] == [("aten::mm", 3), ("aten::linear", 1)]


def test_json_page_and_terminal_have_them(tmp_path: Path) -> None:
    result = reporting.report([recorded(tmp_path, [LARGE, NARROW])], reporting.ReadOptions())
    (capture,) = json_of(result.data)["captures"]
    first, second = sorted(capture["rates"], key=lambda one: -one["flops"])
    assert first | {"least_ns": 0, "share": 0} == {
        "operator": "aten::mm", "shapes": [[8192, 8192], [8192, 8192]], "types": ["c10::BFloat16"] * 2, "calls": 1,
        "kernels": 1, "ns": 2_000_000, "flops": FLOPS, "bytes": 3 * 2 * 8192**2, "least_ns": 0, "bound": "compute",
        "tflops": round(FLOPS / 2e9, 3), "tb_per_s": round(6 * 8192**2 / 2e9, 4), "share": 0,
    }  # fmt: skip
    assert second["bound"] == "memory"
    said = " ".join(line.strip() for line in result.lines)
    assert "matmul and attention, 100.0 % of the kernel time: 275 TFLOPS, 29 % of the roofline" in said
    text = page.page(result.data).partition("<h2>Operators by shape</h2>")[2].partition("</table>")[0]
    for shown in ("8192×8192, 8192×8192", "BFloat16", "549.8", "55.6 %", "memory"):
        assert f">{shown}</td>" in text
    other = reporting.report([recorded(tmp_path, [LARGE], "Fancy \x1b[31m GPU")], reporting.ReadOptions())
    said = " ".join(line.strip() for line in other.lines)
    assert "matmul and attention, 100.0 % of the kernel time: 550 TFLOPS, no roofline known for Fancy ?[31m GPU" in said
    assert "of the roofline</button>" not in page.page(other.data)


def test_what_is_above_the_roofline_is_a_number_of_the_finding(tmp_path: Path) -> None:
    (found,) = reporting.report([recorded(tmp_path, [LARGE, LARGE])], reporting.ReadOptions()).data.findings
    less = 4 - 2 * FLOPS / 989.4e9
    assert found.evidence.endswith(f"(100.0 % of the kernel time) would take {less:.2f} ms less per step.")
    (found,) = reporting.report([recorded(tmp_path, [LARGE, LARGE], "other")], reporting.ReadOptions()).data.findings
    assert "roofline" not in found.evidence


def test_attention_is_told_apart_by_its_values(tmp_path: Path) -> None:
    """Of the same shapes one call is causal, and the other is not."""
    file = recorded(tmp_path, [LARGE, LARGE])
    content = json.loads(file.read_text(), parse_float=str)
    calls = [event for event in content["traceEvents"] if event["name"] == "aten::mm"]
    query = [[2, 64, 8, 16]] * 3 + [[]] * 6
    for event, causal in zip(calls, ("True", "False"), strict=True):
        values = ["", "", "", "", "", "64", "64", "0.", causal]
        event["name"] = "aten::_flash_attention_forward"
        event["args"] |= {"Input Dims": query, "Input type": [*["c10::Half"] * 3, *[""] * 6], "Concrete Inputs": values}
    file.write_text(re.sub(r'"((?:ts|dur)": )"([\d.]+)"', r'"\1\2', json.dumps(content)))
    pairs = sorted(one.flops // (2 * 2 * 8 * 32) for one in reported(file).rates)
    assert pairs == [64 * 65 // 2, 64 * 64]


@shared
def test_the_attention_of_a_real_trace() -> None:
    (one,) = (
        rate for rate in reported(SHARED / "gpu" / "tracelens-mi300-qwen.json.gz").rates if "attention" in rate.operator
    )
    # 24 layers, causal, 16 sequences of 559 tokens with 16 heads of 64
    assert (one.calls, one.flops) == (24, 2 * (559 * 560 // 2) * 16 * 16 * (64 + 64))
    assert one.tflops == pytest.approx(24 * one.flops / one.ns / 1000)


@shared
@pytest.mark.parametrize(
    ("name", "device"),
    [("tracelens-mi300-qwen", "MI300X"), pytest.param("hta-trace_diff-test", "V100", marks=pytest.mark.matrix)],
)
def test_the_rates_of_real_matmuls_are_those_of_their_rows(name: str, device: str) -> None:
    """By the whole JSON: the kernels whose launch lies within a call, and the products of its shapes."""
    file = SHARED / "gpu" / f"{name}.json.gz"
    events = [one for one in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    marks = [
        one for one in events if str(one["name"]).startswith("ProfilerStep") and one.get("cat") == "user_annotation"
    ]
    launches: dict[Any, list[tuple[float, int]]] = defaultdict(list)
    kernels = {one["args"]["correlation"]: one["dur"] for one in events if one.get("cat") == "kernel"}
    for one in events:
        if str(one.get("cat")) == "cuda_runtime" and one["args"].get("correlation") in kernels:
            launches[one["tid"]].append((one["ts"], one["args"]["correlation"]))
    for calls in launches.values():
        calls.sort()
    times: dict[object, float] = defaultdict(float)
    works: dict[object, int] = defaultdict(int)
    for one in events:
        if one["name"] == "aten::mm" and any(mark["ts"] <= one["ts"] < mark["ts"] + mark["dur"] for mark in marks):
            inside = slice(*(bisect_left(launches[one["tid"]], (ts, 0)) for ts in (one["ts"], one["ts"] + one["dur"])))
            own = [kernels[at] for _, at in launches[one["tid"]][inside]]
            (rows, inner), (_, columns) = one["args"]["Input Dims"]
            times[rows, inner, columns] += sum(own) * 1000
            works[rows, inner, columns] += 2 * rows * inner * columns * bool(own)
    profile, found = reported(file), {}
    for one in profile.rates:
        if one.operator == "aten::mm":
            (rows, inner), (_, columns) = one.shapes
            found[rows, inner, columns] = one
    assert len(found) > 2
    for key, one in found.items():
        assert one.tflops == pytest.approx(works[key] / times[key] / 1e3, rel=0.02)
        assert one.share is not None
        assert 0 < one.share < 1.0
    assert device in profile.device
    assert replace(one, ns=2 * one.ns).share == pytest.approx(one.share / 2)


def test_a_rate_that_covers_little_is_told_on_the_page_alone() -> None:
    """``rate_words`` of the terminal leaves it out, that of the page says how much it covers."""
    rate = OperatorRate("aten::mm", (), (), 1, 1, MS, FLOPS, 1, None, None)
    assert list(rate_words([rate], "GPU", 4 * MS, COVERED)) == []
    (said,) = rate_words([rate], "GPU", 4 * MS)
    assert "25.0 % of the kernel time" in said
