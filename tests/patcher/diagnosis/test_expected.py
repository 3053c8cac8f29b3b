"""Expected seconds of micro-batches, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from patcher.diagnosis.expected import expected_seconds

SIZES = [1.0, 2, 3, 4, 5, 6, 7, 8]
SQUARES = [size**2 + 3 for size in SIZES]
UNKNOWN = [np.nan] * 8
NUMBERS = [0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("seconds", "sizes", "numbers", "without", "expected"),
    [
        (SQUARES, SIZES, NUMBERS, [], SQUARES),
        ([*SQUARES[:6], 990, 99], SIZES, NUMBERS, [6, 7], SQUARES),
        ([5, 5, 5, 5, 5, 5, 5, 50], [9] * 8, [0] * 8, [7], [5] * 8),
        ([5, 9] * 4, [9] * 8, NUMBERS, [], [5, 9] * 4),
        ([5, 9] * 4, UNKNOWN, NUMBERS, [], [5, 9] * 4),
        ([5, 9, 5, 9, 5, 9, 5, 77], UNKNOWN, NUMBERS, [7], [5, 9] * 4),
        ([5, 9] * 4, UNKNOWN, [0, 1, 2, 3, 4, 5, 6, 7], [], None),
        ([5, 9, 9, 5, 9, 5, 5, 9], UNKNOWN, NUMBERS, [], None),
        (SQUARES, [*SIZES[:7], np.nan], [0] * 8, [], None),
        ([5, 0, 5, 0, 5, 0, 5, 0], [9] * 8, [0] * 8, [0, 2, 4, 6], [5] * 8),
        ([0] * 8, SIZES, NUMBERS, [], None),
    ],
    ids=[
        "square of the size", "others of the size", "equal sizes", "number instead of equal sizes", "number",
        "others with the number", "each number once", "number tells nothing", "a size is unknown", "others took no time",
        "no time",
    ],
)  # fmt: skip
def test_others_of_a_size_or_number_tell_the_seconds(
    seconds: list[float], sizes: list[float], numbers: list[int], without: list[int], expected: list[float] | None
) -> None:
    among = np.ones(8, dtype=bool)
    among[without] = False
    predicted = expected_seconds(np.array(seconds, dtype=float), np.array(sizes), np.array(numbers), among)
    assert (None if predicted is None else predicted.tolist()) == (expected and pytest.approx(expected, rel=1e-3))
