"""``rlpatch check``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.launch import LAUNCH
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.guarding import check
from patcher.guards.result import Launch
from patcher.messages import CommandResult


@options.command("check", options.targets("[TARGET]..."), groups=(LAUNCH, SEARCH, CLUSTER))
def command(targets: tuple[str, ...], launch: Launch, search: SearchOptions, cluster: ClusterOptions) -> CommandResult:
    """Look for other profilers that are switched on, or that the run could switch on.

    rlpatch looks for settings of profilers in the environment, the launch script and the command after `--`, and in
    the configuration files that these refer to.

    \b
    Examples:
      rlpatch check
      rlpatch check vllm-ascend --script run_grpo.sh
      rlpatch check vllm-ascend -- bash run_grpo.sh
      rlpatch check verl --config my_trainer.yaml -- bash run_grpo.sh
    """
    with cluster.connected(search) as nodes:
        return nodes.check(targets, launch) if nodes else check(targets, search, launch)
