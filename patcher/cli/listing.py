"""``rlpatch list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options

if TYPE_CHECKING:
    from patcher.report import Report


@click.command("list")
@options.output
def command(**words: Any) -> None:
    """Show the targets, releases, stages and windows that there are recipes for.

    \b
    Example:
      rlpatch list
    """
    from patcher import tables
    from patcher.commands import knowledge

    def work() -> Report:
        report = knowledge.listing()
        report.lines = tables.releases(report.data)
        return report

    options.run("list", words, work)
