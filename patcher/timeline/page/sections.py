"""What the page says in words and tables: the verdict, causes, steps, and what follows from them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from patcher.messages.language import translate_for_page
from patcher.messages.text import COMMA, SEMICOLON, Text, joined
from patcher.page.markup import Content, Markup, alert, faint, section, tag
from patcher.timeline.model import (
    NOT_KNOWN,
    OVERLAP,
    ROLES,
    SEVERAL,
    TYPICAL,
    ProposedWindow,
    RecordedWindow,
    RunCause,
    RunTimeline,
    TrainingStep,
)
from patcher.timeline.page.lengths import seconds, share
from patcher.timeline.page.picture import CAUSES, RECORDED, WINDOWS, window_name

NOTES, CLOCKS = Text("Notes"), Text("Clocks")
_OVER: dict[str, Text] = {"replicas": Text("replicas"), "ranks": Text("ranks")}
_BOUNDS: dict[str, Text] = {OVERLAP: Text("overlap, as in an asynchronous trainer")}
_CLOCKS: dict[str, Text] = {"causality": Text("calls and requests"), "wall clock": Text("wall clocks")}
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


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], *, names: Sequence[int] = (0,)) -> Markup:
    """A table that can be sorted; a cell is what is shown, or that and the number by which it is sorted.

    The columns ``names`` hold text, and that of the widest text may break its lines.
    """

    def cell(content: object, *, name: bool) -> Markup:
        shown, value = content if isinstance(content, tuple) and len(content) == 2 else (content, None)
        return tag("td", shown, data_value=value, class_="name" if name else None)

    body = [tag("tr", [cell(one, name=at in names) for at, one in enumerate(row)]) for row in rows]
    first = [
        tag("th", tag("button", one, type="button"), scope="col", class_="name" if at in names else None)
        for at, one in enumerate(heads)
    ]
    return tag("div", tag("table", tag("thead", tag("tr", first)), tag("tbody", body)), class_="table")


def _timed(value: float) -> tuple[str, float]:
    return (seconds(value) if value >= 5e-4 else "\N{EN DASH}", round(value, 6))


def steps(found: RunTimeline) -> Content:
    """The table of steps; the number of each leads to its place in the picture."""
    if not found.steps:
        return None
    roles = list(dict.fromkeys(use.role for step in found.steps for use in step.roles))
    optional = {"tail": Text("tail"), "sync": Text("weight sync"), "poll": Text("polling")}
    optional = {
        key: head for key, head in optional.items() if any(getattr(step, f"{key}_seconds") for step in found.steps)
    }
    heads = [Text("step"), Text("seconds"), Text("what limited it"), *optional.values()]
    heads += [Text("{role} busy", ROLES[role]) for role in roles]
    longest = max(step.seconds for step in found.steps) or 1

    def row(step: TrainingStep) -> list[object]:
        busy = {use.role: use.busy_share for use in step.roles}
        bar = tag("svg", tag("rect", width=f"{100 * step.seconds / longest:.1f}", height=10, class_=_verdict(step)),
                  viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")  # fmt: skip
        return [
            (_link(step.step), step.step),
            ([bar, tag("span", seconds(step.seconds), class_="length")], step.seconds),
            [_limited(step), step.warm_up and tag("small", " (", Text("warm-up"), ")")],
            *(_timed(getattr(step, f"{key}_seconds")) for key in optional),
            *((share(busy[role]), busy[role]) if role in busy else ("?", -1) for role in roles),
        ]

    return section(Text("Steps"), table(heads, map(row, found.steps), names=(2,)))


def _verdict(step: TrainingStep) -> str:
    return f"v-{step.verdict.replace(' ', '-')}"


def _limited(step: TrainingStep) -> Content:
    """What limited a step, in full: calm where nothing stands out, and why it is not known."""
    if step.verdict == "limited" and step.limited_by:
        by = step.limited_by
        return tag("strong", Text("+{seconds} {cause}", seconds(by.excess_seconds), by.label))
    if step.verdict == TYPICAL:
        most = step.mostly
        shown = most and Text("typical; most of it: {cause}, {seconds}", most.label, seconds(most.seconds))
        return tag("span", shown or TYPICAL, class_="faint")
    why = joined(SEMICOLON, (step.why, *step.missing))
    if step.verdict == SEVERAL:
        return tag("em", why or CAUSES)
    return tag("em", Text("not known: {why}", why) if why else NOT_KNOWN)


def what_if(found: RunTimeline) -> Content:
    """The bounds: what each saves in the median step and in all, with the reason of the step where it is most."""
    bounds = defaultdict[str, list[tuple[float, int, str]]](list)
    for step in found.steps:
        for one in step.what_if:
            bounds[one.name].append((one.saves_seconds, step.step, one.why))
    whole = sum(step.seconds for step in found.steps) or 1.0

    def row(name: str, all_of_it: Sequence[tuple[float, int, str]]) -> list[object]:
        total = sum(saves for saves, _, _ in all_of_it)
        _, step, why = max(all_of_it)
        return [
            _BOUNDS.get(name, name),
            _timed(_median(saves for saves, _, _ in all_of_it)),
            (f"{seconds(total)} ({share(total / whole)})", total),
            [Text("step {step}", step), ": ", why],
        ]

    heads = (
        Text("if there were"), Text("saves, median step"), Text("saves, all steps"),
        Text("why this is a bound, where it saves most"),
    )  # fmt: skip
    made = [row(*one) for one in bounds.items()]
    return made and section(
        Text("What there is to gain at best"),
        faint(Text("Bounds, not promises: each changes one thing and leaves all else as it was.")),
        table(heads, made, names=(0, 3)),
    )


def roles(found: RunTimeline) -> Content:
    """How busy each role was, and for whom it waited meanwhile."""
    uses = defaultdict[str, list[tuple[float, float, int]]](list)
    waits = defaultdict[str, Counter[str]](Counter)
    for step in found.steps:
        for use in step.roles:
            uses[use.role].append((use.busy_share, use.idle_seconds, use.lanes))
            for idle in use.idle_for:
                name = Text("{who}: {what}", ROLES.get(idle.role, idle.role), idle.what)
                waits[use.role][name] += idle.seconds  # type: ignore[assignment]  # seconds

    def row(role: str, of: Sequence[tuple[float, float, int]]) -> list[object]:
        most = waits[role].most_common(3)
        longest = joined(COMMA, (Text("{name} {seconds}", name, seconds(total / len(of))) for name, total in most))
        busy = statistics.mean(one for one, _, _ in of)
        idle = _timed(statistics.mean(one for _, one, _ in of))
        return [ROLES.get(role, role), max(one for _, _, one in of), (share(busy), busy), idle, longest]

    heads = [Text("role"), Text("processes"), Text("busy"), Text("idle per step"), Text("waits for (per step)")]
    made = [row(*one) for one in uses.items()]
    return made and section(Text("Busy, and idle for whom"), table(heads, made, names=(0, 4)))


def sync(found: RunTimeline) -> Content:
    """What the weight sync of a step is made of, in the median and in the longest."""
    parts = defaultdict[str, list[float]](list)
    for step in found.steps:
        for part in step.sync:
            parts[part.name].append(part.seconds)
    ordered = sorted(parts.items(), key=lambda one: -sum(one[1]))
    rows = [(name, _timed(_median(times)), _timed(max(times))) for name, times in ordered]
    return rows and section(
        Text("Weight sync by part"), table([Text("part"), Text("median step"), Text("longest")], rows)
    )


def _late(steps: Iterable[TrainingStep]) -> tuple[dict[str, list[float]], dict[str, Counter[int]]]:
    """Of replicas, and of ranks: by how much the last one was late in each step, and how often each was the last."""
    late = defaultdict[str, list[float]](list)
    last = defaultdict[str, Counter[int]](Counter)
    for one in (one for step in steps for one in step.imbalance):
        late[one.of].append(one.seconds)
        if one.done:
            last[one.of][max(one.done, key=lambda done: done[1])[0]] += 1
    return late, last


def imbalance(found: RunTimeline) -> Content:
    """Over which replicas or ranks the work was unequal, and who was last most often; and how old samples are."""
    late, last = _late(found.steps)

    def row(of: str, times: Sequence[float]) -> list[object]:
        (number, often), *_ = last[of].most_common(1) or [(-1, 0)]
        most = f"{number} ({often} / {len(times)})" if often else "?"
        return [_OVER.get(of, of), _timed(_median(times)), _timed(max(times)), most]

    heads = [Text("over"), Text("median step"), Text("longest"), Text("most often last")]
    made = [row(*one) for one in late.items()]
    stale = [step.stale_versions for step in found.steps if step.stale_versions is not None]
    old = stale and faint(
        Text(
            "Trajectories began with weights that were {versions} steps older than those trained on them, on average.",
            f"{statistics.mean(stale):.1f}",
        )
    )
    return (made or stale) and section(
        Text("Imbalance"),
        made and (faint(Text("How much later the last one finished than the mean.")), table(heads, made)),
        old,
    )


def windows(found: RunTimeline) -> Content:
    """The windows to record next, as commands to copy."""

    def shown(one: ProposedWindow) -> Markup:
        where = [_link(one.step)] if one.step is not None else []
        name = (window_name(one.what), where and (" (", Text("step"), " ", where, ")"))
        trigger = one.trigger and (faint(Text("while this run goes on:")), _command(one.trigger))
        return tag("article", tag("h3", name), one.why and tag("p", one.why), _command(one.command), trigger)

    return found.windows and section(WINDOWS, map(shown, found.windows))


def _command(text: str) -> Markup:
    return tag("pre", tag("code", text), class_="command", data_copy=Text("copy"))


def recorded(found: RunTimeline) -> Content:
    """The windows that are recorded, each with the way to its report."""

    def shown(one: RecordedWindow) -> Markup:
        title = f"{one.title} ({seconds(one.end - one.start)})"
        trace = tag("a", one.trace.name, href=one.trace.absolute().as_uri())
        return tag("article", tag("p", title, ": ", trace), one.report and _command(one.report))

    return found.recorded and section(RECORDED, map(shown, found.recorded))


def rest(found: RunTimeline) -> Iterator[Content]:
    """Clocks and notes."""
    if found.clocks:
        rows = [
            (
                ", ".join(clock.hosts),
                (f"{clock.ahead_seconds:+.6f} s", clock.ahead_seconds),
                "?" if clock.error_seconds is None else _timed(clock.error_seconds) if clock.error_seconds else "0 s",
                _CLOCKS.get(clock.source, clock.source),
                clock.contradicts and tag("strong", Text("contradictory")),
            )
            for clock in found.clocks
        ]  # fmt: skip
        heads = (
            Text("machine"), Text("wall clock ahead of the driver's"), Text("may be wrong by"), Text("known from"),
            "",
        )  # fmt: skip
        yield section(CLOCKS, table(heads, rows, names=(0, 3)))
    if found.notes:
        yield section(NOTES, tag("ul", [tag("li", one) for one in found.notes]))
