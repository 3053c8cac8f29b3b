"""Composition of micro-batches by their length, against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from patcher.diagnosis.interpolation import Interpolation, by_length
from patcher.diagnosis.training_composition import noise


def interpolated(
    length: list[float], shares: list[float], *, expected: bool = True, noise: float = 0.0
) -> Interpolation:
    """Micro-batches of two classes, of which the first has these shares."""
    seconds = [[each * share, each * (1 - share)] for each, share in zip(length, shares, strict=True)]
    return Interpolation(np.array(length), np.array(seconds), np.ones(2, dtype=bool), expected, noise)


@pytest.mark.parametrize(
    ("length", "loads"),
    [
        ([1, 2, 2.5, 3, 4], {"short": [1, 2], "medium": [2.5], "long": [3, 4]}), ([4, 1, 2, 3], {"short": [1, 2], "long": [4, 3]}),
        ([2, 2], {"long": [2, 2]}), ([11, 15, 20], {"short": [11], "medium": [15], "long": [20]}),
    ],
    ids=str,
)  # fmt: skip
def test_thirds_are_those_of_the_range_of_lengths(length: list[float], loads: dict[str, list[float]]) -> None:
    masks = by_length(np.array(length, dtype=float))
    assert {load: np.array(length)[mask].tolist() for load, mask in masks.items()} == loads


def test_a_class_is_a_constant_and_powers_of_the_length() -> None:
    length = np.array([1.0, 2.0, 4.0])
    seconds = np.stack([np.full(3, 0.5), 0.1 * length, 0.2 * length**2, 0.1 * length**3], axis=1)
    predicted = Interpolation(length, seconds, np.ones(4, dtype=bool), expected=True)
    assert predicted.predict_class_seconds(np.array([3.0, 8.0])) == pytest.approx(
        np.array([[0.5, 0.3, 1.8, 2.7], [0.5, 0.8, 12.8, 51.2]]), rel=2e-3
    )
    assert predicted.shares_of(np.array([2.0])) == pytest.approx(np.array([[5, 2, 8, 8]]) / 23, rel=1e-3)
    alike = Interpolation(
        np.array([2.0, 2.0]), np.array([[1.0, 1.0], [2.0, 0.0]]), np.ones(2, dtype=bool), expected=True
    )
    assert alike.predict_class_seconds(np.array([4.0])) == pytest.approx(np.array([[3.0, 1.0]]))


def test_what_a_profiler_makes_longer_gets_what_the_kernels_leave() -> None:
    length = np.array([1.0, 2.0])  # with kernels in a half of the first and three quarters of the second
    seconds = np.array([[0.5, 2.0], [1.5, 2.0]])
    recorded = Interpolation(length, seconds, np.array([False, True]), expected=True)
    assert recorded.shares_of(length) == pytest.approx(np.array([[0.5, 0.5], [0.75, 0.25]]), rel=1e-3)
    assert recorded.half_widths(length) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("recorded", "noise", "errors", "unlike"),
    [
        ([1, 2, 4], 0.0, [0, 0, 0], [0.7, 0, 6]), ([2, 2], 0.0, [5.75, -0.25, -5.5], [2.5, 3, 11]),
        ([2, 2, 2, 2], 0.1, [5.5, 0, -4.4], [2.5, 3, 11]),
    ],
    ids=["three lengths", "one length", "one length, with noise"],
)  # fmt: skip
def test_each_third_is_checked_against_its_seconds(
    recorded: list[float], noise: float, errors: list[float], unlike: list[float]
) -> None:
    """Unlike is what is shorter than 0.8 times the shortest recorded one, or longer than 1.25 times the longest."""
    unit = 1 / 128  # seconds
    length = np.array([0.7, 0.8, 1, 3, 5, 6]) * unit
    halves = interpolated([each * unit for each in recorded], [0.5] * len(recorded), noise=noise)
    checks = [check for check, _ in halves.check(length)]
    assert [check.load for check in checks] == ["short", "medium", "long"]
    assert [check.of_whole for check in checks] == pytest.approx([error / 16.5 for error in errors], abs=1e-4)
    relative = [error / seconds for error, seconds in zip(errors, [2.5, 3, 11], strict=True)]
    assert [check.relative for check in checks] == pytest.approx(relative, abs=1e-3)
    assert [check.unlike for check in checks] == pytest.approx([seconds / 16.5 for seconds in unlike])
    assert {check.unknown for check in checks} == {0}


WIDTHS: dict[str, tuple[Interpolation, float]] = {
    "the least": (interpolated([1, 2, 3, 4], [0.5] * 4), 0.01),
    "of few": (interpolated([1, 2, 4], [0.5] * 3), 0.02),
    "without sizes": (interpolated([1, 2, 3, 4], [0.5] * 4, expected=False), 0.02),
    "noise": (interpolated([1, 2, 3, 4], [0.5] * 4, noise=0.4), 0.1),
    "noise of unequal classes": (interpolated([2, 2, 2, 2], [0.2] * 4, noise=0.4), 0.08),
    "shares that scatter": (interpolated([2, 2, 2, 2], [0.4, 0.6, 0.4, 0.6]), 3.2 * (0.04 / 3 / 4) ** 0.5),
    "twelve that scatter": (interpolated([2] * 12, [0.4, 0.6] * 6), 2.3 * (0.12 / 11 / 12) ** 0.5),
    "two that scatter": (interpolated([2, 2], [0.4, 0.6]), 0.2),
    "noise of two": (interpolated([2, 2], [0.2, 0.2], noise=0.1), 2 * 0.1 * 0.8 / 2**0.5),
    "noise of two lengths": (interpolated([2, 1, 4], [0.5] * 3, noise=0.1), 2 * 0.1 * 0.5 / 3**0.5),
    "noise of one": (interpolated([2], [0.5], noise=0.1), 0.1),
}


@pytest.mark.parametrize("case", WIDTHS)
def test_an_interval_is_as_wide_as_the_largest_of_its_causes(case: str) -> None:
    recorded, half_width = WIDTHS[case]
    assert recorded.half_widths(np.array([2.0, 2.0])) == pytest.approx(np.array([half_width] * 2), rel=1e-3)


@pytest.mark.parametrize(
    ("seconds", "sizes", "relative"),
    [([0.9, 1.1, 1.0], [1, 3, 2], 0.1), ([1, 10] * 8, [1, 2] * 8, 0), ([0.0, 0.0], [1, 1], 1)],
    ids=["of one size", "of two sizes", "without time"],
)
def test_noise_is_the_spread_among_micro_batches_of_about_a_size(
    seconds: list[float], sizes: list[int], relative: float
) -> None:
    assert noise(np.array(seconds), np.array(sizes)) == pytest.approx(1.4826 * relative)
