"""What the page says of one capture, from its drawings to the vendor's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.traces import facts
from patcher.traces.markup import Content, tag
from patcher.traces.model import KINDS, Capture, Kernel, Unit
from patcher.traces.page.drawings import device_lanes, load_charts, unit_bars
from patcher.traces.page.tables import ROOMS, Cell, Room, table, timed
from patcher.traces.words import cut, duration, micros, millis, percent


def described(capture: Capture, room: Room, *, opened: bool, alone: bool = False, side: str = "") -> Content:
    """All of one capture; of several, each but the first is closed until somebody opens it."""
    inner = (
        unit_bars(capture, room),
        device_lanes(capture, room),
        _phases(capture),
        load_charts(capture),
        _kernels(capture, room),
        _operators(capture, room),
        _modules(capture, room),
        _held(capture, room),
        _checks(capture),
        _vendor(capture, room),
    )
    if alone:
        return inner
    name = ", ".join(filter(None, (side, named(capture) or capture.source)))
    median = duration(capture.median_ns) if capture.total_ns else f"{duration(capture.host_median_ns)} on the host"
    title = f"{name}: median unit {median}"
    return tag("details", tag("summary", title), inner, open=opened)


def ranked(capture: Capture) -> str:
    """Its rank; "" where nobody knows."""
    return "" if capture.rank is None else f"rank {capture.rank}"


def named(capture: Capture) -> str:
    """What tells it apart from the others of the page."""
    return capture.label or ranked(capture)


def _phases(capture: Capture) -> Content:
    sums: dict[str, int] = {}
    for unit in capture.units:
        for phase, ns in unit.phases.items():
            sums[phase] = sums.get(phase, 0) + ns
    total = sum(sums.values())
    if not total:
        return None
    rows = [
        (
            Cell(phase),
            Cell(millis(ns / len(capture.units)), ns),
            Cell(percent(ns / total), ns, (ns / total, "compute")),
        )
        for phase, ns in sums.items()
    ]
    about = "By the thread and the operator that launched a kernel."
    return table("Forward and backward", ("phase", "kernel ms per unit", "share of kernel time"), rows, ROOMS[0], about)


def _kernels(capture: Capture, room: Room) -> Content:
    count, total = len(capture.units) or 1, capture.total_ns or 1
    widest = max((kernel.ns for kernel in capture.kernels), default=1) or 1

    def row(one: Kernel) -> tuple[Cell, ...]:
        bar = (one.ns / widest, one.kind if one.kind in KINDS else "total")
        average = one.ns / (one.calls or 1)
        return (
            Cell(cut(one.name)), Cell(one.kind), Cell(millis(one.ns / count), one.ns),
            Cell(percent(one.ns / total), one.ns, bar), Cell(f"{one.calls / count:,.1f}", one.calls),
            Cell(micros(average), average), Cell(micros(one.longest_ns) if one.longest_ns else "", one.longest_ns),
        )  # fmt: skip

    heads = ("name", "kind", "ms per unit", "share of unit time", "calls per unit", "average µs", "longest µs")
    about = "Of the units that launched them. Kernels at the same time count each by itself."
    return table("Kernels", heads, [row(one) for one in capture.kernels], room, about)


def _operators(capture: Capture, room: Room) -> Content:
    about = "On the host without the operators within."
    if capture.total_ns:
        about = "Kernels by the operator that launched them itself; on the host without the operators within."
    return _callers("Operators", capture.operators, capture, room, about)


def _modules(capture: Capture, room: Room) -> Content:
    return _callers("Modules", capture.modules, capture, room, "With all that is called within a module.")


def _callers(title: str, found: Sequence[object], capture: Capture, room: Room, about: str) -> Content:
    count = len(capture.units) or 1
    rows: list[tuple[Cell, ...]] = []
    widest = max((getattr(one, "ns", 0) for one in found), default=1) or 1
    for one in found:
        name, calls, kernels, ns, host = (getattr(one, key) for key in ("name", "calls", "kernels", "ns", "host_ns"))
        rows.append(
            (
                Cell(cut(name)), Cell(millis(ns / count), ns, (ns / widest, "compute")),
                Cell(f"{kernels / count:,.1f}", kernels), Cell(f"{calls / count:,.1f}", calls),
                Cell(millis(host / count), host),
            )
        )  # fmt: skip
    heads: tuple[str, ...] = (
        "name",
        "ms of kernels per unit",
        "kernels per unit",
        "calls per unit",
        "ms on the host per unit",
    )
    if not capture.total_ns:  # then they launched nothing
        kept = (0, 4, 3)
        heads, rows = tuple(heads[at] for at in kept), [tuple(row[at] for at in kept) for row in rows]
    return table(title, heads, rows, room, about)


_HEADS = {"longest": "longest context", "context": "context, summed", "uncounted": "uncounted before"}


def _held(capture: Capture, room: Room) -> Content:
    """What each unit held, as the facts beside the trace tell."""
    told = [name for name in (*facts.HELD, "uncounted") if any(getattr(unit, name) for unit in capture.units)]
    padded = any(unit.padded for unit in capture.units)
    if not capture.facts or not (told or padded):
        return None
    heads = ["unit", "time", "host", "kernels", *(_HEADS.get(name, name) for name in told), *["padded to"] * padded]

    def row(unit: Unit) -> list[object]:
        counts = [Cell("" if (value := getattr(unit, name)) is None else f"{value:,}", value) for name in told]
        shape = [Cell(" \N{MULTIPLICATION SIGN} ".join(map(str, unit.padded or ())))] * padded
        times = (timed(unit.device_ns), timed(unit.host_ns))
        return [Cell(f"#{unit.number}", unit.number), *times, unit.kernels, *counts, *shape]

    uncounted = {unit.number: unit.uncounted for unit in capture.units if unit.uncounted}
    about = f"{facts.lying_between(uncounted)}." if uncounted else ""
    return table("Units one by one", heads, [row(unit) for unit in capture.units], room, about, names=0)


def _checks(capture: Capture) -> Content:
    if not capture.checks:
        return None
    items = [
        tag(
            "li",
            tag("span", "ok" if one.ok else "failed", class_=None if one.ok else "bad"),
            f" {one.id}: {one.evidence}",
        )
        for one in sorted(capture.checks, key=lambda check: check.ok)
    ]
    return tag("section", tag("h2", "Can this data be trusted?"), tag("ul", items))


def _vendor(capture: Capture, room: Room) -> Content:
    if not capture.vendor:
        return None
    heads = list(dict.fromkeys(name for row in capture.vendor.values() for name in row))
    rows = [
        (Cell(step), *(Cell("", 0) if name not in row else timed(row[name]) for name in heads))
        for step, row in capture.vendor.items()
    ]
    shown = [name.removesuffix("_ns").replace("_", " ") for name in heads]
    return table("What the profiler's own step file says", ("step", *shown), rows, room)
