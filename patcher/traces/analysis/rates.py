"""The rates of operators on GPUs for what they had to do, by their shapes, against the roofline of the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from patcher.traces.analysis.devices import Device, device_of
from patcher.traces.measured import OperatorRate
from patcher.traces.model import RankProfile
from patcher.traces.work import inputs_of, work_of

_ALIGNED, _SMALL = 8, 64  # elements: cuBLAS needs multiples in half precision; up to so many, padding is not worth it
_LARGE, _SLOWER = 0.2, 0.8  # the least share of the kernel time, and the largest rate relative to aligned products

_WEIGHTS = {"aten::mm": (0, 1, 1), "aten::addmm": (1, 2, 1), "aten::linear": (0, 1, 0)}
"""Product → the positions of both factors, and the dimension of the second one that the result has, too."""


def unaligned_size(profile: RankProfile) -> tuple[int, int, str] | None:
    """Return a weight's unaligned size whose products in half precision take a fifth of the kernel time or more.

    With it comes the ns of these products, and the longest of them. A product with a weight has it as the number of
    columns of its result, which a number of tokens is not. None without such a size, and if the trace has no products
    of aligned sizes that are clearly faster.
    """
    columns, products = {0}, defaultdict[int, list[OperatorRate]](list)
    for rate in profile.rates:  # longest first
        if rate.operator in _WEIGHTS and {*rate.types} & {"c10::BFloat16", "c10::Half"}:
            first, second, dimension = _WEIGHTS[rate.operator]
            columns.add(rate.shapes[second][dimension])
            for size in {size for size in rate.shapes[first] + rate.shapes[second] if size % _ALIGNED} or {0}:
                products[size].append(rate)
    times = {size: sum(rate.ns for rate in rates) for size, rates in products.items()}
    speeds = {size: sum(rate.flops * rate.calls for rate in products[size]) / (ns or 1) for size, ns in times.items()}
    size = max((size for size in times if size in columns and size > _SMALL), key=times.__getitem__, default=0)
    is_slow = size and speeds[size] <= _SLOWER * speeds.get(0, 0) and times[size] >= _LARGE * profile.computing_ns
    return (size, times[size], products[size][0].operator) if is_slow else None


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
