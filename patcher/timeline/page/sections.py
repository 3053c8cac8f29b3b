"""What the page says in words and tables: the verdict, causes, steps, and what follows from them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from patcher.page.markup import Content, Markup, alert, faint, section, tag
from patcher.timeline.model import ProposedWindow, RecordedWindow, RunCause, RunTimeline, TrainingStep
from patcher.timeline.page.picture import window_name
from patcher.timeline.page.texts import Say, cause, seconds, share, who

_LISTED = 8  # steps by number, or reasons


def head(found: RunTimeline, say: Say) -> Content:
    """What ran, what is missing, and one sentence."""
    run = found.run
    origin = say(
        "origin", packages=", ".join(run.packages) or "?", processes=run.processes, seconds=seconds(found.seconds)
    )
    return (
        tag("header", tag("h1", say("title")), faint((origin, run.name and f" \N{MIDDLE DOT} {run.name}"))),
        alert(say("missing"), found.missing),
        tag("p", _sentence(found, say), class_="verdict"),
    )


def _sentence(found: RunTimeline, say: Say) -> str:
    if not found.steps:
        return say("no_steps")
    known = {"count": len(found.steps), "typical": seconds(_median(step.seconds for step in _after_warm_up(found)))}
    if not found.causes:
        return say("calm", **known)
    most = found.causes[0]
    return say("sentence", **known, title=_title(most, say), seconds=seconds(most.seconds), share=share(most.share))


def _after_warm_up(found: RunTimeline) -> Sequence[TrainingStep]:
    return [step for step in found.steps if not step.warm_up] or found.steps


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values) or [0.0])


def _title(found: RunCause, say: Say) -> str:
    return found.title or (cause(say, found.cause) if found.cause else "?")


def causes(found: RunTimeline, say: Say) -> Content:
    """The largest causes, each with what to do next."""
    cards = [
        tag(
            "article",
            tag("h3", _title(one, say)),
            tag(
                "p",
                say("of_run", seconds=seconds(one.seconds), share=share(one.share)),
                one.steps and (" \N{MIDDLE DOT} ", _steps(one.steps, say)),
            ),
            one.advice and tag("p", one.advice),
            class_="finding",
        )
        for one in found.causes[:3]
    ]  # fmt: skip
    return cards and section(say("causes"), tag("div", cards, class_="causes"))


def _steps(steps: Sequence[int], say: Say) -> Content:
    """Steps by number, each a link to its place in the picture."""
    links = [_link(step) for step in steps[:_LISTED]]
    before, _, behind = say("in_steps", steps="\0").partition("\0")
    separated = [(say("list") if at else "", link) for at, link in enumerate(links)]
    more = len(steps) > _LISTED and say("more", count=len(steps) - _LISTED)
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


def steps(found: RunTimeline, say: Say) -> Content:
    """The table of steps; the number of each leads to its place in the picture."""
    if not found.steps:
        return None
    roles = list(dict.fromkeys(use.role for step in found.steps for use in step.roles))
    optional = [key for key in ("tail", "sync", "poll") if any(getattr(step, f"{key}_seconds") for step in found.steps)]
    heads = [say(key) for key in ("step", "seconds", "limited", *optional)]
    heads += [say("busy", role=say(f"role {role}")) for role in roles]
    longest = max(step.seconds for step in found.steps) or 1

    def row(step: TrainingStep) -> list[object]:
        busy = {use.role: use.busy_share for use in step.roles}
        bar = tag("svg", tag("rect", width=f"{100 * step.seconds / longest:.1f}", height=10, class_=_verdict(step)),
                  viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")  # fmt: skip
        return [
            (_link(step.step), step.step),
            ([bar, tag("span", seconds(step.seconds), class_="length")], step.seconds),
            [_limited(step, say), step.warm_up and tag("small", f" ({say('warm_up')})")],
            *(_timed(getattr(step, f"{key}_seconds")) for key in optional),
            *((share(busy[role]), busy[role]) if role in busy else ("?", -1) for role in roles),
        ]

    return section(say("steps"), table(heads, map(row, found.steps), names=(2,)))


def _verdict(step: TrainingStep) -> str:
    return f"v-{step.verdict.replace(' ', '-')}"


def _limited(step: TrainingStep, say: Say) -> Content:
    """What limited a step, in full: calm where nothing stands out, and why it is not known."""
    if step.verdict == "limited" and step.limited_by:
        by = step.limited_by
        return tag("strong", say("excess", seconds=seconds(by.excess_seconds), cause=cause(say, by)))
    if step.verdict == "typical":
        most = step.mostly
        shown = most and say("typical_mostly", cause=cause(say, most), seconds=seconds(most.seconds))
        return tag("span", shown or say("typical"), class_="faint")
    why = "; ".join(filter(None, (step.why, *step.missing)))
    if step.verdict == "several":
        return tag("em", why or say("several"))
    return tag("em", say("not_known_why", why=why) if why else say("not_known"))


def what_if(found: RunTimeline, say: Say) -> Content:
    """The bounds: what each saves in the median step and in all, with the reason of the step where it is most."""
    bounds = defaultdict[str, list[tuple[float, int, str]]](list)
    for step in found.steps:
        for one in step.what_if:
            bounds[one.name].append((one.saves_seconds, step.step, one.why))
    whole = sum(step.seconds for step in found.steps) or 1.0

    def row(name: str, all_of_it: Sequence[tuple[float, int, str]]) -> list[object]:
        total = sum(saves for saves, _, _ in all_of_it)
        _, step, why = max(all_of_it)
        known = name in ("no tail", "perfect balance", "free weight sync", "overlap")
        return [
            say(name) if known else name,
            _timed(_median(saves for saves, _, _ in all_of_it)),
            (f"{seconds(total)} ({share(total / whole)})", total),
            [say("step_n", step=step), ": ", why],
        ]

    heads = (say("if"), say("saves_step"), say("saves_run"), say("why"))
    made = [row(*one) for one in bounds.items()]
    return made and section(say("what_if"), faint(say("what_if_about")), table(heads, made, names=(0, 3)))


def roles(found: RunTimeline, say: Say) -> Content:
    """How busy each role was, and for whom it waited meanwhile."""
    uses = defaultdict[str, list[tuple[float, float, int]]](list)
    waits = defaultdict[str, Counter[str]](Counter)
    for step in found.steps:
        for use in step.roles:
            uses[use.role].append((use.busy_share, use.idle_seconds, use.lanes))
            for idle in use.idle_for:
                name = say("cause_on", what=idle.what, who=who(say, idle.role))
                waits[use.role][name] += idle.seconds  # type: ignore[assignment]  # seconds

    def row(role: str, of: Sequence[tuple[float, float, int]]) -> list[object]:
        longest = [f"{name} {seconds(total / len(of))}" for name, total in waits[role].most_common(3)]
        busy = statistics.mean(one for one, _, _ in of)
        idle = _timed(statistics.mean(one for _, one, _ in of))
        return [who(say, role), max(one for _, _, one in of), (share(busy), busy), idle, say("list").join(longest)]

    heads = [say(key) for key in ("role", "lanes", "busy_share", "idle_step", "waits_for")]
    made = [row(*one) for one in uses.items()]
    return made and section(say("roles"), table(heads, made, names=(0, 4)))


def sync(found: RunTimeline, say: Say) -> Content:
    """What the weight sync of a step is made of, in the median and in the longest."""
    parts = defaultdict[str, list[float]](list)
    for step in found.steps:
        for part in step.sync:
            parts[part.name].append(part.seconds)
    ordered = sorted(parts.items(), key=lambda one: -sum(one[1]))
    rows = [(name, _timed(_median(times)), _timed(max(times))) for name, times in ordered]
    return rows and section(say("parts"), table([say(key) for key in ("part", "median", "longest")], rows))


def _late(steps: Iterable[TrainingStep]) -> tuple[dict[str, list[float]], dict[str, Counter[int]]]:
    """Of replicas, and of ranks: by how much the last one was late in each step, and how often each was the last."""
    late = defaultdict[str, list[float]](list)
    last = defaultdict[str, Counter[int]](Counter)
    for one in (one for step in steps for one in step.imbalance):
        late[one.of].append(one.seconds)
        if one.done:
            last[one.of][max(one.done, key=lambda done: done[1])[0]] += 1
    return late, last


def imbalance(found: RunTimeline, say: Say) -> Content:
    """Over which replicas or ranks the work was unequal, and who was last most often; and how old samples are."""
    late, last = _late(found.steps)

    def row(of: str, times: Sequence[float]) -> list[object]:
        (number, often), *_ = last[of].most_common(1) or [(-1, 0)]
        most = f"{number} ({often} / {len(times)})" if often else "?"
        return [of, _timed(_median(times)), _timed(max(times)), most]

    heads = [say(key) for key in ("of", "median", "longest", "often_last")]
    made = [row(*one) for one in late.items()]
    stale = [step.stale_versions for step in found.steps if step.stale_versions is not None]
    old = stale and faint(say("stale", versions=f"{statistics.mean(stale):.1f}"))
    return (made or stale) and section(
        say("imbalance"), made and (faint(say("imbalance_about")), table(heads, made)), old
    )


def windows(found: RunTimeline, say: Say) -> Content:
    """The windows to record next, as commands to copy."""

    def shown(one: ProposedWindow) -> Markup:
        where = [_link(one.step)] if one.step is not None else []
        name = (window_name(say, one.what), where and (" (", say("step"), " ", where, ")"))
        trigger = one.trigger and (faint(say("trigger")), _command(one.trigger))
        return tag("article", tag("h3", name), one.why and tag("p", one.why), _command(one.command), trigger)

    return found.windows and section(say("windows"), map(shown, found.windows))


def _command(text: str) -> Markup:
    return tag("pre", tag("code", text), class_="command")


def recorded(found: RunTimeline, say: Say) -> Content:
    """The windows that are recorded, each with the way to its report."""

    def shown(one: RecordedWindow) -> Markup:
        title = f"{one.title} ({seconds(one.end - one.start)})"
        trace = tag("a", one.trace.name, href=one.trace.absolute().as_uri())
        return tag("article", tag("p", title, ": ", trace), one.report and _command(one.report))

    return found.recorded and section(say("recorded"), map(shown, found.recorded))


def rest(found: RunTimeline, say: Say) -> Iterator[Content]:
    """Clocks and notes."""
    if found.clocks:
        rows = [
            (
                ", ".join(clock.hosts),
                (f"{clock.ahead_seconds:+.6f} s", clock.ahead_seconds),
                "?" if clock.error_seconds is None else _timed(clock.error_seconds) if clock.error_seconds else "0 s",
                say(clock.source) if clock.source in ("same clock", "causality", "wall clock") else clock.source,
                clock.contradicts and tag("strong", say("contradicts")),
            )
            for clock in found.clocks
        ]  # fmt: skip
        heads = (*(say(key) for key in ("hosts", "ahead", "error", "source")), "")
        yield section(say("clocks"), table(heads, rows, names=(0, 3)))
    if found.notes:
        yield section(say("notes"), tag("ul", [tag("li", one) for one in found.notes]))
