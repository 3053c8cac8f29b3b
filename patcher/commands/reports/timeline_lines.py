"""What ``timeline`` shows in the terminal: a table of steps, the largest causes, and windows to record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median

from patcher.messages import tables
from patcher.messages.notes import wrapped
from patcher.messages.report import Detail
from patcher.timeline import model
from patcher.traces.words import percent

SHOWN = 40
"""Steps of the table; of more the newest."""

PATH = 6
"""What of the critical path of the run is shown."""

SHARED = ("driver", "trainer", "engine")
"""The roles whose busy shares the table has; -v has the others."""


def report(found: model.RunTimeline, width: int | None) -> list[str]:
    """The lines; ``width`` is that of the terminal, None where stdout is none."""
    sections = (_head(found), _steps(found, width), _path(found), _causes(found), _windows(found))
    lines = [line for section in map(list, sections) if section for line in ("", *section)]
    return lines[1:]


def _head(found: model.RunTimeline) -> Iterator[str]:
    run = found.run
    of = ", ".join(run.packages)
    yield from wrapped(
        f"{of + ': ' if of else ''}{run.processes} processes, {_time(found.seconds)} s, {_steps_of(found)}"
    )
    counts: dict[str, int] = {}
    for lane in found.lanes:
        counts[lane.role] = counts.get(lane.role, 0) + 1
    yield from wrapped("lanes: " + ", ".join(f"{count} {model.ROLES[role]}" for role, count in counts.items()))
    apart = [clock for clock in found.clocks if clock.source != "same clock"]
    for clock in apart:
        error = "unknown" if clock.error_seconds is None else f"{clock.error_seconds * 1000:,.2f} ms"
        yield Detail(f"  clock of {', '.join(clock.hosts)}: by {clock.source}, error {error}")
    if apart:
        errors = [clock.error_seconds for clock in apart]
        worst = "not known" if None in errors else f"at most {max(one or 0 for one in errors) * 1000:,.2f} ms"
        yield from wrapped(f"clocks of {len(found.clocks)} machines: error {worst}")


def _steps_of(found: model.RunTimeline) -> str:
    steps = found.steps
    if not steps:
        return "no step has ended yet" if any(one.role == "driver" for one in found.lanes) else "no steps: no driver"
    if len(steps) == 1:
        return f"step {steps[0].step}"
    counted = [one.seconds for one in steps if not one.warm_up] or [one.seconds for one in steps]
    return f"steps {steps[0].step} to {steps[-1].step}, median {_time(median(counted))} s"


def _time(seconds: float) -> str:
    """Seconds with as many places as say something."""
    return f"{seconds:,.{0 if seconds >= 1000 else 1 if seconds >= 100 else 2 if seconds >= 1 else 3}f}"


def _steps(found: model.RunTimeline, width: int | None) -> Iterator[str]:
    if not found.steps:
        return
    roles = [role for role in SHARED if any(use.role == role for step in found.steps for use in step.roles)]
    heads = ("step", "seconds", "limited by", "tail", "sync", *roles)
    shown = found.steps[-SHOWN:]
    yield from tables.steps(heads, [_row(step, roles) for step in shown], width)
    if len(shown) < len(found.steps):
        yield f"  … {len(found.steps) - len(shown):,} earlier steps: --steps A:B and --json have them"
    yield "  busy shares are of the mean process of a role; tail and sync in seconds"
    if stale := [step.stale_versions for step in found.steps if step.stale_versions]:
        yield f"  trajectories began with weights {mean(stale):.1f} steps older than those trained, on average"
    for step in shown:
        yield from map(Detail, _detail(step))


def _row(step: model.TrainingStep, roles: Sequence[str]) -> tuple[str, ...]:
    shares = {use.role: percent(use.busy_share, 0) for use in step.roles}
    return (
        str(step.step), _time(step.seconds), verdict(step),
        _time(step.tail_seconds) if step.tail_seconds else "-", _time(step.sync_seconds) if step.sync_seconds else "-",
        *(shares.get(role, "?") for role in roles),
    )  # fmt: skip


def step_line(step: model.TrainingStep) -> str:
    """A step that has ended, in one line."""
    return f"step {step.step}: {_time(step.seconds)} s, {verdict(step)}"


def verdict(step: model.TrainingStep) -> str:
    """What limited a step, in a few words."""
    first = ", with the warm-up" if step.warm_up else ""
    cause = step.limited_by
    if cause is None:
        return f"{step.verdict}{first}"
    return f"{cause.label} +{_time(cause.excess_seconds)} s{first}"


def _detail(step: model.TrainingStep) -> Iterator[str]:
    """What a step's roles were waiting for, and what it could have been, with -v."""
    why = f" ({step.why})" if step.why else ""
    mostly = f"; most of it: {step.mostly.label}, {_time(step.mostly.seconds)} s" if step.mostly else ""
    yield f"step {step.step}: {verdict(step)}{why}{mostly}"
    for use in step.roles:
        reasons = ", ".join(f"{_doing(one)} {_time(one.seconds)} s" for one in use.idle_for)
        shares = f"busy {percent(use.busy_share)}, idle {_time(use.idle_seconds)} s"
        yield f"  {model.ROLES[use.role]}: {shares}{', of it ' + reasons if reasons else ''}"
    if step.sync:
        yield "  weight sync: " + ", ".join(f"{one.name} {_time(one.seconds)} s" for one in step.sync[:8])
    if step.what_if:
        yield "  at best: " + ", ".join(f"{bound.name} {_time(bound.seconds)} s" for bound in step.what_if)


def _doing(one: model.Cause | model.IdleReason) -> str:
    """Who did what, in which phase if that says more."""
    phase = f" in {one.phase}" if one.phase not in ("", one.what, "step") else ""
    return f"{model.ROLES.get(one.role, one.role)}: {one.what}{phase}"


def _path(found: model.RunTimeline) -> Iterator[str]:
    whole = sum(one.seconds for one in found.path_seconds)
    if not whole:
        return
    yield "critical path, all steps" + (" but the first" if len(found.steps) > 1 else "")
    for one in found.path_seconds[:PATH]:
        share = one.seconds / whole
        if share >= 0.005:
            yield f"  {percent(share):>7}  {_doing(one)}"
    reasons = {bound.name: bound.why for step in found.steps for bound in step.what_if}
    yield from (Detail(f"  at best, {name}: {why}") for name, why in reasons.items())


def _causes(found: model.RunTimeline) -> Iterator[str]:
    if not found.causes:
        return
    yield "what costs most"
    for number, one in enumerate(found.causes, 1):
        count = len(one.steps)
        where = f"step {one.steps[0]}" if count == 1 else f"{count} steps"
        text = f"{number}. {one.title}: {_time(one.seconds)} s, {percent(one.share)} of the run, in {where}"
        yield from wrapped(text, "  ", "     ")
        yield from wrapped(f"try: {one.advice}", "     ", "     ")


def _windows(found: model.RunTimeline) -> Iterator[str]:
    if found.windows:
        yield "windows worth recording, for the next run (--json also has them for trigger)"
    for one in found.windows:
        yield from wrapped(f"{one.what}: {one.why}", "  ", "    ")
        yield f"    {one.command}"
        yield Detail(f"    while this run goes on, patched with --on-demand: {one.trigger}")
    for window in found.recorded:
        yield from wrapped(f"recorded at {window.start:,.1f} s: {window.title}; {window.report}", "  ", "    ")
