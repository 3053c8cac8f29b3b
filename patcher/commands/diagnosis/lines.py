"""The lines of ``diagnose`` in the terminal, some twenty of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patcher.diagnosis import rollout, sync
from patcher.diagnosis.loads import LOADS
from patcher.diagnosis.model import CLASSES, ClassShare, LoadPart, RunDiagnosis, StageDiagnosis
from patcher.messages import COMMA, CommandLine, Detail, Text, joined
from patcher.messages import tables as terminal_tables
from patcher.messages.notes import wrapped

LARGEST = 2
"""Most classes that are named for a load."""

LEAST_BETWEEN = 0.05
"""Least share of a rollout between its iterations that is reported."""

LEAST_SHOWN_S = 0.05
"""Seconds below which it is not said that they were left out."""

LEAST_SHARE = 0.005
"""Least share of a class that is named."""


def report(diagnosis: RunDiagnosis, next_command: CommandLine | None, width: int | None) -> list[str]:
    """Return the lines on a diagnosis: the steps, each stage, upper bounds of savings, and whether it is supported.

    `next_command` records the windows that are lacking; `width` is the columns of the terminal, None without one.
    """
    lines = list(_stage_table(diagnosis, width))
    for stage in diagnosis.stages:
        windows = sum(window.stage == stage.stage for window in diagnosis.windows)
        lines += _rollout_lines(stage, windows, width) if stage.stage == rollout.STAGE else _stage_lines(stage)
    if diagnosis.actions:
        lines.append(Text("upper bounds of the savings (they overlap: do not add them up)"))
        for number, action in enumerate(diagnosis.actions, 1):
            text = Text("{number}. {action}: {seconds:.1f} s; {reason}")
            text = text.filled(number=number, action=action.what, seconds=action.bound_seconds, reason=action.because)
            lines += wrapped(text, "  ", "     ")
    return lines + list(_support_lines(diagnosis, next_command))


def _stage_table(diagnosis: RunDiagnosis, width: int | None) -> Iterator[str]:
    """Yield a heading and the table of the stages of a training step; nothing if no process marks steps."""
    if not diagnosis.steps:
        return
    total = max(diagnosis.seconds, 1e-12)
    head = Text("{count} steps, {seconds:,.1f} s: time of each stage on the critical path")
    yield head.filled(count=diagnosis.steps, seconds=diagnosis.seconds)
    titles = [Text("stage"), Text("seconds"), Text("share"), Text("waits most for")]
    rows = [
        (stage.stage, f"{seconds:,.1f}", f"{100 * seconds / total:.0f} %", stage.limited_by)
        for stage in diagnosis.stages
        if (seconds := stage.step_seconds) >= LEAST_SHARE * total
    ]
    yield from terminal_tables.draw(titles, rows, width)


def _stage_lines(stage: StageDiagnosis) -> Iterator[str]:
    """Yield where the time of a training stage or the weight sync went, if known, then details that only -v shows."""
    if not stage.iterations:
        return
    if stage.classes:
        yield from wrapped(Text("where the time of {stage} went: {shares}", stage=stage.stage, shares=_shares(stage)))
    calls = {"stage": stage.stage, "calls": stage.turns, "seconds": stage.seconds}
    if stage.stage == sync.STAGE:
        yield Detail("  {stage}: {calls} calls, {seconds:,.1f} s; one call was recorded", **calls)
    else:
        yield Detail(
            "  {stage}: {calls} calls, {seconds:,.1f} s in {count:,} micro-batches, {recorded} recorded; {between:,.1f}"
            " s between the micro-batches",
            **calls,
            count=stage.iterations,
            recorded=stage.recorded,
            between=stage.between_seconds,
        )
    if stage.waiting_seconds >= LEAST_SHOWN_S:
        yield Detail(
            "  not included: {seconds:.1f} s of micro-batches that took over three times as long as others like them",
            stage.waiting_seconds,
        )
    for part in stage.by_load:
        most = joined(COMMA, (_share(row, with_interval=False) for row in part.classes[:LARGEST])) or part.why
        yield Detail(
            "  {load} micro-batches: {share:.0f} % of the time, {ms:,.1f} ms each: {parts}",
            load=LOADS[part.load],
            share=100 * part.share,
            ms=part.ms_each,
            parts=most,
        )


def _rollout_lines(stage: StageDiagnosis, windows: int, width: int | None) -> Iterator[str]:
    """Yield the lines on the rollout: how much was recorded, and the time of each kind of kernel, in all and by load.

    A load, such as "full load" or "tail", is a group of iterations with a similar number of requests.
    """
    rollouts = Text("1 rollout") if stage.turns == 1 else Text("{count} rollouts", stage.turns)
    head = Text(
        "{stage}: {rollouts}, {seconds:,.1f} s, {iterations:,} iterations; {recorded} recorded in {windows} windows",
        stage=stage.stage,
        rollouts=rollouts,
        seconds=stage.seconds,
        iterations=stage.iterations,
        recorded=stage.recorded,
        windows=windows,
    )
    yield from wrapped(head)
    yield Detail("  a new rollout begins with the first request after an engine has finished all earlier requests")
    if stage.recording_seconds >= LEAST_SHOWN_S:
        yield Text("  recording took {seconds:.1f} s, which the figures below do not include", stage.recording_seconds)
    whole = stage.seconds + stage.waiting_seconds + stage.recording_seconds
    if stage.between_seconds >= LEAST_BETWEEN * whole:
        between, share = stage.between_seconds, 100 * stage.between_seconds / max(whole, 1e-12)
        line = Text("  the engine spent {seconds:.1f} s ({share:.0f} % of its time) between iterations")
        yield line.filled(seconds=between, share=share)
    if stage.classes:
        yield from wrapped(Text("where the time went: {shares}", _shares(stage)))
    if stage.by_load:
        titles = [Text("load"), Text("share"), Text("ms each"), Text("largest shares, in %"), Text("prediction error")]
        yield from terminal_tables.draw(titles, [_load_cells(part) for part in stage.by_load], width)


def _load_cells(part: LoadPart) -> tuple[str, ...]:
    """Return the cells of a row: load, share of time, ms per iteration, largest kinds of kernels, prediction error."""
    error = "" if part.error is None else f"{100 * part.error:+.0f} %"
    most: str = joined(COMMA, (_share(row, with_interval=False) for row in part.classes[:LARGEST]))
    if part.error is not None and not part.supported:
        most = Text("shares not reliable")
    return LOADS[part.load], f"{100 * part.share:.0f} %", f"{part.ms_each:,.1f}", most, error


def _shares(stage: StageDiagnosis) -> Text:
    """Return the shares of the kinds of kernels of a stage with their intervals; those below 0.5 % are left out."""
    large_classes = (part for part in stage.classes if part.share >= LEAST_SHARE)
    return joined(COMMA, (_share(part, with_interval=True) for part in large_classes))


def _share(part: ClassShare, *, with_interval: bool) -> str:
    """Return name and share of a kind of kernels: "attention 26 % ± 2" with interval, else "attention 26"."""
    name, share = CLASSES.get(part.name, part.name), 100 * part.share
    if with_interval:
        text = Text("{category} {share:.0f} % ± {interval:.0f}")
        return text.filled(category=name, share=share, interval=100 * part.interval)
    return Text("{category} {share:.0f}", category=name, share=share)


def _support_lines(diagnosis: RunDiagnosis, next_command: CommandLine | None) -> Iterator[str]:
    """Yield for each stage whether the recorded iterations support its shares, then the command to type next."""
    recordable = [stage for stage in diagnosis.stages if stage.iterations]
    yield from _check_lines(recordable)
    for stage in recordable:
        for part in stage.by_load:
            if part.why:
                yield Detail("  {stage}, {load}: {reason}", stage=stage.stage, load=LOADS[part.load], reason=part.why)
        if stage.record:
            yield Detail("  record the missing windows of {stage}: {command}", stage=stage.stage, command=stage.record)
    if next_command is not None:
        yield Text("next: {command}", next_command)
    for window in diagnosis.windows:
        yield Detail("  {window}: {command}", window=f"{window.stage} {window.window}".rstrip(), command=window.report)


def _check_lines(stages: Sequence[StageDiagnosis]) -> Iterator[str]:
    """Yield for which stages the recorded windows predict the times, so that shares hold, and why not for others."""
    supported = [stage for stage in stages if stage.supported and stage.by_load]  # a weight sync has no loads
    if supported:
        error = max(100 * abs(part.error or 0) * part.share for stage in supported for part in stage.by_load)
        names = joined(COMMA, (stage.stage for stage in supported))
        text = Text(
            "check passed for {stages}, so the time shares are reliable: at each load level, the prediction from the"
            " recorded windows and the measured time differ by at most {error:.1f} % of the stage's time",
            stages=names,
            error=error,
        )
        yield from wrapped(text)
    unsupported = [stage for stage in stages if not stage.supported]
    for reason in dict.fromkeys(stage.why for stage in unsupported):
        names = joined(COMMA, (stage.stage for stage in unsupported if stage.why == reason))
        text = Text(
            "check failed for {stages}: the time shares are not reliable ({reason})", stages=names, reason=reason
        )
        yield from wrapped(text)
