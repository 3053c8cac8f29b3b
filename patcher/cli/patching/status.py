"""``rlpatch status``, which loads nothing that plans, writes or looks for other profilers."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.status import status
from patcher.messages import CommandLine, CommandResult, Text, usage
from patcher.options.headings import PLACE

EVERYWHERE = options.switch(
    PLACE, "Also show patches that you applied in other places on this machine.", "--everywhere"
)


@options.command("status", options.targets("[TARGET]..."), EVERYWHERE, groups=(SEARCH, CLUSTER))
def command(
    targets: tuple[str, ...], everywhere: bool, search: SearchOptions, cluster: ClusterOptions
) -> CommandResult:
    """Show what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --everywhere
      rlpatch status --python /opt/venv/bin/python --json
    """
    if everywhere and cluster.ray is not None:
        cause = Text(
            "--everywhere and --ray cannot be combined: --everywhere shows every place that you patched on this"
            " machine, --ray shows the nodes of a cluster"
        )
        raise usage(cause, CommandLine("status", *targets, "--everywhere"))
    with cluster.connected(search) as nodes:
        return nodes.status(targets) if nodes else status(targets, search, everywhere=everywhere)
