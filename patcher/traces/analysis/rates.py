"""The rates of operators on GPUs for what they had to do, by their shapes, against the roofline of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from patcher.traces.analysis.devices import Device, device_of
from patcher.traces.measured import OperatorRate
from patcher.traces.model import COMPUTE, RankProfile
from patcher.traces.work import inputs_of, work_of

_ALIGNED = 8
"""Elements of 16 bits of which sizes have to be multiples, for cuBLAS to use its fast kernels."""

_PADDED, _LEAST = 128, 64  # the multiple to which a size is padded, and a size up to which that is not worth it

_LARGE, _SLOWER = 0.2, 0.8  # the least share of the kernel time, and the largest rate relative to aligned products

_WEIGHTS = {"aten::mm": (0, 1, 1), "aten::addmm": (1, 2, 1), "aten::linear": (0, 1, 0)}
"""Product → the positions of both factors, and the dimension of the second one that the result has, too."""


class UnalignedSize(NamedTuple):
    """Size of a weight that is no multiple of 8: ``ns`` of products with it, most of them of ``operator``."""

    size: int
    ns: int
    operator: str

    @property
    def padded(self) -> int:
        """Next multiple of 128."""
        return -(-self.size // _PADDED) * _PADDED


def unaligned_size(profile: RankProfile) -> UnalignedSize | None:
    """Return the unaligned size of a weight whose products in half precision take a fifth of the kernel time or more.

    A product with a weight has it as the number of columns of its result, which a number of tokens is not. None without
    such a size, and if the trace has no products of aligned sizes that are clearly faster.
    """
    products = [
        rate for rate in profile.rates
        if rate.operator in _WEIGHTS and set(rate.types[: len(rate.shapes)]) & {"c10::BFloat16", "c10::Half"}
    ]  # fmt: skip
    columns = set()
    for rate in products:
        _, second, dimension = _WEIGHTS[rate.operator]
        columns.add(rate.shapes[second][dimension])
    times = Counter[int]()
    for rate in products:
        for size in _sizes(rate) & columns:
            times[size] += rate.ns * (size % _ALIGNED > 0 and size > _LEAST)
    kernel_ns = sum(kernel.ns for kernel in profile.kernels if kernel.kind == COMPUTE)
    for size, ns in times.most_common(1):
        slow = [rate for rate in products if size in _sizes(rate)]
        aligned = [rate for rate in products if not any(size % _ALIGNED for size in _sizes(rate))]
        if _LARGE * kernel_ns <= ns and _flops_per_ns(slow) <= _SLOWER * _flops_per_ns(aligned):
            return UnalignedSize(size, ns, max(slow, key=lambda rate: rate.ns).operator)
    return None


def _flops_per_ns(rates: Sequence[OperatorRate]) -> float:
    """Return the floating-point operations per ns of all calls; 0 without any."""
    return sum(rate.flops * rate.calls for rate in rates) / (sum(rate.ns for rate in rates) or 1)


def _sizes(rate: OperatorRate) -> set[int]:
    """Return the sizes of the factors of a product."""
    first, second, _ = _WEIGHTS[rate.operator]
    return {*rate.shapes[first], *rate.shapes[second]}


def rates_by_operator(
    sums_by_inputs: Mapping[tuple[str, ...], Sequence[int]], device_name: str
) -> tuple[OperatorRate, ...]:
    """Return the speed of each operator on each set of inputs whose shapes tell its work, longest first.

    ``sums_by_inputs`` maps (operator, texts of its inputs) to calls, number of kernels, ns of the kernels, and ns on
    the host. Operators without kernels are left out. The roofline's time is None without a known device.
    """
    device = device_of(device_name)
    rates = []
    for (name, *texts), (calls, kernels, ns, _) in sums_by_inputs.items():
        inputs = inputs_of(*texts)
        # A call on tensors of the host launches nothing.
        worked = min(calls, kernels)
        if ns and worked and inputs and (work := work_of(name, inputs)):
            operations, moved, element_size = work
            least, bound = _roofline_time(device, operations, moved, element_size)
            least = None if least is None else round(least * worked)
            done = (worked, kernels, ns, operations, moved, least, bound)
            rates.append(OperatorRate(name, inputs.shapes, inputs.types, *done))
    return tuple(sorted(rates, key=lambda rate: (-rate.ns, rate.operator, rate.shapes)))


def _roofline_time(
    device: Device | None, operations: int, moved: int, element_size: int
) -> tuple[float | None, str | None]:
    """Return the least ns of a call by the roofline, and what bounds it: "compute" or "memory".

    ``operations`` and ``moved`` (bytes) are those of a call, ``element_size`` is in bytes. Both results are None if the
    device, or its peak for that size, is unknown.
    """
    if device is None:
        return None, None
    peak, memory = device.tflops(element_size), moved / device.tb_per_s / 1e3
    if operations and not peak:
        return None, None
    compute = operations / peak / 1e3 if operations else 0.0
    return max(compute, memory), "compute" if compute > memory else "memory"
