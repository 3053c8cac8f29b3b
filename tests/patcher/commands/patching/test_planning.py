"""Words to plans, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from patcher.commands.finding import Search
from patcher.commands.patching.planning import Attempted, find_candidates, plan
from patcher.config import Window
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Upstream
from patcher.request import ProfileRequest
from patcher.targets.target import Target
from patches import projects


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


class Site(NamedTuple):
    """A search that finds any target in a folder."""

    root: Path
    nodes: tuple[str, ...] = ()

    def find(self, word: str, command: str) -> tuple[Upstream, Target]:
        upstream = projects.upstream(word)
        return upstream, Target(upstream.project, upstream.releases[-1], self.root, "unpacked", "METADATA", "--path")


@pytest.mark.parametrize(
    ("word", "beside", "choices", "guess"),
    [
        (
            "verl",
            (),
            {},
            "torch_npu.profiler is assumed, as torch_npu and torch are not installed in the environment of verl",
        ),
        (
            "vllm",
            (),
            {},
            "torch.profiler is assumed, as torch_npu and torch are not installed in the environment of vllm",
        ),
        ("verl", (), {"tool": "npu"}, ""),
        ("verl", ("torch",), {}, ""),
        ("verl", ("torch", "torch_npu"), {}, ""),
        ("verl", (), {"timeline": True}, ""),
        ("vllm-ascend", (), {}, ""),
    ],
)
def test_a_profiler_that_nothing_decides_is_called_a_guess(
    tmp_path: Path, word: str, beside: tuple[str, ...], choices: dict[str, object], guess: str
) -> None:
    for package in beside:
        (tmp_path / package).mkdir()
    windows = () if "timeline" in choices else (Window("mini-batch" if word == "verl" else "decode", 1, 2),)
    found = find_candidates([word], cast("Search", Site(tmp_path)), ProfileRequest(windows, choices), "apply")
    assert not found.problems
    assert [note.text for one in found.values for note in one.notes] == [guess] * bool(guess)


@pytest.mark.parametrize(
    ("word", "choices", "stages"),
    [
        ("vllm", {"timeline": True, "on_demand": True}, ["rollout", "timeline"]),
        ("verl", {"timeline": True, "on_demand": True}, ["update-policy", "timeline"]),
        ("vllm", {"timeline": True}, ["timeline"]),
    ],
)
def test_a_timeline_leaves_windows_on_demand_in_place(
    tmp_path: Path, word: str, choices: dict[str, object], stages: list[str]
) -> None:
    candidates = find_candidates([word], cast("Search", Site(tmp_path)), ProfileRequest((), choices), "apply")
    assert not candidates.problems
    assert [candidate.config.stage.name for candidate in candidates.values] == stages


def on_demand(stage: str, unit: str) -> ProfileRequest:
    return ProfileRequest((Window(unit, 0, 0, none=True),), {"stage": stage, "on_demand": True})


BESIDE = (
    on_demand("rollout", "iterations"), on_demand("update-policy", "micro-batch"),
    on_demand("compute-values", "micro-batch"), ProfileRequest((), {"stage": "weight-sync", "sync": 2}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("word", "stages"),
    [
        ("vllm", ["timeline", "rollout", "weight-sync"]),
        ("verl", ["timeline", "update-policy", "compute-values", "weight-sync"]),
        ("trl", ["timeline", "update-policy", "weight-sync"]),
    ],
)
def test_a_target_takes_those_stages_beside_that_it_has(tmp_path: Path, word: str, stages: list[str]) -> None:
    request = ProfileRequest((), {"timeline": True}, BESIDE)
    candidates = find_candidates([word], cast("Search", Site(tmp_path)), request.checked(), "run")
    assert not candidates.problems
    assert [candidate.config.stage.name for candidate in candidates.values] == stages
    assert [candidate.optional for candidate in candidates.values] == [False, *[True] * (len(stages) - 1)]


def test_a_stage_beside_that_cannot_be_patched_is_left_out_with_a_note(tmp_path: Path) -> None:
    request = ProfileRequest((), {"timeline": True}, BESIDE[:1])
    candidates = find_candidates(["vllm"], cast("Search", Site(tmp_path)), request, "run")
    required = replace(candidates, values=candidates.values[1:])
    assert plan(required).problems == ()
    assert plan(replace(candidates, values=[value._replace(optional=False) for value in required.values])).problems
