from __future__ import annotations

import pytest

from patcher.timeline.costs import advice
from patcher.timeline.model import Cause


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Cause("driver", None, None, "sample", "gen", 1, 0, "poll"), "poll"),
        (Cause("driver", None, None, "adv", "adv", 1, 0, "phase"), "driver"),
        (Cause("trainer", None, 1, "micro-batch", "", 1, 0, "unit"), "rank"),
        (Cause("trainer", None, None, "micro-batch", "", 1, 0, "unit"), "trainer"),
        (Cause("trainer", None, 1, "start of update", "", 1, 0, "work"), "queue"),
        (Cause("engine", 1, None, "no iteration", "", 1, 0, "gap"), "replica"),
        (Cause("reward", None, None, "compute_score", "", 1, 0, "reward"), "reward"),
    ],
)
def test_what_to_do_next(cause: Cause, expected: str) -> None:
    assert advice(cause) == expected
