"""``rlpatch status``."""

from __future__ import annotations

from typing import Any

import click

from patcher.cli import options


@click.command()
@options.targets("[TARGET]...")
@options.where
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Say what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --python /opt/venv/bin/python --json
    """
    from patcher.commands import looking

    options.run("status", words, lambda: looking.status(targets, options.place(words)))
