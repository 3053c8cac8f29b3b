"""``compare`` on two timelines: the runs of two folders, or two ranges of steps of one."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from patcher.commands.reports import run_comparison_lines as lines
from patcher.commands.reports import timelines
from patcher.commands.reports.csv_files import write_tables
from patcher.commands.reports.reporting import ReadOptions
from patcher.commands.reports.timelines import TimelineOptions
from patcher.commands.reports.writing import write
from patcher.messages import CommandLine, CommandResult, Kind, Problem, Text
from patcher.progress import Display, silent
from patcher.timeline import comparison_tables as tables
from patcher.timeline import files
from patcher.timeline.model import RunTimeline
from patcher.timeline.page.comparison import comparison_page
from patcher.timeline.run_comparison import ChosenSteps, compared
from patcher.traces import folders

T = TypeVar("T")


class RunChoice(NamedTuple):
    """Steps and run of each side of a comparison.

    A single value is for both sides, two are for before and after. Empty `steps` stand for all steps, an empty `run`
    for the only run.
    """

    steps: Sequence[tuple[int, int]] = ()
    run: Sequence[int] = ()


def has_timeline(path: Path) -> bool:
    """Tell whether a folder holds the timeline of a run."""
    return path.is_dir() and bool(files.paths(path))


def _has_trace(path: Path) -> bool:
    try:
        return bool(folders.traces_to_read(path))
    except (Problem, OSError):
        return False


def are_timelines(before: Sequence[Path], after: Sequence[Path], choice: RunChoice) -> bool:
    """Tell whether two sides are to be compared as timelines (True) or as traces (False).

    If all paths have both, traces are compared, unless `choice` has steps or runs. Raises Problem, NO_TRACE or USAGE,
    if only some have a timeline and not all have traces, or if the choice needs timelines that are missing.
    """
    paths = [*before, *after]
    timeline = {path: has_timeline(path) for path in paths}
    if not any(timeline.values()):
        if choice.steps or choice.run:
            option = "--steps" if choice.steps else "--run"
            cause = Text("{option} is only for timelines, but {path} contains none", option=option, path=paths[0])
            raise Problem(Kind.USAGE, cause, str(paths[0]), Text("choose the steps of a trace with --units A:B"))
        return False
    chosen = bool(choice.steps or choice.run)
    capture = {path: not (timeline[path] and chosen) and _has_trace(path) for path in paths}
    if all(timeline.values()) and not all(capture.values()):
        return True
    if all(capture.values()) and not chosen:
        return False
    run = next(path for path in paths if timeline[path])
    other = next((path for path in paths if not timeline[path]), run)
    if not other.exists():
        raise Problem(Kind.NO_TRACE, Text("{path} does not exist", other), str(other))
    cause = Text(
        "{run} contains a timeline, but {other} does not: compare two timelines, or two traces", run=run, other=other
    )
    apart = Text(
        "or look at the two runs separately: {timeline_command}, {report_command}",
        timeline_command=CommandLine("timeline", str(run)),
        report_command=CommandLine("report", str(other)),
    )
    hint = CommandLine("compare", str(run), "RUN")
    raise Problem(Kind.USAGE, cause, str(other), Text("compare two runs: {command}", hint), (apart,))


def compare_runs(
    before: Sequence[Path], after: Sequence[Path], choice: RunChoice, options: ReadOptions, display: Display = silent,
    *, force: bool, fail_above: float | None = None,
) -> CommandResult:  # fmt: skip
    """Return the comparison of two timelines, and write the CSV files and the page that `options` ask for.

    Unless `force`, runs that are not comparable are a problem of the result, and no file is written. Raises Problem:
    NOT_COMPARABLE for a run without steps; USAGE for several folders on a side, a range without steps, or an option for
    traces alone, such as `fail_above`. NO_TRACE or TRACE without a readable timeline.
    """
    result = CommandResult("compare")
    _refuse_trace_options(before, after, options, fail_above)
    sides = _read_sides([before[0], after[0]], choice, display, result)
    comparison = compared(*sides)
    result.data = comparison
    if comparison.refused and not force:
        again = f"rlpatch {shlex.join(click.get_current_context().meta.get('typed', ()))} --force"
        first, *more = comparison.refused
        result.problems.append(Problem(Kind.NOT_COMPARABLE, first, hint=again, notes=tuple(more)))
        return result
    result.lines += lines.report(comparison)
    if options.csv is not None:
        write_tables(result, options.csv, tables.of_comparison(comparison))
    if options.page is not None:  # it may go into the new folder
        write(result, options.page, [comparison_page(comparison, lines.sentences(comparison))], "-o FILE.html")
    return result


def _refuse_trace_options(
    before: Sequence[Path], after: Sequence[Path], options: ReadOptions, fail_above: float | None
) -> None:
    """Raise Problem (USAGE) for several folders on a side, and for an option that has an effect on traces alone."""
    if len(before) > 1 or len(after) > 1:
        hint = CommandLine("compare", str(before[0]), str(after[0]))
        raise Problem(Kind.USAGE, Text("to compare timelines, give one run per side"), hint=str(hint))
    trace_options = {"--units": options.units, "--marks": options.marks, "--fail-above": fail_above}
    for option, value in trace_options.items():
        if value is not None:
            why = Text("{option} is only for traces, but timelines are compared here", option)
            again = Text(
                "choose steps with --steps A:B; to choose different steps on each side, type the option twice: first"
                " for the side before, then for the side after"
            )
            if option == "--fail-above":
                again = Text(
                    "--fail-above is for traces: at least two on each side, or three on one side and one on the other."
                    " For timelines, judge the change yourself, by its confidence interval in --json"
                )
            raise Problem(Kind.USAGE, why, hint=again)


def _read_sides(paths: Sequence[Path], choice: RunChoice, display: Display, result: CommandResult) -> list[ChosenSteps]:
    """Return the runs in the two folders `paths` with their chosen steps; a run that is on both sides is read once.

    Raises Problem: NOT_COMPARABLE for a run without steps, and what `timelines.read` raises.
    """
    joined: dict[tuple[Path, int | None], RunTimeline] = {}
    sides = []
    for at, path in enumerate(paths):
        steps, number = _of_side(choice.steps, at), _of_side(choice.run, at)
        key = path.resolve(), number
        with _naming_folder(path):
            if key not in joined:
                joined[key] = timelines.read(path, TimelineOptions(run=number), display, result)
            if not joined[key].steps:
                cause = Text(
                    "{path} has no completed training step: only a driver or a trainer records training steps", path
                )
                hint = CommandLine("timeline", str(path))
                raise Problem(Kind.NOT_COMPARABLE, cause, str(path), Text("see what is missing: {command}", hint))
            sides.append(ChosenSteps(path, timelines.only_steps(joined[key], steps)))
    return sides


def _of_side(values: Sequence[T], side: int) -> T | None:
    """Return the value for side 0 (before) or 1 (after); a single value is for both, None without any."""
    return values[min(side, len(values) - 1)] if values else None


@contextlib.contextmanager
def _naming_folder(path: Path) -> Iterator[None]:
    """Add the folder ``path`` to a Problem (USAGE) that the body of the ``with`` statement raises.

    If the problem lists the runs of a folder, its hint becomes how to choose one for each side.
    """
    try:
        yield
    except Problem as problem:
        if problem.kind is not Kind.USAGE:
            raise
        hint = problem.hint
        if problem.notes:
            hint = Text(
                "choose one run for both sides with --run N, or two with --run N --run M: N for the side before, M"
                " for the side after"
            )
        raise Problem(problem.kind, problem.cause, str(path), hint, problem.notes) from None
