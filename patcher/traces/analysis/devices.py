"""The limits of GPUs: dense peaks and memory bandwidth as their makers print them, by the name in a trace.

A device that is not here has no roofline. One whose name fits several rows is the first of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Device(NamedTuple):
    """A GPU: dense TFLOPS by size of the elements (0: unsupported), memory bandwidth in TB/s, and the source of both.

    ``pattern`` is searched in the name of the device. ``single`` is the peak of float matmuls: TF32 where supported,
    although torch uses it only if allowed to.
    """

    pattern: str
    half: float
    single: float
    eight: float
    tb_per_s: float
    source: str

    def tflops(self, size: int) -> float:
        """Return the peak for elements of this size in bytes; 0 for a size that no matrix unit takes."""
        return {1: self.eight, 2: self.half, 4: self.single}.get(size, 0.0)


_V100 = "NVIDIA V100 Tensor Core GPU, data sheet of January 2020"
_A100 = "NVIDIA A100 Tensor Core GPU, data sheet of June 2021"
_H100 = "NVIDIA H100 Tensor Core GPU, data sheet"
_H200 = "NVIDIA H200 Tensor Core GPU, data sheet"
_H20 = "no public data sheet: as sellers of servers print it"

DEVICES = (
    Device(r"V100S", 130, 16.4, 0, 1.134, _V100),
    Device(r"V100.*PCI", 112, 14, 0, 0.9, _V100),
    Device(r"V100", 125, 15.7, 0, 0.9, _V100),
    Device(r"A[18]00.*80GB PCIe", 312, 156, 0, 1.935, _A100),
    Device(r"A[18]00.*80G", 312, 156, 0, 2.039, _A100),
    Device(r"A100.*(?:40G|PG509)", 312, 156, 0, 1.555, _A100),
    Device(r"H[18]00 PCIe", 756, 378, 1513, 2.0, _H100),
    Device(r"H100 NVL", 835, 417.5, 1671, 3.9, _H100),
    Device(r"H[18]00.*(?:HBM3|SXM)", 989.4, 494.7, 1978.9, 3.35, _H100),
    Device(r"H200 NVL", 835, 417.5, 1671, 4.8, _H200),
    Device(r"H200", 989.4, 494.7, 1978.9, 4.8, _H200),
    Device(r"H20\b", 148, 74, 296, 4.0, _H20),
    Device(r"\bB200", 2250, 1100, 4500, 8.0, "NVIDIA HGX B200, data sheet"),
    Device(r"L40S", 362, 183, 733, 0.864, "NVIDIA L40S, data sheet"),
    Device(r"MI300X", 1307.4, 653.7, 2614.9, 5.3, "AMD Instinct MI300X, data sheet"),
    Device(r"MI325X", 1307.4, 653.7, 2614.9, 6.0, "AMD Instinct MI325X, data sheet"),
)


def device_of(name: str) -> Device | None:
    """Return the row of a device; None for one that is not known."""
    return next((device for device in DEVICES if re.search(device.pattern, name)), None)
