"""``rlpatch list``."""

from __future__ import annotations

import shutil
import sys

import click

from patcher import tables
from patcher.cli.command import Command
from patcher.commands import knowledge
from patcher.report import Report


@click.command("list", cls=Command)
def command() -> Report:
    """Show the targets, releases, stages and windows that there are recipes for.

    \b
    Example:
      rlpatch list
    """
    report = knowledge.listing()
    width = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    report.lines = tables.releases(report.data, width)
    return report
