"""``rlpatch list``."""

from __future__ import annotations

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
    report.lines = tables.releases(report.data, tables.room())
    return report
