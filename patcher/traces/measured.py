"""The measurements of kernels beside their time: what they worked on, and what kept them busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from patcher.messages import Text
from patcher.traces.words import percent, short

BUSY = 0.8
"""The share of its cycles from which on a pipe of an AI Core bounds a kernel: the limit of msprof-analyze's advisor."""

_PIPES = {"mac": "cube", "vec": "vector"}
"""CANN's name of a pipe in its ratios → the usual name, where they differ."""

TURNS, TOGETHER = ("aiv_vec", "aiv_mte2", "aiv_mte3"), 0.9
"""Pipes of a vector core that take turns on the same data, and the share of its cycles from which on they bound a
kernel together: the advisor's limit, too."""

IN_TURN, NOTHING = Text("pipes in turn"), Text("nothing")
"""Limits of a kernel without a busy pipe: `NOTHING` if it is too small, or its pipes wait for others."""


@dataclass(frozen=True, slots=True)
class UnitAllocations:
    """Memory of a device in a step, in bytes: at its start and end, its peak, and the sum of its ``allocations``."""

    number: int
    start: int
    end: int
    peak: int
    allocated: int
    allocations: int


@dataclass(frozen=True, slots=True)
class AllocatingCode:
    """Bytes that an operator within a module allocated in all steps, and in how many calls; "" for none around."""

    module: str
    operator: str
    bytes: int
    allocations: int


@dataclass(frozen=True, slots=True)
class DeviceAllocations:
    """Allocations of a device in the steps, from a trace with ``--contents memory``."""

    device: int
    peak: int
    peak_unit: int | None
    units: tuple[UnitAllocations, ...]
    code: tuple[AllocatingCode, ...]


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All calls of an NPU's kernels of one type, with the same shapes, types and blocks, within the steps.

    ``core`` is where they ran, ``ratios`` maps a pipe (``aic_mac``, ``aiv_mte2``) to the mean share of the core's
    cycles in which it worked, ``cube_utilization`` is the mean share of all cubes' time, 0 to 1, None where it was not
    recorded. ``bound`` is the pipe that is busiest, if it is for 80 % and more, `IN_TURN` where those of a vector core
    are together for 90 %, else `NOTHING`; None without ratios.
    ``state`` says whether the kernel was compiled for any shape (dynamic) or for this one (static), "" where CANN does
    not tell.
    """

    name: str
    core: str
    shapes: str
    types: str
    block_dim: int | None
    calls: int
    ns: int
    ratios: Mapping[str, float]
    cube_utilization: float | None = None
    bound: str | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class OperatorRate:
    """All calls of an operator of a GPU with the same shapes and types within the steps.

    ``calls`` launched ``kernels``, which took ``ns``. ``flops`` and ``bytes`` are those of one call by its shapes.
    ``least_ns`` is what all calls take at least by the device's roofline, and ``bound`` what sets that, compute or
    memory; None for a device, or a type, of which no peak is known.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    calls: int
    kernels: int
    ns: int
    flops: int
    bytes: int
    least_ns: int | None
    bound: str | None

    def as_json(self) -> dict[str, Any]:
        """Return all fields for JSON, with ``tflops``, ``tb_per_s`` and ``share`` of the roofline, rounded."""
        share = None if self.share is None else round(self.share, 4)
        rates = {"tflops": round(self.tflops, 3), "tb_per_s": round(self.tb_per_s, 4), "share": share}
        return asdict(self) | rates

    @property
    def tflops(self) -> float:
        """Operations per second, in TFLOPS."""
        return self.flops * self.calls / self.ns / 1e3

    @property
    def tb_per_s(self) -> float:
        """Bytes per second, in TB/s."""
        return self.bytes * self.calls / self.ns / 1e3

    @property
    def share(self) -> float | None:
        """Share of the roofline that is reached, above 1 if data lay in a cache; None without a roofline."""
        return None if self.least_ns is None else self.least_ns / self.ns


def bound_of(ratios: Mapping[str, float]) -> str | None:
    """Return what bounds a kernel, by the shares of cycles in which its pipes work; None without ratios.

    It is the common name of the busiest pipe if that works for 80 % or more. Else it is `IN_TURN` if the pipes of a
    vector core come to 90 % together, else `NOTHING`. ``ratios`` maps CANN's names of pipes to shares from 0 to 1.
    """
    if not ratios:
        return None
    pipe = max(ratios, key=lambda name: ratios[name])
    if ratios[pipe] >= BUSY:
        return pipe_name(pipe)
    return IN_TURN if sum(ratios.get(name, 0) for name in TURNS) >= TOGETHER else NOTHING


def pipe_name(pipe: str) -> str:
    """Return the common name of a pipe: ``aic_mac`` is the cube."""
    name = pipe.rpartition("_")[2]
    return _PIPES.get(name, name)


def bounds(uses: Iterable[KernelUse]) -> dict[str, float]:
    """Return bound → its share of the time of the kernels with known ratios, largest first."""
    return _shares((use.bound, use.ns) for use in uses)


def states(uses: Iterable[KernelUse]) -> dict[str, float]:
    """Return state → its share of the time of the kernels with a known state, largest first."""
    return _shares((use.state, use.ns) for use in uses)


def _shares(times: Iterable[tuple[str | None, int]]) -> dict[str, float]:
    """Return name → its share (0 to 1) of the ns of all named times, largest first; None and "" are left out."""
    sums = Counter[str]()
    for name, ns in times:
        if name:
            sums[name] += ns
    whole = sum(sums.values()) or 1
    return {name: ns / whole for name, ns in sums.most_common()}


COVERED = 0.5
"""The share of the kernel time that a rate has to cover to be shown beside the verdict."""


def rate_words(rates: Iterable[OperatorRate], device: str, kernel_ns: int, least_covered: float = 0.0) -> Iterator[str]:
    """Yield texts on the speed of matmuls and attention (TFLOPS), and of other operators (TB/s), with roofline shares.

    Each says which share of ``kernel_ns``, the time of all kernels that compute, it covers; groups that cover a smaller
    share than ``least_covered`` are left out.
    """
    every = list(rates)
    for what, unit, group in (
        (Text("matmul and attention"), "TFLOPS", [rate for rate in every if rate.flops]),
        (Text("elementwise and normalization"), "TB/s", [rate for rate in every if not rate.flops]),
    ):
        ns = sum(rate.ns for rate in group)
        covered = min(ns / (kernel_ns or 1), 1.0)
        if ns and covered >= least_covered:
            done = sum((rate.flops or rate.bytes) * rate.calls for rate in group) / ns / 1e3
            rate = f"{done:,.{1 if done < 100 else 0}f} {unit}"
            yield Text(
                "{operators}, {share} of the kernel time: {rate}, {roofline}",
                operators=what,
                share=percent(covered),
                rate=rate,
                roofline=_roofline(group, device),
            )


def _roofline(rates: Iterable[OperatorRate], device: str) -> str:
    """Return in words which share of the roofline operators reached, or that ``device`` has no known roofline."""
    times = [(rate.least_ns, rate.ns) for rate in rates if rate.least_ns is not None]
    if not times:
        return Text("no roofline known for {device}", short(device))
    least, took = map(sum, zip(*times, strict=True))
    return Text("{share} of the roofline", percent(least / (took or 1), 0))
