"""What the page says of how fast things ran for what they had to do."""

from __future__ import annotations

from collections.abc import Iterable

from patcher.messages.text import Text, sentences
from patcher.page.markup import Content
from patcher.traces.measured import BUSY, TOGETHER, KernelUse, OperatorRate, pipe_name, states
from patcher.traces.model import Collective, RankProfile
from patcher.traces.page.tables import Cell, PageLimits, table, timed
from patcher.traces.words import cut, micros, millis, percent, size

_TIMES = {
    "usual_ns": Text("by its neighbours"), "excess_ns": Text("longer by"), "waits_ns": Text("waits for the last rank"),
    "transit_ns": "transit", "wait_ns": "waiting", "idle_ns": "idle",
}  # fmt: skip
"""Time of a collective → the head of its column, which is there where one of them has it."""


def collectives(profile: RankProfile, limits: PageLimits) -> Content:
    """Each collective with its size and rate, that which takes most of what is not usual first."""
    known = [one for one in profile.collectives if one.size]
    times = {name: head for name, head in _TIMES.items() if any(getattr(one, name) for one in known)}
    rows = [
        (*_measured(one), *(_timed(getattr(one, name)) for name in times))
        for one in sorted(known, key=lambda one: (-one.excess_ns, -one.ns))
    ]
    heads = (
        Text("name"), Text("group"), Text("unit"), Text("n-th there"), Text("size"), Text("time"), "GB/s",
        *times.values(),
    )  # fmt: skip
    about = Text(
        "GB/s is the size by the time without waiting, as far as that is known. By its neighbours: at the rate of those"
        " of its kind and group that are nearest in size."
    )
    return table(Text("Collectives"), heads, rows, limits, about, names=2)


def kernel_uses(profile: RankProfile, limits: PageLimits) -> Content:
    """Kernels of an NPU by shape, with what kept them busy."""
    longest = max((one.ns for one in profile.kernel_uses), default=1) or 1
    rows = [_used(one, len(profile.units) or 1, longest) for one in profile.kernel_uses]
    heads = [
        Text("name"), Text("shapes"), Text("types"), Text("ms per unit"), Text("bound by"),
        Text("busiest pipes"), Text("blocks"), Text("core"), Text("calls per unit"),
        Text("average µs"), Text("compiled"), Text("cube utilization"),
    ]  # fmt: skip
    known = {
        Text("compiled"): bool(states(profile.kernel_uses)),
        Text("cube utilization"): any(one.cube_utilization for one in profile.kernel_uses),
    }
    shown = [at for at, head in enumerate(heads) if known.get(head, True)]
    about = Text(
        "In what share of a core's cycles its pipes worked, averaged over alike kernels. A pipe bounds a kernel from"
        " {busy} on; where none does, those of a vector core that move data and compute take turns from"
        " {together} in sum on; else the kernel is too small for the core, or its pipes wait for others.",
        percent(BUSY, 0),
        percent(TOGETHER, 0),
    )
    cells = [[row[at] for at in shown] for row in rows]
    return table(Text("Kernels by shape"), [heads[at] for at in shown], cells, limits, about, names=2)


def _used(one: KernelUse, units: int, longest: int) -> tuple[str | Cell, ...]:
    average, cubes = one.ns / (one.calls or 1), one.cube_utilization or 0
    busiest = sorted(one.ratios.items(), key=lambda pipe: -pipe[1])[:3]
    shown = ", ".join(f"{pipe_name(pipe)} {percent(ratio, 0)}" for pipe, ratio in busiest)
    blocks = Cell("" if one.block_dim is None else one.block_dim, one.block_dim or 0)
    return (
        cut(one.name), cut(one.shapes), _distinct(one.types.split(";")),
        Cell(millis(one.ns / units), one.ns, (one.ns / longest, "compute")), one.bound or "",
        Cell(shown, busiest[0][1] if busiest else 0), blocks, one.core,
        Cell(f"{one.calls / units:,.1f}", one.calls), Cell(micros(average), average), one.state,
        Cell(percent(cubes) if cubes else "", cubes),
    )  # fmt: skip


def _distinct(types: Iterable[str]) -> str:
    """Each type once, and without the namespace of torch."""
    return cut(", ".join(dict.fromkeys(name.removeprefix("c10::") for name in types if name)))


def operator_rates(profile: RankProfile, limits: PageLimits) -> Content:
    """Operators of a GPU by shape, with what they reached of the roofline."""
    longest = max((one.ns for one in profile.rates), default=1) or 1
    heads = [
        Text("name"), Text("shapes"), Text("types"), Text("ms per unit"), "TFLOPS", "TB/s", Text("calls per unit"),
        Text("average µs"),
    ]  # fmt: skip
    about = Text(
        "By shapes: two operations for each product, each tensor read or written once. Above 100 % data lay in a cache."
    )
    if any(one.bound for one in profile.rates):
        heads += [Text("of the roofline"), Text("at least, ms per unit"), Text("bound by")]
    else:
        roofline = Text("No roofline is known for {device}.", profile.device or Text("this device"))
        about = sentences(about, roofline)
    rows = [_rated(one, len(profile.units) or 1, longest)[: len(heads)] for one in profile.rates]
    return table(Text("Operators by shape"), heads, rows, limits, about, names=2)


def _rated(one: OperatorRate, units: int, longest: int) -> tuple[str | Cell, ...]:
    average, share, least = one.ns / one.calls, one.share or 0, one.least_ns or 0
    shapes = ", ".join("\N{MULTIPLICATION SIGN}".join(map(str, shape)) for shape in one.shapes if shape)
    types = _distinct(name for shape, name in zip(one.shapes, one.types, strict=False) if shape)
    return (
        cut(one.operator), cut(shapes), types, Cell(millis(one.ns / units), one.ns, (one.ns / longest, "compute")),
        Cell(f"{one.tflops:,.1f}" if one.flops else "", one.tflops), Cell(f"{one.tb_per_s:,.3f}", one.tb_per_s),
        Cell(f"{one.calls / units:,.1f}", one.calls), Cell(micros(average), average),
        Cell(percent(share) if share else "", share), Cell(millis(least / units) if least else "", least),
        one.bound or "",
    )  # fmt: skip


def _measured(one: Collective) -> tuple[str | Cell | int, ...]:
    rate = Cell("", 0) if one.gb_per_s is None else Cell(f"{one.gb_per_s:,.2f}", one.gb_per_s)
    unit, carried = Cell(f"#{one.unit}", one.unit), Cell(size(one.size or 0), one.size)
    return cut(one.kind or one.name), cut(one.group), unit, one.index + 1, carried, timed(one.ns), rate


def _timed(ns: int | None) -> Cell:
    """A time, empty where it is not known."""
    return timed(ns) if ns else Cell("", 0)
