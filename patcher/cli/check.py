"""``rlpatch check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from patcher.cli import options

if TYPE_CHECKING:
    from patcher.report import Report


@click.command()
@options.targets("[TARGET]...")
@options.launch
@options.where
@options.output
def command(targets: tuple[str, ...], **words: Any) -> None:
    """Look for other profilers that are, or could be, switched on.

    In the environment, the launch script, the command after `--`, and the configuration that they lead to.

    \b
    Examples:
      rlpatch check
      rlpatch check vllm-ascend --script run_grpo.sh
      rlpatch check vllm-ascend -- bash run_grpo.sh
      rlpatch check verl --config my_trainer.yaml -- bash run_grpo.sh
    """
    from patcher.commands import guarding

    def work() -> Report:
        place, launch = options.place(words), options.start(words)
        return guarding.check(targets, place, launch)

    options.run("check", words, work)
