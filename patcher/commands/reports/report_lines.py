"""The lines of ``report`` and ``compare`` in the terminal: at most of 80 columns, details with -v."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from patcher.commands.reports.first_screen import first_screen, focus_of
from patcher.commands.reports.table_lines import SHOWN, lines, titled
from patcher.messages import AND, COMMA, SEMICOLON, Detail, Text, joined
from patcher.messages.notes import wrapped
from patcher.traces import model, tables
from patcher.traces.measured import COVERED, bounds, rate_words, states
from patcher.traces.places import begin_of, behind, why
from patcher.traces.sidecar import CONTENTS, unit_contents
from patcher.traces.tables import CHANGE
from patcher.traces.words import (
    baseline_words,
    cold_units,
    in_ms,
    joined_replays,
    percent,
    short,
    spread,
    uncounted_between,
)

MANY = 4
"""Profiles up to which each is described, and not the one to look at first alone."""

FIRST, WORTH = 3, 0.01
"""Places where the device was free that are shown without -v, and the share of the time from which on one is."""


def report(trace_report: model.TraceReport, again: str = "") -> list[str]:
    """Return the lines of a report: the first screen, then as details profiles, diagnoses, ranks, and tables.

    A report on several stages has such a section for each stage. ``again`` is the command that was typed.
    """
    if trace_report.stages:
        stages = (
            (Text("== {stage} ==", stage.captures[0].part or Text("stage unknown")), *report(stage, again))
            for stage in trace_report.stages
        )
        return _separated(*stages)
    profiles = trace_report.captures
    focus = focus_of(trace_report)
    label = focus.label if len(profiles) > 1 else ""
    hint = Text(
        "the tables above are of {label}; -o FILE.html and --json also have the tables of the others", focus.label
    )
    details = _separated(
        _verdict(trace_report.verdict),
        *map(_described, profiles if len(profiles) <= MANY else [focus]),
        *map(_diagnosis, trace_report.findings),
        lines(tables.ranks(trace_report.ranks)),
        titled(tables.families(focus), label),
        _gaps(focus, label),
        *(
            titled(table, label)
            for table in (tables.kernels(focus), *tables.callers(focus), *tables.allocations(focus))
        ),
        wrapped(hint) if len(profiles) > 1 else (),
    )
    return [*first_screen(trace_report, again), *(Detail("{line}", line) for line in ("", *details))]


def comparison(compared: model.Comparison) -> list[str]:
    """Return the lines on how much changed, how certain the change is, and which parts and kernels it comes from."""
    parts, *changes = (table for _, table in tables.of_comparison(compared))
    return _separated(_change(compared), lines(parts), *map(titled, changes))


def _separated(*sections: Iterable[str]) -> list[str]:
    """Return the lines of all sections; an empty line separates sections, and empty sections are left out."""
    lines = [line for section in map(list, sections) if section for line in ("", *section)]
    return lines[1:]


def _indented(*texts: str) -> Iterator[str]:
    for text in texts:
        yield from wrapped(text, "  ")


def _verdict(verdict: model.Verdict) -> Iterator[str]:
    """Yield each kind of verdict that this data does not support, and the guide's rule."""
    if verdict.withdrawn:
        yield Text("warning: the data is not sufficient for every verdict")
        yield from _indented(*verdict.withdrawn)
        yield ""
    yield from _indented(verdict.guide, verdict.difference)


def _described(profile: model.RankProfile) -> Iterator[str]:
    """Yield the lines on a profile: source, times, metadata and parts; its units and checks need -v."""
    yield from wrapped(profile.source)
    origin = " · ".join(filter(None, (model.FORMS[profile.form], short(profile.device), short(profile.rank_name))))
    yield from _indented(origin, _times(profile), *_metadata(profile))
    if (replays := profile.replays) is not None:
        yield from _indented(joined_replays(replays.count, replays.joined, replays.why))
    if profile.pieces:
        yield from _indented(Text("saved in {count} parts", len(profile.pieces)))
    if profile.cold:
        yield from _indented(cold_units(profile.cold))
    if profile.total_ns:
        yield from _parts(profile)
    else:
        yield Text("  no events from a known device; median time on the host {time}", in_ms(profile.host_median_ns))
    yield from map(Detail, _units(profile))
    for check in profile.checks:
        line = Text("ok {check}: {evidence}", check.id, check.evidence)
        if not check.ok:
            line = Text("failed {check}: {evidence}", check.id, check.evidence)
        yield from map(Detail, wrapped(line, "  ", "    "))


def _times(profile: model.RankProfile) -> str:
    """Return the number and range of units, with their median, 95th percentile and slowest device time if known."""
    count, slowest = len(profile.units), profile.slowest_unit
    text = Text("1 step, {numbers}", profile.span)
    if count != 1:
        text = Text("{count} steps, {numbers}", count, profile.span)
    if profile.total_ns:
        text = Text("{steps}: median {median}", text, in_ms(profile.median_ns))
    if slowest and profile.median_ns and count > 1:
        text = Text(
            "{steps}, 95th percentile {percentile}, slowest: #{number} ({times:.2f}x the median)",
            text,
            in_ms(profile.percentile95_ns),
            slowest.number,
            slowest.device_ns / profile.median_ns,
        )
    return text


def _metadata(profile: model.RankProfile) -> Iterator[str]:
    """Yield the identity in a profile's metadata, and the range of requests, tokens and context of its units."""
    if not profile.metadata:
        return
    yield " · ".join(filter(None, profile.metadata.identity))
    contents = unit_contents(profile.units)
    ranges = [Text("{name} {range}", name, spread(min(values), max(values))) for name, values in contents.items()]
    if ranges:
        yield Text("in each step: {contents}", joined(COMMA, ranges))
    if profile.uncounted:
        yield uncounted_between(profile.uncounted)


def _parts(profile: model.RankProfile) -> Iterator[str]:
    """Yield the breakdown of a profile, and the shares of kernel time by bound, compiled shapes and phase."""
    yield from lines(tables.parts(profile))
    if lead_in := profile.sum_ns(model.LEAD_IN):
        yield from _indented(Text("time before the first kernel: {time}, not part of the step", in_ms(lead_in)))
    if shares := _shares(bounds(profile.kernel_uses)):
        yield from _indented(Text("kernel time by the limiting resource: {shares}", shares))
    if shares := _shares(states(profile.kernel_uses)):
        yield from _indented(Text("kernel time by shape compilation (static, dynamic): {shares}", shares))
    yield from _indented(*rate_words(profile.rates, profile.device, profile.computing_ns, COVERED))
    whole = sum(profile.phases.values())
    if whole:
        shares = _shares({phase: ns / whole for phase, ns in profile.phases.items()})
        yield from _indented(Text("kernel time: {shares}", shares))


def _shares(shares: Mapping[str, float]) -> Text:
    return joined(COMMA, (Text("{name} {share}", name, percent(share)) for name, share in shares.items()))


def _units(profile: model.RankProfile) -> Iterator[str]:
    """Yield a table of the units; a count that is the same in every unit gets no column."""
    counted = (*CONTENTS, "uncounted")
    return lines(
        tables.units(profile), [name for name in counted if len({getattr(unit, name) for unit in profile.units}) == 1]
    )


def _diagnosis(diagnosis: model.Diagnosis) -> Iterator[str]:
    """Yield the lines on a diagnosis: severity, upper bound of the saving per unit, evidence, advice and certainty."""
    title = diagnosis.title
    if diagnosis.saving_ns:
        title = Text("{title} (upper bound of the saving: {saving} per step)", title, in_ms(diagnosis.saving_ns))
    yield from wrapped(Text("{severity}: {title}", diagnosis.severity, title))
    yield from _indented(
        diagnosis.evidence,
        diagnosis.advice and Text("suggestion: {advice}", diagnosis.advice),
        Text("certainty: {certainty}", diagnosis.certainty),
    )


def _gaps(profile: model.RankProfile, label: str) -> Iterator[str]:
    """Yield the places with the most idle device time, each followed by its cause; small ones need -v."""
    worth = [gap for gap in profile.gaps[:FIRST] if gap.ns >= WORTH * profile.total_ns]
    if not worth:
        return
    title, head, *rows = titled(tables.gaps(profile), label)
    yield from (title, head)
    for at, (gap, row) in enumerate(zip(profile.gaps[:SHOWN], rows, strict=False)):
        # Where not every unit has as much of it, that which has most.
        most: str = Text("longest in step #{step}", gap.unit) if 2 * gap.unit_ns > gap.ns else ""
        most = f"#{gap.unit}" if gap.units == 1 else most
        entry = [
            row,
            *wrapped(
                joined(SEMICOLON, (behind(gap), why(gap), most, begin_of(gap) if gap.kind == "place" else "")),
                "    ",
                "    ",
            ),
        ]
        yield from entry if at < len(worth) else map(Detail, entry)
    if len(profile.gaps) > len(worth):
        yield Text("  {count:,} places in total; -o FILE.html and --json list them all", len(profile.gaps))


def _change(comparison: model.Comparison) -> Iterator[str]:
    """Yield the medians of both sides, the change with its 95 % interval, the change at equal load, and warnings."""
    for reason in comparison.refused:
        yield from wrapped(Text("warning: {reason}", reason))
    before, after = comparison.median_ns
    if comparison.baseline:
        yield from wrapped(baseline_words(comparison.baseline.folder, comparison.before.medians_ns))
    yield Text(
        "{median}: {before} before, {after} after, {change} ms",
        Text("median step on the host") if comparison.clock == "host" else Text("median step"),
        in_ms(before),
        in_ms(after),
        CHANGE.text(after - before),
    )
    if comparison.change is not None:
        low, _, high = comparison.change
        interval = Text("  95 % interval {low} to {high} ms", CHANGE.text(low), CHANGE.text(high))
        if before:
            interval = Text("{interval}, {share:+.1f} %", interval, (after - before) / before * 100)
        yield Text("{interval}: {verdict}", interval, comparison.verdict)
    elif not comparison.refused:
        yield Text("  {line}", comparison.verdict)
    if (equal := comparison.equal_load) is not None:
        least, middle, most = map(CHANGE.text, equal.change)
        by = joined(AND, equal.by)
        yield from _indented(
            Text(
                "at equal {by}: {middle} ms, 95 % interval {low} to {high} ms; {by} and the change together"
                " explain {fit} of the variation between steps",
                by,
                middle,
                least,
                most,
                percent(equal.fit, 0),
            )
        )
    for difference in comparison.differs:
        yield from wrapped(Text("different on the two sides: {difference}", difference))
    for note in comparison.notes:
        yield from wrapped(Text("note: {note}", note))
