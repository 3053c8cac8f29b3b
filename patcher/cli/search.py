"""The options that say where targets are looked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from patcher.cli.options import Group, build, click_options, typed_words
from patcher.commands.finding import SearchOptions
from patcher.messages import CommandLine, Text, usage
from patcher.options import Options, changed, flag, option
from patcher.options.headings import PLACE
from patcher.options.notations import AnyText

if TYPE_CHECKING:
    from patcher.cluster.nodes import Nodes


class ClusterOptions(Options):
    """Choice of Ray cluster nodes; `ray` is an address, "auto", or None for this machine alone."""

    ray: str | None = option(
        AnyText("[ADDRESS]", alone="auto"),
        PLACE,
        "Work on all nodes of a Ray cluster: the cluster of this machine, or the one at HOST:PORT. If a"
        " node fails, no node is changed.",
        default=None,
    )
    nodes: str | None = option(
        AnyText("LIST"),
        PLACE,
        (
            "With --ray, use only the nodes that match this comma-separated list. An entry is a node's name or"
            " address (* matches anything), a Ray resource that the node has (such as NPU>0), or has-target: every"
            " node with a target installed."
        ),
        default=None,
    )

    @contextlib.contextmanager
    def connected(self, search: SearchOptions) -> Iterator[Nodes | None]:
        """Connect to the chosen nodes for the body of a ``with`` statement; yield None for this machine alone.

        Raises Problem: USAGE for `--nodes` without `--ray` or a wrong value, ENVIRONMENT without a connection.
        """
        if self.ray is None:
            for alone in changed(self):
                command, *words = typed_words()
                again = CommandLine(command, "--ray", "auto", *words)
                raise usage(Text("{option} needs --ray", flag(alone)), again)
            yield None
            return
        from patcher.cluster.connecting import connect

        nodes = connect(self.ray, self.nodes, search)
        try:
            yield nodes
        finally:
            nodes.close()


SEARCH = Group(
    "search", lambda values: build(SearchOptions, values, typed=typed_words()), *click_options(SearchOptions)
)
CLUSTER = Group("cluster", lambda values: build(ClusterOptions, values), *click_options(ClusterOptions))
