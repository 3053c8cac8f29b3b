"""What the page says in words and tables: the verdict, causes, steps, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from patcher.messages import COMMA, SEMICOLON, Text, joined
from patcher.messages.language import translate_for_page
from patcher.page.markup import Content, Markup, alert, faint, section, tag
from patcher.page.table import table_section
from patcher.timeline import tables
from patcher.timeline.lengths import seconds, share
from patcher.timeline.model import (
    NOT_KNOWN,
    SEVERAL,
    TYPICAL,
    ProposedWindow,
    RecordedWindow,
    RunCause,
    RunTimeline,
    TrainingStep,
)
from patcher.timeline.page.picture import CAUSES, RECORDED, WINDOWS, window_name

NOTES, CLOCKS = Text("Notes"), Text("Clocks")
_LISTED = 8  # steps by number, or reasons


def head(found: RunTimeline) -> Content:
    """What ran, what is missing, and one sentence."""
    run = found.run
    origin = Text(
        "{packages}: {processes} processes, {seconds} recorded",
        ", ".join(run.packages) or "?",
        run.processes,
        seconds(found.seconds),
    )
    return (
        tag("header", tag("h1", Text("rlpatch timeline")), faint((origin, run.name and f" \N{MIDDLE DOT} {run.name}"))),
        alert(Text("Not everything was recorded:"), found.missing),
        tag("p", _sentence(found), class_="verdict"),
    )


def _sentence(found: RunTimeline) -> str:
    if not found.steps:
        return Text("No step of training is recorded yet.")
    count, typical = len(found.steps), seconds(_median(step.seconds for step in _after_warm_up(found)))
    if not found.causes:
        return Text("{count} steps, typically {typical} each. Nothing stands out.", count, typical)
    most = found.causes[0]
    return Text(
        "{count} steps, typically {typical} each. Costliest: {title} ({seconds}, {share} of the run).",
        count,
        typical,
        _title(most),
        seconds(most.seconds),
        share(most.share),
    )


def _after_warm_up(found: RunTimeline) -> Sequence[TrainingStep]:
    return [step for step in found.steps if not step.warm_up] or found.steps


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values) or [0.0])


def _title(found: RunCause) -> str:
    return found.title or (found.cause.label if found.cause else "?")


def causes(found: RunTimeline) -> Content:
    """The largest causes, each with what to do next."""
    cards = [
        tag(
            "article",
            tag("h3", _title(one)),
            tag(
                "p",
                Text("{seconds}, {share} of the run", seconds(one.seconds), share(one.share)),
                one.steps and (" \N{MIDDLE DOT} ", _steps(one.steps)),
            ),
            one.advice and tag("p", one.advice),
            class_="finding",
        )
        for one in found.causes[:3]
    ]  # fmt: skip
    return cards and section(Text("What cost most, and what to do next"), tag("div", cards, class_="causes"))


def _steps(steps: Sequence[int]) -> Content:
    """Steps by number, each a link to its place in the picture."""
    links = [_link(step) for step in steps[:_LISTED]]
    before, _, behind = translate_for_page(Text("in steps {steps}", "\0")).partition("\0")
    separated = [(COMMA if at else "", link) for at, link in enumerate(links)]
    more = len(steps) > _LISTED and Text(" and {count} more", len(steps) - _LISTED)
    return (before, separated, more, behind)


def _link(step: int) -> Markup:
    return tag("a", step, href=f"#step-{step:d}")


def steps(found: RunTimeline) -> Content:
    """The table of steps; the number of each leads to its place in the picture."""
    limited = [[_limited(step), step.warm_up and tag("small", " (", Text("warm-up"), ")")] for step in found.steps]
    links = [_link(step.step) for step in found.steps]
    return table_section(tables.steps(found), instead={"step": links, "limited_by": limited})


def _limited(step: TrainingStep) -> Content:
    """What limited a step, in full: calm where nothing stands out, and why it is not known."""
    if step.verdict == "limited" and step.limited_by:
        by = step.limited_by
        return tag("strong", Text("+{seconds} {cause}", seconds(by.excess_seconds), by.label))
    if step.verdict == TYPICAL:
        most = step.mostly
        spent = most and Text("typical; most of it: {cause}, {seconds}", most.label, seconds(most.seconds))
        return tag("span", spent or TYPICAL, class_="faint")
    why = joined(SEMICOLON, (step.why, *step.missing))
    if step.verdict == SEVERAL:
        return tag("em", why or CAUSES)
    return tag("em", Text("not known: {why}", why) if why else NOT_KNOWN)


def measured(found: RunTimeline) -> Iterator[Content]:
    """What there is to gain, how busy roles were, what a weight sync is made of, and how unequal the work was."""
    bounds = tables.bounds(found)
    yield table_section(bounds, instead={"step": [_link(row[4]) for row in bounds.rows]})
    for table in (tables.roles, tables.sync, tables.imbalance):
        yield table_section(table(found))


def windows(found: RunTimeline) -> Content:
    """The windows to record next, as commands to copy."""

    def window(one: ProposedWindow) -> Markup:
        where = [_link(one.step)] if one.step is not None else []
        name = (window_name(one.what), where and (" (", Text("step"), " ", where, ")"))
        trigger = one.trigger and (faint(Text("while this run goes on:")), _command(one.trigger))
        return tag("article", tag("h3", name), one.why and tag("p", one.why), _command(one.command), trigger)

    return found.windows and section(WINDOWS, map(window, found.windows))


def _command(text: str) -> Markup:
    return tag("pre", tag("code", text), class_="command", data_copy=Text("copy"))


def recorded(found: RunTimeline) -> Content:
    """The windows that are recorded, each with the way to its report."""

    def window(one: RecordedWindow) -> Markup:
        title = f"{one.title} ({seconds(one.end - one.start)})"
        trace = tag("a", one.trace.name, href=one.trace.absolute().as_uri())
        return tag("article", tag("p", title, ": ", trace), one.report and _command(one.report))

    return found.recorded and section(RECORDED, map(window, found.recorded))


def rest(found: RunTimeline) -> Iterator[Content]:
    """Clocks and notes."""
    yield table_section(tables.clocks(found))
    if found.notes:
        yield section(NOTES, tag("ul", [tag("li", one) for one in found.notes]))
