"""What nodes say, told together: who is alike stands together, and who differs is named."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.cluster import telling
from patcher.cluster.values import Answer, Found, Survey
from patcher.commands.applying import on
from patcher.commands.finding import SearchOptions
from patcher.errors import Kind, Problem
from patcher.report import Report

FOUND = Found("vllm-ascend", "0.11.0rc1", "/site", "unpacked", "", "--path", (), ())
SURVEY = Survey({}, (FOUND,), (), ("/site",), (), {}, {}, (), 1 << 40)
ROLLOUT = {"target": "vllm-ascend", "stage": "rollout", "role": None}
BARE = SURVEY._replace(found=(), roots=())


def reported(*states: str) -> Report:
    """What a node says of its patches, each with a file in that state."""
    patches = [{**ROLLOUT, "files": [{"state": state}]} for state in states]
    report = Report("status", data={"patches": patches})
    report.lines = [f"vllm-ascend rollout {state}" for state in states]
    return report


def entries(report: Report) -> list[dict[str, object]]:
    """Of each node, for programs."""
    found: Any = report.data["nodes"]
    return list(found)


STATES = {
    "patched": (Answer(SURVEY), Answer(reported("intact", "intact")), "patched"),
    "one of two edited": (Answer(SURVEY), Answer(reported("intact", "edited")), "edited"),
    "each in its own way": (Answer(SURVEY), Answer(reported("edited", "lost")), "edited, lost"),
    "nothing patched": (Answer(SURVEY), Answer(reported()), "as released"),
    "nothing there": (Answer(BARE), Answer(reported()), "no target"),
    "patched, and the target is gone": (Answer(BARE), Answer(reported("missing")), "missing"),
    "a run was interrupted": (
        Answer(SURVEY._replace(unfinished=("/site",))),
        Answer(reported("intact")),
        "interrupted",
    ),
    "it died between both": (Answer(SURVEY), Answer(lost="it died"), "no answer"),
    "it was late at first": (Answer(lost="it died"), Answer(reported("intact")), "no answer"),
}


@pytest.mark.parametrize("case", STATES)
def test_one_word_for_a_node(case: str) -> None:
    surveyed, answered, state = STATES[case]
    report = telling.status({"n1": surveyed}, {"n1": answered}, {})
    (entry,) = entries(report)
    assert entry["state"] == state
    assert entry["problem"] == (surveyed.lost or answered.lost or None)
    assert [problem.cause for problem in report.problems] == ["no answer: it died"] * bool(answered.lost)


def test_the_entry_of_a_node() -> None:
    other = FOUND._replace(project="verl", version="0.6.1", root="/other")
    survey = SURVEY._replace(found=(FOUND, other), unfinished=("/other",))
    there = {"n1": Answer(survey)}
    (entry,) = entries(telling.status(there, {"n1": Answer(reported("intact"))}, {"n1": Answer(("17 vllm",))}))
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
    (entry,) = entries(telling.status({"n1": failed}, {"n1": failed}, {}))
    assert [entry[key] for key in ("state", "targets", "free", "problem")] == ["no answer", {}, None, "damaged"]
    late = Answer(lost="it died")
    (entry,) = entries(telling.status(there, {"n1": Answer(reported("intact"))}, {"n1": late}))
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
    report = telling.status(surveys, told, {"n1": Answer(running), "n2": Answer(())})
    assert [note[1] for note in report.notes] == ([said] if said else [])


def test_who_is_alike_stands_together() -> None:
    reports = {"n1": reported("intact"), "n2": reported("edited"), "n3": reported("intact"), "n4": reported()}
    lines = telling.status(
        dict.fromkeys(reports, Answer(SURVEY)), {name: Answer(one) for name, one in reports.items()}, {}
    ).lines
    assert list(map(str, lines[-4:])) == [
        "on n1, n3:", "  vllm-ascend rollout intact", "on n2:", "  vllm-ascend rollout edited"
    ]  # fmt: skip


def test_what_several_say_is_said_once_with_their_names() -> None:
    told = {name: Report("check") for name in ("n1", "n2", "n3", "n4")}
    for name, one in told.items():
        one.warn("the disk is full", "df")
        if name != "n1":
            one.note("the disk is full", "df")
        one.problems.append(Problem(Kind.ENVIRONMENT, "damaged" if name == "n2" else "read-only", "/site"))
    report = Report("check")
    telling.merge(report, told)
    assert [(note[0], note[1], note[2]) for note in report.notes] == [
        ("warning", "the disk is full (n1, n2, n3, … (4 nodes))", "df"),
        ("note", "the disk is full (n2, n3, n4)", "df"),
    ]
    assert [(one.cause, one.place) for one in report.problems] == [
        ("read-only", "n1, n3, n4: /site"),
        ("damaged", "n2: /site"),
    ]
    alone = Report("check")
    telling.merge(alone, {"n1": told["n1"]})
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

    assert on(Nodes()) == line
