"""The table of `rlpatch list`."""

from __future__ import annotations

import pytest

from patcher.commands.about import knowledge
from patcher.messages import tables


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_the_table_fits_a_terminal_and_loses_nothing(width: int) -> None:
    data = knowledge.listing().data
    lines = tables.releases(data, width)
    assert max(map(len, lines)) <= width
    said = "".join("".join(line.split()) for line in lines)
    assert all(word in "".join(lines) for word in ("verl", "sglang", "--decode"))
    assert "…" in said


def test_in_a_pipe_each_row_is_a_line() -> None:
    data = knowledge.listing().data
    lines = tables.releases(data)
    for row in data.targets:
        assert any(row.file in line and row.target in line and row.releases[-1] in line for line in lines)
