"""Which collectives of several ranks are compared with each other."""

from __future__ import annotations

import pytest

from patcher.traces import analysis, tables
from patcher.traces.model import Collective, RankProfile, RecordedUnit

Met = tuple[str, int, int, int, str]

RANKS: dict[str, tuple[tuple[int, int], str, tuple[list[str], list[str]], list[Met]]] = {
    "ranks that meet": ((0, 1), "dp", (["sum", "sum"], ["sum", "sum"]), [("sum", 1, 1, 2, "a"), ("sum", 2, 3, 4, "a")]),
    "kernels without a group, in another order": (
        (0, 1), "", (["sum", "gather"], ["gather", "sum"]), [("sum", 1, 1, 4, "a"), ("gather", 1, 2, 3, "b")],
    ),
    "two traces of one rank": ((0, 0), "dp", (["sum"], ["sum"]), []),
    "other collectives on each rank": ((0, 1), "dp", (["sum"], ["gather"]), []),
    "a send and a receive": ((0, 1), "dp", (["send"], ["recv"]), []),
    "sends alike": ((0, 1), "dp", (["send"], ["send"]), []),
}  # fmt: skip
"""Case → ranks of the traces a and b, group, names of their collectives, and the rows without group and step."""


@pytest.mark.parametrize("case", RANKS)
def test_only_collectives_in_which_ranks_met_are_compared(case: str) -> None:
    """The n-th collective takes 2n - 1 ns on the first rank, 2n on the second."""
    ranks, group, names, rows = RANKS[case]
    unit = RecordedUnit(number=1, host_ns=9, kernels=9, communication_ns=9)
    profiles = [
        RankProfile(
            source, "torch", rank, "H100", (unit,), label=source,
            collectives=tuple(
                Collective(group, at, name, 2 * at + 1 + (source == "b"), unit=1) for at, name in enumerate(of_rank)
            ),
        )
        for source, rank, of_rank in zip("ab", ranks, names, strict=True)
    ]  # fmt: skip
    table = tables.meetings(analysis.reported(profiles).captures)
    assert [(name, number, short, long, last) for name, _, _, number, short, long, _, last in table.rows] == rows
