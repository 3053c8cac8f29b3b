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
      rlpatch apply verl==0.6.1 --stage update-policy --mini-batch 0:1
      rlpatch apply verl --stage compute-log-prob --role ref --micro-batch 0:1 --training-steps 2
      rlpatch apply vllm-ascend verl --decode 30:60 --mini-batch 0:1
      rlpatch apply vllm-ascend --builtin --level level2 --contents npu,cpu,memory --export-type db,text
    """
    from patcher.commands import applying

    def work() -> Report:
        place, launch = options.place(words), options.start(words)
        choice = capturing.choice(words)
        return applying.apply(
            targets, place, choice, launch, dry_run=words["dry_run"], force=words["force"], on_wait=options.wait
        )

    options.run("apply", words, work)
