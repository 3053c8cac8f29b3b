"""``rlpatch recover``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.where import RECOVER
from patcher.commands.where import Where
from patcher.messages.report import CommandResult


@options.command("recover", groups=(RECOVER,))
def command(where: Where) -> CommandResult:
    """Finish or undo a run that was interrupted (kill -9, power cut); the next command does so by itself.

    \b
    Example:
      rlpatch recover
    """
    return where.within(where.recover)
