"""What ``report`` and ``compare`` show in the terminal: lines of 80 columns, details with -v."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from patcher.commands.reports.gap_lines import gaps
from patcher.messages.language import cell
from patcher.messages.notes import WIDTH, wrapped
from patcher.messages.report import Detail
from patcher.messages.text import AND, COMMA, Text, joined
from patcher.traces import model
from patcher.traces.measured import bounds, rate_words, states
from patcher.traces.sidecar import CONTENTS, unit_contents
from patcher.traces.words import (
    apart,
    cold_units,
    in_ms,
    joined_replays,
    millis,
    percent,
    short,
    spread,
    uncounted_between,
)

_NAME = Text("name")
SHOWN = 10
"""Rows of a table in the terminal; the page and --json have all."""

MANY = 4
"""Profiles up to which each is described, and not the slowest alone."""


def report(found: model.TraceReport) -> list[str]:
    """The verdict, the profiles with their parts, the diagnoses, the ranks, and the tables of the slowest profile."""
    if found.stages:
        titled = (
            (Text("== {stage} ==", stage.captures[0].part or Text("no stage is known")), *report(stage))
            for stage in found.stages
        )
        return _separated(*titled)
    profiles = found.captures
    slowest = max(profiles, key=lambda one: (one.median_ns, one.host_median_ns))
    label = slowest.label if len(profiles) > 1 else ""
    rest = Text("{label} is the slowest; -o FILE.html and --json have the others, too", slowest.label)
    return _separated(
        _verdict(found.verdict),
        *map(_described, profiles if len(profiles) <= MANY else [slowest]),
        *map(_diagnosis, found.findings),
        _ranks(found.ranks),
        gaps(slowest, label),
        *_tables(slowest, label),
        wrapped(rest) if len(profiles) > 1 else (),
    )


def comparison(found: model.Comparison) -> list[str]:
    """How much changed, how sure that is, and where it comes from."""
    parts = [
        (model.PARTS[part.name], millis(part.before_ns), millis(part.after_ns), _signed(part.change_ns))
        for part in found.parts if part.before_ns or part.after_ns
    ]  # fmt: skip
    heads = (Text("part of the median unit"), Text("before ms"), Text("after ms"), Text("change ms"))
    return _separated(
        _change(found),
        _table("{:38}{:>13}{:>13}{:>13}", heads, parts),
        *(
            _changes(title, rows)
            for title, rows in (
                (Text("kernels, per unit"), found.kernels),
                (Text("modules and ranges, per unit"), found.modules),
            )
        ),
    )


def _separated(*sections: Iterable[str]) -> list[str]:
    """The lines of the sections that have some, with an empty line before each but the first."""
    lines = [line for section in map(list, sections) if section for line in ("", *section)]
    return lines[1:]


def _indented(*texts: str) -> Iterator[str]:
    for text in texts:
        yield from wrapped(text, "  ")


def _table(row: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows below their heads, none without rows; names stand last and are cut, and only the first of them are shown."""
    named = heads[-1] == _NAME
    shown = rows[:SHOWN] if named else rows
    if rows and named:
        room = min(WIDTH - len(row.format(*cells, "")) for *cells, _ in (heads, *shown))
        shown = [
            (*cells, name) for (*cells, _), name in zip(shown, apart([one[-1] for one in shown], room), strict=True)
        ]
    for one in (heads, *shown) if rows else ():
        yield row.format(*map(cell, one))
    if len(shown) < len(rows):
        yield Text("  … {count:,} more: -o FILE.html and --json have all", len(rows) - len(shown))


def _verdict(verdict: model.Verdict) -> Iterator[str]:
    if verdict.withdrawn:
        yield Text("warning: this data does not support every verdict")
        yield from _indented(*verdict.withdrawn)
        yield ""
    yield verdict.title
    yield from _indented(verdict.guide, verdict.difference)


def _described(profile: model.RankProfile) -> Iterator[str]:
    """One profile with its parts and, as details, its units and checks."""
    yield from wrapped(profile.source)
    origin = " · ".join(filter(None, (model.FORMS[profile.form], short(profile.device), short(profile.rank_name))))
    yield from _indented(origin, _times(profile), *_metadata(profile))
    if (replays := profile.replays) is not None:
        yield from _indented(joined_replays(replays.count, replays.joined, replays.why))
    if profile.pieces:
        yield from _indented(Text("saved in {count} pieces", len(profile.pieces)))
    if profile.cold:
        yield from _indented(cold_units(profile.cold))
    if profile.total_ns:
        yield from _parts(profile)
    else:
        yield Text("  nothing ran on a device; median on the host {time}", in_ms(profile.host_median_ns))
    yield from map(Detail, _units(profile))
    for check in profile.checks:
        if check.ok:
            yield Detail("  ok {check}: {evidence}", check.id, check.evidence)
        else:
            yield Detail("  failed {check}: {evidence}", check.id, check.evidence)


def _times(profile: model.RankProfile) -> str:
    count, slowest = len(profile.units), profile.slowest_unit
    text = Text("1 unit, {numbers}", profile.span)
    if count != 1:
        text = Text("{count} units, {numbers}", count, profile.span)
    if profile.total_ns:
        text = Text("{units}: median {median}", text, in_ms(profile.median_ns))
    if slowest and profile.median_ns and count > 1:
        text = Text(
            "{units}, 95th percentile {percentile}, slowest: #{number} ({times:.2f}x the median)",
            text,
            in_ms(profile.percentile95_ns),
            slowest.number,
            slowest.device_ns / profile.median_ns,
        )
    return text


def _metadata(profile: model.RankProfile) -> Iterator[str]:
    """The metadata of the profile, and the contents of those of its units that are reported."""
    if not profile.metadata:
        return
    yield " · ".join(filter(None, profile.metadata.identity))
    known = unit_contents(profile.units)
    ranges = [Text("{name} {range}", name, spread(min(values), max(values))) for name, values in known.items()]
    if ranges:
        yield Text("its units held {contents}", joined(COMMA, ranges))
    if profile.uncounted:
        yield uncounted_between(profile.uncounted)


def _parts(profile: model.RankProfile) -> Iterator[str]:
    sums = {label: profile.sum_ns(part) for part, label in model.PARTS.items()}
    count, total = len(profile.units), profile.total_ns
    rows = [(label, millis(ns / count), percent(ns / total)) for label, ns in sums.items() if ns]
    yield from _table("  {:38}{:>14}{:>9}", (Text("part of a unit"), Text("ms per unit"), Text("share")), rows)
    if shown := _shares(bounds(profile.kernel_uses)):
        yield from _indented(Text("kernel time by what bounds it: {shares}", shown))
    if shown := _shares(states(profile.kernel_uses)):
        yield from _indented(Text("kernel time by how its shapes were compiled: {shares}", shown))
    yield from _indented(*rate_words(profile.rates, profile.device))
    whole = sum(profile.phases.values())
    if whole:
        shares = _shares({phase: ns / whole for phase, ns in profile.phases.items()})
        yield from _indented(Text("kernel time: {shares}", shares))


def _shares(shares: Mapping[str, float]) -> Text:
    return joined(COMMA, (Text("{name} {share}", name, percent(share)) for name, share in shares.items()))


def _units(profile: model.RankProfile) -> Iterator[str]:
    """Each unit, with columns of what not every one of them counts alike."""
    names = [name for name in (*CONTENTS, "uncounted") if len({getattr(unit, name) for unit in profile.units}) > 1]
    heads, rows = (Text("unit"), "ms", Text("host ms"), Text("kernels"), *names), []
    for unit in profile.units:
        if not names:
            yield Text(
                "  #{number} {device_time}, host {host_time}, {kernels:,} kernels",
                unit.number,
                in_ms(unit.device_ns),
                in_ms(unit.host_ns),
                unit.kernels,
            )
            continue
        counts = ("" if (value := getattr(unit, name)) is None else f"{value:,}" for name in names)
        rows.append((f"#{unit.number}", millis(unit.device_ns), millis(unit.host_ns), f"{unit.kernels:,}", *counts))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    yield from _table("  " + gap.join(f"{{:>{width}}}" for width in widths), heads, rows)


def _diagnosis(one: model.Diagnosis) -> Iterator[str]:
    title = one.title
    if one.saving_ns:
        title = Text("{title} (at most {saving} per unit to gain)", title, in_ms(one.saving_ns))
    yield from wrapped(Text("{severity}: {title}", one.severity, title))
    yield from _indented(
        one.evidence, one.advice and Text("try: {advice}", one.advice), Text("certainty: {certainty}", one.certainty)
    )


def _ranks(ranks: Sequence[model.Rank]) -> Iterator[str]:
    rows = []
    for one in ranks:
        waits, awaited = millis(one.waits_per_unit), millis(one.awaited_per_unit)
        rank = "?" if one.rank is None else str(one.rank)
        rows.append((rank, millis(one.median_ns), f"{one.collectives:,}", waits, awaited, f"{one.last:,}"))
    heads = (
        Text("rank"), Text("median ms"), Text("collectives"), Text("waits ms/unit"), Text("awaited ms/unit"),
        Text("last"),
    )  # fmt: skip
    return _table("{:>6}{:>13}{:>13}{:>15}{:>17}{:>7}", heads, rows)


def _tables(profile: model.RankProfile, label: str) -> Iterator[list[str]]:
    count = len(profile.units)
    kernels = [(millis(one.ns / count), f"{one.calls / count:,.1f}", one.kind, one.name) for one in profile.kernels]
    if kernels:
        heads = (Text("ms/unit"), Text("calls/unit"), Text("kind"), _NAME)
        yield [_of(Text("kernels"), label), *_table("{:>11}{:>12}  {:14} {}", heads, kernels)]
    on_device = bool(profile.total_ns)  # without a device the first column is empty
    row = "{:>11}{:>14}{:>12}  {}" if on_device else "{1:>14}{2:>12}  {3}"
    operators = Text("by the kernels that they launched") if on_device else Text("by their own time on the host")
    modules = Text("by the kernels launched within") if on_device else Text("by their time on the host")
    callers = (
        (Text("{what}, {by}", _of(Text("operators"), label), operators), profile.operators),
        (Text("{what}, {by}", _of(Text("modules and ranges"), label), modules), profile.modules),
    )
    for title, sums in callers:
        if sums:
            rows = [
                (millis(one.ns / count), millis(one.host_ns / count), f"{one.calls / count:,.1f}", one.name)
                for one in sums
            ]
            heads = (Text("ms/unit"), Text("host ms/unit"), Text("calls/unit"), _NAME)
            yield [*wrapped(title), *_table(row, heads, rows)]


def _of(what: Text, label: str) -> Text:
    return Text("{what} of {profile}", what, label) if label else what


def _change(found: model.Comparison) -> Iterator[str]:
    for reason in found.refused:
        yield from wrapped(Text("warning: {reason}", reason))
    before, after = found.median_ns
    yield Text(
        "{median}: {before} before, {after} after, {change} ms",
        Text("median unit on the host") if found.clock == "host" else Text("median unit"),
        in_ms(before),
        in_ms(after),
        _signed(after - before),
    )
    if found.change is not None:
        low, _, high = found.change
        interval = Text("  95 % interval {low} to {high} ms", _signed(low), _signed(high))
        if before:
            interval = Text("{interval}, {share:+.1f} %", interval, (after - before) / before * 100)
        yield Text("{interval}: {verdict}", interval, found.verdict)
    elif not found.refused:
        yield Text("  {line}", found.verdict)
    if (equal := found.equal_load) is not None:
        least, middle, most = map(_signed, equal.change)
        by = joined(AND, equal.by)
        yield from _indented(
            Text(
                "at equal {by}: {middle} ms, 95 % interval {low} to {high} ms; {by} and the side explain"
                " {fit} of the differences between steps",
                by,
                middle,
                least,
                most,
                percent(equal.fit, 0),
            )
        )
    for difference in found.differs:
        yield from wrapped(Text("not the same: {difference}", difference))
    for note in found.notes:
        yield from wrapped(Text("note: {note}", note))


def _changes(title: str, changes: Sequence[model.TimeChange]) -> list[str]:
    rows = [
        (_signed(one.change_ns), millis(one.before_ns), millis(one.after_ns), one.state, one.name) for one in changes
    ]
    heads = (Text("change ms"), Text("before ms"), Text("after ms"), "", _NAME)
    return [title, *_table("{:>11}{:>12}{:>11}  {:11} {}", heads, rows)] if rows else []


def _signed(ns: float) -> str:
    return f"{ns / 1_000_000:+,.3f}"
