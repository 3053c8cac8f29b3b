"""``rlpatch report``, and what it has in common with ``rlpatch compare``: which traces, which units, and the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from patcher.cli import options, terminal
from patcher.cli.options import Group, Option
from patcher.commands.reports import reporting
from patcher.commands.reports.reporting import ReadOptions
from patcher.messages import CommandResult, Text, usage
from patcher.options.headings import OUTPUT, READ
from patcher.request import DEFAULT_FOLDER


def half_open(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:  # noqa: ARG001
    """Parse `A:B` into a half-open range; None for None. Raises Problem (USAGE) for anything else."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", value)
    if not match or int(match[1]) >= int(match[2]):
        name = parameter.opts[0]
        cause = Text("{option} {range} is not a range A:B (B is not included)", option=name, range=value)
        raise usage(cause, Text("type a range such as {option} 30:60", name))
    return int(match[1]), int(match[2])


def _csv_folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:  # noqa: ARG001
    """Return the folder for CSV files, None if it is not typed. Raises Problem (USAGE) if its name ends in `.csv`."""
    if value is not None and value.suffix == ".csv":
        cause = Text("--csv {path} names a file, but --csv takes a folder, which gets one file for each table", value)
        raise usage(cause, f"--csv {shlex.quote(str(value.with_suffix('')))}")
    return value


CSV = Option(
    ["--csv"],
    heading=OUTPUT,
    callback=_csv_folder,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each table as a CSV file to this folder.",
)


def run_option(about: str) -> Option:
    """Return the option for the number of a run."""
    return Option(["--run"], heading=READ, type=click.IntRange(1), metavar="N", help=about)


def page_option(about: str) -> Option:
    """Return the option for the HTML page."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return Option(["-o", "--output", "page"], heading=OUTPUT, type=kind, metavar="FILE.html", help=about)


def _marks_pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> re.Pattern[str] | None:  # noqa: ARG001
    """Compile the `--marks` pattern; None for None. Raises Problem (USAGE) for an invalid expression."""
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        cause = Text("--marks {pattern} is not a valid regular expression: {error}", pattern=value, error=error)
        raise usage(cause, r"--marks 'train step (?P<number>\d+)'") from None


READING = Group(
    "options",
    lambda values: ReadOptions(**values, classes="--json" in options.typed_words()),
    Option(
        ["--units"],
        heading=READ,
        callback=half_open,
        metavar="A:B",
        help="Report only these steps (decode steps, mini-batches, …); A:B does not include B.",
    ),
    Option(
        ["--marks"],
        heading=READ,
        callback=_marks_pattern,
        metavar="REGEX",
        help=(
            "Take as steps the outermost host ranges whose names match this regular expression; its group `number`,"
            " if any, gives the step number. Default: ProfilerStep and the marks of the engines."
        ),
    ),
    page_option("Write a self-contained HTML page, below 1 MB."),
    CSV,
)


def paths(metavar: str, *, required: bool = True) -> click.Argument:
    """Return the argument for traces."""
    kind = click.Path(readable=False, path_type=Path)  # `find` says more of what is missing or closed
    return click.Argument(["paths"], nargs=-1, required=required, type=kind, metavar=metavar)


@options.command("report", paths("[PATH]...", required=False), groups=(READING,))
def command(paths: tuple[Path, ...], options: ReadOptions) -> CommandResult:
    """Show where the time of the recorded steps went, and how much could be saved.

    PATH is a trace of torch.profiler (.json, .json.gz), a parsed *_ascend_pt folder, the database in such a folder, an
    export of Nsight Systems (.sqlite), a memory snapshot (.pickle), or a folder that contains any of these; default:
    rlpatch_traces in the working directory. Several ranks of one run make one report.

    \b
    Examples:
      rlpatch report rlpatch_traces
      rlpatch report rlpatch_traces -o report.html
      rlpatch report rank0_ascend_pt rank1_ascend_pt --units 30:60 --json
    """
    return reporting.report(paths or (Path(DEFAULT_FOLDER),), options, terminal.reading)
