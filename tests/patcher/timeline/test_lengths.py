from __future__ import annotations

import pytest

from patcher.timeline import lengths


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.0123, "12.3 ms"), (0.9994, "1.00 s"), (1.5, "1.50 s"), (12.34, "12.3 s"), (250, "250 s"), (7260, "2 h 01 min")],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert lengths.seconds(value) == text
