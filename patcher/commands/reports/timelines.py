"""``timeline``: the runs in a folder, one of them joined, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from patcher.commands.finding import SearchOptions
from patcher.commands.reports import timeline_lines as lines
from patcher.commands.reports.csv_files import write_tables
from patcher.commands.reports.writing import write
from patcher.messages import (
    COMMA,
    CommandLine,
    CommandResult,
    Detail,
    Kind,
    Problem,
    StepResult,
    Text,
    joined,
    processes_text,
)
from patcher.messages.notes import wrapped
from patcher.progress import Display, silent
from patcher.timeline import files, model, page, perfetto, runs, tables
from patcher.timeline.join import join
from patches.projects import upstreams

FOLLOW_S, QUIET_S = 2.0, 300.0
"""Seconds between two readings of a running run, and seconds without a write after which it counts as ended."""

LISTED = 20
"""Most runs that are listed when one has to be chosen."""


class TimelineOptions(NamedTuple):
    """Choices for `timeline`.

    `steps` is the half-open range of step numbers to show (None: all), `run` the number of the run if there are
    several, `newest` takes the newest run instead. `page`, `csv` and `perfetto` are where the HTML page, the CSV files
    and the Perfetto trace go.
    """

    steps: tuple[int, int] | None = None
    run: int | None = None
    page: Path | None = None
    csv: Path | None = None
    perfetto: Path | None = None
    newest: bool = False


def timeline(
    folder: Path, options: TimelineOptions, display: Display = silent, width: int | None = None
) -> CommandResult:
    """Join the timelines of a run's processes in `folder`, and write the files that `options` ask for.

    The result has the joined run as data and as lines, and a warning of everything that is unknown. `width` is the
    columns of the terminal, None without one. Raises the Problems of `read`.
    """
    result = CommandResult("timeline")
    joined_run = read(folder, options, display, result)
    result.data = joined_run
    result.lines += lines.report(joined_run, width)
    for text in (*joined_run.missing, *joined_run.notes):
        result.warn(text)
    if options.csv is not None:
        write_tables(result, options.csv, tables.of_run(joined_run))
    if options.page is not None:  # it may go into the new folder
        write(result, options.page, [page.page(joined_run)], "-o FILE.html")
    if options.perfetto is not None:
        write(result, options.perfetto, perfetto.trace(joined_run), "--perfetto FILE.json")
    return result


def has_trainer(run: model.RunTimeline) -> bool:
    """Tell whether a driver or a trainer left its timeline: only these separate training steps."""
    return any(lane.role in ("driver", "trainer") for lane in run.lanes)


def patch_trainer_lines(run: model.RunTimeline, search: SearchOptions) -> StepResult:
    """Return lines with the commands that patch the trainer, too, so that the next timeline has training steps.

    They name the installed trainers that drive an engine of the run, or a placeholder if `search` finds none.
    """
    engines = [package.partition(" ")[0] for package in run.run.packages]
    trainers = [upstream.project.name for upstream in upstreams() if {*engines} & {*upstream.engines}]
    if not trainers:
        return StepResult()
    installed: list[str] = []
    with contextlib.suppress(Problem, OSError):
        targets = [target.project.name for target in search.discover().targets]
        installed = [name for name in trainers if name in targets]
    names = installed or ["TRAINER"]
    commands = (CommandLine("run", *engines, name, "--timeline", "--", "bash", "run.sh") for name in names)
    about = Text("to see training steps, patch the trainer, too")
    if not installed:
        about = Text(
            "to see training steps, patch the trainer, too; none of {trainers} is installed here",
            joined(COMMA, trainers),
        )
    return StepResult(("", *(Text("next: {command}", command) for command in commands), *wrapped(about, "  ", "  ")))


def follow(
    folder: Path,
    show: Callable[[Sequence[str], Sequence[str]], None],
    width: int | None,
    *,
    once: bool,
    timeout: float | None,
    height: int | None = None,
) -> CommandResult:
    """Join the newest run in `folder` every `FOLLOW_S` seconds, and return the last result, empty if no run was read.

    Ends at Ctrl-C, after `timeout` seconds (None: no limit), with `once` after the first time, and if, after the first
    step, no process has written for `QUIET_S` seconds. Each time, `show` gets the lines of the report and the lines on
    steps that ended since its last call. The report has as many steps as fit a terminal of `width` columns and `height`
    lines (None: unknown). A folder without a timeline is waited for, which `show` tells, except with `once`. Raises
    Problems as `timeline` does.
    """
    end = time.monotonic() + (math.inf if timeout is None else timeout)
    result = CommandResult("timeline")
    run, steps_told = ("", 0.0), 0
    is_waiting = False
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                result = timeline(folder, TimelineOptions(newest=True), silent, width)
                if run != (result.data.run.name, result.data.run.started):
                    run, steps_told = (result.data.run.name, result.data.run.started), 0
                news = result.data.steps[steps_told:]
                steps_told += len(news)
                show(_lines_that_fit(result.data, width, height), [lines.step_line(step) for step in news])
            except Problem as problem:
                if once or problem.kind is not Kind.NO_TRACE:
                    raise
                wait = Text(
                    "waiting: {cause}. Stop with Ctrl-C, or limit the wait with --timeout SECONDS", problem.cause
                )
                waits = wrapped(wait)
                show(waits, [] if is_waiting else waits)
                is_waiting = True
            if once or time.monotonic() >= end or (steps_told and _seconds_since_write(folder) > QUIET_S):
                break
            time.sleep(min(FOLLOW_S, max(end - time.monotonic(), 0)))
    return result


def _lines_that_fit(joined_run: model.RunTimeline, width: int | None, height: int | None) -> list[str]:
    """Return the lines of a report without those for -v, with as many of the newest steps as the terminal can show.

    The lines on processes, the table of steps and the trend fit into `height` lines (None: no limit), with 1 to 40
    steps.
    """

    def report(run: model.RunTimeline, steps: int) -> list[str]:
        return [line for line in lines.report(run, width, steps) if not isinstance(line, Detail)]

    bare = dataclasses.replace(
        joined_run, path_seconds=(), causes=(), windows=(), recorded=(), memory=model.RunMemory()
    )
    count = lines.MOST_STEPS
    if height is not None:
        count = next((most for most in range(count, 1, -1) if len(report(bare, most)) < height), 1)
    return report(joined_run, count)


def _seconds_since_write(folder: Path) -> float:
    """Return the seconds since a process last wrote to a timeline below `folder`; since 1970 if none did."""
    written = [0.0]
    for path in files.paths(folder):
        with contextlib.suppress(OSError):  # replaced by a newer one since
            written.append(path.stat().st_mtime)
    return time.time() - max(written)


def read(folder: Path, options: TimelineOptions, display: Display, result: CommandResult) -> model.RunTimeline:
    """Return the run that `options` choose, joined from its processes, with only the chosen steps.

    Raises the Problems of `chosen_run`, and USAGE if the chosen steps don't exist.
    """
    run, processes = chosen_run(folder, options.run, display, result, newest=options.newest)
    paths = [path for process in processes for path in process.paths]
    with display("joining", sum(map(runs.size_of, paths))) as count:
        joined_run = join(run, processes, folder, count, range(*options.steps or (0, 0)))
    return only_steps(joined_run, options.steps)


def chosen_run(
    folder: Path, number: int | None, display: Display, result: CommandResult, *, newest: bool
) -> tuple[model.Run, tuple[runs.Process, ...]]:
    """Return the run of `folder` with this `number` (None: the only run), or with `newest` the last; and its processes.

    Raises Problem: NO_TRACE without a timeline, TRACE if no file can be read, USAGE if there is no such run, or if
    there are several for None.
    """
    paths = files.paths(folder)
    if not paths:
        raise _no_timeline_problem(folder)
    with display("surveying", sum(map(runs.size_of, paths))) as count:
        surveyed = runs.survey(paths, count)
    for path in surveyed.newer:
        result.warn(
            Text("skipped {file}: a newer rlpatch wrote it", path.name), Text("update rlpatch to read this file")
        )
    for path, why in surveyed.unread:
        if why:
            result.warn(Text("skipped {file}: {reason}", file=path.name, reason=why))
        else:
            result.warn(Text("skipped {file}: it is not a readable timeline", path.name))
    if not surveyed.runs:
        raise _unreadable_problem(folder, surveyed)
    return _newest_run(surveyed, result) if newest else _run_by_number(folder, surveyed, number)


def _no_timeline_problem(folder: Path) -> Problem:
    """Return the problem that `folder` does not exist or has no timeline, with the command that records one."""
    cause = Text("{folder} contains no timeline", folder)
    notes: list[str] = [
        Text(
            "this folder and its subfolders have no timeline files; the pattern of their paths is"
            " {folder}/HOST_PID_STARTED.jsonl.gz",
            files.FOLDER,
        )
    ]
    if not folder.exists():
        cause = Text("the folder {folder} does not exist", folder)
        notes.append(
            Text(
                "to find the folder of the traces, look into the log of the run, or run `rlpatch status`; to record a"
                " new timeline, run the command below"
            )
        )
    elif folder.is_dir() and any(folder.iterdir()):
        traces = CommandLine("traces", str(folder))
        notes.append(Text("if the folder contains traces of recording windows, use: {command}", traces))
    record = CommandLine("run", "vllm", "verl", "--timeline", "--", "bash", "run.sh")
    return Problem(Kind.NO_TRACE, cause, str(folder), Text("record a timeline: {command}", record), tuple(notes))


def _unreadable_problem(folder: Path, surveyed: runs.Surveyed) -> Problem:
    if surveyed.newer:
        path, cause = surveyed.newer[0], Text("a newer rlpatch wrote all files in this folder")
        hint = Text("read these files with the version of rlpatch that recorded them, or with a newer one")
        return Problem(Kind.TRACE, cause, str(path), hint)
    for path, why in surveyed.unread:
        if why:
            return Problem(Kind.TRACE, Text("{file} cannot be read: {reason}", file=path.name, reason=why), str(path))
    if surveyed.unread:
        cause = Text("none of the files in this folder can be read as a timeline")
        return Problem(Kind.TRACE, cause, str(surveyed.unread[0].path), Text("record the timeline again"))
    hint = Text("wait a second, then run {command}", CommandLine("timeline", str(folder)))
    return Problem(Kind.NO_TRACE, Text("the processes of the run have not written anything yet"), str(folder), hint)


def _newest_run(surveyed: runs.Surveyed, result: CommandResult) -> tuple[model.Run, tuple[runs.Process, ...]]:
    """Return the newest run and its processes; if there are several runs, add a note to `result` on which it is."""
    newest = surveyed.runs[-1]
    if len(surveyed.runs) > 1:
        note = Text(
            "this is run {number}, the newest of {count} runs; --run N shows another one",
            number=newest[0].number,
            count=len(surveyed.runs),
        )
        result.note(note)
    return newest


def _run_by_number(
    folder: Path, surveyed: runs.Surveyed, number: int | None
) -> tuple[model.Run, tuple[runs.Process, ...]]:
    """Return the run with this `number` (None: the only run) and its processes.

    Raises Problem (USAGE), which lists the newest runs, if there is no such run, or if there are several for None.
    """
    runs_by_number = {run.number: (run, processes) for run, processes in surveyed.runs}
    if number in runs_by_number:
        return runs_by_number[number]
    if number is None and len(runs_by_number) == 1:
        return surveyed.runs[0]
    cause = (
        Text("the folder contains {count} runs; choose one with --run N", len(runs_by_number))
        if number is None
        else Text(
            "--run {number} does not exist: the folder contains {count} runs", number=number, count=len(runs_by_number)
        )
    )
    rows = tuple(_run_line(run) for run, _ in surveyed.runs)
    newest = rows if len(rows) <= LISTED else (Text("… {count} older runs", len(rows) - LISTED), *rows[-LISTED:])
    hint = CommandLine("timeline", str(folder), "--run", str(max(runs_by_number)))
    raise Problem(Kind.USAGE, cause, str(folder), Text("show the newest run: {command}", hint), newest)


def _run_line(run: model.Run) -> str:
    """Return a line on a run: the option that chooses this run, local start time, seconds, processes, packages."""
    start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(max(run.started, 0), 1 << 36)))
    return Text(
        "--run {number}: {start}, {seconds:,.0f} s, {processes}, {packages}",
        number=run.number,
        start=start,
        seconds=run.seconds,
        processes=processes_text(run.processes),
        packages=", ".join(run.packages) or Text("packages unknown"),
    )


def only_steps(joined_run: model.RunTimeline, numbers: tuple[int, int] | None) -> model.RunTimeline:
    """Return the run with only the steps in the half-open range `numbers` (None: all); the rest of it stays as it is.

    Raises Problem (USAGE) if the run has none in that range.
    """
    if numbers is None:
        return joined_run
    steps = tuple(step for step in joined_run.steps if numbers[0] <= step.step < numbers[1])
    if not steps:
        step_numbers = [step.step for step in joined_run.steps]
        hint = Text("no training step has ended yet")
        if step_numbers:
            hint = Text("steps of the run: {first} to {last}", first=step_numbers[0], last=step_numbers[-1])
        raise Problem(
            Kind.USAGE,
            Text("--steps {first}:{end}: the run has no step in this range", first=numbers[0], end=numbers[1]),
            hint=hint,
        )
    return dataclasses.replace(joined_run, steps=steps)
