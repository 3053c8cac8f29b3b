"""``rlpatch status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from patcher.cli import options
from patcher.cli.command import Command

if TYPE_CHECKING:
    from patcher.commands.finding import SearchOptions
    from patcher.report import Report


@click.command("status", cls=Command, params=[options.targets("[TARGET]...")], groups=(options.SEARCH,))
def command(targets: tuple[str, ...], search: SearchOptions) -> Report:
    """Say what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --python /opt/venv/bin/python --json
    """
    from patcher.commands import inspecting

    return inspecting.status(targets, search)
