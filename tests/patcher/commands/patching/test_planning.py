"""Words to plans, step by step."""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest

from patcher.commands.finding import Search
from patcher.commands.patching.planning import Attempted
from patcher.messages.errors import Kind, Problem


class Nodes(NamedTuple):
    """A search of which only the nodes are asked."""

    nodes: tuple[str, ...] = ()


def halved(text: str) -> int:
    if text == "secret":
        raise PermissionError(13, "Permission denied", "/secret")
    if not text.isdigit():
        place, notes = ("/numbers", ()) if text == "x" else ("", ("looked in /numbers",) if text == "z" else ())
        raise Problem(Kind.USAGE, f"{text} is no number", place, notes=notes)
    return int(text) // 2


@pytest.mark.parametrize(("nodes", "node"), [((), ""), (("n1", "n2"), "n1, n2")])
def test_every_problem_is_kept_and_names_its_nodes_where_something_lies_there(
    nodes: tuple[str, ...], node: str
) -> None:
    words = ("4", "x", "y", "z", "secret")
    halves = Attempted(cast("Search", Nodes(nodes)), words).then(halved).then(lambda n: n + 1)
    assert halves.values == [3]
    assert [(one.kind, one.node) for one in halves.problems] == [
        (Kind.USAGE, node),
        (Kind.USAGE, ""),
        (Kind.USAGE, node),
        (Kind.ENVIRONMENT, ""),
    ]
