"""``rlpatch check``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.search import LAUNCH
from patcher.cli.where import WHERE
from patcher.commands.finding import LaunchOptions
from patcher.commands.where import Where
from patcher.messages.report import CommandResult


@options.command("check", options.targets("[TARGET]..."), groups=(LAUNCH, WHERE))
def command(targets: tuple[str, ...], launch: LaunchOptions, where: Where) -> CommandResult:
    """Look for other profilers that are, or could be, switched on.

    In the environment, the launch script, the command after `--`, and the configuration that they lead to.

    \b
    Examples:
      rlpatch check
      rlpatch check vllm-ascend --script run_grpo.sh
      rlpatch check vllm-ascend -- bash run_grpo.sh
      rlpatch check verl --config my_trainer.yaml -- bash run_grpo.sh
    """
    return where.within(lambda: where.check(targets, launch))
