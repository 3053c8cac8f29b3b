"""The machines that a command works on: this one, or the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from patcher.cli.command import Group
from patcher.cli.options import build, click_options, typed_words, wait
from patcher.cli.search import ClusterOptions, RecoverOptions
from patcher.commands.finding import SearchOptions
from patcher.commands.here import Here

if TYPE_CHECKING:
    from patcher.commands.where import Where


def _where(values: Mapping[str, Any]) -> Where:
    search = build(SearchOptions, values, typed=typed_words())
    cluster = build(RecoverOptions, values)
    cluster.check()
    if cluster.ray is None:
        return Here(search, wait)
    from patcher.cluster.connecting import connect

    return connect(cluster.ray, cluster.nodes, search, cluster.gone)


WHERE = Group("where", _where, *click_options(SearchOptions, ClusterOptions))
RECOVER = Group("where", _where, *click_options(SearchOptions, RecoverOptions))
