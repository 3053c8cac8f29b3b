"""What ``report`` and ``compare`` say in the terminal: lines of 80 columns, details with -v."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patcher.notes import WIDTH, wrapped
from patcher.report import Detail
from patcher.traces import facts
from patcher.traces.model import FORMS, PARTS, Capture, Comparison, Finding, Rank, Report
from patcher.traces.words import in_ms, millis, percent, short

SHOWN = 10
"""Rows of a table in the terminal; the page and --json have all."""


def verdict(found: Report) -> Iterator[str]:
    """What the findings come to, and what had to be withdrawn."""
    verdict = found.verdict
    if verdict.withdrawn:
        yield "warning: this data cannot carry every verdict"
        for reason in verdict.withdrawn:
            yield from wrapped(reason, "  ")
        yield ""
    yield verdict.title
    for text in (verdict.guide, verdict.difference):
        if text:
            yield from wrapped(text, "  ")


def described(capture: Capture) -> Iterator[str]:
    """What is known of one capture, with its parts and, as details, its units and checks."""
    rank = f"rank {capture.rank}" if capture.rank is not None else ""
    yield from wrapped(capture.source)
    yield from wrapped(" · ".join(filter(None, (FORMS[capture.form], capture.device, rank))), "  ")
    count, slowest = len(capture.units), capture.slowest_unit
    text = f"{count} unit{'s' * (count != 1)}, {capture.span}"
    if capture.total_ns:
        text += f": median {in_ms(capture.median_ns)}"
    if slowest is not None and capture.median_ns and count > 1:
        ratio = slowest.device_ns / capture.median_ns
        text += (
            f", 95th percentile {in_ms(capture.percentile95_ns)}, slowest #{slowest.number} with {ratio:.2f} times that"
        )
    yield from wrapped(text, "  ")
    yield from _held(capture)
    if not capture.total_ns:
        yield f"  nothing ran on a device; median on the host {in_ms(capture.host_median_ns)}"
        yield from _units(capture)
        yield from _checks(capture)
        return
    yield f"  {'part of a unit':38}{'ms per unit':>14}{'share':>9}"
    for part, words in PARTS.items():
        ns = sum(getattr(unit, part) for unit in capture.units)
        if ns:
            yield f"  {words:38}{ns / count / 1e6:14,.3f}{percent(ns / capture.total_ns):>9}"
    phases = {phase: sum(unit.phases.get(phase, 0) for unit in capture.units) for phase in capture.units[0].phases}
    whole = sum(phases.values())
    if whole:
        shares = ", ".join(f"{phase} {percent(ns / whole)}" for phase, ns in phases.items())
        yield from wrapped(f"kernel time: {shares}", "  ")
    yield from _units(capture)
    yield from _checks(capture)


def _checks(capture: Capture) -> Iterator[Detail]:
    for check in capture.checks:
        yield Detail(f"  {'ok' if check.ok else 'failed'} {check.id}: {check.evidence}")


def _held(capture: Capture) -> Iterator[str]:
    """What the facts tell of the capture and its units, over those that are reported."""
    if not capture.facts:
        return
    yield from wrapped(" · ".join(filter(None, facts.told(capture.facts))), "  ")
    every = {name: [getattr(unit, name) for unit in capture.units] for name in facts.HELD}
    known = {name: [value for value in values if value is not None] for name, values in every.items()}
    ranges = [f"{name} {facts.spread(min(values), max(values))}" for name, values in known.items() if any(values)]
    if ranges:
        yield from wrapped(f"its units held {', '.join(ranges)}", "  ")
    uncounted = {unit.number: unit.uncounted for unit in capture.units if unit.uncounted}
    if uncounted:
        yield from wrapped(facts.lying_between(uncounted), "  ")


def _units(capture: Capture) -> Iterator[Detail]:
    """Each unit on a line, with columns of what not every one of them held alike."""
    names = [name for name in (*facts.HELD, "uncounted") if len({getattr(unit, name) for unit in capture.units}) > 1]
    if not names:
        for unit in capture.units:
            yield Detail(
                f"  #{unit.number} {in_ms(unit.device_ns)}, host {in_ms(unit.host_ns)}, {unit.kernels:,} kernels"
            )
        return
    rows = [("unit", "ms", "host ms", "kernels", *names)]
    for unit in capture.units:
        held = ("" if (value := getattr(unit, name)) is None else f"{value:,}" for name in names)
        rows.append((f"#{unit.number}", millis(unit.device_ns), millis(unit.host_ns), f"{unit.kernels:,}", *held))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    for row in rows:
        yield Detail("  " + gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def finding_lines(finding: Finding) -> Iterator[str]:
    """One finding: how much, why, and what to try."""
    saving = f" (at most {in_ms(finding.saving_ns)} per unit to gain)" if finding.saving_ns else ""
    yield from wrapped(f"{finding.severity}: {finding.title}{saving}")
    yield from wrapped(finding.evidence, "  ")
    if finding.advice:
        yield from wrapped(f"try: {finding.advice}", "  ")
    yield from wrapped(f"certainty: {finding.certainty}", "  ")


def rank_table(ranks: Sequence[Rank]) -> Iterator[str]:
    """Who waits for whom."""
    yield f"{'rank':>6}{'median ms':>13}{'collectives':>13}{'waits ms/unit':>15}{'awaited ms/unit':>17}{'last':>7}"
    for row in ranks:
        units = max(row.units, 1)
        number = "?" if row.rank is None else row.rank
        yield (
            f"{number:>6}{row.median_ns / 1e6:13,.3f}{row.collectives:13,}{row.waits_ns / units / 1e6:15,.3f}"
            f"{row.awaited_ns / units / 1e6:17,.3f}{row.last:7,}"
        )


def tables(capture: Capture, *, many: bool) -> Iterator[str]:
    """The kernels, operators and modules that take longest."""
    of = f" of {capture.label}" if many else ""
    units = len(capture.units)
    left = 0 if capture.total_ns else 11  # without a device the first column says nothing
    if capture.kernels:
        yield from ("", f"kernels{of}")
        yield f"{'ms/unit':>11}{'calls/unit':>12}  {'kind':14} name"
        for kernel in capture.kernels[:SHOWN]:
            head = f"{kernel.ns / units / 1e6:11,.3f}{kernel.calls / units:12,.1f}  {kernel.kind:14} "
            yield head + short(kernel.name, WIDTH - len(head))
        yield from _more(len(capture.kernels))
    for title, rows in (("operators", capture.operators), ("modules", capture.modules)):
        if rows:
            yield ""
            by = "by the kernels that they launched" if capture.total_ns else "by their own time on the host"
            yield from wrapped(f"{title}{of}, {by}")
            yield f"{'ms/unit':>11}{'host ms/unit':>14}{'calls/unit':>12}  name"[left:]
            for row in rows[:SHOWN]:
                head = f"{row.ns / units / 1e6:11,.3f}{row.host_ns / units / 1e6:14,.3f}{row.calls / units:12,.1f}  "
                head = head[left:]
                yield head + short(row.name, WIDTH - len(head))
            yield from _more(len(rows))


def _more(count: int) -> Iterator[str]:
    if count > SHOWN:
        yield f"  … {count - SHOWN:,} more: -o FILE.html and --json have all"


def comparison(found: Comparison) -> Iterator[str]:
    """How much changed, how sure that is, and where it comes from."""
    for reason in found.refused:
        yield from wrapped(f"warning: {reason}")
    before, after = found.median_ns
    on_host = " on the host" if found.clock == "host" else ""
    yield f"median unit{on_host}: {in_ms(before)} before, {in_ms(after)} after, {_signed(after - before)} ms"
    if found.change is not None:
        low, _, high = found.change
        sure = "no clear difference" if low <= 0 <= high else "slower" if low > 0 else "faster"
        percent = f", {(after - before) / before * 100:+.1f} %" if before else ""
        yield f"  95 % interval {_signed(low)} to {_signed(high)} ms{percent}: {sure}"
    for note in found.notes:
        yield from wrapped(f"note: {note}")
    if any(part.before_ns or part.after_ns for part in found.parts):
        yield from ("", f"{'part of the median unit':38}{'before ms':>13}{'after ms':>13}{'change ms':>13}")
        for part in found.parts:
            if part.before_ns or part.after_ns:
                yield (
                    f"{PARTS[part.name]:38}{part.before_ns / 1e6:13,.3f}{part.after_ns / 1e6:13,.3f}"
                    f"{_signed(part.change_ns):>13}"
                )
    for title, rows in (("kernels", found.kernels), ("modules", found.modules)):
        if rows:
            yield from ("", f"{title}, per unit")
            yield f"{'change ms':>11}{'before ms':>12}{'after ms':>11}  {'':11} name"
            for row in rows[:SHOWN]:
                head = f"{_signed(row.change_ns):>11}{row.before_ns / 1e6:12,.3f}{row.after_ns / 1e6:11,.3f}"
                head += f"  {row.state:11} "
                yield head + short(row.name, WIDTH - len(head))
            yield from _more(len(rows))


def _signed(ns: float) -> str:
    return f"{ns / 1_000_000:+,.3f}"
