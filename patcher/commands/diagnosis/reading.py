"""The diagnosis of what lies in a folder: a timeline, and windows recorded in the same run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from patcher.commands.diagnosis import lines
from patcher.commands.diagnosis.asked import failure_notes, has_live_on_demand_worker
from patcher.commands.reports.csv_files import write_tables
from patcher.commands.reports.reporting import ReadOptions, read_profiles
from patcher.commands.reports.timelines import chosen_run
from patcher.commands.reports.writing import write
from patcher.diagnosis import page, tables
from patcher.diagnosis.actions import with_bounds
from patcher.diagnosis.engines import engines
from patcher.diagnosis.model import RunDiagnosis
from patcher.diagnosis.run import diagnose as diagnosed
from patcher.diagnosis.steps import with_steps
from patcher.diagnosis.training import trainer_stages
from patcher.diagnosis.windows import recorded_traces
from patcher.messages import CommandLine, CommandResult, Kind, Problem, Text
from patcher.progress import Display, silent
from patcher.timeline import files, runs
from patcher.timeline.join import join
from patcher.timeline.model import Run
from patcher.timeline.runs import Process


def read(folder: Path, number: int | None, display: Display, result: CommandResult) -> RunDiagnosis:
    """Return the diagnosis of a run in `folder`; an unreadable trace is a problem of `result`.

    `number` is that of the run, None for the newest. Raises Problem: NO_TRACE without a timeline, or if the run has
    neither a trainer nor an engine that recorded iterations; TRACE if no file can be read; USAGE if there is no such
    run.
    """
    _, processes = chosen_run(folder, number, display, result, newest=number is None)
    return _diagnose_with_steps(folder, processes, display, result)


def diagnose_processes(
    folder: Path, processes: tuple[Process, ...], display: Display, result: CommandResult, *, replays: bool = False
) -> RunDiagnosis:
    """Return the diagnosis of the run of `processes`; an unreadable trace is a problem of `result`.

    With `replays` it also estimates how long rollouts would take with other settings of the engine. Raises Problem
    (NO_TRACE) if no engine recorded an iteration and no trainer a stage.
    """
    of_run, trainers = engines(processes), trainer_stages(processes)
    if not (trainers or any(len(engine.iterations) for engine in of_run)):
        raise _no_engine(folder)
    paths = recorded_traces(folder, of_run, trainers)
    profiles = read_profiles(result, paths, ReadOptions(), partial(display, Text("reading traces"))) if paths else []
    return diagnosed(of_run, profiles, trainers, replays=replays)


def _diagnose_with_steps(
    folder: Path, processes: tuple[Process, ...], display: Display, result: CommandResult
) -> RunDiagnosis:
    """Return the diagnosis of the run of `processes`, with each stage's part of the training steps if known."""
    diagnosis = diagnose_processes(folder, processes, display, result, replays=True)
    for note, process in failure_notes(folder, processes):
        result.note(note, process)
    if not any(process.marks or "driver" in process.roles for process in processes):
        return diagnosis
    started = min(process.wall[0] for process in processes) / 1e6
    timeline = join(Run(1, started, 0.0, len(processes), ()), processes)
    return with_steps(with_bounds(diagnosis, timeline.steps), timeline)


class Output(NamedTuple):
    """Files to write: the HTML page and the folder of CSV files, None for none."""

    page: Path | None = None
    csv: Path | None = None


NO_FILES = Output()


def add_diagnosis(
    result: CommandResult, diagnosis: RunDiagnosis, folder: Path, width: int | None, output: Output
) -> None:
    """Add the diagnosis to `result` as data, lines and notes, and write the files of `output`."""
    result.data = diagnosis
    again = _next_command(diagnosis, folder)
    result.lines += lines.report(diagnosis, again, width)
    for note in diagnosis.notes:
        result.note(note)
    if output.csv is not None:
        write_tables(result, output.csv, tables.of_diagnosis(diagnosis))
    if output.page is not None:  # it may go into the new folder
        write(result, output.page, [page.page(diagnosis, str(folder), again)], "-o FILE.html")


def diagnose(
    folder: Path,
    number: int | None,
    display: Display = silent,
    width: int | None = None,
    output: Output = NO_FILES,
) -> CommandResult:
    """Return the result of `rlpatch diagnose` on run `number` (None: newest) in `folder`; write the files of `output`.

    Raises Problem as `read` does.
    """
    result = CommandResult("diagnose")
    diagnosis = read(folder, number, display, result)
    add_diagnosis(result, diagnosis, folder, width, output)
    return result


def newest_since(folder: Path, started: float) -> tuple[Process, ...]:
    """Return the processes of the newest run in `folder` since `started`, in s since 1970, or a second before."""
    surveyed = runs.survey(files.paths(folder)).runs if folder.is_dir() else ()
    return next((processes for run, processes in reversed(surveyed) if run.started >= started - 1), ())


def diagnose_newest(folder: Path, result: CommandResult, started: float, output: Output) -> None:
    """Add to `result` the diagnosis of the newest run in `folder` since `started`, and write the files of `output`.

    Raises Problem (NO_TRACE) if no run began since, or if no engine of the run recorded an iteration and no trainer a
    stage.
    """
    processes = newest_since(folder, started)
    if not processes:
        hint = Text("the log of the run may say why: look for lines that contain “rlpatch”")
        raise Problem(Kind.NO_TRACE, Text("no timeline file of the run was found"), str(folder), hint)
    diagnosis = _diagnose_with_steps(folder, processes, silent, result)
    add_diagnosis(result, diagnosis, folder, None, output)


def _next_command(diagnosis: RunDiagnosis, folder: Path) -> CommandLine | None:
    """Return the command that records the windows that the diagnosis still lacks; None if it has none to propose."""
    if not diagnosis.planned or not diagnosis.next_windows:
        return None
    windows = ("--iterations", diagnosis.next_windows, *diagnosis.planned.conditions)
    if has_live_on_demand_worker(folder):
        return CommandLine("trigger", *windows, "--save-path", str(folder))
    return CommandLine("run", diagnosis.package, "--timeline", *windows, "--rollout", "2", "--", "bash", "run.sh")


def _no_engine(folder: Path) -> Problem:
    """Return the problem that no engine of the run recorded its iterations, with a command that patches the engine."""
    cause = Text("no engine of this run recorded its iterations")
    record = CommandLine("diagnose", "vllm", "--", "bash", "run.sh")
    return Problem(Kind.NO_TRACE, cause, str(folder), Text("patch the engine, too: {command}", record))
