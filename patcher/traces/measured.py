"""What profilers measure of kernels beside their time: what they worked on, and what kept them busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BUSY = 0.8
"""The share of its cycles from which on a pipe of an AI Core bounds a kernel: the limit of msprof-analyze's advisor."""

_PIPES = {"mac": "cube", "vec": "vector"}
"""How CANN names a pipe in its ratios, where people call it otherwise."""

NOTHING = "nothing"
"""What bounds a kernel of which no pipe is busy: it is too small, or its pipes wait for each other."""


@dataclass(frozen=True, slots=True)
class KernelUse:
    """All calls of an NPU's kernels of one type, with the same shapes, types and blocks, within the units.

    ``core`` is where they ran, ``ratios`` maps a pipe (``aic_mac``, ``aiv_mte2``) to the mean share of the core's
    cycles in which it worked, ``cube_utilization`` is the mean share of all cubes' time, 0 to 1, None where it was not
    recorded. ``bound`` is the pipe that is busiest, if it is for 80 % and more, else `NOTHING`; None without ratios.
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


def bound_of(ratios: Mapping[str, float]) -> str | None:
    """The pipe that bounds kernels with such ratios."""
    if not ratios:
        return None
    pipe = max(ratios, key=lambda name: ratios[name])
    return pipe_name(pipe) if ratios[pipe] >= BUSY else NOTHING


def pipe_name(pipe: str) -> str:
    """A pipe as people call it: ``aic_mac`` is the cube."""
    name = pipe.rpartition("_")[2]
    return _PIPES.get(name, name)


def bounds(uses: Iterable[KernelUse]) -> dict[str, float]:
    """What bounds kernels → its share of the time of those whose ratios are known, most of it first."""
    sums = Counter[str]()
    for one in uses:
        if one.bound:
            sums[one.bound] += one.ns
    whole = sum(sums.values()) or 1
    return {bound: ns / whole for bound, ns in sums.most_common()}
