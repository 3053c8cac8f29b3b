"""``rlpatch status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli import options
from patcher.cli.command import Command
from patcher.cli.where import WHERE

if TYPE_CHECKING:
    from patcher.commands.where import Where
    from patcher.report import Report


@click.command("status", cls=Command, params=[options.targets("[TARGET]...")], groups=(WHERE,))
def command(targets: tuple[str, ...], where: Where) -> Report:
    """Say what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --python /opt/venv/bin/python --json
    """
    return where.within(lambda: where.status(targets))
