"""``rlpatch list``."""

from __future__ import annotations

import shutil
import sys

from patcher.cli import options
from patcher.commands.about import knowledge
from patcher.messages import tables
from patcher.messages.report import CommandResult


@options.command("list")
def command() -> CommandResult:
    """Show the targets, releases, stages and windows that there are recipes for.

    \b
    Example:
      rlpatch list
    """
    report = knowledge.listing()
    width = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    report.lines = tables.releases(report.data, width)
    return report
