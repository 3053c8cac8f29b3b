"""The tokens that the engines of a run compute in a step."""

from __future__ import annotations

import pytest

from patcher.timeline.files import IterationColumns
from patcher.timeline.shares import lowest_ranks, prefill_and_decode_tokens
from patcher.timeline.step_records import StepRecords

S = 1_000_000


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ({}, (None, None)),
        ({0: (0, 0)}, (20, 12)),
        ({0: (0, 0), 1: (0, 1)}, (20, 12)),  # all ranks of a replica do the same
        ({0: (0, 2), 1: (0, 1)}, (20, 9)),
        ({0: (0, None), 1: (0, 1)}, (20, 12)),
        ({0: (0, 1), 1: (0, None)}, (20, 9)),
        ({0: (0, 0), 1: (0, 0)}, (40, 21)),  # data parallel: each has requests of its own
        ({0: (0, 0), 1: (1, 0)}, (40, 21)),
        ({0: (0, 0), 1: (1, 3)}, (40, 21)),
        ({0: (None, None)}, (20, 12)),
    ],
)
def test_tokens_of_a_step_are_counted_once(
    engines: dict[int, tuple[int | None, int | None]], expected: tuple[int | None, int | None]
) -> None:
    columns = {at: IterationColumns() for at in engines}
    for at, iterations in columns.items():
        # Before the step, a prefill, decode steps (the last of them ends with it), and one that ends behind the step.
        starts, ends = [0, 1, 2, 3, 8, 9], [1, 2, 3, 4, 10, 11]
        decoded = [4 - at] * 3
        iterations.extend([S * start for start in starts], [S * end for end in ends], [4] * 6, [4, 20, *decoded, 4])
    replicas = [replica for replica, _ in engines.values()]
    records = StepRecords(1 * S, 10 * S, 9, [], columns, [], replicas)
    counted = lowest_ranks(replicas, {at: rank for at, (_, rank) in engines.items()})
    assert prefill_and_decode_tokens(records, counted) == expected
