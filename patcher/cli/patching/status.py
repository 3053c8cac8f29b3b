"""``rlpatch status``, which loads nothing that plans, writes or looks for other profilers."""

from __future__ import annotations

from patcher.cli import options
from patcher.cli.search import CLUSTER, SEARCH, ClusterOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.status import status
from patcher.messages.report import CommandResult


@options.command("status", options.targets("[TARGET]..."), groups=(SEARCH, CLUSTER))
def command(targets: tuple[str, ...], search: SearchOptions, cluster: ClusterOptions) -> CommandResult:
    """Say what is patched where, since when, and whether it is still intact.

    \b
    Examples:
      rlpatch status
      rlpatch status --python /opt/venv/bin/python --json
    """
    nodes = cluster.connect(search)
    return status(targets, search) if nodes is None else nodes.within(lambda: nodes.status(targets))
