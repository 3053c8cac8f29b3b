"""What the page says of one profile, from its drawings to the vendor's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from patcher.messages.text import COMMA, Text, joined
from patcher.page.markup import Content, faint, section, tag
from patcher.traces.model import FORMS, KINDS, PARTS, CallSums, RankProfile, RecordedUnit, Side
from patcher.traces.page.drawings import load_charts, unit_bars
from patcher.traces.page.gaps import free_places
from patcher.traces.page.lanes import device_lanes
from patcher.traces.page.measures import collectives, kernel_uses, operator_rates
from patcher.traces.page.tables import PAGE_LIMITS, Cell, PageLimits, table, timed
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import cold_units, cut, duration, joined_replays, micros, millis, percent, uncounted_between


def described(
    profile: RankProfile, limits: PageLimits, *, opened: bool, alone: bool = False, side: str = ""
) -> Content:
    """All of one profile; of several, each but the first is closed until somebody opens it."""
    operators = Text("Host time excludes the operators within.")
    if profile.total_ns:
        operators = Text(
            "Kernels count for the operator that launched them itself; host time excludes the operators within."
        )
    replays = profile.replays
    inner = (
        profile.cold and faint(Text("{sentence}.", cold_units(profile.cold))),
        replays and faint(Text("{sentence}.", joined_replays(replays.count, replays.joined, replays.why))),
        unit_bars(profile, limits),
        _only_unit(profile, limits),
        device_lanes(profile, limits),
        free_places(profile, limits),
        _phases(profile),
        load_charts(profile),
        _kernels(profile, limits),
        kernel_uses(profile, limits),
        operator_rates(profile, limits),
        collectives(profile, limits),
        _callers(Text("Operators"), profile.operators, profile, limits, operators),
        _callers(
            Text("Modules and ranges"),
            profile.modules,
            profile,
            limits,
            Text("Including everything called within one."),
        ),
        _units(profile, limits),
        _checks(profile),
        _vendor(profile, limits),
    )
    if alone:
        return inner
    name = joined(COMMA, (side, named(profile) or profile.source))
    median = (
        duration(profile.median_ns)
        if profile.total_ns
        else Text("{time} on the host", duration(profile.host_median_ns))
    )
    return tag("details", tag("summary", Text("{name}: median unit {median}", name, median)), inner, open=opened)


def named(profile: RankProfile) -> str:
    """What tells it apart from the others of the page."""
    return profile.label or profile.rank_name


def origin(source: str, recorded: RankProfile | Side, *more: str | None) -> str:
    """Where something was recorded, by which profiler, on which device, and ``more`` that is known of it."""
    return joined(
        " · ", (source, FORMS.get(recorded.form, recorded.form), recorded.device, *map(str, filter(None, more)))
    )


def _only_unit(profile: RankProfile, limits: PageLimits) -> Content:
    """The parts of a unit that is the only one, so that there is nothing to draw it beside."""
    if len(profile.units) != 1 or not profile.total_ns:
        return None
    (unit,), total = profile.units, profile.total_ns
    rows = [
        (PARTS[part], timed(ns), Cell(percent(ns / total), ns, (ns / total, part)))
        for part, ns in unit.parts.items() if ns
    ]  # fmt: skip
    about = Text(
        "They add up to its {total}; on the host it took {host_time}.", duration(total), duration(unit.host_ns)
    )
    return table(Text("The parts of the unit"), (Text("part"), Text("time"), Text("share")), rows, limits, about)


def _phases(profile: RankProfile) -> Content:
    sums, count = profile.phases, len(profile.units)
    total = sum(sums.values())
    rows = [
        (phase, Cell(millis(ns / count), ns), Cell(percent(ns / total), ns, (ns / total, "compute")))
        for phase, ns in sums.items() if total
    ]  # fmt: skip
    heads = (Text("phase"), Text("kernel ms per unit"), Text("share of kernel time"))
    about = Text("By the thread and the operator that launched a kernel.")
    return table(Text("Forward and backward"), heads, rows, PAGE_LIMITS[0], about)


def _kernels(profile: RankProfile, limits: PageLimits) -> Content:
    count, total = len(profile.units) or 1, profile.total_ns or 1
    widest = max((kernel.ns for kernel in profile.kernels), default=1) or 1
    rows = []
    for one in profile.kernels:
        bar = (one.ns / widest, one.kind if one.kind in KINDS else "total")
        average = one.ns / (one.calls or 1)
        rows.append((
            cut(one.name), one.kind, Cell(millis(one.ns / count), one.ns), Cell(percent(one.ns / total), one.ns, bar),
            Cell(f"{one.calls / count:,.1f}", one.calls), Cell(micros(average), average),
            Cell(micros(one.longest_ns) if one.longest_ns else "", one.longest_ns),
        ))  # fmt: skip
    heads = (
        Text("name"), Text("kind"), Text("ms per unit"), Text("share of unit time"), Text("calls per unit"),
        Text("average µs"), Text("longest µs"),
    )  # fmt: skip
    about = Text("Of the units that launched them. Kernels at the same time count each by itself.")
    return table(Text("Kernels"), heads, rows, limits, about)


def _callers(title: str, found: Sequence[CallSums], profile: RankProfile, limits: PageLimits, about: str) -> Content:
    count = len(profile.units) or 1
    widest = max((one.ns for one in found), default=1) or 1
    heads = [
        Text("name"), Text("ms of kernels per unit"), Text("kernels per unit"), Text("calls per unit"),
        Text("ms on the host per unit"),
    ]  # fmt: skip
    rows = [
        [
            cut(one.name), Cell(millis(one.ns / count), one.ns, (one.ns / widest, "compute")),
            Cell(f"{one.kernels / count:,.1f}", one.kernels), Cell(f"{one.calls / count:,.1f}", one.calls),
            Cell(millis(one.host_ns / count), one.host_ns),
        ]
        for one in found
    ]  # fmt: skip
    if not profile.total_ns:  # then they launched nothing
        heads, rows = [heads[at] for at in (0, 4, 3)], [[row[at] for at in (0, 4, 3)] for row in rows]
    return table(title, heads, rows, limits, about)


_HEADS = {"longest": Text("longest context"), "context": Text("context, summed"), "uncounted": Text("uncounted before")}


def _units(profile: RankProfile, limits: PageLimits) -> Content:
    """The contents of each unit, where there is metadata beside the trace."""
    names = [name for name in (*CONTENTS, "uncounted") if any(getattr(unit, name) for unit in profile.units)]
    padded = [Text("padded to")] if any(unit.padded for unit in profile.units) else []
    if not profile.facts or not (names or padded):
        return None
    rows = [_unit(unit, names, padded) for unit in profile.units]
    heads = [
        Text("unit"), Text("time"), Text("host"), Text("kernels"), *(_HEADS.get(name, name) for name in names),
        *padded,
    ]  # fmt: skip
    about = Text("{sentence}.", uncounted_between(profile.uncounted)) if profile.uncounted else ""
    return table(Text("Units one by one"), heads, rows, limits, about, names=0)


def _unit(unit: RecordedUnit, names: Sequence[str], padded: Sequence[str]) -> list[object]:
    counts = ["" if (value := getattr(unit, name)) is None else Cell(f"{value:,}", value) for name in names]
    shape = [" \N{MULTIPLICATION SIGN} ".join(map(str, unit.padded or ())) for _ in padded]
    times = (timed(unit.device_ns), timed(unit.host_ns))
    return [Cell(f"#{unit.number}", unit.number), *times, unit.kernels, *counts, *shape]


def _checks(profile: RankProfile) -> Content:
    if not profile.checks:
        return None
    items = [
        tag(
            "li",
            tag("span", "ok") if check.ok else tag("span", "failed", class_="bad"),
            Text(" {check}: {evidence}", check.id, check.evidence),
        )
        for check in sorted(profile.checks, key=lambda check: check.ok)
    ]
    return section(Text("Can this data be trusted?"), tag("ul", items))


def _vendor(profile: RankProfile, limits: PageLimits) -> Content:
    vendor = profile.vendor or {}
    heads = list(dict.fromkeys(name for row in vendor.values() for name in row))
    rows = [
        (step, *(timed(row[name]) if name in row else Cell("", 0) for name in heads)) for step, row in vendor.items()
    ]
    shown = [name.removesuffix("_ns").replace("_", " ") for name in heads]
    return table(Text("What the profiler's own step file says"), ("step", *shown), rows, limits)
