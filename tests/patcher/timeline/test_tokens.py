from __future__ import annotations

import pytest

from patcher.timeline.files import IterationColumns
from patcher.timeline.path import StepRecords
from patcher.timeline.tokens import of_step

S = 1_000_000


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ({}, (None, None)),
        ({0: (0, 0)}, (20, 8)),
        ({0: (0, 0), 1: (0, 1)}, (20, 8)),  # all ranks of a replica do the same
        ({0: (0, 1), 1: (0, 2)}, (20, 8)),
        ({0: (0, 0), 1: (0, 0)}, (40, 16)),  # data parallel: each has requests of its own
        ({0: (0, 0), 1: (1, 0)}, (40, 16)),
        ({0: (None, None)}, (20, 8)),
    ],
)
def test_tokens_of_a_step_are_counted_once(
    engines: dict[int, tuple[int | None, int | None]], expected: tuple[int | None, int | None]
) -> None:
    columns = IterationColumns()
    # Before the step, a prefill, two decode steps, and one that ends behind the step.
    columns.extend([0, 1 * S, 2 * S, 3 * S, 9 * S], [1 * S, 2 * S, 3 * S, 4 * S, 11 * S], [4] * 5, [4, 20, 4, 4, 4])
    replicas = [replica for replica, _ in engines.values()]
    records = StepRecords(1 * S, 10 * S, 9, [], dict.fromkeys(engines, columns), [], replicas)
    assert of_step(records, {at: rank for at, (_, rank) in engines.items()}) == expected
