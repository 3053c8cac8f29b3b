"""``rlpatch diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.capture import UNITS
from patcher.cli import capturing, options
from patcher.errors import Kind, Problem

if TYPE_CHECKING:
    from patcher.report import Report


@click.command()
@options.targets("[TARGET]...")
@capturing.window
@options.where
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Show what is applied, or with a window what would be, from pristine to patched; `git apply` takes it.

    \b
    Examples:
      rlpatch diff
      rlpatch diff vllm-ascend --decode 30:60
      rlpatch diff --path /vllm-workspace/vllm-ascend | git apply --check -R
    """
    from patcher.commands import looking

    def work() -> Report:
        windows = [unit.replace("-", "_") for unit in UNITS]
        asked = any(words[name] for name in (*windows, "stage", "builtin"))
        if asked and not targets:
            raise Problem(
                Kind.USAGE, "a window is given, but no target", hint="rlpatch diff vllm-ascend --decode 30:60"
            )
        chosen = [name for name in capturing.given() if name not in windows]
        if chosen and not asked:
            option = f"--{chosen[0].replace('_', '-')}"
            raise Problem(
                Kind.USAGE,
                f"{option} without a window: without one, diff shows what is applied",
                hint=f"add --decode 30:60, or leave {option} out",
            )
        return looking.diff(targets, options.place(words), capturing.choice(words) if asked else None)

    options.run("diff", words, work)
