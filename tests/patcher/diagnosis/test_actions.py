"""Proposed actions of a diagnosis, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.iterations import decodes
from patcher.diagnosis.actions import actions, what_if_name
from patcher.diagnosis.model import ClassShare, StageDiagnosis, WhatIf
from patcher.diagnosis.whatif import MAX_NUM_SEQS, TAIL_CUT

ROLLOUT = StageDiagnosis(
    "rollout", 100, supported=True, why="", turns=1, iterations=4, recorded=4, recording_seconds=0, waiting_seconds=0
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
