"""Text on as many lines as it needs, in English and in Chinese."""

from __future__ import annotations

import pytest

from patcher.messages import columns, notes


@pytest.mark.parametrize("room", range(20, 60))
@pytest.mark.parametrize(
    "text", ["at most 94.43 ms of 132.23 ms (71 %) per step", "最多 94.43 ms（每个 step 132.23 ms，71 %）"]
)
def test_a_number_stays_with_its_unit(text: str, room: int) -> None:
    lines = notes.wrapped(text, width=room) if text.isascii() else columns.wrapped(text, "", "  ", room)
    assert " ".join(line.strip() for line in lines) == text or not text.isascii()
    assert max(map(columns.width, lines)) <= room
    assert not [line for line in lines[1:] if line.strip().startswith(("%", "ms"))]
