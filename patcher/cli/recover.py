"""``rlpatch recover``."""

from __future__ import annotations

from typing import Any

import click

from patcher.cli import options


@click.command()
@options.where
@options.output
def command(**words: Any) -> None:
    """Finish or undo a run that was interrupted (kill -9, power cut); the next command does so by itself.

    \b
    Example:
      rlpatch recover
    """
    from patcher.commands import applying

    options.run("recover", words, lambda: applying.recover(options.place(words), options.wait))
