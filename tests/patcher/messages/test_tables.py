"""Tables on terminals of any width."""

from __future__ import annotations

from itertools import chain

import pytest

from patcher.commands.about import knowledge
from patcher.messages import tables


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_the_table_fits_a_terminal_and_cuts_no_word(width: int) -> None:
    lines = tables.targets(knowledge.stages(), width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    for target, stages, windows, releases in knowledge.stages():
        assert {target, *stages.split(), *windows.split(), releases[0], releases[-1]} <= words


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_places_of_a_target_fit_a_terminal(width: int) -> None:
    data = knowledge.listing().data
    lines = tables.recipes(data, width)
    files = {row.file for row in data.targets}
    assert files < {line.strip() for line in lines}
    assert max(len(line) for line in lines if line.strip() not in files) <= width
    words = {*chain.from_iterable(line.replace(",", "").split() for line in lines)}
    assert all(
        {*row.structure.split(), row.releases[0], row.releases[-1], *row.windows} <= words for row in data.targets
    )


def test_in_a_pipe_each_place_is_a_line() -> None:
    data = knowledge.listing().data
    lines = tables.recipes(data)
    for row in data.targets:
        assert any(row.file in line and row.target in line and row.releases[-1] in line for line in lines)


@pytest.mark.parametrize(("width", "lines"), [(120, 4), (80, 6), (60, 4), (40, 8)])
def test_a_table_that_does_not_fit_becomes_lines_in_which_no_word_is_cut(width: int, lines: int) -> None:
    heads = ("", "target", "stage", "host", "state", "seen")
    rows = [
        (str(at), "vllm-ascend 0.11.0rc1", "update-policy actor", "node-0001.cluster", "recording", "1 s ago")
        for at in (1, 2)
    ]
    drawn = tables.draw(heads, rows, width)
    assert len(drawn) == lines
    assert max(map(len, drawn)) <= width
    assert {word for cell in rows[0] for word in cell.split()} <= {
        word.strip(",") for line in drawn for word in line.split()
    }
