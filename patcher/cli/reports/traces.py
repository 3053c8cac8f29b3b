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
    """Show what was recorded: the run, the window, whether it is complete, and the next command.

    DIR is the folder of the traces or a single trace; default: rlpatch_traces in the working directory.

    \b
    Examples:
      rlpatch traces
      rlpatch traces /data/rlpatch_traces --json
    """
    report = tracing.traces(folder, terminal.reading)
    report.lines = [*tables.traces(report.data, tables.room()), *report.lines]
    return report
