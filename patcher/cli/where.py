"""The machines that a command works on: this one, or the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patcher.cli.command import Group
from patcher.cli.options import build, click_options, wait
from patcher.cli.search import RECOVERING, ClusterOptions, search_options
from patcher.commands.finding import SearchOptions
from patcher.commands.where import Where


def _where(values: Mapping[str, Any]) -> Where:
    search = search_options(values)
    return build(ClusterOptions, values).connect(search) or Where(search, wait)


WHERE = Group("where", _where, *click_options(SearchOptions, ClusterOptions, without=RECOVERING))
RECOVER = Group("where", _where, *click_options(SearchOptions, ClusterOptions))
