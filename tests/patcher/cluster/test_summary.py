"""The results of nodes as one: who is alike stands together, and who differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.cluster import summary
from patcher.cluster.node_group import Answer, NodeSurvey, NodeTarget
from patcher.commands.finding import SearchOptions
from patcher.commands.patching.applying import on
from patcher.messages.errors import Kind, Problem
from patcher.messages.report import CommandResult, json_of
from patcher.targets.target import Target
from patches import projects

VLLM_ASCEND, VERL = projects.upstream("vllm-ascend").project, projects.upstream("verl").project
FOUND = NodeTarget(Target(VLLM_ASCEND, "0.11.0rc1", Path("/site"), "unpacked", "", "--path"))
SURVEY = NodeSurvey({}, (FOUND,), (), (Path("/site"),), (), {}, {}, (), 1 << 40)
ROLLOUT = {"target": "vllm-ascend", "stage": "rollout", "role": None}
BARE = SURVEY._replace(discovered=(), roots=())


def reported(*states: str) -> CommandResult:
    """What a node says of its patches, each with a file in that state."""
    patches = [{**ROLLOUT, "files": [{"state": state}]} for state in states]
    report = CommandResult("status", data={"patches": patches})
    report.lines = [f"vllm-ascend rollout {state}" for state in states]
    return report


def entries(report: CommandResult) -> list[dict[str, object]]:
    """Of each node, for programs."""
    return list(json_of(report.data)["nodes"])


STATES = {
    "patched": (Answer(SURVEY), Answer(reported("intact", "intact")), "patched"),
    "one of two edited": (Answer(SURVEY), Answer(reported("intact", "edited")), "edited"),
    "each in its own way": (Answer(SURVEY), Answer(reported("edited", "lost")), "edited, lost"),
    "nothing patched": (Answer(SURVEY), Answer(reported()), "as released"),
    "nothing there": (Answer(BARE), Answer(reported()), "no target"),
    "patched, and the target is gone": (Answer(BARE), Answer(reported("missing")), "missing"),
    "a run was interrupted": (
        Answer(SURVEY._replace(unfinished=(Path("/site"),))),
        Answer(reported("intact")),
        "interrupted",
    ),
    "it died between both": (Answer(SURVEY), Answer(lost="it died"), "no answer"),
    "it was late at first": (Answer(lost="it died"), Answer(reported("intact")), "no answer"),
}


@pytest.mark.parametrize("case", STATES)
def test_one_word_for_a_node(case: str) -> None:
    surveyed, answered, state = STATES[case]
    report = summary.status({"n1": surveyed}, {"n1": answered}, {})
    (entry,) = entries(report)
    assert entry["state"] == state
    assert entry["problem"] == (surveyed.lost or answered.lost or None)
    assert [problem.cause for problem in report.problems] == ["no answer: it died"] * bool(answered.lost)


def test_the_entry_of_a_node() -> None:
    other = NodeTarget(FOUND.target._replace(project=VERL, version="0.6.1", root=Path("/other")))
    survey = SURVEY._replace(discovered=(FOUND, other), unfinished=(Path("/other"),))
    there = {"n1": Answer(survey)}
    (entry,) = entries(summary.status(there, {"n1": Answer(reported("intact"))}, {"n1": Answer(("17 vllm",))}))
    assert entry == {
        "node": "n1",
        "state": "interrupted",
        "targets": {"vllm-ascend": "0.11.0rc1", "verl": "0.6.1"},
        "roots": ["/other", "/site"],
        "patches": [{**ROLLOUT, "files": [{"state": "intact"}]}],
        "unfinished": ["/other"],
        "running": ["17 vllm"],
        "free": 1 << 40,
        "problem": None,
    }
    failed = Answer(problem=Problem(Kind.ENVIRONMENT, "damaged"))
    (entry,) = entries(summary.status({"n1": failed}, {"n1": failed}, {}))
    assert [entry[key] for key in ("state", "targets", "free", "problem")] == ["no answer", {}, None, "damaged"]
    late = Answer(lost="it died")
    (entry,) = entries(summary.status(there, {"n1": Answer(reported("intact"))}, {"n1": late}))
    assert (entry["running"], entry["problem"]) == ([], "it died")


@pytest.mark.parametrize(
    ("running", "states", "said"),
    [
        (
            ("17 vllm",),
            ("intact",),
            "engines run on 1 of 2 nodes: what was patched since they started they do not have",
        ),
        ((), ("intact",), None),
        (("17 vllm",), (), None),
    ],
    ids=["patched and running", "patched", "running"],
)
def test_engines_that_run_beside_a_patch_are_counted(
    running: tuple[str, ...], states: tuple[str, ...], said: str | None
) -> None:
    surveys = {"n1": Answer(SURVEY), "n2": Answer(SURVEY)}
    told = {name: Answer(reported(*states)) for name in surveys}
    report = summary.status(surveys, told, {"n1": Answer(running), "n2": Answer(())})
    assert [note[1] for note in report.notes] == ([said] if said else [])


def test_who_is_alike_stands_together() -> None:
    reports = {"n1": reported("intact"), "n2": reported("edited"), "n3": reported("intact"), "n4": reported()}
    lines = summary.status(
        dict.fromkeys(reports, Answer(SURVEY)), {name: Answer(one) for name, one in reports.items()}, {}
    ).lines
    assert list(map(str, lines[-4:])) == [
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
        ("warning", "the disk is full (n1, n2, n3, … (4 nodes))", "df"),
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

    assert list(on(Nodes())) == line
