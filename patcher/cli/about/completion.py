"""``rlpatch completion``."""

from __future__ import annotations

from dataclasses import dataclass

import click
from click.shell_completion import get_completion_class

from patcher.cli import options, rlpatch
from patcher.messages.report import CommandResult


@dataclass(frozen=True)
class Completion:
    """The result of ``completion``."""

    script: str


@options.command("completion", click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])))
def command(shell: str) -> CommandResult:
    """Print the completion script for a shell.

    \b
    Examples:
      eval "$(rlpatch completion bash)"
      rlpatch completion fish > ~/.config/fish/completions/rlpatch.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (the choice lists click's own shells)
    source = kind(rlpatch, {}, "rlpatch", "_RLPATCH_COMPLETE").source()
    return CommandResult("completion", data=Completion(source), raw=f"{source}\n".encode())
