"""The lines of ``timeline`` in the terminal: a table of steps, the largest causes, and windows to record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from patcher.messages import COMMA, Detail, Text, joined, processes_text, steps_text
from patcher.messages import tables as terminal_tables
from patcher.messages.notes import wrapped
from patcher.table import Shown
from patcher.timeline import memory_tables, model, tables
from patcher.timeline.lengths import brief
from patcher.timeline.tables import verdict
from patcher.traces.words import percent

MOST_STEPS = 40
"""Most steps in the table: the newest."""

PLACES, MEMORY = 3, 12
"""Devices and hosts of each kind, and further lines on memory, that are shown without -v."""

RECORDED = 3
"""Most recorded windows that are listed without -v."""

PATH = 6
"""Most rows of the critical path in the terminal."""


def report(timeline: model.RunTimeline, width: int | None, most_steps: int = MOST_STEPS) -> list[str]:
    """Return the lines on a run: processes, table of steps, critical path, trend, memory, causes, recording windows.

    The table has the newest `most_steps` steps.
    """
    sections = (
        _head_lines(timeline),
        _step_table(timeline, width, most_steps),
        _critical_path_lines(timeline),
        _trend_lines(timeline),
        _memory_lines(timeline),
        _cause_lines(timeline),
        _window_lines(timeline),
    )
    lines = [line for section in map(list, sections) if section for line in ("", *section)]
    return lines[1:]


def _head_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield the lines on the run: processes, seconds, number of processes by role, and the error of clocks."""
    run = timeline.run
    head = Text(
        "{processes}, {seconds} s, {steps}",
        processes=processes_text(run.processes),
        seconds=brief(timeline.seconds),
        steps=_steps_phrase(timeline),
    )
    if run.packages:
        head = Text("{packages}: {summary}", packages=", ".join(run.packages), summary=head)
    yield from wrapped(head)
    counts = Counter(lane.role for lane in timeline.lanes)
    lanes = (Text("{count} {role}", count=count, role=model.ROLES[role]) for role, count in counts.items())
    yield from wrapped(Text("processes by role: {processes}", joined(COMMA, lanes)))
    apart = [clock for clock in timeline.clocks if clock.source != "same clock"]
    for clock in apart:
        error = Text("unknown") if clock.error_seconds is None else f"{clock.error_seconds * 1000:,.2f} ms"
        source = tables.CLOCK_SOURCES.get(clock.source, clock.source)
        yield Detail(
            "  clock of {hosts}: aligned by {source}, error {error}",
            hosts=", ".join(clock.hosts),
            source=source,
            error=error,
        )
    if apart:
        errors = [clock.error_seconds for clock in apart]
        count = len(timeline.clocks)
        text = Text("clocks of {count} machines: it is unknown by how much they differ", count)
        if None not in errors:
            worst = max(error or 0 for error in errors) * 1000
            text = Text(
                "clocks of {count} machines: the largest error is at most {error:,.2f} ms", count=count, error=worst
            )
        yield from wrapped(text)


def _steps_phrase(timeline: model.RunTimeline) -> str:
    """Return a phrase on the steps: their range and median seconds without warm-up, or why there are none."""
    steps = timeline.steps
    if not steps:
        return (
            Text("no training step has ended yet")
            if any(lane.role in ("driver", "trainer") for lane in timeline.lanes)
            else Text("no training steps, because no driver process was recorded")
        )
    if len(steps) == 1:
        return Text("step {step}", steps[0].step)
    return Text(
        "steps {first} to {last}, median {median} s",
        first=steps[0].step,
        last=steps[-1].step,
        median=brief(median(step.seconds for step in model.without_warm_up(steps))),
    )


def _step_table(timeline: model.RunTimeline, width: int | None, most_steps: int) -> Iterator[str]:
    """Yield the table of the newest `most_steps` steps, its legend, and how stale trajectories are."""
    if not timeline.steps:
        return
    newest = timeline.steps[-most_steps:]
    columns = [*tables.steps(replace(timeline, steps=newest)).columns_in(Shown.TERMINAL)]
    cells = [
        [column.unit.missing if value is None else column.unit.text(value) for value in values]
        for column, values in columns
    ]
    yield from terminal_tables.draw([column.title for column, _ in columns], [*zip(*cells, strict=True)], width)
    if len(newest) < len(timeline.steps):
        yield Text("  … {count:,} earlier steps; --steps A:B and --json show them", len(timeline.steps) - len(newest))
    yield Text("  role columns: mean busy share of the role's processes; “tail”, “sync”: seconds")
    if any(use.role == "engine" for step in newest for use in step.roles):
        yield Text("  engine: gaps of up to 20 ms between iterations count as busy")
    if stale := tables.staleness(timeline):
        yield Text(
            "  on average, trajectories began with weights {count:.1f} steps older than the weights being trained",
            stale,
        )
    for step in newest:
        yield from map(Detail, _step_details(step))


def step_line(step: model.TrainingStep) -> str:
    """Return the line on a step that has ended: number, seconds and verdict."""
    return Text(
        "step {step}: {seconds} s, {verdict}", step=step.step, seconds=brief(step.seconds), verdict=verdict(step)
    )


def _step_details(step: model.TrainingStep) -> Iterator[str]:
    """Yield the lines for -v on a step: verdict, busy and idle time by role, weight sync, upper bounds of savings."""
    line = Text("step {step}: {verdict}", step=step.step, verdict=verdict(step))
    if step.why:
        line = Text("{verdict} ({reason})", verdict=line, reason=step.why)
    if step.mostly:
        line = Text(
            "{verdict}; largest part of the step: {cause}, {seconds} s",
            verdict=line,
            cause=step.mostly.label,
            seconds=brief(step.mostly.seconds),
        )
    yield line
    if step.also:
        also = _times((cause.label, cause.excess_seconds) for cause in step.also)
        yield Text("  also longer than in the typical step: {causes}", also)
    for use in step.roles:
        role, share, idle = model.ROLES[use.role], percent(use.busy_share), brief(use.idle_seconds)
        line = Text("  {role}: busy {share}, idle {seconds} s", role=role, share=share, seconds=idle)
        if use.idle_for:
            line = Text(
                "{idle_time}, including {reasons}",
                idle_time=line,
                reasons=_times((_doing(why), why.seconds) for why in use.idle_for),
            )
        yield line
    if step.sync:
        yield Text("  weight sync: {parts}", _times((part.name, part.seconds) for part in step.sync[:8]))
    if step.what_if:
        yield Text(
            "  upper bound of the saving from each change alone: {bounds}",
            _times((bound.name, bound.saves_seconds) for bound in step.what_if),
        )


def _times(times: Iterable[tuple[str, float]]) -> Text:
    return joined(COMMA, (Text("{part} {seconds} s", part=name, seconds=brief(seconds)) for name, seconds in times))


def _doing(reason: model.Cause | model.IdleReason) -> str:
    """Return a phrase on which role did what, with the phase if that adds information."""
    return model.doing(model.label(reason.role, None, None), reason.what, reason.phase)


def _critical_path_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield a heading, and the six largest parts of the critical path with their shares, except those below 0.5 %.

    Lines for -v say how the upper bound of each saving is estimated.
    """
    whole = sum(entry.seconds for entry in timeline.path_seconds)
    if not whole:
        return
    several = len(timeline.steps) > 1
    yield Text("critical path, all steps but the first") if several else Text("critical path, all steps")
    for entry in timeline.path_seconds[:PATH]:
        share = entry.seconds / whole
        if share >= 0.005:
            yield Text("  {share:>7}  {cause}", share=percent(share), cause=_doing(entry))
    reasons = {bound.name: bound.why for step in timeline.steps for bound in step.what_if}
    yield from (
        Detail("  how the saving from “{change}” is estimated: {method}", change=name, method=why)
        for name, why in reasons.items()
    )


def _trend_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield lines on how the seconds of a step change over the run, by part of the step, and what changes with them."""
    if timeline.trend is None:
        return
    yield from wrapped(tables.trend(timeline.trend))
    if timeline.trend.parts:
        parts = (Text("{part} {seconds:+.2f} s", part=part.name, seconds=part.seconds) for part in timeline.trend.parts)
        yield from wrapped(
            Text("change of the step time, by part of the step: {parts}", joined(COMMA, parts)), "  ", "    "
        )
    yield from wrapped(tables.correlated_quantities(timeline.trend), "  ", "    ")


def _memory_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield lines on what holds the memory at its peak, on the fullest devices and hosts, then on growth and changes.

    Of many devices, hosts and lines, some are shown only with -v.
    """
    memory = timeline.memory
    if not memory.peaks:
        return
    yield Text("peak memory (GB: 10^9 bytes)")
    highest = memory.highest()
    for of in ("device", "host"):
        places = [peak for peak in highest if peak.of == of]
        for peak in places[:PLACES]:
            yield from wrapped(memory_tables.peak_line(peak), "  ", "    ")
        for peak in places[PLACES:]:
            yield Detail("  {peak}", memory_tables.peak_line(peak))
    if not any(peak.of == "device" for peak in highest):
        yield Text("  no device memory was recorded: no recorded process had allocated memory on a GPU or NPU")
    lines = (
        *map(memory_tables.growth_line, memory.growth),
        *map(memory_tables.excess_line, memory.excesses),
        *map(memory_tables.cache_line, memory.cache),
        *map(memory_tables.change_line, memory.changes),
    )
    for line in lines[:MEMORY]:
        yield from wrapped(line, "  ", "    ")
    yield from (Detail("  {line}", line) for line in lines[MEMORY:])


def _cause_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield lines on the causes of lost time: seconds, share of step time, steps, advice; nothing without causes."""
    if not timeline.causes:
        return
    yield Text("largest costs")
    for number, cause in enumerate(timeline.causes, 1):
        count = len(cause.steps)
        where = Text("step {step}", cause.steps[0]) if count == 1 else steps_text(count)
        text = Text(
            "{number}. {title}: {seconds} s, {share} of step time, in {steps}",
            number=number,
            title=cause.title,
            seconds=brief(cause.seconds),
            share=percent(cause.share),
            steps=where,
        )
        if cause.saves_seconds is not None and brief(cause.saves_seconds) != brief(cause.seconds):
            text = Text("{cost}; a fix saves at most {seconds} s", cost=text, seconds=brief(cause.saves_seconds))
        yield from wrapped(text, "  ", "     ")
        yield from wrapped(Text("suggestion: {advice}", cause.advice), "     ", "     ")


def _window_lines(timeline: model.RunTimeline) -> Iterator[str]:
    """Yield lines on the windows that are worth recording next, with their commands, then on the recorded ones."""
    if timeline.windows:
        yield Text("suggested windows to record (for the `rlpatch trigger` commands, see --json)")
    for window in timeline.windows:
        yield from wrapped(Text("{window}: {reason}", window=window.what, reason=window.why), "  ", "    ")
        yield f"    {window.command}"
        yield Detail(
            "    if the present run was patched with --on-demand, record this window during the run: {command}",
            window.trigger,
        )
    yield from _recorded_lines(timeline.recorded)


def _recorded_lines(recorded: Sequence[model.RecordedWindow]) -> Iterator[str]:
    """Yield the windows that were recorded, with the commands for their reports; many of them only with -v."""
    are_many = len(recorded) > RECORDED
    if are_many:
        yield from wrapped(
            Text(
                "{count} windows were recorded in this run; add -v to list the commands that report on them",
                len(recorded),
            )
        )
    for window in recorded:
        text = Text(
            "window recorded {start:,.1f} s after the start of the timeline: {title}; report: {command}",
            start=window.start,
            title=window.title,
            command=window.report,
        )
        lines = wrapped(text, "  ", "    ")
        yield from map(Detail, lines) if are_many else lines
