from __future__ import annotations

import pytest

from patcher.timeline.intervals import TimeRange
from patcher.timeline.model import Imbalance
from patcher.timeline.path import PathPiece
from patcher.timeline.shares import tail, thinned, what_if

S = 1_000_000


def piece(role: str, start: float, end: float, kind: str = "work") -> PathPiece:
    return PathPiece(round(start * S), round(end * S), role, kind, "x", "", None)


TAILS = {
    "no request": ([], None),
    "all end at once": ([(0, 20), (10, 0)], None),
    "a tenth is none yet": ([(0, 20), (8, 2), (10, 0)], None),
    "below a tenth": ([(0, 20), (6, 1), (10, 0)], (6, 10)),
    "few in the middle are none": ([(0, 20), (3, 1), (5, 20), (10, 0)], None),
    "a few requests have none": ([(0, 9), (3, 1), (10, 0)], None),
    "it goes on over the end of the step": ([(0, 20), (6, 1)], None),
}


@pytest.mark.parametrize("name", TAILS)
def test_the_tail_is_the_end_with_below_a_tenth_of_the_requests(name: str) -> None:
    curve, expected = TAILS[name]
    found = tail([(time * S, count) for time, count in curve], [piece("engine", 0, 8), piece("driver", 8, 10)])
    assert (found and (found.start, found.end)) == expected
    if found:
        assert found.saves_seconds == 2  # what of it is on the path of the rollout


def test_a_thinned_curve_keeps_its_peaks_and_its_end() -> None:
    curve = [(at, 500 if at == 321 else at % 7) for at in range(1_000)]
    found = thinned(curve, 50)
    assert len(found) <= 50
    assert (321, 500) in found
    assert found[-1] == curve[-1]
    assert found == sorted(found)


def test_bounds_are_of_what_lies_on_the_path_and_none_is_said_that_saves_nothing() -> None:
    path = [piece("engine", 0, 6), piece("driver", 6, 7, "poll"), piece("trainer", 7, 10)]
    uneven = [Imbalance("replicas", ((0, 5.0), (1, 6.0)), 0.5), Imbalance("ranks", ((0, 1.0), (1, 9.0)), 4.0)]
    found = {
        one.name: (one.seconds, one.saves_seconds)
        for one in what_if(10 * S, path, None, uneven, [TimeRange(9 * S, 12 * S)])
    }
    assert found == {"perfect balance": (6.5, 3.5), "free weight sync": (9, 1), "overlap": (7, 3)}
