"""``report`` and ``compare``: what the traces say, in the terminal, as JSON and as a page."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from patcher.commands.reports import memory_lines
from patcher.commands.reports import report_lines as lines
from patcher.commands.reports.csv_files import Tables, write_tables
from patcher.commands.reports.writing import write
from patcher.messages import CommandLine, CommandResult, Kind, Problem, StepResult, Text, problem_of
from patcher.progress import Display, Progress, fixed_total, silent
from patcher.traces import analysis, folders, formats, memory_tables, model, page, snapshots, tables
from patcher.traces.marks import WANTED
from patcher.traces.page import memory as memory_page

T = TypeVar("T")

CAPTURE = "capture"
"""Part of the name of a trace, or of its folder, that rlpatch or vLLM recorded while graphs were captured."""

Graphs = dict[int | None, tuple[analysis.CapturedSet, ...]]
"""Rank → the graphs that were captured on it, as far as its traces have been read."""


class ReadOptions(NamedTuple):
    """Choices for reading traces and for writing the result.

    `units` is the half-open range of unit numbers to read (None: all), `marks` matches the names of ranges that mark
    units, `page` is the HTML file, `csv` the folder of CSV files. Without `classes` no unit is divided among classes of
    kernels, which only `--json` and a diagnosis show.
    """

    units: tuple[int, int] | None = None
    page: Path | None = None
    csv: Path | None = None
    marks: re.Pattern[str] | None = None
    classes: bool = True


def report(paths: Sequence[Path], options: ReadOptions, display: Display = silent) -> CommandResult:
    """Return the report on the traces at `paths`, ranks of a single run, and write the files that `options` ask for.

    An unreadable trace is a problem of the result; without a readable one, the result has no data and no lines. If all
    paths are memory snapshots, they are reported instead. Beside traces, they are left out with a note.
    """
    result = CommandResult("report")
    snapshot_paths, trace_paths = snapshots.split_off_snapshots(paths)
    if snapshot_paths and not trace_paths:
        return _report_memory(result, snapshot_paths, options, display)
    if snapshot_paths:
        result.note(
            Text(
                "memory snapshots were left out; report them separately: {command}",
                CommandLine("report", *map(str, snapshot_paths)),
            )
        )
    profiles = analysis.labelled(read_profiles(result, trace_paths, options, partial(display, Text("reading traces"))))
    if not profiles:
        return result
    trace_report = analysis.reported(profiles)
    if len({(profile.part, profile.rank) for profile in profiles}) < len(profiles):
        result.note(
            Text("cannot tell which rank waits for which: needs several ranks of one window"),
            Text("several traces have the same rank, or a trace has no rank"),
        )
    result.data = trace_report
    result.lines += lines.report(trace_report, _typed_command())
    _write_files(result, options, trace_report, tables.of_report(trace_report))
    return result


def _report_memory(
    result: CommandResult, paths: Sequence[Path], options: ReadOptions, display: Display
) -> CommandResult:
    """Add a report on memory snapshots to `result`, write the files that `options` ask for, and return `result`."""
    sizes = [path.stat().st_size for path in paths]
    with display(Text("reading memory snapshots"), sum(sizes)) as progress:
        read = [*read_each(result, paths, partial(snapshots.read, progress=progress))]
    result.data = {"snapshots": read}
    for snapshot in read:
        result.lines += memory_lines.report(snapshot)
    if options.csv is not None:
        write_tables(result, options.csv, memory_tables.of_snapshots(read))
    if options.page is not None:
        write(result, options.page, [memory_page.page(read)], "-o FILE.html")
    return result


def compare(
    before: Sequence[Path], after: Sequence[Path], options: ReadOptions, display: Display = silent, *,
    force: bool, fail_above: float | None = None,
) -> CommandResult:  # fmt: skip
    """Return the comparison of the traces `before` with the traces `after`, and write the files that `options` ask for.

    An unreadable trace is a problem of the result; nothing is compared if a side has no readable trace. A trace on both
    sides is a warning. Sides that are not comparable are a problem, and no file is written for them; with `force` they
    are compared nevertheless. If `after` is certainly slower by more than `fail_above` percent (None: no limit), that
    is a problem, too.
    """
    result = CommandResult("compare")
    sides = [
        analysis.labelled(read_profiles(result, paths, options, partial(display, action)))
        for action, paths in (
            (Text("reading the traces of side “before”"), before),
            (Text("reading the traces of side “after”"), after),
        )
    ]
    if not all(sides):
        return result
    if same := {path.resolve() for path in before} & {path.resolve() for path in after}:
        result.warn(Text("the same trace is on both sides, so nothing can differ"), "\n".join(map(str, sorted(same))))
    add_comparison(result, analysis.compared(*sides, force=force), options, force=force, fail_above=fail_above)
    return result


def add_comparison(
    result: CommandResult, comparison: model.Comparison, options: ReadOptions, *, force: bool, fail_above: float | None
) -> None:
    """Add a comparison to `result`, and write the files that `options` ask for.

    Unless `force`, a refused comparison is a problem, and no file is written. A slowdown that is certainly above
    `fail_above` percent (None: no limit) is a problem, too, as are too few traces to tell. The files are written all
    the same.
    """
    result.data = comparison
    if comparison.refused and not force:
        first, *more_refusals = comparison.refused
        again = f"{_typed_command()} --force"
        result.problems.append(Problem(Kind.NOT_COMPARABLE, first, hint=again, notes=tuple(more_refusals)))
        return
    result.lines += lines.comparison(comparison)
    if fail_above is not None:
        _fail_if_slower(result, comparison, fail_above)
    _write_files(result, options, comparison, tables.of_comparison(comparison))


def _typed_command() -> str:
    """Return the command that was typed; "" outside of the command line."""
    context = click.get_current_context(silent=True)
    words = context.meta.get("typed", ()) if context else ()
    return f"rlpatch {shlex.join(words)}" if words else ""


def _fail_if_slower(result: CommandResult, comparison: model.Comparison, fail_above: float) -> None:
    """Add a problem to `result` if the second side is certainly over `fail_above` percent slower, a note if unknown."""
    undecided = Text("cannot decide whether the slowdown exceeds the limit of --fail-above")
    at_least = 100 * comparison.least_change_ns / max(comparison.median_ns[0], 1)
    if comparison.captures < model.ENOUGH_CAPTURES and comparison.baseline:
        why = Text(
            "the baseline has {count} runs, but a verdict needs at least {least}",
            count=comparison.before.captures,
            least=model.ENOUGH_CAPTURES - 1,
        )
        result.note(undecided, why)
    elif comparison.captures < model.ENOUGH_CAPTURES:
        cause = Text(
            "--fail-above needs at least two traces on each side, or three on one side and one on the other: fewer"
            " traces do not show how far recordings of the same program differ"
        )
        again = CommandLine(
            "compare", "BEFORE1", "BEFORE2", "--fail-above", f"{fail_above:g}", "--", "AFTER1", "AFTER2"
        )
        hint = Text("record each side twice, ideally alternating between the sides, then run {command}", again)
        result.problems.append(Problem(Kind.USAGE, cause, hint=hint))
    elif comparison.verdict not in model.DECIDED:
        result.note(undecided, comparison.verdict)
    elif at_least > fail_above:
        slowdown = Text("a step takes at least {share:.1f} % longer than before", at_least)
        if comparison.equal_load:
            slowdown = Text("a step takes at least {share:.1f} % longer than before, at equal load", at_least)
        cause = Text("{slowdown}; --fail-above allows {limit:g} %", slowdown=slowdown, limit=fail_above)
        hint = Text("see which parts of the breakdown and which kernels changed most")
        result.problems.append(Problem(Kind.SLOWER, cause, hint=hint))


def read_profiles(
    result: CommandResult, paths: Sequence[Path], options: ReadOptions,
    display: Callable[[int], AbstractContextManager[Progress]],
) -> list[model.RankProfile]:  # fmt: skip
    """Return a profile for each rank and window in the traces at `paths`; an unreadable trace is a problem of `result`.

    `display` takes the number of bytes to read, and shows the progress. Traces of graph captures are read first:
    kernels of graph replays in other traces get their names from them.
    """
    traces = dict.fromkeys(itertools.chain(*read_each(result, paths, folders.traces_to_read)))
    paths = sorted(traces, key=lambda path: not any(CAPTURE in part for part in path.parts[-2:]))  # before replays
    graphs: Graphs = {}
    sizes = {path: path.stat().st_size if path.is_file() else 0 for path in paths}

    def profiles_of(path: Path) -> list[model.RankProfile]:
        with fixed_total(progress, sizes[path]) as counted:
            return _profiles_in(path, options, counted, graphs)

    with display(sum(sizes.values())) as progress:
        return analysis.join_windows(itertools.chain.from_iterable(read_each(result, paths, profiles_of)))


def read_each(result: CommandResult, paths: Iterable[Path], read: Callable[[Path], T]) -> Iterator[T]:
    """Yield `read(path)` for each path; a Problem or OSError becomes a problem of `result`, and the path is skipped."""
    for path in paths:
        try:
            yield read(path)
        except Problem as problem:
            result.add(StepResult(problems=(problem,)))
        except OSError as error:
            error.filename = error.filename or str(path)
            result.problems.append(problem_of(error))


def _profiles_in(path: Path, options: ReadOptions, progress: Progress, graphs: Graphs) -> list[model.RankProfile]:
    """Return the profile of each rank in the trace at `path`, with the steps in the range `options.units`.

    Graphs that were captured in the trace are added to `graphs`. Raises Problem: USAGE if all steps are outside of the
    range or the option `marks` matches nothing, NO_TRACE if the trace has no steps.
    """
    profiles_in, units = _profile_reader(path, options, progress, graphs), options.units
    if profiles := profiles_in(units):
        return profiles
    numbers = [unit.number for profile in profiles_in(None) for unit in profile.units]
    if units is not None and numbers:
        hint = Text("for all steps of the trace, type --units {first}:{end}", first=min(numbers), end=max(numbers) + 1)
        raise Problem(
            Kind.USAGE,
            Text("{trace} has no steps in the range {first}:{end}", trace=path.name, first=units[0], end=units[1]),
            str(path),
            hint,
        )
    cause = Text("{trace} contains no kernels, operators or step marks", path.name)
    raise Problem(Kind.NO_TRACE, cause, str(path), Text("run `rlpatch traces` to see what was recorded"))


def _profile_reader(
    path: Path, options: ReadOptions, progress: Progress, graphs: Graphs
) -> Callable[[tuple[int, int] | None], list[model.RankProfile]]:
    """Read the trace at `path`, and return a function that gives the profiles of its ranks for a range of steps.

    The range is half-open; None takes all steps. Graphs that were captured in the trace are added to `graphs`, by rank;
    graph replays are joined with them. Raises Problem (USAGE) if the option `marks` matches no range in the trace.
    """
    marks = options.marks
    tables = formats.read_step_table(path)
    timelines = [] if tables else formats.read(path, marks, progress)
    if marks and not any(mark.family == WANTED for timeline in timelines for _, mark in timeline.marks):
        cause = Text(
            "--marks {pattern} matches none of the names of host ranges in {trace}",
            pattern=marks.pattern,
            trace=path.name,
        )
        hint = Text(
            "to find the name of a range for --marks, look at the operators in the --json output, or at all ranges in"
            " a trace viewer"
        )
        raise Problem(Kind.USAGE, cause, str(path), hint)
    if tables:
        return lambda units: [report for report in [analysis.check_tables(*tables, units)] if report.units]

    for timeline in timelines:
        graphs[timeline.rank] = (*graphs.get(timeline.rank, ()), *analysis.captured_sets(timeline))

    def profiles(units: tuple[int, int] | None) -> list[model.RankProfile]:
        attributed = [
            (timeline, analysis.attributed(timeline, units, graphs[timeline.rank], classes=options.classes))
            for timeline in timelines
        ]
        return [analysis.checked(*report) for report in attributed if report[1].profile.units]

    return profiles


def _write_files(
    result: CommandResult, options: ReadOptions, data: model.TraceReport | model.Comparison, tables: Tables
) -> None:
    """Write `tables` as CSV files and `data` as an HTML page, if the options ask for it; an error goes to `result`."""
    if options.csv is not None:
        write_tables(result, options.csv, tables)
    if options.page is not None:  # it may go into the new folder
        write(result, options.page, [page.page(data)], "-o FILE.html")
