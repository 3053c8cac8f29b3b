"""Proposed actions and remarks of a diagnosis, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from patcher.diagnosis.actions import actions, what_if_name
from patcher.diagnosis.engines import Engine
from patcher.diagnosis.iterations import Iterations
from patcher.diagnosis.model import ClassShare, StageDiagnosis, WhatIf
from patcher.diagnosis.run import diagnose, planned_windows
from patcher.diagnosis.whatif import MAX_NUM_SEQS, TAIL_CUT

ROLLOUT = StageDiagnosis(
    "rollout", 100, supported=True, why="", turns=1, iterations=4, recorded=4, recording_seconds=0, waiting_seconds=0
)


def decodes(requests: list[int], seconds: list[float], *, context: int = 100, prompts: int = 0) -> Iterations:
    """Iterations of these requests and lengths, each with as many prompt tokens."""
    count, took = np.array(requests, dtype=float), np.array(seconds, dtype=float)
    numbers = np.zeros(len(count), dtype=np.int64)
    return Iterations(
        np.cumsum(took) - took, took, count, count + prompts, np.full(len(count), float(context)), numbers, numbers
    )


def maximum(setting: int, seconds: float | None, least: float | None, most: float | None) -> WhatIf:
    return WhatIf(MAX_NUM_SEQS, setting, seconds, least, most, "a reason")


@pytest.mark.parametrize(
    ("classes", "what_ifs", "expected"),
    [
        ({"host-bound": 3, "outside-forward": 4, "collective": 2}, [], [7, 2]),
        ({"host-bound": 1.5, "collective": 1.99, "gemm": 90}, [], []),
        ({"host-bound": 3, "collective": 2}, [maximum(40, None, 90, 98)], [10, 3, 2]),
        ({"host-bound": 3, "collective": 2}, [maximum(40, 98, 60, 99), maximum(80, 50, 50, 50)], [40, 3, 2]),
        ({}, [maximum(40, 98.1, 60, 99), maximum(1, 50, 50, 50), maximum(80, None, None, 50)], []),
        ({}, [WhatIf(TAIL_CUT, 1, 50, 50, 50, "a reason"), maximum(2, None, 96, 99)], [50, 4]),
        ({"host-bound": 5, "collective": 6}, [maximum(40, 50, 50, 50), WhatIf(TAIL_CUT, 1, 50, 40, 50, "")], [60, 50, 6]),
    ],
)  # fmt: skip
def test_the_three_largest_bounds_are_proposed(
    classes: dict[str, float], what_ifs: list[WhatIf], expected: list[float]
) -> None:
    shares = tuple(ClassShare(name, seconds / 100, 0.01, seconds) for name, seconds in classes.items())
    proposed = actions(replace(ROLLOUT, classes=shares), decodes([1, 1], [50, 50]), what_ifs)
    assert [action.bound_seconds for action in proposed] == expected
    assert all(action.what and action.because for action in proposed)


@pytest.mark.parametrize(
    ("requests", "seconds", "saved"),
    [([20, 19, 18, 1], [2, 5.7, 9, 1], 17.7 - 58 * 0.2), ([2, 1], [1, 5], 6 - 3 * 0.5), ([1, 1], [1, 9], None)],
    ids=str,
)
def test_fuller_batches_decode_at_the_median_speed_of_full_load(
    requests: list[int], seconds: list[float], saved: float | None
) -> None:
    proposed = actions(ROLLOUT, decodes(requests, seconds))
    assert [action.bound_seconds for action in proposed] == ([] if saved is None else [pytest.approx(saved)])
    assert actions(ROLLOUT, decodes(requests, seconds, prompts=1)) == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [("max-num-seqs", "max_num_seqs 7"), ("tail-cut", "7 tokens"), ("free-weight-sync", "sync"), ("perfect-balance", "balance")],
)  # fmt: skip
def test_a_what_if_has_a_name_for_people(name: str, words: str) -> None:
    assert words in what_if_name(WhatIf(name, 7, None, None, None, ""))


def engine(iterations: Iterations, between: float = 0.0, package: str = "sglang") -> Engine:
    return Engine("node0", 7, None, package, iterations, np.full(len(iterations), between))


def two_rollouts(context: int = 100) -> Iterations:
    iterations = decodes([4] * 12, [1.0] * 12, context=context)
    return replace(iterations, rollout=np.repeat([0, 1], 6))


@pytest.mark.parametrize(
    ("engines", "notes"),
    [
        ([engine(two_rollouts())], []),
        ([engine(two_rollouts(context=0))], ["context lengths"]),
        ([engine(decodes([4] * 6, [1.0] * 6))], ["only one rollout"]),
        ([engine(two_rollouts()), engine(decodes([4] * 6, [1.0] * 6))], ["2 engines"]),
        ([engine(two_rollouts()), engine(decodes([], []))], []),
    ],
    ids=["two rollouts", "no contexts", "one rollout", "two engines", "one without iterations"],
)
def test_what_limits_a_diagnosis_is_noted(engines: list[Engine], notes: list[str]) -> None:
    diagnosis = diagnose(engines, [], replays=False)
    assert len(diagnosis.notes) == len(notes)
    assert all(words in note for words, note in zip(notes, diagnosis.notes, strict=True))
    assert (diagnosis.package, diagnosis.what_ifs) == ("sglang", ())
    assert diagnosis.rollouts == max(each.rollouts for each in engines)
    assert diagnose(engines, []).what_ifs


def test_the_first_rollout_is_a_warm_up() -> None:
    (stage,) = diagnose([engine(two_rollouts(), between=0.25)], [], replays=False).stages
    assert (stage.seconds, stage.iterations, stage.turns, stage.between_seconds) == (6, 6, 1, 1.5)
    (only,) = diagnose([engine(decodes([4] * 6, [1.0] * 6), between=0.25)], [], replays=False).stages
    assert (only.seconds, only.between_seconds) == (6, 1.5)


@pytest.mark.parametrize(("decode_only", "windows"), [(False, ((1, 6),)), (True, ((2, 7),))])
def test_decode_steps_count_from_one(decode_only: bool, windows: tuple[tuple[int, int], ...]) -> None:
    six = engine(decodes([4] * 6, [1.0] * 6))
    planned = planned_windows([engine(decodes([], [])), six], decode_only=decode_only)
    assert planned is not None
    assert (planned.windows, planned.load, planned.tail) == (windows, 0, 0)
    of_prompts = engine(decodes([4] * 6, [1.0] * 6, prompts=9))
    assert (planned_windows([of_prompts], decode_only=decode_only) is None) == decode_only
