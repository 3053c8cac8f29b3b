"""``rlpatch recover``."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands import applied
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandResult


@options.command("recover", groups=(SEARCH, CLUSTER))
def command(search: SearchOptions, cluster: ClusterOptions) -> CommandResult:
    """Finish or undo a command that was interrupted (kill -9, power cut).

    Any other rlpatch command does this, too, before its own work.

    \b
    Example:
      rlpatch recover
    """
    with cluster.connected(search) as nodes:
        return nodes.recover() if nodes else applied.recover(search.discover(), options.wait)
