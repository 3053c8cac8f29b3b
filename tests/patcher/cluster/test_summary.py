"""The results of nodes as one: who is alike stands together, and who differs is named."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.cluster import summary
from patcher.cluster.node_group import Answer, NodeStatus
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.applying import node_header
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult, json_of

ROLLOUT = {"target": "vllm-ascend", "stage": "rollout", "role": None}


def reported(*states: str, running: tuple[str, ...] = ()) -> Answer:
    """What a node says of its patches, each with a file in that state, and of its engines."""
    patches: list[Any] = [{**ROLLOUT, "files": [{"state": state}]} for state in states]
    report = CommandResult("status", data=NodeStatus("a host", "patched", patches=patches, running=running))
    report.lines = [f"vllm-ascend rollout {state}" for state in states]
    return Answer(report)


def entries(report: CommandResult) -> list[dict[str, object]]:
    """Of each node, for programs."""
    return list(json_of(report.data)["nodes"])


def test_the_entry_of_a_node_has_its_name() -> None:
    (entry,) = entries(summary.status({"n1": reported("intact", running=("17 vllm",))}))
    assert entry == {
        "node": "n1", "state": "patched", "targets": {}, "roots": [], "running": ["17 vllm"], "unfinished": [],
        "patches": [{**ROLLOUT, "files": [{"state": "intact"}]}], "free": None, "problem": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "problem", "cause"),
    [
        (Answer(problem=Problem(Kind.ENVIRONMENT, "damaged")), "damaged", "damaged"),
        (Answer(lost="it died"), "it died", "no answer from the node: it died"),
    ],
)
def test_a_node_without_an_answer_has_an_entry(answer: Answer, problem: str, cause: str) -> None:
    report = summary.status({"n1": answer})
    (entry,) = entries(report)
    assert [entry[key] for key in ("state", "targets", "free", "problem")] == ["no answer", {}, None, problem]
    assert [one.cause for one in report.problems] == [cause]


@pytest.mark.parametrize(
    ("running", "states", "said"),
    [
        (("17 vllm",), ("intact",), "1 of 2 nodes"),
        ((), ("intact",), None),
        (("17 vllm",), (), None),
    ],
    ids=["patched and running", "patched", "running"],
)
def test_engines_that_run_beside_a_patch_are_counted(
    running: tuple[str, ...], states: tuple[str, ...], said: str | None
) -> None:
    report = summary.status({"n1": reported(*states, running=running), "n2": reported(*states)})
    assert len(report.notes) == bool(said)
    assert all(said in note[1] for note in report.notes if said)


def test_nodes_with_equal_results_are_grouped() -> None:
    answers = {"n1": reported("intact"), "n2": reported("edited"), "n3": reported("intact"), "n4": reported()}
    assert list(map(str, summary.status(answers).lines[-4:])) == [
        "on n1, n3:", "  vllm-ascend rollout intact", "on n2:", "  vllm-ascend rollout edited"
    ]  # fmt: skip


def test_what_several_say_is_said_once_with_their_names() -> None:
    told = {name: CommandResult("check") for name in ("n1", "n2", "n3", "n4")}
    for name, one in told.items():
        one.warn("the disk is full", "df")
        if name != "n1":
            one.note("the disk is full", "df")
        one.problems.append(Problem(Kind.ENVIRONMENT, "damaged" if name == "n2" else "read-only", "/site"))
    report = summary.merge(told)
    assert [(note[0], note[1], note[2]) for note in report.notes] == [
        ("warning", "the disk is full (n1, n2, n3, … (4 nodes in total))", "df"),
        ("note", "the disk is full (n2, n3, n4)", "df"),
    ]
    assert [(one.cause, one.place) for one in report.problems] == [
        ("read-only", "n1, n3, n4: /site"),
        ("damaged", "n2: /site"),
    ]
    alone = summary.merge({"n1": told["n1"]})
    assert [note[1] for note in alone.notes] == ["the disk is full"]


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (0, []),
        (1, ["on 1 node (n1):"]),
        (2, ["on 2 nodes (n1, n2):"]),
        (8, ["on 8 nodes (n1, n2, n3, n4, n5, n6, n7, n8):"]),
        (9, ["on 9 nodes (n1, n2, n3, n4, n5, n6, n7, n8, …):"]),
    ],
)
def test_the_line_above_what_is_done_on_nodes(count: int, line: list[str]) -> None:
    class Nodes(SearchOptions):
        nodes = tuple(f"n{number}" for number in range(1, count + 1))

    assert list(node_header(Nodes())) == line
