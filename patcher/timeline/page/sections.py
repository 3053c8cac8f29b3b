"""The sections of the page beside the picture: verdict, causes, steps, savings, and windows to record."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from patcher.messages import COMMA, SEMICOLON, Text, joined, processes_text
from patcher.messages.language import translate_for_page
from patcher.page.markup import Content, Markup, alert, faint, section, tag
from patcher.page.table import table_section
from patcher.timeline import memory_tables, tables
from patcher.timeline.lengths import seconds, share
from patcher.timeline.model import (
    SEVERAL,
    TYPICAL,
    ProposedWindow,
    RecordedWindow,
    RunCause,
    RunTimeline,
    TrainingStep,
    without_warm_up,
)
from patcher.timeline.page.picture import RECORDED, WINDOWS

NOTES, CLOCKS = Text("Notes"), Text("Clocks")
_LISTED = 8  # steps by number, or reasons


def head(timeline: RunTimeline) -> Content:
    """Return the head of the page: packages, processes and length of the run, missing records, and the verdict."""
    run = timeline.run
    origin = Text(
        "{packages}: {processes}, {time} recorded",
        packages=", ".join(run.packages) or "?",
        processes=processes_text(run.processes),
        time=seconds(timeline.seconds),
    )
    return (
        tag("header", tag("h1", Text("rlpatch timeline")), faint((origin, run.name and f" \N{MIDDLE DOT} {run.name}"))),
        alert(Text("The recording is incomplete:"), timeline.missing),
        tag("p", _run_verdict(timeline), class_="verdict"),
    )


def _run_verdict(timeline: RunTimeline) -> str:
    """Return the verdict on the run in one line: number of steps, median duration, and costliest cause."""
    if not timeline.steps:
        return Text("No training step has been recorded yet.")
    count = len(timeline.steps)
    median = seconds(statistics.median(step.seconds for step in without_warm_up(timeline.steps)))
    steps = (
        Text("1 step, {median}", median)
        if count == 1
        else Text("{count} steps, median {median}", count=count, median=median)
    )
    if not timeline.causes:
        return Text("{steps}. No step or cause stands out.", steps)
    most = timeline.causes[0]
    return Text(
        "{steps}. Largest cost: {cause} ({time}, {share} of step time).",
        steps=steps,
        cause=most.title,
        time=seconds(most.seconds),
        share=share(most.share),
    )


def causes(timeline: RunTimeline) -> Content:
    """Return a section with the costliest causes: time, share, possible saving, steps and advice; falsy if none."""
    cards = [
        tag(
            "article",
            tag("h3", cause.title),
            tag(
                "p",
                Text("{time}, {share} of step time", time=seconds(cause.seconds), share=share(cause.share)),
                _saving_text(cause),
                cause.steps and (" \N{MIDDLE DOT} ", _step_links(cause.steps)),
            ),
            tag("p", cause.advice),
            class_="finding",
        )
        for cause in timeline.causes
    ]  # fmt: skip
    return cards and section(Text("Largest costs, and what to do next"), tag("div", cards, class_="causes"))


def _saving_text(cause: RunCause) -> Content:
    """Return a text on the upper bound of a fix's saving; empty if it is unknown or as long as the cause itself."""
    if cause.saves_seconds is None or seconds(cause.saves_seconds) == seconds(cause.seconds):
        return ()
    return (" \N{MIDDLE DOT} ", Text("a fix saves at most {time}", seconds(cause.saves_seconds)))


def trend(timeline: RunTimeline) -> Content:
    """Return a section on how the length of the steps changes over the run, by activity, if it does."""
    if timeline.trend is None:
        return ()
    parts = [
        Text("{activity} {change:+.2f} s", activity=part.name, change=part.seconds) for part in timeline.trend.parts
    ]
    return section(
        Text("Trend"),
        tag("p", tables.trend(timeline.trend)),
        parts and tag("ul", [tag("li", part) for part in parts]),
        tag("p", tables.correlated_quantities(timeline.trend)),
    )


def _step_links(steps: Sequence[int]) -> Content:
    """Return a text that lists the first eight steps by number, each a link to the picture, and counts the others."""
    links = [_link(step) for step in steps[:_LISTED]]
    before, _, behind = translate_for_page(Text("in steps {steps}", "\0")).partition("\0")
    separated = [(COMMA if at else "", link) for at, link in enumerate(links)]
    more = len(steps) > _LISTED and Text(" and {count} more", len(steps) - _LISTED)
    return (before, separated, more, behind)


def _link(step: int) -> Markup:
    return tag("a", step, href=f"#step-{step:d}")


def steps(timeline: RunTimeline) -> Content:
    """Return the table of steps, each number a link to the picture, with the causes of each and marks of warm-ups."""
    limited = [[_verdict_text(step), step.warm_up and tag("small", Text(" (warm-up)"))] for step in timeline.steps]
    links = [_link(step.step) for step in timeline.steps]
    return table_section(tables.steps(timeline), contents={"step": links, "limited_by": limited})


def _verdict_text(step: TrainingStep) -> Content:
    """Return the text on a step's verdict: its causes with their excess, or its largest activity if it is typical."""
    if step.verdict == "limited" and step.limited_by:
        by = step.limited_by
        also = [
            (SEMICOLON, Text("+{excess} {cause}", excess=seconds(cause.excess_seconds), cause=cause.label))
            for cause in step.also
        ]
        return (
            tag("strong", Text("+{excess} {cause}", excess=seconds(by.excess_seconds), cause=by.label)),
            also,
            _uncompared_phases(step),
        )
    if step.verdict == TYPICAL:
        most = step.mostly
        spent = most and Text(
            "typical step; largest activity: {activity} ({time})", activity=most.label, time=seconds(most.seconds)
        )
        return (tag("span", spent or TYPICAL, class_="faint"), _uncompared_phases(step))
    why = joined(SEMICOLON, (step.why, *step.missing))
    return tag("em", why if step.verdict == SEVERAL else Text("unknown: {reason}", why))


def _uncompared_phases(step: TrainingStep) -> Content:
    return [
        (
            SEMICOLON,
            Text("not compared with other steps: {phase}, {time}", phase=phase.name, time=seconds(phase.seconds)),
        )
        for phase in step.beside
    ]


def table_sections(timeline: RunTimeline) -> Iterator[Content]:
    """Yield the page's sections with the tables of possible savings, busy roles, weight sync, imbalance and memory."""
    bounds = tables.bounds(timeline)
    yield table_section(bounds, contents={"step": [_link(row[4]) for row in bounds.rows]})
    for table in (tables.roles, tables.sync, tables.imbalance):
        yield table_section(table(timeline))
    yield from map(table_section, memory_tables.tables(timeline))


def windows(timeline: RunTimeline) -> Content:
    """Return a section with the windows to record next, as commands to copy; falsy if none is proposed."""

    def window(proposed: ProposedWindow) -> Markup:
        return tag(
            "article",
            tag("h3", proposed.what, " (", Text("step"), " ", _link(proposed.step), ")"),
            tag("p", proposed.why),
            _command(proposed.command),
            faint(Text("to record this window in the present run, without restarting it:")),
            _command(proposed.trigger),
        )

    return timeline.windows and section(WINDOWS, map(window, timeline.windows))


def _command(text: str) -> Markup:
    return tag("pre", tag("code", text), class_="command", data_copy=Text("copy"))


def recorded(timeline: RunTimeline) -> Content:
    """Return a section with the recorded windows, linked to their traces, with the commands to report on them."""

    def window(recording: RecordedWindow) -> Markup:
        title = f"{recording.title} ({seconds(recording.end - recording.start)})"
        trace = tag("a", recording.trace.name, href=recording.trace.absolute().as_uri())
        return tag("article", tag("p", title, ": ", trace), _command(recording.report))

    return timeline.recorded and section(RECORDED, map(window, timeline.recorded))


def clocks_and_notes(timeline: RunTimeline) -> Iterator[Content]:
    """Yield the table of clocks, and the notes if there are any."""
    yield table_section(tables.clocks(timeline))
    if timeline.notes:
        yield section(NOTES, tag("ul", [tag("li", note) for note in timeline.notes]))
