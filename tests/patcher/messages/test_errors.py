"""Problems as values: their fields, copies with other fields, and what goes from process to process."""

from __future__ import annotations

import pickle

import pytest

from patcher.messages.command_line import CommandLine
from patcher.messages.errors import Kind, Problem

PROBLEM = Problem(
    Kind.STRUCTURE, "no loop", "/a.py:3", CommandLine("diff"), ("seen",), expected="C.run", actual="0 loops", node="n1"
)


def test_a_copy_has_the_fields_that_it_is_not_given() -> None:
    other = PROBLEM.replace(kind=Kind.USAGE, node="n2")
    assert vars(other) == {**vars(PROBLEM), "kind": Kind.USAGE, "node": "n2"}
    assert (PROBLEM.kind, PROBLEM.node) == (Kind.STRUCTURE, "n1")


def test_another_process_gets_every_field() -> None:
    assert vars(pickle.loads(pickle.dumps(PROBLEM))) == vars(PROBLEM)


@pytest.mark.parametrize(
    ("node", "where", "place"), [("", "", ""), ("n1", "", "n1"), ("", "/a", "/a"), ("n1, n2", "/a", "n1, n2: /a")]
)
def test_the_place_is_the_nodes_and_where_it_is_there(node: str, where: str, place: str) -> None:
    problem = Problem(Kind.ENVIRONMENT, "damaged", where, node=node)
    assert problem.place == place
    assert str(problem) == "not possible in this environment: damaged" + (f"\n  at {place}" if place else "")
