from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.timeline import made
from patcher.timeline.model import MemoryPeak, MemoryPlace, RunMemory
from patcher.timeline.page import memory

LINES: dict[str, tuple[list[tuple[float, int]], str]] = {
    "without a point": ([], "V40H100"),
    "what it was at first": ([(-5, 3), (0, 7), (150, 9)], "V33H100"),
    "nothing known at first": ([(10, 5)], "V40H10V35H100"),
    "as much as before": ([(0, 5), (10, 5), (20, 6)], "V35H20V34H100"),
    "up to the end": ([(0, 5), (99, 7), (100, 9)], "V35H99V33H100"),
    "a peak that ends at once, and goes on lower": ([(0, 5), (10, 9), (11, 2)], "V35H10V31H11V38H100"),
    "too many within a stretch": ([(0, 5), (10, 6), (11, 9), (12, 7), (14, 3), (15, 4)], "V35H11V31H14V37H15V36H100"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_curve_of_memory_goes_through_the_highest_and_the_last_of_each_five_seconds(case: str) -> None:
    points, expected = LINES[case]
    assert memory.step_curve(points, int, (0, 100), 5, lambda used: 40 - used) == expected


def test_the_fullest_eight_places_have_lanes_devices_first() -> None:
    points = ((1.0, 5, ()), (2.0, 5, ()))
    names = [("host", "h"), *(("device", f"d{at}") for at in range(9))]
    places = [MemoryPlace(of, name, "", "", "", 100, (), (), points) for of, name in names]
    places[3] = replace(places[3], points=points[:1])
    peaks = [MemoryPeak(of, name, 1, 1.0, "", 10 + at, 100, (), 0) for at, (of, name) in enumerate(names)]
    run = replace(made.empty(), memory=RunMemory(tuple(places), tuple(peaks)))
    assert [place.place for place in memory.places(run)] == ["d8", "d7", "d6", "d5", "d4", "d3", "d1", "d0"]
    few = replace(run, memory=RunMemory(tuple(places[:3]), tuple(peaks)))
    assert [place.place for place in memory.places(few)] == ["d1", "d0", "h"]
