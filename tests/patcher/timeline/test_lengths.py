from __future__ import annotations

import pytest

from patcher.timeline import lengths


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"), (9e-7, "0 s"), (1e-6, "0.001 ms"), (0.0123, "12.3 ms"), (0.9949, "995 ms"), (0.995, "0.99 s"), (1.5, "1.50 s"),
        (9.99, "9.99 s"), (10, "10.0 s"), (99.94, "99.9 s"), (100, "100 s"), (3599, "3,599 s"), (3600, "1 h 00 min"), (7319, "2 h 01 min"),
    ],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert lengths.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.9994, "0.999"), (1, "1.00"), (99, "99.00"), (100, "100.0"), (999, "999.0"), (1000, "1,000")]
)
def test_seconds_without_a_unit(value: float, text: str) -> None:
    assert lengths.brief(value) == text
