"""The row of a device by the name that a trace has for it, and the least time of a call by its roofline."""

from __future__ import annotations

import pytest

from patcher.traces.analysis.devices import device_of
from patcher.traces.analysis.rates import _roofline_time

ROWS: dict[str, tuple[float, ...] | None] = {
    "NVIDIA H100 80GB HBM3": (989.4, 494.7, 1978.9, 3.35), "NVIDIA H800 SXM": (989.4, 494.7, 1978.9, 3.35), "NVIDIA H100 PCIe": (756, 378, 1513, 2), "NVIDIA H100 NVL": (835, 417.5, 1671, 3.9),
    "NVIDIA H200": (989.4, 494.7, 1978.9, 4.8), "NVIDIA H200 NVL": (835, 417.5, 1671, 4.8), "NVIDIA H20": (148, 74, 296, 4), "NVIDIA A100-SXM4-80GB": (312, 156, 0, 2.039),
    "NVIDIA A100 80GB PCIe": (312, 156, 0, 1.935), "NVIDIA A100-SXM4-40GB": (312, 156, 0, 1.555), "NVIDIA A800-SXM4-80GB": (312, 156, 0, 2.039),
    "Tesla V100-SXM2-16GB": (125, 15.7, 0, 0.9), "Tesla V100-PCIE-16GB": (112, 14, 0, 0.9), "Tesla V100S-PCIE-32GB": (130, 16.4, 0, 1.134),
    "NVIDIA B200": (2250, 1100, 4500, 8), "NVIDIA GB200": None, "NVIDIA L40S": (362, 183, 733, 0.864), "AMD Instinct MI300X": (1307.4, 653.7, 2614.9, 5.3),
    "AMD Instinct MI325X": (1307.4, 653.7, 2614.9, 6), "NVIDIA H100": None, "Ascend910B": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_device_has_its_peaks(name: str) -> None:
    device = device_of(name)
    assert (device and (*map(device.tflops, (2, 4, 1)), device.tb_per_s)) == ROWS[name]
    assert device is None or device.tflops(8) == 0


@pytest.mark.parametrize(
    ("operations", "moved", "size", "least", "bound"),
    [
        (0, 3350, 2, 1.0, "memory"), (989_400, 0, 2, 1.0, "compute"), (989_400, 3350, 2, 1.0, "memory"), (2 * 989_400, 3350, 2, 2.0, "compute"),
        (494_700, 0, 4, 1.0, "compute"), (1_978_900, 0, 1, 1.0, "compute"), (5, 3350, 8, None, None), (0, 335, 8, 0.1, "memory"), (0, 0, 8, 0.0, "memory"),
    ],
)  # fmt: skip
def test_the_least_time_of_a_call_is_that_of_its_roofline(
    operations: int, moved: int, size: int, least: float | None, bound: str | None
) -> None:
    device = device_of("NVIDIA H100 80GB HBM3")
    ns, by = _roofline_time(device, operations, moved, size)
    assert (ns and round(ns, 9), by) == (least, bound)
    assert _roofline_time(None, operations, moved, size) == (None, None)
