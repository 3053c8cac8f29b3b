"""Nodes of Ray: what is called again on a new actor, what never is, and what an answer becomes."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patcher.cluster.node_group import Answer, NodeSurvey, NodeTarget
from patcher.cluster.nodes import Nodes
from patcher.cluster.rays import RayNodeGroup, living_nodes
from patcher.commands.finding import SearchOptions
from patcher.messages.errors import Kind, Problem
from patcher.targets.target import Target
from patches import projects


class Shaky(RayNodeGroup):
    """Its first actor on n2 dies at the first method; on n3 there is nobody at all."""

    def __init__(self, *names: str) -> None:
        self.nodes = dict.fromkeys(names)  # type: ignore[assignment]
        self._actors = dict.fromkeys(names, "first")
        self.called: list[tuple[str, str]] = []

    def _call_once(self, method: str, arguments: Mapping[str, Sequence[Any]], limit_s: float) -> dict[str, Answer]:
        self.called += [(method, name) for name in arguments]
        dead = {name for name in arguments if name == "n3" or (name == "n2" and name in self._actors)}
        return {name: Answer(lost="the actor died") if name in dead else Answer([]) for name in arguments}


@pytest.mark.parametrize(("method", "ok"), [("recover", True), ("survey", True), ("undo", True), ("commit", False)])
def test_all_but_a_commit_is_called_once_more(method: str, ok: bool) -> None:
    group = Shaky("n1", "n2", "n3")
    answers = group.call(method, {"n1": (), "n2": (), "n3": ()})
    assert [answers[name].ok for name in group.names] == [True, ok, False]
    assert group.called.count((method, "n1")) == 1
    assert group.called.count((method, "n3")) == 1 + ok


def test_a_node_that_answers_late_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Shaky("n1", "n2")
    asked = group._call_once
    monkeypatch.setattr(group, "_call_once", lambda *given: {k: v for k, v in asked(*given).items() if k != "n1"})
    assert group.call("survey", {"n1": (), "n2": ()})["n1"].lost == "the node did not answer within 120 s"
    assert group.called == [("survey", "n1"), ("survey", "n2"), ("survey", "n2")]


class _RayError(Exception):
    """As Ray's own."""


class OneActor(RayNodeGroup):
    """A node whose actor is there; ``get`` is what Ray gives for its answer."""

    def __init__(self, get: Callable[[bytes], bytes]) -> None:
        self.nodes = dict.fromkeys(["n1"])  # type: ignore[assignment]
        self._actors = {"n1": SimpleNamespace(answer=SimpleNamespace(remote=lambda call: call))}
        exceptions = SimpleNamespace(RayError=_RayError)
        self._ray = SimpleNamespace(get=get, wait=lambda all_, **_options: (all_, []), exceptions=exceptions)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (_RayError("  The actor died.\nIts log: /tmp/ray"), "The actor died."),
        (_RayError("x" * 300), "x" * 200),
        (_RayError(), "_RayError"),
    ],
)
def test_the_reason_for_a_lost_node_is_the_first_line_of_ray(error: Exception, lost: str) -> None:
    def get(_reference: bytes) -> bytes:
        raise error

    assert OneActor(get).call("commit", {"n1": ()}) == {"n1": Answer(lost=lost)}


def test_the_answer_of_a_node_is_a_value_or_a_problem() -> None:
    answer = OneActor(lambda call: pickle.dumps((pickle.loads(call), None))).call("commit", {"n1": (1, "a")})
    assert answer == {"n1": Answer(("commit", (1, "a")))}
    (answered,) = (
        OneActor(lambda _call: pickle.dumps((None, Problem(Kind.VERSION, "x")))).call("p", {"n1": ()}).values()
    )
    assert answered.problem
    assert (answered.problem.kind, answered.lost, answered.ok) == (Kind.VERSION, "", False)


def test_what_is_no_failure_of_ray_is_not_taken_for_one() -> None:
    with pytest.raises(ZeroDivisionError):
        OneActor(lambda _call: bytes(1 // 0)).call("commit", {"n1": ()})


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
        assert [node.name for node in living_nodes(nodes)] == names


def test_a_node_with_one_of_the_targets_is_not_left_out() -> None:
    found = NodeTarget(
        Target(projects.upstream("vllm-ascend").project, "0.11.0rc1", Path("/site"), "unpacked", "", "--path")
    )
    absent = Problem(Kind.NO_TARGET, "verl is not there")
    survey = NodeSurvey({}, (), (), (), (), {}, {}, ())
    surveys = {
        "one": survey._replace(requested={"vllm-ascend": found, "verl": absent}),
        "none": survey._replace(requested={"vllm-ascend": absent, "verl": absent}),
    }
    for with_target, kept in ((True, ["one"]), (False, ["one", "none"])):
        nodes = Nodes(Shaky("one", "none"), SearchOptions(), with_target=with_target)
        assert list(nodes._with_targets(surveys)[0]) == kept
        nodes._folder.cleanup()


def test_where_no_node_answers_nothing_is_said_to_be_in_order() -> None:
    report = Nodes(Shaky("n3"), SearchOptions()).recover()
    (problem,) = report.problems
    assert (problem.kind, problem.cause, problem.place) == (
        Kind.ENVIRONMENT,
        "none of the cluster's nodes answers",
        "n3",
    )
    assert report.lines == []


def test_only_nodes_that_answer_have_nothing_to_recover() -> None:
    report = Nodes(Shaky("n1", "n3"), SearchOptions()).recover()
    assert report.problems == []
    assert "nothing to recover on n1" in report.lines
    assert [said[:2] for said in report.notes] == [("warning", "cannot reach n3")]
