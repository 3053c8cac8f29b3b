"""``rlpatch apply``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import capturing, options

if TYPE_CHECKING:
    from patcher.report import Report


@click.command()
@options.targets("TARGET[==VERSION]...", required=True)
@capturing.window
@options.where
@options.launch
@click.option("--force", is_flag=True, help="Patch although another profiler is switched on.")
@options.dry_run
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Patch TARGETs, all of them or none. Words after `--` are the command that will start the run.

    \b
    Examples:
      rlpatch apply vllm-ascend==0.11.0rc1 --decode 30:60
      rlpatch apply vllm-ascend --prefill 0:4 --ranks all --rollout 2
      rlpatch apply vllm-ascend --decode 30:60 --path /vllm-workspace/vllm-ascend
      rlpatch apply vllm-ascend --decode 30:60 -- bash run_grpo.sh
    """
    from patcher.commands import applying

    def work() -> Report:
        place, launch = options.place(words), options.start(words)
        capture = capturing.capture_for(words)
        return applying.apply(
            targets, place, capture, launch, dry_run=words["dry_run"], force=words["force"], on_wait=options.wait
        )

    options.run("apply", words, work)
