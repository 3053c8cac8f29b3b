from __future__ import annotations

from patcher.timeline.intervals import TimeRange, covered, length, overlaps, uncovered


def intervals(*pairs: tuple[int, int]) -> list[TimeRange]:
    return [TimeRange(*pair) for pair in pairs]


def test_what_is_covered_and_what_that_leaves() -> None:
    parts = intervals((5, 9), (1, 3), (2, 4), (20, 30))
    assert covered(parts, 0, 25) == [(1, 4), (5, 9), (20, 25)]
    assert covered(parts, 0, 25, gap=1) == [(1, 9), (20, 25)]
    assert uncovered(intervals((1, 4), (5, 9)), 0, 12) == [(0, 1), (4, 5), (9, 12)]
    assert length(covered(parts)) == 3 + 4 + 10
    assert covered(intervals((3, 3), (8, 9), (20, 30)), 9, 20) == []
    assert uncovered(intervals((0, 4), (9, 12)), 0, 12) == [(4, 9)]
    assert uncovered([], 3, 3) == []


def test_overlaps_are_counted_once() -> None:
    first, second = intervals((0, 5), (8, 20))
    together = overlaps([first, second], intervals((3, 9), (10, 11), (19, 30)))
    assert list(together) == [(first, 2), (second, 1), (second, 1), (second, 1)]
    beside = intervals((0, 1), (2, 3), (4, 8), (20, 30))
    assert [us for _, us in overlaps([second], beside)] == []
    assert [us for _, us in overlaps([first, second], intervals((0, 1), (2, 3), (7, 9), (18, 25)))] == [1, 1, 1, 2]
