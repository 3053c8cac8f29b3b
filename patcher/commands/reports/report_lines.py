"""What ``report`` and ``compare`` show in the terminal: lines of 80 columns, details with -v."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from patcher.messages.notes import WIDTH, wrapped
from patcher.messages.report import Detail
from patcher.traces import model
from patcher.traces.sidecar import CONTENTS
from patcher.traces.words import in_ms, millis, percent, short, spread, uncounted_between

SHOWN = 10
"""Rows of a table in the terminal; the page and --json have all."""

MANY = 4
"""Profiles up to which each is described, and not the slowest alone."""


def report(found: model.TraceReport) -> Iterator[str]:
    """The verdict, the profiles with their parts, the diagnoses, the ranks, and the tables of the slowest profile."""
    slowest = max(found.captures, key=lambda one: (one.median_ns, one.host_median_ns))
    yield from _verdict(found.verdict)
    for profile in found.captures if len(found.captures) <= MANY else (slowest,):
        yield ""
        yield from _described(profile)
    for one in found.findings:
        yield ""
        yield from _diagnosis(one)
    if found.ranks:
        yield ""
        yield from _rank_table(found.ranks)
    yield from _tables(slowest, many=len(found.captures) > 1)
    if len(found.captures) > 1:
        yield ""
        yield from wrapped(f"{slowest.label} is the slowest; -o FILE.html and --json have the others, too")


def _verdict(verdict: model.Verdict) -> Iterator[str]:
    if verdict.withdrawn:
        yield "warning: this data cannot carry every verdict"
        for reason in verdict.withdrawn:
            yield from wrapped(reason, "  ")
        yield ""
    yield verdict.title
    for text in filter(None, (verdict.guide, verdict.difference)):
        yield from wrapped(text, "  ")


def _described(profile: model.RankProfile) -> Iterator[str]:
    """One profile with its parts and, as details, its units and checks."""
    yield from wrapped(profile.source)
    yield from wrapped(" · ".join(filter(None, (model.FORMS[profile.form], profile.device, profile.rank_name))), "  ")
    yield from wrapped(_times(profile), "  ")
    yield from _metadata(profile)
    if profile.total_ns:
        yield from _parts(profile)
    else:
        yield f"  nothing ran on a device; median on the host {in_ms(profile.host_median_ns)}"
    yield from _units(profile)
    yield from _checks(profile)


def _times(profile: model.RankProfile) -> str:
    """How many units there are, and how long they take."""
    count, slowest = len(profile.units), profile.slowest_unit
    text = f"{count} unit{'s' * (count != 1)}, {profile.span}"
    if profile.total_ns:
        text += f": median {in_ms(profile.median_ns)}"
    if slowest is not None and profile.median_ns and count > 1:
        ratio = slowest.device_ns / profile.median_ns
        text += f", 95th percentile {in_ms(profile.percentile95_ns)}"
        text += f", slowest #{slowest.number} with {ratio:.2f} times that"
    return text


def _parts(profile: model.RankProfile) -> Iterator[str]:
    yield f"  {'part of a unit':38}{'ms per unit':>14}{'share':>9}"
    for part, label in model.PARTS.items():
        if ns := profile.sum_ns(part):
            yield f"  {label:38}{ns / len(profile.units) / 1e6:14,.3f}{percent(ns / profile.total_ns):>9}"
    whole = sum(profile.phases.values())
    if whole:
        shares = ", ".join(f"{phase} {percent(ns / whole)}" for phase, ns in profile.phases.items())
        yield from wrapped(f"kernel time: {shares}", "  ")


def _checks(profile: model.RankProfile) -> Iterator[Detail]:
    for check in profile.checks:
        yield Detail(f"  {'ok' if check.ok else 'failed'} {check.id}: {check.evidence}")


def _metadata(profile: model.RankProfile) -> Iterator[str]:
    """The metadata of the profile, and the contents of those of its units that are reported."""
    if not profile.metadata:
        return
    yield from wrapped(" · ".join(filter(None, profile.metadata.identity)), "  ")
    columns = {name: [getattr(unit, name) for unit in profile.units] for name in CONTENTS}
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    ranges = [f"{name} {spread(min(values), max(values))}" for name, values in known.items() if any(values)]
    if ranges:
        yield from wrapped(f"its units held {', '.join(ranges)}", "  ")
    if profile.uncounted:
        yield from wrapped(uncounted_between(profile.uncounted), "  ")


def _units(profile: model.RankProfile) -> Iterator[Detail]:
    """Each unit on a line, with columns of what not every one of them counts alike."""
    names = [name for name in (*CONTENTS, "uncounted") if len({getattr(unit, name) for unit in profile.units}) > 1]
    if not names:
        for unit in profile.units:
            yield Detail(
                f"  #{unit.number} {in_ms(unit.device_ns)}, host {in_ms(unit.host_ns)}, {unit.kernels:,} kernels"
            )
        return
    rows = [("unit", "ms", "host ms", "kernels", *names)]
    for unit in profile.units:
        counts = ("" if (value := getattr(unit, name)) is None else f"{value:,}" for name in names)
        rows.append((f"#{unit.number}", millis(unit.device_ns), millis(unit.host_ns), f"{unit.kernels:,}", *counts))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    for row in rows:
        yield Detail("  " + gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _diagnosis(one: model.Diagnosis) -> Iterator[str]:
    """How much there is to gain, why, and what to try."""
    saving = f" (at most {in_ms(one.saving_ns)} per unit to gain)" if one.saving_ns else ""
    yield from wrapped(f"{one.severity}: {one.title}{saving}")
    yield from wrapped(one.evidence, "  ")
    if one.advice:
        yield from wrapped(f"try: {one.advice}", "  ")
    yield from wrapped(f"certainty: {one.certainty}", "  ")


def _rank_table(ranks: Sequence[model.Rank]) -> Iterator[str]:
    """Who waits for whom."""
    yield f"{'rank':>6}{'median ms':>13}{'collectives':>13}{'waits ms/unit':>15}{'awaited ms/unit':>17}{'last':>7}"
    for row in ranks:
        units = max(row.units, 1)
        number = "?" if row.rank is None else row.rank
        yield (
            f"{number:>6}{row.median_ns / 1e6:13,.3f}{row.collectives:13,}{row.waits_ns / units / 1e6:15,.3f}"
            f"{row.awaited_ns / units / 1e6:17,.3f}{row.last:7,}"
        )


def _tables(profile: model.RankProfile, *, many: bool) -> Iterator[str]:
    """The kernels, operators and modules that take longest."""
    of = f" of {profile.label}" if many else ""
    count = len(profile.units)
    if profile.kernels:
        yield from ("", f"kernels{of}", f"{'ms/unit':>11}{'calls/unit':>12}  {'kind':14} name")
        yield from _rows(
            (f"{one.ns / count / 1e6:11,.3f}{one.calls / count:12,.1f}  {one.kind:14} ", one.name)
            for one in profile.kernels
        )
    by = "by the kernels that they launched" if profile.total_ns else "by their own time on the host"
    left = 0 if profile.total_ns else 11  # without a device the first column is empty
    callers: Sequence[tuple[str, Sequence[model.CallSums]]] = (
        ("operators", profile.operators),
        ("modules", profile.modules),
    )
    for title, sums in callers:
        if sums:
            yield ""
            yield from wrapped(f"{title}{of}, {by}")
            yield f"{'ms/unit':>11}{'host ms/unit':>14}{'calls/unit':>12}  name"[left:]
            yield from _rows(
                (
                    f"{one.ns / count / 1e6:11,.3f}{one.host_ns / count / 1e6:14,.3f}{one.calls / count:12,.1f}  "[
                        left:
                    ],
                    one.name,
                )
                for one in sums
            )


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The first rows of a table, numbers and name, and how many more there are."""
    every = list(rows)
    for numbers, name in every[:SHOWN]:
        yield numbers + short(name, WIDTH - len(numbers))
    if len(every) > SHOWN:
        yield f"  … {len(every) - SHOWN:,} more: -o FILE.html and --json have all"


def comparison(found: model.Comparison) -> Iterator[str]:
    """How much changed, how sure that is, and where it comes from."""
    for reason in found.refused:
        yield from wrapped(f"warning: {reason}")
    before, after = found.median_ns
    on_host = " on the host" if found.clock == "host" else ""
    yield f"median unit{on_host}: {in_ms(before)} before, {in_ms(after)} after, {_signed(after - before)} ms"
    if found.change is not None:
        low, _, high = found.change
        sure = "no clear difference" if low <= 0 <= high else "slower" if low > 0 else "faster"
        share = f", {(after - before) / before * 100:+.1f} %" if before else ""
        yield f"  95 % interval {_signed(low)} to {_signed(high)} ms{share}: {sure}"
    for note in found.notes:
        yield from wrapped(f"note: {note}")
    yield from _changed_parts([part for part in found.parts if part.before_ns or part.after_ns])
    for title, rows in (("kernels", found.kernels), ("modules", found.modules)):
        if rows:
            yield from ("", f"{title}, per unit")
            yield f"{'change ms':>11}{'before ms':>12}{'after ms':>11}  {'':11} name"
            yield from _rows((_change(row), row.name) for row in rows)


def _changed_parts(parts: Sequence[model.PartChange]) -> Iterator[str]:
    if parts:
        yield from ("", f"{'part of the median unit':38}{'before ms':>13}{'after ms':>13}{'change ms':>13}")
    for part in parts:
        times = f"{part.before_ns / 1e6:13,.3f}{part.after_ns / 1e6:13,.3f}{_signed(part.change_ns):>13}"
        yield f"{model.PARTS[part.name]:38}{times}"


def _change(row: model.TimeChange) -> str:
    times = f"{_signed(row.change_ns):>11}{row.before_ns / 1e6:12,.3f}{row.after_ns / 1e6:11,.3f}"
    return f"{times}  {row.state:11} "


def _signed(ns: float) -> str:
    return f"{ns / 1_000_000:+,.3f}"
