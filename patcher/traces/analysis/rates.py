"""The rates of operators on GPUs for what they had to do, by their shapes, against the roofline of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patcher.traces.analysis.devices import Device, device_of
from patcher.traces.measured import OperatorRate
from patcher.traces.work import inputs_of, work_of


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
