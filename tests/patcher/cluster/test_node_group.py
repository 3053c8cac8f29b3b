"""Lists of the names of nodes."""

from __future__ import annotations

import pytest

from patcher.cluster.node_group import listed


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n10", "n2", "n1"], "n1, n2, n10"),
        (["node-2(10.0.0.10)", "node-2(10.0.0.9)", "head"], "head, node-2(10.0.0.9), node-2(10.0.0.10)"),
        (["7", "a", "²"], "7, a, ²"),
        ([f"n{number}" for number in range(20, 0, -1)], "n1, n2, n3, n4, n5, n6, n7, n8, … (20 nodes in total)"),
    ],
)
def test_names_stand_in_the_order_of_their_numbers(names: list[str], said: str) -> None:
    assert listed(names) == said
