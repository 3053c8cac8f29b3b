"""Nodes of Ray: what is asked again of a new actor, and what never is."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from patcher.cluster.crew import listed
from patcher.cluster.nodes import Nodes
from patcher.cluster.rays import RayCrew, named
from patcher.cluster.values import Answer, Found, Survey
from patcher.commands.finding import SearchOptions
from patcher.errors import Kind, Problem


class Shaky(RayCrew):
    """Its first actor on n2 dies at the first question; on n3 there is nobody at all."""

    def __init__(self, *names: str) -> None:
        self.nodes = dict.fromkeys(names)  # type: ignore[assignment]
        self._actors = dict.fromkeys(names, "first")
        self.asked: list[tuple[str, str]] = []

    def _asked(self, question: str, arguments: Mapping[str, Sequence[Any]], limit_s: float) -> dict[str, Answer]:
        self.asked += [(question, name) for name in arguments]
        dead = {name for name in arguments if name == "n3" or (name == "n2" and name in self._actors)}
        return {name: Answer(lost="the actor died") if name in dead else Answer([]) for name in arguments}


@pytest.mark.parametrize(
    ("question", "good"), [("recover", True), ("survey", True), ("prepare", False), ("ping", False)]
)
def test_what_leaves_nothing_with_an_actor_is_asked_once_more(question: str, good: bool) -> None:
    crew = Shaky("n1", "n2", "n3")
    answers = crew.ask(question, {"n1": (), "n2": (), "n3": ()})
    assert [answers[name].good for name in crew.names] == [True, good, False]
    assert crew.asked.count((question, "n1")) == 1
    assert crew.asked.count((question, "n3")) == 1 + good


def test_who_is_late_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Shaky("n1", "n2")
    asked = crew._asked
    monkeypatch.setattr(crew, "_asked", lambda *given: {k: v for k, v in asked(*given).items() if k != "n1"})
    assert crew.ask("survey", {"n1": (), "n2": ()}, 7)["n1"].lost == "no answer after 7 s"
    assert crew.asked == [("survey", "n1"), ("survey", "n2"), ("survey", "n2")]


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (["a 1 here", "a 1 gone"], ["a"]),  # back, before Ray knows that it was lost
        (["a 1 here", "a 1 gone", "b 2 gone"], ["a", "b"]),  # nobody asks whether b is there before it is asked
        (["a 1 here", "a 1 here"], ["a(aaaaaaa0)", "a(aaaaaaa1)"]),
        (["a 1 gone", "a 1 gone"], ["a"]),  # nobody is, and that is told
        (["a 1 here", "a 2 gone"], ["a(127.0.0.1)", "a(127.0.0.2)"]),
        (["a 1 here", "a 1 dead"], ["a"]),
    ],
)
def test_a_machine_that_is_back_has_the_name_that_it_had(listed: list[str], names: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        ports = {"here": here.getsockname()[1], "gone": gone.getsockname()[1], "dead": 1}
        gone.close()
        nodes = [
            {
                "NodeManagerHostname": host, "NodeManagerAddress": f"127.0.0.{at}", "NodeManagerPort": ports[state],
                "NodeID": f"aaaaaaa{number}", "Alive": state != "dead", "Resources": {},
            }
            for number, (host, at, state) in enumerate(one.split() for one in listed)
        ]  # fmt: skip
        assert [node.name for node in named(nodes)] == names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n10", "n2", "n1"], "n1, n2, n10"),
        (["node-2(10.0.0.10)", "node-2(10.0.0.9)", "head"], "head, node-2(10.0.0.9), node-2(10.0.0.10)"),
        (["7", "a", "²"], "7, a, ²"),
        ([f"n{number}" for number in range(20, 0, -1)], "n1, n2, n3, n4, n5, n6, n7, n8, … (20 nodes)"),
    ],
)
def test_names_stand_in_the_order_of_their_numbers(names: list[str], said: str) -> None:
    assert listed(names) == said


def test_a_node_with_one_of_the_targets_is_not_left_out() -> None:
    found = Found("vllm-ascend", "0.11.0rc1", "/site", "unpacked", "", "--path", (), ())
    absent = Problem(Kind.NO_TARGET, "verl is not there")
    survey = Survey({}, (), (), (), (), {}, {}, (), None)
    surveys = {
        "one": survey._replace(asked={"vllm-ascend": found, "verl": absent}),
        "none": survey._replace(asked={"vllm-ascend": absent, "verl": absent}),
    }
    for with_target, kept in ((True, ["one"]), (False, ["one", "none"])):
        nodes = Nodes(Shaky("one", "none"), SearchOptions(), with_target=with_target)
        assert list(nodes._chosen(surveys)[0]) == kept
        nodes._mirrors.close()


def test_where_no_node_answers_nothing_is_said_to_be_in_order() -> None:
    report = Nodes(Shaky("n3"), SearchOptions()).recover()
    (problem,) = report.problems
    assert (problem.kind, problem.cause, problem.place) == (Kind.ENVIRONMENT, "no node gives an answer", "n3")
    assert report.lines == []


def test_only_nodes_that_answer_have_nothing_to_recover() -> None:
    report = Nodes(Shaky("n1", "n3"), SearchOptions()).recover()
    assert report.problems == []
    assert "nothing to recover on n1" in report.lines
    assert [said[:2] for said in report.notes] == [("warning", "not reached: n3")]
