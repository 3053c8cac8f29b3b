"""The tables of a timeline, with the numbers that the terminal, the page and CSV files show: seconds, and shares."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from patcher.messages import COMMA, Text, joined, sentences
from patcher.table import COUNT, LABEL, Column, Shown, Table, Unit
from patcher.timeline import memory_tables
from patcher.timeline.lengths import brief, seconds, share
from patcher.timeline.model import OVERLAP, ROLES, Cause, RunTimeline, TrainingStep, Trend

SHARED = ("driver", "trainer", "engine")
"""Roles whose busy shares the terminal shows; the page and CSV show all."""

CSV, TERMINAL = Shown.CSV, Shown.TERMINAL
SECONDS = Unit(
    lambda length: brief(length) if length else "-", lambda length: seconds(length) if length >= 5e-4 else "\N{EN DASH}"
)
SHARE = Unit(share, missing="?", whole=1)
PLAIN = Unit(str)
_OVER: dict[str, Text] = {"replicas": Text("replicas"), "ranks": Text("ranks")}
_BOUNDS: dict[str, Text] = {OVERLAP: Text("overlap of rollout and training, as in an asynchronous trainer")}
CLOCK_SOURCES: dict[str, Text] = {"causality": Text("order of calls and requests"), "wall clock": Text("wall clocks")}
"""Source of a clock's alignment → its name for people."""
_MEDIAN = Column("median_seconds", Text("median per step"), SECONDS)
_LONGEST = Column("longest_seconds", Text("maximum in a step"), SECONDS)


def of_run(run: RunTimeline) -> Iterator[tuple[Mapping[str, object], Table]]:
    """Yield ({}, table) for every table of ``run``, memory last; {} says that its CSV file gets no added columns."""
    for table in (steps, bounds, roles, sync, imbalance, clocks):
        yield {}, table(run)
    for of_memory in memory_tables.tables(run):
        yield {}, of_memory


def verdict(step: TrainingStep) -> str:
    """Return a short text on what limited a step: the cause with its excess, or the verdict if there is no cause.

    A lack of CPUs accuses no process, so the next cause follows it. The warm-up, and phases that are not compared with
    other steps, are named, too.
    """
    cause = step.limited_by
    limit = step.verdict
    if cause is not None:
        limit = _excess(cause)
        if cause.role == "host" and step.also:
            limit = Text("{cause}; also {other}", cause=limit, other=_excess(step.also[0]))
    for phase in step.beside:
        limit = Text(
            "{cause}; {phase} ({seconds} s) not compared", cause=limit, phase=phase.name, seconds=brief(phase.seconds)
        )
    return Text("{cause}, including warm-up", limit) if step.warm_up else limit


def _excess(cause: Cause) -> Text:
    return Text("{cause} +{excess} s", cause=cause.label, excess=brief(cause.excess_seconds))


def staleness(run: RunTimeline) -> float | None:
    """Return the mean age in steps of the weights with which trajectories began; None if the trainer logs none."""
    ages = [step.stale_versions for step in run.steps if step.stale_versions is not None]
    return statistics.mean(ages) if ages else None


def trend(change: Trend) -> Text:
    """Return a text with the median seconds before and after a change: of thirds of the run, or around a step."""
    if change.since is not None:
        return Text(
            "trend: from step {since} on, a step takes {after} s instead of {before} s (medians): one lasting change,"
            " not single slow steps",
            since=change.since,
            before=brief(change.before_seconds),
            after=brief(change.after_seconds),
        )
    return Text(
        "trend: {before} s in steps {first} to {before_last}, {after} s in steps {after_first} to {last} (medians;"
        " single slow steps left out)",
        before=brief(change.before_seconds),
        first=change.first[0],
        before_last=change.first[1],
        after=brief(change.after_seconds),
        after_first=change.last[0],
        last=change.last[1],
    )


def correlated_quantities(change: Trend) -> Text:
    """Return a text on quantities, such as tokens, that change with the length of the steps, with the correlation."""
    if not change.drivers:
        return Text(
            "no correlation was found between the duration of the steps and the number of tokens, the number of"
            " decode steps, or the time per decode step"
        )
    texts = (
        Text(
            "{quantity}: {before:,.4g} in the first third of the steps, {after:,.4g} in the last third"
            " (Spearman correlation with the step time: {correlation:.2f})",
            quantity=driver.name,
            before=driver.before,
            after=driver.after,
            correlation=driver.correlation,
        )
        for driver in change.drivers
    )
    return Text("quantities that change with the duration of the steps: {quantities}", joined(COMMA, texts))


def steps(run: RunTimeline) -> Table:
    """Return the table of steps: duration, limiting cause, tail, weight sync, and busy share of each role."""
    present = dict.fromkeys(use.role for step in run.steps for use in step.roles)
    columns = (
        Column("step", Text("step"), PLAIN, TERMINAL),
        Column("seconds", Text("seconds"), SECONDS, TERMINAL, bar=True),
        Column("limited_by", Text("limited by"), LABEL, TERMINAL),
        Column("tail_seconds", Text("tail"), SECONDS, TERMINAL, optional=True),
        Column("sync_seconds", Text("sync"), SECONDS, TERMINAL, optional=True),
        Column("poll_seconds", Text("polling time"), SECONDS, optional=True),
        *(
            Column(f"{role}_busy_share", ROLES[role], SHARE, TERMINAL if role in SHARED else Shown.PAGE)
            for role in present
        ),
        *(Column(key, shown_in=CSV) for key in ("start", "warm_up", "requests")),
        Column("stale_versions", Text("stale"), Unit("{:.1f}".format, missing="?"), TERMINAL, optional=True),
        *(Column(key, shown_in=CSV) for key in ("decode_steps", "tokens")),
        Column("pause_seconds", "rlpatch", SECONDS, TERMINAL, optional=True),
    )

    def row(step: TrainingStep) -> tuple[object, ...]:
        busy = {use.role: use.busy_share for use in step.roles}
        return (
            step.step, step.seconds, verdict(step), step.tail_seconds, step.sync_seconds, step.poll_seconds,
            *map(busy.get, present), step.start, step.warm_up, step.requests, step.stale_versions,
            step.decode_steps, step.tokens, step.pause_seconds,
        )  # fmt: skip

    about = Text(
        "The column of a role is the mean share of the step in which the processes of this role were busy. An engine"
        " also counts as busy in a gap between two iterations if the gap lasts at most 20 ms, or at most three times"
        " the usual length of an iteration."
    )
    if stale := staleness(run):
        older = Text(
            "On average, trajectories began with weights {versions} steps older than the weights being trained.",
            f"{stale:.1f}",
        )
        about = sentences(about, older)
    hues = [f"v-{step.verdict.replace(' ', '-')}" for step in run.steps]
    return Table("steps", Text("Steps"), columns, [*map(row, run.steps)], about, hues)


def bounds(run: RunTimeline) -> Table:
    """Return the table of savings: upper bounds in the median step and in total, and the step with the largest.

    The median is over the steps in which the improvement saves anything; the share is of the time of all steps.
    """
    columns = (
        Column("bound", Text("improvement")),
        Column("median_saves_seconds", Text("median saving per step"), SECONDS),
        Column("saves_seconds", Text("time that can be saved in all steps together"), SECONDS),
        Column("share", Text("share of the total step time"), SHARE),
        Column("step", Text("step with the largest saving"), PLAIN),
        Column("why", Text("assumption behind the largest saving")),
    )
    savings = defaultdict[str, list[tuple[float, int, str]]](list)
    for step in run.steps:
        for bound in step.what_if:
            savings[bound.name].append((bound.saves_seconds, step.step, bound.why))
    whole = sum(step.seconds for step in run.steps)
    rows = []
    for name, saved in savings.items():
        lengths = [length for length, _, _ in saved]
        most, total = max(saved), sum(lengths)
        rows.append((_BOUNDS.get(name, name), statistics.median(lengths), total, total / whole, *most[1:]))
    about = Text("These are upper bounds of the saving, not promises: each row changes one thing and nothing else.")
    return Table("bounds", Text("Upper bounds of the savings"), columns, rows, about)


def roles(run: RunTimeline) -> Table:
    """Return the table of roles: processes, and means over the steps of busy share, idle time and up to three waits."""
    columns = (
        Column("role", Text("role")),
        Column("processes", Text("processes"), COUNT),
        Column("busy_share", Text("busy share"), SHARE),
        Column("idle_seconds_per_step", Text("idle time per step"), SECONDS),
        Column("waits_for", Text("waits for whom (time per step)")),
    )
    uses = defaultdict[str, list[tuple[float, float, int]]](list)
    waits = defaultdict[str, dict[Text, float]](dict)
    for use in itertools.chain.from_iterable(step.roles for step in run.steps):
        uses[use.role].append((use.busy_share, use.idle_seconds, use.lanes))
        for idle in use.idle_for:
            name = Text("{process}: {activity}", process=ROLES.get(idle.role, idle.role), activity=idle.what)
            waits[use.role][name] = waits[use.role].get(name, 0.0) + idle.seconds
    rows = []
    for role, of_steps in uses.items():
        busy, idles, lanes = zip(*of_steps, strict=True)
        longest = sorted(waits[role].items(), key=lambda wait: -wait[1])[:3]
        reasons = (Text("{activity} {time}", activity=name, time=seconds(total / len(busy))) for name, total in longest)
        rows.append(
            (ROLES.get(role, role), max(lanes), statistics.mean(busy), statistics.mean(idles), joined(COMMA, reasons))
        )
    return Table("roles", Text("Busy and idle time, and what roles wait for"), columns, rows)


def _in_steps(lengths: Mapping[str, list[float]]) -> Iterable[tuple[str, float, float]]:
    """Yield name, median and maximum of each entry."""
    return ((name, statistics.median(times), max(times)) for name, times in lengths.items())


def sync(run: RunTimeline) -> Table:
    """Return the table of the parts of the weight sync, the longest in total first: median and maximum in a step."""
    lengths = defaultdict[str, list[float]](list)
    for part in (part for step in run.steps for part in step.sync):
        lengths[part.name].append(part.seconds)
    ordered = dict(sorted(lengths.items(), key=lambda part: -sum(part[1])))
    columns = (Column("part", Text("part")), _MEDIAN, _LONGEST)
    return Table("weight_sync", Text("Time of each part of the weight sync"), columns, [*_in_steps(ordered)])


def imbalance(run: RunTimeline) -> Table:
    """Return the table of imbalance between replicas and between ranks: by how much the slowest exceeds the mean.

    A row has the median and maximum over the steps, and which one is most often the last.
    """
    late = defaultdict[str, list[float]](list)
    last = defaultdict[str, Counter[int]](Counter)
    for uneven in (uneven for step in run.steps for uneven in step.imbalance):
        late[uneven.of].append(uneven.seconds)
        *_, before, latest = (None, *sorted(uneven.done, key=lambda done: done[1]))
        if latest is not None and (before is None or latest[1] > before[1]):
            last[uneven.of][latest[0]] += 1
    columns = (
        Column("over", Text("compared processes")), _MEDIAN, _LONGEST,
        Column("", Text("most often the last to finish")), Column("last", shown_in=CSV),
        Column("last_in_steps", shown_in=CSV),
    )  # fmt: skip
    rows = []
    for of, median, longest in _in_steps(late):
        number, often = next(iter(last[of].most_common(1)), (None, 0))
        most_often_last = f"{number} ({often} / {len(late[of])})" if often else "?"
        rows.append((_OVER.get(of, of), median, longest, most_often_last, number, often))
    about = Text("Imbalance is how much longer the slowest replica or rank took than the mean.")
    return Table("imbalance", Text("Imbalance"), columns, rows, about)


def clocks(run: RunTimeline) -> Table:
    """Return the table of the machines' clocks: lead over the driver's clock, error, source, and contradictions."""
    columns = (
        Column("hosts", Text("machine")),
        Column("ahead_seconds", Text("ahead of the driver's clock by"), Unit("{:+.6f} s".format)),
        Column("error_seconds", Text("largest error"), Unit(seconds, missing="?")),
        Column("source", Text("clocks aligned by")),
        Column("contradicts", "", optional=True),
    )
    rows = [
        (
            ", ".join(clock.hosts), clock.ahead_seconds, clock.error_seconds,
            CLOCK_SOURCES.get(clock.source, clock.source),
            Text("recorded times contradict the order of calls") if clock.contradicts else "",
        )
        for clock in run.clocks
    ]  # fmt: skip
    return Table("clocks", Text("Clocks"), columns, rows)
