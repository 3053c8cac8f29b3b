"""``rlpatch revert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options

if TYPE_CHECKING:
    from patcher.report import Report


@click.command()
@options.targets("[TARGET]...")
@click.option("--stage", help="Only this stage.")
@options.where
@options.dry_run
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Take every patch out again, or those of TARGETs; lines of others stay as they are.

    \b
    Examples:
      rlpatch revert
      rlpatch revert vllm-ascend --path /vllm-workspace/vllm-ascend
    """
    from patcher.commands import applying

    def work() -> Report:
        place = options.place(words)
        return applying.revert(targets, place, words["stage"], dry_run=words["dry_run"], on_wait=options.wait)

    options.run("revert", words, work)
