"""The tables of a report and of a comparison, with the numbers that the terminal, the page and CSV files show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from patcher.messages import Text, sentences
from patcher.table import COUNT, LABEL, NUMBER, Column, NameUnit, Shown, Table, Unit
from patcher.traces.families import FAMILIES
from patcher.traces.measured import BUSY, TOGETHER, KernelUse, OperatorRate, pipe_name
from patcher.traces.model import (
    KINDS,
    LEAD_IN,
    PARTS,
    Comparison,
    Rank,
    RankProfile,
    TimeChange,
    TraceReport,
)
from patcher.traces.places import host_activity, place_of, preceding_words, reason_of
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import cut, duration, micros, millis, percent, size, uncounted_phrase

CSV, TERMINAL = Shown.CSV, Shown.TERMINAL
NAME = NameUnit(cut)
MS, MICROS, TIME = Unit(millis), Unit(micros), Unit(duration)
CHANGE = Unit(lambda ns: f"{ns / 1e6:+,.3f}")
RATE = Unit("{:,.1f}".format)
SHARE = Unit(percent, whole=1)
RANK = Unit(str, missing="?")
BYTES = Unit(size)

_NAME = Column("name", Text("name"), NAME, TERMINAL)
_KIND = Column("kind", Text("kind"), LABEL, TERMINAL)
_CALLS = Column("calls_per_step", Text("calls/step"), RATE, TERMINAL)
_PER_UNIT = Column("ns_per_step", Text("ms/step"), MS, TERMINAL, bar=True)
_AVERAGE = Column("average_ns", Text("average µs"), MICROS)


UNIT_MEMORY = (
    Column("start_bytes", Text("at step start"), BYTES, TERMINAL),
    Column("peak_bytes", Text("peak"), BYTES, TERMINAL, bar=True),
    Column("end_bytes", Text("at step end"), BYTES, TERMINAL),
    Column("allocated_bytes", Text("allocated"), BYTES, TERMINAL),
    Column("allocations", Text("allocations"), COUNT, TERMINAL),
)
"""Columns of the memory of a device in a step."""


def of_report(report: TraceReport) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield each table of a report for CSV files, also empty ones, as (origin of its rows, table).

    The origin has the name of the "stage", and "source" and "rank" if the table is about one profile.
    """
    for stage in report.stages or (report,):
        name = {"stage": stage.captures[0].part if stage.captures else ""}
        yield name, ranks(stage.ranks)
        yield name, meetings(stage.captures)
        for profile in stage.captures:
            origin = {**name, "source": profile.source, "rank": profile.rank}
            for table in (units, parts, families, phases, gaps, kernels, kernel_uses, rates, collectives, vendor_steps):
                yield origin, table(profile)
            yield from ((origin, table) for table in (*callers(profile), *allocations(profile)))


def of_comparison(comparison: Comparison) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield ({}, table) for each table of a comparison, to write as CSV files."""
    yield {}, part_changes(comparison)
    order = Text("Kernels are sorted by how much they contribute to the difference between the two sides.")
    yield {}, changes("kernels", Text("Kernels, per step"), comparison.kernels, order)
    own_time = Text("The time of an operator excludes the operators that it calls.")
    yield {}, changes("operators", Text("Operators on the host, per step"), comparison.operators, own_time)
    whole_time = Text("The time of a module or range includes everything that it calls.")
    yield {}, changes("modules", Text("Modules and ranges, per step"), comparison.modules, whole_time)


def parts(profile: RankProfile) -> Table:
    """Return the table of the parts of the mean step, such as computing and exposed communication."""
    count, total = len(profile.units) or 1, profile.total_ns or 1
    sums = {part: ns for part in PARTS if (ns := profile.sum_ns(part))}
    columns = (
        Column("part", shown_in=CSV),
        Column("", Text("breakdown of a step"), LABEL, TERMINAL),
        Column("ns_per_step", Text("ms/step"), MS, TERMINAL),
        Column("share", Text("share"), SHARE, TERMINAL, bar=True),
    )
    rows = [(part, PARTS[part], ns / count, ns / total) for part, ns in sums.items()]
    about = Text(
        "The rows add up to {total}; on the host the step took {host_time}.",
        total=duration(profile.median_ns),
        host_time=duration(profile.host_median_ns),
    )
    return Table("parts", Text("Time breakdown of a step"), columns, rows, about, tuple(sums))


def units(profile: RankProfile) -> Table:
    """Return the table of a profile's steps, one a row, with their contents if step metadata or marks tell these."""
    counted = (*CONTENTS, "uncounted")
    columns = (
        Column("step", Text("step"), NUMBER, TERMINAL),
        Column("device_ns", "ms", MS, TERMINAL),
        Column("host_ns", Text("host ms"), MS, TERMINAL),
        Column("kernels", Text("kernels"), COUNT, TERMINAL),
        *(Column(name, name, COUNT, TERMINAL, optional=True) for name in counted),
        Column("padded", Text("padded shape"), LABEL, optional=True),
        *(Column(part, shown_in=CSV) for part in (*PARTS, LEAD_IN)),
    )
    counts, parts_of = attrgetter("number", "device_ns", "host_ns", "kernels", *counted), attrgetter(*PARTS, LEAD_IN)
    rows = [
        (*counts(unit), " \N{MULTIPLICATION SIGN} ".join(map(str, unit.padded or ())), *parts_of(unit))
        for unit in profile.units
    ]
    about = Text("{sentence}.", uncounted_phrase(profile.uncounted)) if profile.uncounted else ""
    return Table("units", Text("All steps"), columns, rows, about)


def families(profile: RankProfile) -> Table:
    """Return the table of the time per step in each family of kernels, the longest first."""
    count, total = len(profile.units) or 1, profile.total_ns or 1
    columns = (
        Column("family", shown_in=CSV),
        Column("", Text("kernel family"), LABEL, TERMINAL),
        Column("ns_per_step", Text("ms/step"), MS, TERMINAL, bar=True),
        Column("share", Text("share of step time"), SHARE, TERMINAL),
    )
    rows = [(name, FAMILIES[name], ns / count, ns / total) for name, ns in profile.families.items()]
    about = Text(
        "Kernels are sorted into families by their names. Overlapping kernels are each counted in full. “Host-bound”"
        " and “outside the forward pass” are idle times of the device."
    )
    return Table("families", Text("Families of kernels"), columns, rows, about)


def phases(profile: RankProfile) -> Table:
    """Return the table of the kernel times in forward, backward and optimizer; empty if the steps do not train."""
    count, sums = len(profile.units) or 1, profile.phases
    total = sum(sums.values())
    columns = (
        Column("phase", Text("phase")),
        Column("ns_per_step", Text("kernel ms/step"), MS),
        Column("share", Text("share of kernel time"), SHARE, bar=True),
    )
    rows = [(phase, ns / count, ns / total) for phase, ns in sums.items() if total]
    about = Text(
        "The thread and the operator that launched a kernel decide whether it counts as forward, backward or optimizer."
    )
    return Table("phases", Text("Forward and backward"), columns, rows, about)


def gaps(profile: RankProfile) -> Table:
    """Return the table of a profile's gaps: the places at which the device was idle, with times and causes."""
    count, total = len(profile.units) or 1, profile.total_ns or 1
    plain = ("part", "before", "after", "stream", "graph", "call", "operator", "module", "begin_ns", "at_ns")
    columns = (
        Column("", Text("place of the gap"), NAME, TERMINAL),
        Column("", Text("cause"), NAME),
        Column("ns_per_step", Text("ms/step"), MS, TERMINAL),
        Column("share", Text("share"), SHARE, TERMINAL, bar=True),
        Column("steps", Text("steps"), COUNT, TERMINAL),
        Column("step", Text("step with the longest idle time"), NUMBER),
        Column("gaps", Text("number of gaps"), COUNT),
        Column("longest_ns", Text("longest"), TIME),
        Column("", Text("kind of idle time")),
        Column("", "", NAME),
        *(Column(name, shown_in=CSV) for name in plain),
    )
    rows = [
        (
            place_of(gap), host_activity(gap) or reason_of(gap), gap.ns / count,
            None if gap.part == LEAD_IN else gap.ns / total, gap.units, gap.unit,
            gap.count, gap.longest_ns, reason_of(gap), preceding_words(gap), *(getattr(gap, name) for name in plain),
        )
        for gap in profile.gaps
    ]  # fmt: skip
    about = Text(
        "No task ran on the device in these gaps. A row is the sum of all gaps with the same "
        "kernels before and after, and the same call, operator and module on the host. The first "
        "{count} rows are framed in the picture above.",
        MARKED,
    )
    hues = [gap.part for gap in profile.gaps]
    return Table("gaps", Text("Where the device was idle"), columns, rows, about, hues)


MARKED = 20
"""Places that are marked among the lanes of a page."""


def kernels(profile: RankProfile) -> Table:
    """Return the table of kernels by name, longest first."""
    count, total = len(profile.units) or 1, profile.total_ns or 1
    columns = (
        _NAME, _PER_UNIT, Column("share", Text("share of step time"), SHARE), _CALLS, _AVERAGE,
        Column("longest_ns", Text("longest µs"), MICROS), _KIND,
    )  # fmt: skip
    rows = [
        (
            kernel.name, kernel.ns / count, kernel.ns / total, kernel.calls / count,
            kernel.ns / (kernel.calls or 1), kernel.longest_ns or None, kernel.kind,
        )
        for kernel in profile.kernels
    ]  # fmt: skip
    about = Text("A kernel counts for the step that launched it. Overlapping kernels are each counted in full.")
    hues = [kernel.kind if kernel.kind in KINDS else "total" for kernel in profile.kernels]
    return Table("kernels", Text("Kernels"), columns, rows, about, hues)


def allocations(profile: RankProfile) -> tuple[Table, Table]:
    """Return the tables of the memory of each device by step, and of the code that allocates most of it per step."""
    device = Column("device", Text("device"), RANK, optional=True)
    by_unit = (
        Column("step", Text("step"), NUMBER, TERMINAL), device, *UNIT_MEMORY,
    )  # fmt: skip
    rows = [
        (unit.number, memory.device, unit.start, unit.peak, unit.end, unit.allocated, unit.allocations)
        for memory in profile.memory for unit in memory.units
    ]  # fmt: skip
    by_code = (
        Column("bytes_per_step", Text("allocated/step"), BYTES, TERMINAL, bar=True),
        Column("allocations_per_step", Text("calls/step"), RATE, TERMINAL), device,
        Column("", Text("operator in module"), NAME, TERMINAL),
        Column("operator", shown_in=CSV), Column("module", shown_in=CSV),
    )  # fmt: skip
    code: list[tuple[object, ...]] = []
    for memory in profile.memory:
        steps = len(memory.units)
        for row in memory.code:
            place = row.operator or "?"
            if row.module:
                place = Text("{operator} in {module}", operator=place, module=row.module)
            means = row.bytes / steps, row.allocations / steps
            code.append((*means, memory.device, place, row.operator, row.module))
    about = Text("Memory that is allocated and freed again within a step counts, too.")
    return (
        Table("allocations_by_unit", Text("Memory by step"), by_unit, rows),
        Table("allocations_by_code", Text("Memory allocated, by operator and module"), by_code, code, about),
    )


def callers(profile: RankProfile) -> tuple[Table, ...]:
    """Return the tables of operators, and of modules and ranges, longest kernel time first."""
    operators = Text("Host time excludes nested operators.")
    if profile.total_ns:
        operators = Text("A kernel counts for the operator that launched it; host time excludes nested operators.")
    modules = Text("The time of a module or range includes everything that it calls.")
    count = len(profile.units) or 1
    columns = (
        _NAME,
        Column("ns_per_step", Text("kernel ms/step"), MS, TERMINAL, optional=True, bar=True),
        Column("host_ns_per_step", Text("host ms/step"), MS, TERMINAL),
        _CALLS,
        Column("kernels_per_step", Text("kernels/step"), RATE, optional=True),
    )
    values = attrgetter("ns", "host_ns", "calls", "kernels")
    tables = (
        ("operators", Text("Operators"), profile.operators, operators),
        ("modules", Text("Modules and ranges"), profile.modules, modules),
    )
    return tuple(
        Table(name, title, columns, [(row.name, *(value / count for value in values(row))) for row in rows], about)
        for name, title, rows, about in tables
    )


def kernel_uses(profile: RankProfile) -> Table:
    """Return the table of an NPU's kernels by shape, longest first, with the pipeline that bounds each."""
    count = len(profile.units) or 1
    columns = (
        _NAME, Column("shapes", Text("input shapes"), NAME), Column("types", Text("data types"), NAME), _PER_UNIT,
        Column("bound", Text("bound by")), Column("pipes", Text("busiest pipelines")),
        Column("blocks", Text("blocks"), COUNT), Column("core", Text("core type")), _CALLS, _AVERAGE,
        Column("compiled", Text("compilation"), optional=True),
        Column("cube_utilization", Text("cube utilization"), SHARE, optional=True),
    )  # fmt: skip

    def row(use: KernelUse) -> tuple[object, ...]:
        busiest = sorted(use.ratios.items(), key=lambda pipe: -pipe[1])[:3]
        pipes = ", ".join(f"{pipe_name(pipe)} {percent(ratio, 0)}" for pipe, ratio in busiest)
        return (
            use.name, use.shapes, _distinct(use.types.split(";")), use.ns / count, use.bound or "", pipes,
            use.block_dim, use.core, use.calls / count, use.ns / (use.calls or 1), use.state, use.cube_utilization,
        )  # fmt: skip

    about = Text(
        "“Busiest pipelines” shows the share of a core's cycles in which a pipeline worked, averaged over kernels of"
        " the same shape. A pipeline that works for {busy} of the cycles or more bounds the kernel. “Pipes in turn”:"
        " no pipeline reaches this share, but on a vector core, data movement and computing sum to {together} of the"
        " cycles or more: they run in turn instead of at once. “Nothing”: no pipeline bounds the kernel, because the"
        " kernel is too small for the core, or its pipelines wait for each other.",
        busy=percent(BUSY, 0),
        together=percent(TOGETHER, 0),
    )
    return Table("kernel_shapes", Text("Kernels by shape"), columns, [*map(row, profile.kernel_uses)], about)


def _distinct(types: Iterable[str]) -> str:
    """Return each type name once, without torch's prefix ``c10::``, with commas in between."""
    return ", ".join(dict.fromkeys(name.removeprefix("c10::") for name in types if name))


def rates(profile: RankProfile) -> Table:
    """Return the table of a GPU's operators by shape, longest first, with their rates and share of the roofline."""
    count = len(profile.units) or 1
    columns = (
        _NAME, Column("shapes", Text("input shapes"), NAME), Column("types", Text("data types"), NAME), _PER_UNIT,
        Column("tflops", "TFLOPS", RATE), Column("tb_per_s", "TB/s", Unit("{:,.3f}".format)), _CALLS, _AVERAGE,
        Column("roofline_share", Text("share of the roofline"), SHARE, optional=True),
        Column("least_ns_per_step", Text("roofline, ms/step"), MS, optional=True),
        Column("bound", Text("bound by"), optional=True),
    )  # fmt: skip

    def row(rate: OperatorRate) -> tuple[object, ...]:
        shapes = ", ".join("\N{MULTIPLICATION SIGN}".join(map(str, shape)) for shape in rate.shapes if shape)
        types = _distinct(name for shape, name in zip(rate.shapes, rate.types, strict=False) if shape)
        least = None if rate.least_ns is None else rate.least_ns / count
        return (
            rate.operator, shapes, types, rate.ns / count, rate.tflops or None, rate.tb_per_s, rate.calls / count,
            rate.ns / rate.calls, rate.share, least, rate.bound or "",
        )  # fmt: skip

    about = Text(
        "The rates are computed from shapes: a multiply-add counts as two operations, and each tensor counts as read"
        " or written once. More than 100 % of the roofline means that data was in a cache."
    )
    if not any(rate.bound for rate in profile.rates):
        about = sentences(about, Text("No roofline is known for {device}.", profile.device or Text("this device")))
    return Table("operator_shapes", Text("Operators by shape"), columns, [*map(row, profile.rates)], about)


def collectives(profile: RankProfile) -> Table:
    """Return the table of collectives of known size, with the largest excess over the usual time first."""
    times = {
        "usual_ns": Text("expected time for this size"), "excess_ns": Text("time above expected"),
        "waits_ns": Text("waiting for straggler"), "transit_ns": Text("transit"), "wait_ns": Text("waiting"),
        "idle_ns": Text("idle"),
    }  # fmt: skip
    columns = (
        *_MEETING,
        Column("bytes", Text("size"), BYTES),
        Column("ns", Text("time"), TIME),
        Column("gb_per_s", "GB/s", Unit("{:,.2f}".format)),
        *(Column(name, title, TIME, optional=True) for name, title in times.items()),
    )
    measures = attrgetter("size", "ns", "gb_per_s")
    rows = [
        (
            collective.kind or collective.name,
            collective.group,
            collective.unit,
            collective.index + 1,
            *measures(collective),
            *(getattr(collective, name) or None for name in times),
        )
        for collective in sorted(profile.collectives, key=lambda collective: (-collective.excess_ns, -collective.ns))
        if collective.size
    ]
    about = Text(
        "GB/s is size divided by time; waiting is excluded if it is known. “Expected time” uses the rate of those"
        " collectives of the same kind and group that are nearest in size."
    )
    return Table("collectives", Text("Collectives"), columns, rows, about)


_MEETING = (
    _NAME, Column("group", Text("group"), NAME), Column("step", Text("step"), NUMBER),
    Column("number", Text("which occurrence in the step"), COUNT),
)  # fmt: skip


def vendor_steps(profile: RankProfile) -> Table:
    """Return the table of torch_npu's own step times (step_trace_time), a row for each step; empty without a file."""
    steps = profile.vendor or {}
    names = list(dict.fromkeys(name for row in steps.values() for name in row))
    columns = (
        Column("step", "step"),
        *(Column(name, name.removesuffix("_ns").replace("_", " "), TIME) for name in names),
    )
    rows = [(step, *(row.get(name) for name in names)) for step, row in steps.items()]
    return Table("vendor_steps", Text("torch_npu's own step table"), columns, rows)


def ranks(sums: Sequence[Rank]) -> Table:
    """Return the table of ranks: their median step, their waits in collectives, and how long others waited for them."""
    columns = (
        Column("rank", Text("rank"), RANK, TERMINAL),
        Column("source", shown_in=CSV),
        Column("steps", Text("steps"), COUNT),
        Column("median_ns", Text("median ms"), MS, TERMINAL),
        Column("collectives", Text("collectives"), COUNT, TERMINAL),
        Column("waits_ns_per_step", Text("waits ms/step"), MS, TERMINAL),
        Column("awaited_ns_per_step", Text("makes others wait, ms/step"), MS, TERMINAL),
        Column("last", Text("straggler"), COUNT, TERMINAL),
    )
    values = attrgetter(
        "rank", "source", "units", "median_ns", "collectives", "waits_per_unit", "awaited_per_unit", "last"
    )
    about = Text(
        "rlpatch matches collectives across ranks by their order: the n-th collective of a process group is the same"
        " one on all ranks of the group. The rank that spends the least time in a collective arrived last and is the"
        " straggler. If several ranks arrive last together, none of them counts as straggler."
    )
    return Table("ranks", Text("Ranks"), columns, [*map(values, sums)], about)


def meetings(profiles: Sequence[RankProfile]) -> Table:
    """Return the table of the collectives in which ranks met, those with the largest differences in time first.

    Collectives whose ``waits_ns`` are unknown are left out. Only durations are compared, because ranks need not have
    one clock: the straggler is the rank with the shortest one.
    """
    together: dict[tuple[str, int, str, int], list[tuple[int, str, int]]] = {}
    for profile in profiles:
        numbers = Counter[tuple[str, int, str]]()
        for collective in profile.collectives:
            if collective.waits_ns is not None:
                place = collective.group, collective.unit, collective.name
                member = collective.ns, profile.name, collective.index
                together.setdefault((*place, numbers[place]), []).append(member)
                numbers[place] += 1
    columns = (
        *_MEETING,
        Column("shortest_ns", Text("shortest"), TIME),
        Column("longest_ns", Text("longest"), TIME),
        Column("waiting_ns", Text("waiting time"), TIME),
        Column("last", Text("straggler"), NAME),
    )
    rows = []
    for (group, unit, name, _), members in together.items():
        (shortest, last, index), (longest, _, _) = min(members), max(members)
        rows.append((name, group, unit, index + 1, shortest, longest, longest - shortest, last))
    rows.sort(key=lambda row: (-row[6], *row[1:4]))
    return Table("meetings", Text("Which rank waits for which"), columns, rows)


def part_changes(comparison: Comparison) -> Table:
    """Return the table of the parts of the median step before and after, without parts that are 0 on both sides."""
    columns = (
        Column("part", shown_in=CSV),
        Column("", Text("breakdown of the median step"), LABEL, TERMINAL),
        Column("before_ns", Text("before ms"), MS, TERMINAL),
        Column("after_ns", Text("after ms"), MS, TERMINAL),
        Column("change_ns", Text("change ms"), CHANGE, TERMINAL),
    )
    rows = [
        (part.name, PARTS.get(part.name, part.name), part.before_ns, part.after_ns, part.change_ns)
        for part in comparison.parts if part.before_ns or part.after_ns
    ]  # fmt: skip
    return Table("parts", "", columns, rows)


def changes(name: str, title: str, changed: Sequence[TimeChange], about: str) -> Table:
    """Return the table ``name`` with the time per step of kernels, operators or modules before and after."""
    columns = (
        _NAME,
        Column("change_ns", Text("change ms"), CHANGE, TERMINAL, bar=True),
        Column("before_ns", Text("before ms"), MS, TERMINAL),
        Column("after_ns", Text("after ms"), MS, TERMINAL),
        Column("state", Text("what changed"), LABEL, TERMINAL),
        Column("before_calls", Text("calls before"), RATE),
        Column("after_calls", Text("calls after"), RATE),
        Column("kind", Text("kind")),
    )
    rows = [*map(attrgetter(*(column.key for column in columns)), changed)]
    hues = ["slower" if change.change_ns > 0 else "faster" for change in changed]
    return Table(name, title, columns, rows, about, hues)
