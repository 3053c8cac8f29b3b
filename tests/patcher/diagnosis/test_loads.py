"""The check of recorded iterations against the timeline, load by load."""

from __future__ import annotations

import numpy as np
import pytest

from patcher.diagnosis.iterations import iterations
from patcher.diagnosis.loads import LoadCheck, check_loads, total_errors

REQUESTS = np.tile([2.0, 16.0], 50)
CONTEXTS = np.repeat([200.0, 1_600.0], 50)
"""Few and many requests, each with short and long contexts."""


@pytest.mark.parametrize(("apart", "known"), [(False, False), (True, True)])
def test_features_that_were_recorded_together_alone_are_not_known(apart: bool, known: bool) -> None:
    seconds = 0.001 * REQUESTS + 1e-5 * CONTEXTS
    decodes = iterations(np.cumsum(seconds) - seconds, seconds, REQUESTS, REQUESTS, CONTEXTS)
    few_and_short, many_and_long, few_and_long = 0, 99, 98
    recorded = decodes.features[[few_and_short, many_and_long] * 5 + [few_and_long] * apart]
    checks = check_loads(total_errors(seconds, decodes), decodes, recorded)
    assert all(abs(load_check.of_whole) < 0.01 for load_check in checks)
    assert all(load_check.unlike == 0 for load_check in checks)  # each feature alone is as recorded
    assert all(load_check.supported for load_check in checks) == known


@pytest.mark.parametrize(
    ("of_whole", "unlike", "unknown", "supported"),
    [
        (0.04, 0.0, 0.2, True),
        (-0.06, 0.0, 0.2, False),
        (0.03, 0.3, 0.2, False),
        (0.01, 0.3, 0.2, True),
        (0, 0, 9, False),
    ],
)
def test_a_load_is_supported_by_its_error_and_by_what_is_known(
    of_whole: float, unlike: float, unknown: float, supported: bool
) -> None:
    assert LoadCheck("full", of_whole, of_whole, unlike, unknown).supported == supported
