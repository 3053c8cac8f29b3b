"""Choices of the user in the patched file: one line for the reader, and the attributes of the recorder."""

from __future__ import annotations

from typing import Any

import pytest

from patcher.config import ProfileConfig
from patcher.recipe import Probe
from patches.projects import upstream
from tests.choices import config, options

POLICY, LOG_PROB = "--stage update-policy", "--stage compute-log-prob"
GRAPHS = "--stage graph-capture"
TRAINED = ("host", "role", "step", "rank", "pid", "ranks", "window", "units")
ROLLED = ("host", "replica", "dp", "rollout", "rank", "pid", "ranks", "window", "units")
SUMMARIES = {
    f"{POLICY} --micro-batch 2:4": "micro-batches 2..3 of training step 1 in update-policy on rank 0",
    f"{POLICY} --mini-batch 1:": "mini-batches 1 and later of training step 1 in update-policy on rank 0",
    f"{LOG_PROB} --role ref --micro-batch 0:1": (
        "micro-batch 0 of training step 1 in compute-log-prob for the ref on rank 0"
    ),
    f"{POLICY} --micro-batch 0:1,4:6 --training-steps 3,5 --repeat 2": (
        "micro-batches 0, 4..5 of training steps 3, 4, 5, 6 in update-policy on rank 0"
    ),
    f"{POLICY} --micro-batch 0:1 --training-steps 3,5": (
        "micro-batch 0 of training steps 3, 5 in update-policy on rank 0"
    ),
    f"{POLICY} --micro-batch 0:1 --repeat 8": (
        "micro-batch 0 of training steps 1, 2, 3, 4, 5, 6, 7, 8 in update-policy on rank 0"
    ),
    f"{POLICY} --micro-batch 0:1 --training-steps 1,20 --repeat 9": (
        "micro-batch 0 of training steps 1..9, 20..28 in update-policy on rank 0"
    ),
    f"{POLICY} --micro-batch 0:1 --on-demand --ranks all": (
        "micro-batch 0 of training step 1 in update-policy on every rank, then micro-batches that `rlpatch trigger`"
        " asks for"
    ),
    "--decode 30:60": "decode steps 30..59 of rollout 0 on rank 0",
    "--prefill 0:4 --rollout 2 --repeat 3 --ranks 0,2": "prefill iterations 0..3 of rollout 2 to 4 on rank 0, 2",
    "--iterations 0:4 --replicas 1,3": "iterations 0..3 of rollout 0 on rank 0 of replica 1,3",
    "--iterations 0:4 --replicas all": "iterations 0..3 of rollout 0 on rank 0 of every replica",
    "--decode 1:4 --at-load 8": (
        "decode steps 1..3 of rollout 0 on rank 0 (counting starts once at least 8 requests are scheduled)"
    ),
    "--decode 1:4 --at-tail 2 --at-context 99": (
        "decode steps 1..3 of rollout 0 on rank 0 (counting starts once 2 or fewer requests are left and a"
        " request has at least 99 tokens of context)"
    ),
    "--decode 1:4 --on-demand": (
        "decode steps 1..3 of rollout 0 on rank 0, then decode steps that `rlpatch trigger` asks for"
    ),
    GRAPHS: "the first graph capture of each worker on rank 0",
    f"{GRAPHS} --repeat 2 --ranks all": "the first 2 graph captures of each worker on every rank",
}


def asked(words: str) -> tuple[Probe, ProfileConfig[Any]]:
    """The capture, and the probe of a place where it can be had."""
    made = config(words)
    return place(made), made


def place(made: ProfileConfig[Any]) -> Probe:
    stage = made.stage
    recipes = (*upstream("verl").recipes, *upstream("vllm").recipes)
    fitting = (one.probe for one in recipes if one.stage == stage.name and stage.window.unit in one.windows)
    return next(probe for probe in fitting if probe.recorder)


@pytest.mark.parametrize("words", SUMMARIES)
def test_the_reader_is_told_in_one_line(words: str) -> None:
    probe, made = asked(words)
    assert probe.summary(made) == f"Records {SUMMARIES[words]}."


@pytest.mark.parametrize(
    ("stage", "unit", "said"),
    [
        ("update-policy", "mini-batch", "mini-batches that `rlpatch trigger` asks for in update-policy"),
        ("rollout", "prefill", "prefill iterations that `rlpatch trigger` asks for"),
    ],
)
def test_the_reader_is_told_that_no_window_was_asked_for(stage: str, unit: str, said: str) -> None:
    made = options("--on-demand --save-path /tmp/traces").checked().config(stage, unit, "npu")
    assert place(made).summary(made) == f"Records {said}."


CHOSEN: dict[str, dict[str, object]] = {
    f"{POLICY} --micro-batch 2:4": {
        "STAGE": "update-policy", "WINDOW": "2:4", "RANKS": "0", "SAVE_PATH": "/tmp/traces", "UNIT": "micro-batch",
        "ABOUT": {"unit": "micro-batch"}, "IDENTITY": TRAINED, "ROLES": ("actor",), "STEPS": "1",
    },
    f"{POLICY} --mini-batch 0:1,3:4 --training-steps 2,4": {"UNIT": "mini-batch", "WINDOW": "0:1,3:4", "STEPS": "2,4"},
    f"{LOG_PROB} --micro-batch 0:1": {"ROLES": ("actor", "ref")},
    f"{LOG_PROB} --micro-batch 0:1 --role ref": {"ROLES": ("ref",)},
    f"{POLICY} --micro-batch 0:1 --ranks all": {"RANKS": "all", "IDENTITY": (*TRAINED[:4], "world", *TRAINED[4:])},
    f"{POLICY} --micro-batch 0:1 --on-demand": {"IDENTITY": (*TRAINED[:-1], "request", "refused", "units")},
    "--decode 2:5": {"REPLICAS": "0", "ROLLOUT": "0", "IDENTITY": ROLLED},
    "--decode 2:5 --rollout 3 --replicas 1,2 --ranks 0,4": {"REPLICAS": "1,2", "ROLLOUT": "3", "RANKS": "0,4"},
    "--decode 2:5 --at-load 4": {"AT": {"load": "4"}},
    "--decode 2:5 --at-tail 4 --on-demand": {"AT": {"load": "0", "tail": "4", "context": "0"}},
    GRAPHS: {"ABOUT": {}, "REPLICAS": "0", "IDENTITY": ("host", "replica", "dp", "rank", "pid", "ranks", "units")},
    f"{GRAPHS} --max-trace-gb 3": {"MAX_TRACE_GB": "3"},
    "--decode 2:5 --module-ranges --module-pattern MLP": {"MODULES": "MLP"},
}  # fmt: skip
ON_DEMAND = (
    "StepMetadata NumberedReplicas ResumedSomehow AnyPrompt WarmUps SeveralInRollout RelativeWindow Loaded Drained LongContexts"
    " OutputContexts OnDemand OnDemandRollouts SavedTraces Pieces"
)
SETTLED: dict[str, tuple[dict[str, object], str]] = {
    f"{POLICY} --micro-batch 2:4": ({"WARMUP": 1}, "StepMetadata"),
    f"{POLICY} --mini-batch 0:1,3:4 --warmup 0 --on-demand": (
        {"WARMUP": 0},
        "StepMetadata SeveralInCall OnDemand OnDemandSteps SavedTraces Pieces",
    ),
    f"{POLICY} --micro-batch 2:4 --repeat 3 --ranks all --live": (
        {"REPEAT": 3},
        "EveryRank StepMetadata RepeatedSteps LiveUnit SavedTraces",
    ),
    f"{POLICY} --micro-batch 2:4 --ranks all --no-facts": ({}, "Unnoted"),
    f"{POLICY} --call 0:1": ({}, "StepMetadata WholeCall"),
    "--decode 2:5": (
        {"KINDS": ("decode",), "FIRST": 1, "LOWEST": 1},
        "StepMetadata NumberedReplicas ResumedSomehow AnyPrompt WarmUps",
    ),
    "--prefill 0:5 --max-trace-gb 3 --no-facts": (
        {"FIRST": 0, "LOWEST": 0},
        "Unnoted NumberedReplicas ResumedSomehow AnyPrompt WarmUps LimitedPieces",
    ),
    "--iterations 0:5 --at-context 9 --no-facts": (
        {"FIRST": 0, "KINDS": ("decode", "prefill")},
        "Unnoted NumberedReplicas ResumedSomehow AnyPrompt WarmUps RelativeWindow LongContexts OutputContexts",
    ),
    "--aligned 2:5 --no-facts": (
        {"FIRST": 0},
        "Unnoted NumberedReplicas ResumedSomehow AnyPrompt WarmUps AlignedOutputs",
    ),
    "--decode 2:5 --replicas prefill --no-facts": ({}, "Unnoted ServingReplicas ResumedSomehow AnyPrompt WarmUps"),
    "--decode 2:5 --on-demand": (
        {"FIRST": 1, "LOWEST": 0},
        ON_DEMAND,
    ),
    f"{GRAPHS} --max-trace-gb 3": ({}, "StepMetadata NumberedReplicas LimitedCapture"),
    f"{GRAPHS} --repeat 2": ({"REPEAT": 2}, "StepMetadata NumberedReplicas RepeatedCaptures SavedTraces"),
}
"""Some constants, and the parts and layers, in any release."""


@pytest.mark.parametrize("words", CHOSEN)
def test_what_was_chosen_stands_at_the_top(words: str) -> None:
    probe, made = asked(words)
    chosen = probe.settings(made)
    assert {name: chosen[name] for name in CHOSEN[words]} == CHOSEN[words]
    assert ("MAX_TRACE_GB" in chosen, "MODULES" in chosen) == ("--max-trace-gb" in words, "--module-ranges" in words)


@pytest.mark.parametrize("words", SETTLED)
def test_what_is_settled_is_no_question_any_more(words: str) -> None:
    probe, made = asked(words)
    constants, kinds = SETTLED[words]
    settled = probe.constants(made, "")
    assert {name: settled[name] for name in constants} == constants
    assert " ".join(kind.__name__ for kind in (*probe.parts(made, ""), *probe.layers(made, ""))) == kinds


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ("", []),
        ("--markers", ["NpuRanges", "RolloutMarkers"]),
        ("--module-ranges", ["NpuRanges", "ModuleRanges"]),
        ("--markers --module-ranges", ["NpuRanges", "ModuleRanges", "RolloutMarkers"]),
        ("--markers --tool torch", ["TorchRanges", "RolloutMarkers"]),
        ("--tool torch --contents cpu", []),
        ("--tool torch --contents cpu,stack", ["GarbageCollections"]),
        ("--contents npu,cpu,stack", []),
    ],
)
def test_ranges_go_on_top_of_the_recorder(words: str, layers: list[str]) -> None:
    probe, _ = asked("--decode 2:5")
    backend = "torch" if "torch" in words else "npu"
    made = config(f"--decode 2:5 {words}", backend)
    assert [layer.__name__ for layer in probe.layers(made, "") if layer.__name__ != "WarmUps"] == layers
