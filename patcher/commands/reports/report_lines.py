"""The lines of ``report`` and ``compare`` in the terminal: at most of 80 columns, details with -v."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from patcher.commands.reports.first_screen import contents_words, first_screen, focus_of, recorded_steps
from patcher.commands.reports.table_lines import SHOWN, lines, titled
from patcher.messages import AND, SEMICOLON, Detail, Text, joined
from patcher.messages.notes import wrapped
from patcher.traces import model, tables
from patcher.traces.measured import COVERED, bounds, rate_words, states
from patcher.traces.places import longest_gap_text, preceding_words, why
from patcher.traces.sidecar import CONTENTS, unit_contents
from patcher.traces.tables import CHANGE
from patcher.traces.words import (
    baseline_words,
    cold_start_phrase,
    in_ms,
    percent,
    replays_phrase,
    shares_words,
    short,
    uncounted_phrase,
)

MANY = 4
"""Most profiles that are each described; of more, only the one to look at first."""

SEVERITY_WORDS: Mapping[str, str] = {name: name for name in (Text("problem"), Text("warning"), Text("note"))}

FIRST, LEAST_SHARE = 3, 0.01
"""Idle places shown without -v, and the least share of the device time of such a place."""


def report(trace_report: model.TraceReport, command: str = "") -> list[str]:
    """Return the lines of a report: the first screen, then as details profiles, diagnoses, ranks, and tables.

    A report on several stages has such a section for each stage. ``command`` is the command as typed, "" if unknown;
    the first screen ends with the next command, which may be a longer form of it that writes the HTML page.
    """
    if trace_report.stages:
        stages = (
            (Text("== {stage} ==", stage.captures[0].part or Text("stage unknown")), *report(stage, command))
            for stage in trace_report.stages
        )
        return _separated(*stages)
    profiles = trace_report.captures
    focus = focus_of(trace_report)
    label = focus.label if len(profiles) > 1 else ""
    hint = Text(
        "the tables above show only {trace}; -o FILE.html and --json also have the tables of the other traces",
        focus.label,
    )
    details = _separated(
        _verdict_lines(trace_report.verdict),
        *map(_profile_lines, profiles if len(profiles) <= MANY else [focus]),
        *map(_diagnosis_lines, trace_report.findings),
        lines(tables.ranks(trace_report.ranks)),
        titled(tables.families(focus), label),
        _idle_place_lines(focus, label),
        *(
            titled(table, label)
            for table in (tables.kernels(focus), *tables.callers(focus), *tables.allocations(focus))
        ),
        wrapped(hint) if len(profiles) > 1 else (),
    )
    return [*first_screen(trace_report, command), *(Detail("{line}", line) for line in ("", *details))]


def comparison(compared: model.Comparison) -> list[str]:
    """Return the lines on a comparison: the medians and the certainty of their change, then its parts and kernels."""
    parts, *changes = (table for _, table in tables.of_comparison(compared))
    return _separated(_change_lines(compared), lines(parts), *map(titled, changes))


def _separated(*sections: Iterable[str]) -> list[str]:
    """Return the lines of all sections; an empty line separates sections, and empty sections are left out."""
    lines = [line for section in map(list, sections) if section for line in ("", *section)]
    return lines[1:]


def _indented(*texts: str) -> Iterator[str]:
    for text in texts:
        yield from wrapped(text, "  ")


def _verdict_lines(verdict: model.Verdict) -> Iterator[str]:
    """Yield a warning on verdicts that the data does not support, then the verdict of the vendor's guide."""
    if verdict.withdrawn:
        yield Text("warning: some verdicts are withdrawn, because the data does not support them")
        yield from _indented(*verdict.withdrawn)
        yield ""
    yield from _indented(verdict.guide, verdict.difference)


def _profile_lines(profile: model.RankProfile) -> Iterator[str]:
    """Yield the lines on a profile: source, device, times, metadata and breakdown; its steps and checks need -v."""
    yield from wrapped(profile.source)
    origin = " · ".join(filter(None, (model.FORMS[profile.form], short(profile.device), short(profile.rank_name))))
    yield from _indented(origin, _step_times(profile), *_metadata_lines(profile))
    if (replays := profile.replays) is not None:
        yield from _indented(replays_phrase(replays.count, replays.joined, replays.why))
    if pieces := len(profile.pieces):
        yield from _indented(Text("the recording window was saved in {count} traces, one after the other", pieces))
    if profile.cold:
        yield from _indented(cold_start_phrase(profile.cold))
    if profile.total_ns:
        yield from _breakdown_lines(profile)
    else:
        yield Text(
            "  no events of a known device found; the median step takes {time} on the host",
            in_ms(profile.host_median_ns),
        )
    yield from map(Detail, _step_table(profile))
    for check in profile.checks:
        line = Text("check “{check}” passed: {evidence}", check=check.id, evidence=check.evidence)
        if not check.ok:
            line = Text("check “{check}” failed: {evidence}", check=check.id, evidence=check.evidence)
        yield from map(Detail, wrapped(line, "  ", "    "))


def _step_times(profile: model.RankProfile) -> str:
    """Return the number and range of steps in words, then their median, 95th percentile and slowest time if known."""
    count, slowest = len(profile.units), profile.slowest_unit
    text: str = recorded_steps(profile)
    if profile.total_ns:
        text = Text("{steps}: median time {median}", steps=text, median=in_ms(profile.median_ns))
    if slowest and profile.median_ns and count > 1:
        text = Text(
            "{steps}, 95th percentile {percentile}, slowest step #{number} ({ratio:.2f}x the median)",
            steps=text,
            percentile=in_ms(profile.percentile95_ns),
            number=slowest.number,
            ratio=slowest.device_ns / profile.median_ns,
        )
    return text


def _metadata_lines(profile: model.RankProfile) -> Iterator[str]:
    """Yield lines on a profile's step metadata; nothing without metadata."""
    if not profile.metadata:
        return
    yield " · ".join(filter(None, profile.metadata.identity))
    if contents := contents_words(unit_contents(profile.units)):
        yield Text("in each step: {contents}", contents)
    if profile.uncounted:
        yield uncounted_phrase(profile.uncounted)


def _breakdown_lines(profile: model.RankProfile) -> Iterator[str]:
    """Yield lines on a profile's device time: its breakdown, shares of the kernel time, and rates (such as FLOP/s)."""
    yield from lines(tables.parts(profile))
    if lead_in := profile.sum_ns(model.LEAD_IN):
        yield from _indented(
            Text("time before the first kernel: {time}, which is not part of the step", in_ms(lead_in))
        )
    whole = sum(profile.phases.values())
    phases = {phase: ns / whole for phase, ns in profile.phases.items()} if whole else {}
    yield from _indented(
        _shares_line(Text("kernel time by limiting resource: {shares}"), bounds(profile.kernel_uses)),
        _shares_line(
            Text("kernel time of operators compiled for static and for dynamic shapes: {shares}"),
            states(profile.kernel_uses),
        ),
        *rate_words(profile.rates, profile.device, profile.computing_ns, COVERED),
        _shares_line(Text("kernel time by phase (forward, backward, optimizer): {shares}"), phases),
    )


def _shares_line(text: Text, shares: Mapping[str, float]) -> str:
    """Return ``text`` with the shares of categories; "" without any."""
    return text.filled(shares_words(shares)) if shares else ""


def _step_table(profile: model.RankProfile) -> Iterator[str]:
    """Yield the lines of the table of steps; a count, such as requests, that is the same in each step has no column."""
    counted = (*CONTENTS, "uncounted")
    return lines(
        tables.units(profile), [name for name in counted if len({getattr(unit, name) for unit in profile.units}) == 1]
    )


def _diagnosis_lines(diagnosis: model.Diagnosis) -> Iterator[str]:
    """Yield the lines on a diagnosis: severity, title, largest saving per step, evidence, advice and certainty."""
    title = diagnosis.title
    if diagnosis.saving_ns:
        title = Text(
            "{title} (upper bound of the saving: {saving} per step)", title=title, saving=in_ms(diagnosis.saving_ns)
        )
    yield from wrapped(Text("{severity}: {title}", severity=SEVERITY_WORDS[diagnosis.severity], title=title))
    yield from _indented(
        diagnosis.evidence,
        diagnosis.advice and Text("suggestion: {advice}", diagnosis.advice),
        Text("certainty: {certainty}", diagnosis.certainty),
    )


def _idle_place_lines(profile: model.RankProfile, label: str) -> Iterator[str]:
    """Yield a table of the places in the program where the device was idle longest, each followed by its cause."""
    large = [gap for gap in profile.gaps[:FIRST] if gap.ns >= LEAST_SHARE * profile.total_ns]
    if not large:
        return
    title, head, *rows = titled(tables.gaps(profile), label)
    yield from (title, head)
    for at, (gap, row) in enumerate(zip(profile.gaps[:SHOWN], rows, strict=False)):
        # A step with more than half of the idle time is named.
        main_step: str = Text("most of the idle time is in step #{step}", gap.unit) if 2 * gap.unit_ns > gap.ns else ""
        main_step = f"#{gap.unit}" if gap.units == 1 else main_step
        longest = longest_gap_text(gap) if gap.kind == "place" else ""
        cause = joined(SEMICOLON, (preceding_words(gap), why(gap), main_step, longest))
        entry = [row, *wrapped(cause, "    ", "    ")]
        yield from entry if at < len(large) else map(Detail, entry)
    if len(profile.gaps) > len(large):
        yield Text(
            "  the device is idle at {count:,} places in total; -o FILE.html and --json list them all",
            len(profile.gaps),
        )


def _change_lines(comparison: model.Comparison) -> Iterator[str]:
    """Yield the warnings, the medians of both sides, and their change with its 95 % interval and verdict."""
    for reason in comparison.refused:
        yield from wrapped(Text("warning: {reason}", reason))
    before, after = comparison.median_ns
    if comparison.baseline:
        yield from wrapped(baseline_words(comparison.baseline.folder, comparison.before.medians_ns))
    yield Text(
        "{quantity}: {before} before, {after} after, change {change} ms",
        quantity=Text("median step (host time)") if comparison.clock == "host" else Text("median step"),
        before=in_ms(before),
        after=in_ms(after),
        change=CHANGE.text(after - before),
    )
    if comparison.change is not None:
        low, _, high = comparison.change
        interval = Text(
            "95 % confidence interval of the change: {low} to {high} ms", low=CHANGE.text(low), high=CHANGE.text(high)
        )
        if before:
            interval = Text("{interval}, {share:+.1f} %", interval=interval, share=(after - before) / before * 100)
        yield from _indented(Text("{interval}: {verdict}", interval=interval, verdict=comparison.verdict))
    elif not comparison.refused:
        yield from _indented(comparison.verdict)
    if (equal := comparison.equal_load) is not None:
        lower, middle, upper = map(CHANGE.text, equal.change)
        load = joined(AND, equal.by)
        yield from _indented(
            Text(
                "at equal {load} per step, by a linear fit: step time changes by {change} ms, 95 % interval {low} to"
                " {high} ms; the fit explains {share} of the variation between steps",
                load=load,
                change=middle,
                low=lower,
                high=upper,
                share=percent(equal.fit, 0),
            )
        )
    for difference in comparison.differs:
        yield from wrapped(Text("the two sides of the comparison differ: {difference}", difference))
    for note in comparison.notes:
        yield from wrapped(Text("note: {note}", note))
