"""``rlpatch traces``."""

from __future__ import annotations

from pathlib import Path

import click

from patcher.cli import options, terminal
from patcher.commands.reports import tracing
from patcher.messages import CommandResult, tables


def folder() -> click.Argument:
    """Return the argument for a folder of traces."""
    return click.Argument(["folder"], type=click.Path(path_type=Path), metavar="[DIR]", default="rlpatch_traces")


@options.command("traces", folder())
def command(folder: Path) -> CommandResult:
    """Show what was recorded: the run, the window, whether its traces are complete, and what to type next.

    DIR is a single trace, or the folder with the traces; default: rlpatch_traces in the working directory.

    \b
    Examples:
      rlpatch traces
      rlpatch traces /data/rlpatch_traces --json
    """
    report = tracing.traces(folder, terminal.reading)
    report.lines = [*tables.traces(report.data, tables.room()), *report.lines]
    return report
