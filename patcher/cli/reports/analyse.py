"""``rlpatch analyse``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from patcher.cli import options
from patcher.cli.command import Group, Option
from patcher.cli.reports.traces import folder as traces_folder
from patcher.commands.reports import tracing
from patcher.commands.reports.tracing import ParseOptions, WorkDisplay
from patcher.messages.report import CommandResult
from patcher.options.headings import PARSED

PARSE = Group(
    "parse",
    lambda values: options.build(ParseOptions, values, patience=values["patience"]),
    *options.click_options(ParseOptions),
    Option(
        ["--timeout", "patience"],
        heading=PARSED,
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        metavar="SECONDS",
        help="End a parser that neither computes nor writes for this long. Default: 600.",
    ),
)


@contextlib.contextmanager
def display(what: str, total: int) -> Iterator[WorkDisplay]:
    """A bar on a terminal, elsewhere a line for each thing that is done, unless it is quiet; both on stderr."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[names]}"),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    silent = not bar.disable or options.quiet()
    task = bar.add_task(what, total=total, names="")

    def at_work(names: Sequence[str]) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        bar.update(task, names=escape(f"{names[0]}{more}" if names else ""))

    def done(line: str) -> None:
        bar.advance(task)
        if not silent:
            click.echo(f"{what} {bar.tasks[0].completed:.0f} of {total}: {line}", err=True)

    with bar:
        yield WorkDisplay(at_work, done)


@options.command("analyse", traces_folder(), groups=(PARSE,))
def command(folder: Path, parse: ParseOptions) -> CommandResult:
    """Parse what torch_npu recorded, with the torch_npu that recorded it, and run msprof-analyze where it is found.

    DIR is the folder that traces go to, by default rlpatch_traces in the working directory, or one trace. Traces of
    torch.profiler need nothing. A parsing that fails leaves the folder as it was.

    \b
    Examples:
      rlpatch analyse
      rlpatch analyse /data/traces --python /opt/venv/bin/python
      rlpatch analyse --export text,db --modules --advise
    """
    return tracing.analyse(folder, parse, display)
