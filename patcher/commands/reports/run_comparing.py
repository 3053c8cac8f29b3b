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
    """Choices of the steps and the run of each side; one value is for both sides, None of them for all or the only."""

    steps: Sequence[tuple[int, int]] = ()
    run: Sequence[int] = ()


def has_timeline(path: Path) -> bool:
    """Tell whether a folder holds the timeline of a run."""
    return path.is_dir() and bool(files.paths(path))


def _has_capture(path: Path) -> bool:
    """Tell whether a path holds a capture that can be read."""
    try:
        return bool(folders.readable(path))
    except (Problem, OSError):
        return False


def are_runs(before: Sequence[Path], after: Sequence[Path], choice: RunChoice) -> bool:
    """Tell whether the sides are compared as runs: all of them have timelines, and captures are not what is meant.

    Folders that hold both are compared as runs if steps or runs are chosen. Raises Problem: USAGE for a mixture of
    timelines and captures, and if steps are chosen of what has no timeline; NO_TRACE if a path does not exist.
    """
    paths = [*before, *after]
    timeline = {path: has_timeline(path) for path in paths}
    if not any(timeline.values()):
        if choice.steps or choice.run:
            option = "--steps" if choice.steps else "--run"
            cause = Text("{option} is for timelines, and {path} contains no timeline", option, paths[0])
            raise Problem(Kind.USAGE, cause, str(paths[0]), Text("choose steps of captures with --units A:B"))
        return False
    chosen = bool(choice.steps or choice.run)
    capture = {path: not (timeline[path] and chosen) and _has_capture(path) for path in paths}
    if all(timeline.values()) and not all(capture.values()):
        return True
    if all(capture.values()) and not chosen:
        return False
    run = next(path for path in paths if timeline[path])
    other = next((path for path in paths if not timeline[path]), run)
    if not other.exists():
        raise Problem(Kind.NO_TRACE, Text("{path} does not exist", other), str(other))
    cause = Text(
        "{run} contains the timeline of a run, and {other} does not: compare two timelines, or two captures", run, other
    )
    commands = CommandLine("timeline", str(run)), CommandLine("report", str(other))
    hint = CommandLine("compare", str(run), "RUN")
    raise Problem(
        Kind.USAGE, cause, str(other), Text("compare two runs: {compare}", hint),
        (Text("or look at each side alone: {timeline}, {report}", *commands),),
    )  # fmt: skip


def compare_runs(
    before: Sequence[Path], after: Sequence[Path], choice: RunChoice, options: ReadOptions, display: Display = silent,
    *, force: bool, most: float | None = None,
) -> CommandResult:  # fmt: skip
    """Compare the run in `before` with the one in `after`, one folder each.

    Runs of other trainers are a problem of the result, unless `force`. Raises Problem: USAGE for what is for captures
    alone or a range without steps, NOT_COMPARABLE for a run without steps, and otherwise as `timelines.timeline`.
    """
    result = CommandResult("compare")
    _refuse_capture_options(before, after, options, most)
    sides = _sides([before[0], after[0]], choice, display, result)
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


def _refuse_capture_options(
    before: Sequence[Path], after: Sequence[Path], options: ReadOptions, most: float | None
) -> None:
    """Raise Problem (USAGE) for several runs a side, and for options that captures alone have."""
    if len(before) > 1 or len(after) > 1:
        hint = CommandLine("compare", str(before[0]), str(after[0]))
        raise Problem(Kind.USAGE, Text("timelines are compared one run per side"), hint=str(hint))
    given = {"--units": options.units, "--marks": options.marks, "--fail-above": most}
    for option, value in given.items():
        if value is not None:
            why = Text("{option} is for captures, and these are timelines", option)
            again = Text("choose steps with --steps A:B; type the option twice for one range per side")
            if option == "--fail-above":
                again = Text(
                    "--json has the change with its interval; --fail-above is only for captures, two or more per side"
                )
            raise Problem(Kind.USAGE, why, hint=again)


def _sides(paths: Sequence[Path], choice: RunChoice, display: Display, result: CommandResult) -> list[ChosenSteps]:
    """Return the runs with their chosen steps; a run that is on both sides is read once.

    Raises Problem (NOT_COMPARABLE) for a run without steps, USAGE for a range without steps.
    """
    joined: dict[tuple[Path, int | None], RunTimeline] = {}
    sides = []
    for at, path in enumerate(paths):
        steps, number = _of_side(choice.steps, at), _of_side(choice.run, at)
        key = path.resolve(), number
        with _choices_named(path):
            if key not in joined:
                joined[key] = timelines.read(path, TimelineOptions(run=number), display, result)
            if not joined[key].steps:
                cause = Text("{path} has no completed step: only a driver or a trainer records steps", path)
                hint = CommandLine("timeline", str(path))
                raise Problem(Kind.NOT_COMPARABLE, cause, str(path), Text("see what is missing: {timeline}", hint))
            sides.append(ChosenSteps(path, timelines.only_steps(joined[key], steps)))
    return sides


def _of_side(values: Sequence[T], at: int) -> T | None:
    """Return the value for the first or the second side: one is for both; None without any."""
    return values[min(at, len(values) - 1)] if values else None


@contextlib.contextmanager
def _choices_named(path: Path) -> Iterator[None]:
    """Name the folder ``path`` in a usage problem of the block, and in its hint how to choose one of several runs."""
    try:
        yield
    except Problem as problem:
        if problem.kind is not Kind.USAGE:
            raise
        hint = problem.hint
        if problem.notes:
            hint = Text("choose one of these runs with --run N; type the option twice for one run per side")
        raise Problem(problem.kind, problem.cause, str(path), hint, problem.notes) from None
