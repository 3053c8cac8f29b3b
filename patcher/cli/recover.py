"""``rlpatch recover``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options

if TYPE_CHECKING:
    pass


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
