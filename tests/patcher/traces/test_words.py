"""Times and numbers as people read them."""

from __future__ import annotations

import pytest

from patcher.traces import words


@pytest.mark.parametrize(
    ("ns", "places", "said"),
    [
        (0, 2, "0"),
        (1, 2, "1 ns"),
        (999, 2, "999 ns"),
        (1000, 2, "1.00 µs"),
        (-1500, 2, "-1.50 µs"),
        (999_999, 2, "1,000.00 µs"),
        (1_000_000, 2, "1.00 ms"),
        (1_000_000_000, 2, "1.00 s"),
        (-61_250_000_000, 2, "-61.25 s"),
        (2_000_000, 0, "2 ms"),
        (2_000_000, 1, "2 ms"),
        (2_500_000, 1, "2.5 ms"),
    ],
)
def test_a_time_has_the_unit_that_fits(ns: int, places: int, said: str) -> None:
    assert words.duration(ns, places) == said


@pytest.mark.parametrize(("ns", "said"), [(1500, "+1.50 µs"), (-1500, "\N{MINUS SIGN}1.50 µs"), (0, "±0")])
def test_a_difference_has_its_sign(ns: int, said: str) -> None:
    assert words.signed(ns) == said


def test_a_name_fits_and_moves_no_cursor() -> None:
    assert (words.short("a" * 40), words.short("a" * 41)) == ("a" * 40, "a" * 39 + "…")
    assert words.short("a\x1b[2J\u202eb") == "a?[2J?b"
    assert (words.cut("abc", 3), words.cut("abcd", 3)) == ("abc", "ab…")
