"""The page of a diagnosis: what it says of each stage, and what is missing."""

from __future__ import annotations

import pytest

from patcher.diagnosis.model import RunDiagnosis, StageDiagnosis
from patcher.diagnosis.page import page
from patcher.messages import CommandLine


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rollout", ["7 rollouts, 1.2 s, 4 iterations", "2 were recorded", "0.3 s spent", "0.4 s that iterations"]),
        ("update-policy", ["7 calls, 1.2 s in 4 micro", "2 were recorded", "0.3 s spent", "0.5 s between"]),
    ],
)
@pytest.mark.parametrize("why", ["", "a reason"])
def test_a_stage_has_its_numbers_and_why_its_data_does_not_suffice(name: str, words: list[str], why: str) -> None:
    stage = StageDiagnosis(
        name, 1.2, supported=not why, why=why, turns=7, iterations=4, recorded=2, recording_seconds=0.3,
        waiting_seconds=0.4, between_seconds=0.5,
    )  # fmt: skip
    command = CommandLine("run", "vllm") if why else None
    text = page(RunDiagnosis((stage,), (), (), notes=("a note",)), "/data/run", command)
    assert all(word in text for word in [*words, "/data/run", "a note", "Where the time" if not why else "not enough"])
    assert [word in text for word in ("a reason", "not sufficient", "rlpatch run vllm")] == [bool(why)] * 3


def test_a_stage_without_iterations_has_no_section() -> None:
    stage = StageDiagnosis(
        "adv", 1.2, supported=False, why="a reason", turns=7, iterations=0, recorded=0, recording_seconds=0,
        waiting_seconds=0,
    )  # fmt: skip
    assert "a reason" not in page(RunDiagnosis((stage,), (), ()), "", None)
