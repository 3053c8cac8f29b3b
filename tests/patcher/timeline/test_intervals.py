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


def test_overlaps_are_counted_once() -> None:
    first, second = intervals((0, 5), (8, 20))
    together = overlaps([first, second], intervals((3, 9), (10, 11), (19, 30)))
    assert list(together) == [(first, 2), (second, 1), (second, 1), (second, 1)]
