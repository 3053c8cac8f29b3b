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
@click.option("--role", help="Only the patches for this role.")
@options.where
@options.dry_run
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Take every patch out again, or those of TARGETs; lines of others stay as they are.

    \b
    Examples:
      rlpatch revert
      rlpatch revert vllm-ascend --path /vllm-workspace/vllm-ascend
      rlpatch revert verl --stage compute-log-prob --role ref
    """
    from patcher.commands import applying

    def work() -> Report:
        place = options.place(words)
        stage, role = words["stage"], words["role"]
        return applying.revert(targets, place, stage=stage, role=role, dry_run=words["dry_run"], on_wait=options.wait)

    options.run("revert", words, work)
