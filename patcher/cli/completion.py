"""``rlpatch completion``."""

from __future__ import annotations

import click

from patcher.cli.command import Command


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      eval "$(rlpatch completion bash)"
      rlpatch completion fish > ~/.config/fish/completions/rlpatch.fish
    """
    from click.shell_completion import get_completion_class

    from patcher.cli import rlpatch

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (the choice lists click's own shells)
    click.echo(kind(rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE").source())
