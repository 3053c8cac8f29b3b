"""Delays in a run of real processes on three hosts with clocks apart are named, and nobody is blamed who has none.

``python -m fixtures.timeline.simulation 150`` puts in 300 of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.timeline import simulation
from tests.matrix import thinned

KINDS = [*simulation.KINDS]
PAIRS = list(zip(KINDS, [*KINDS[8:], *KINDS[:8]], strict=True))
"""The first nine have each kind; the others, in other company, run with --thorough."""


@pytest.mark.matrix
def test_delays_in_every_second_step_that_polling_hides_in_part_are_named(tmp_path: Path) -> None:
    kinds = ("reward", "request kept", "prefill", "advantage")
    drawn = simulation.scene(7, kinds)
    delays = tuple(replace(one, step=2 * at) for at, one in enumerate(drawn.delays, 1))
    found = simulation.play(tmp_path, replace(drawn, polls=True, interval=0.5, delays=delays))
    if found is None:
        pytest.skip("the machine has no time: sleeps of milliseconds take much longer")
    assert [(delay, fault) for delay, fault in found[1] if fault] == []


@pytest.mark.parametrize("pair", thinned(PAIRS, ()), ids=" and ".join)
def test_delays_are_named_with_their_seconds(
    pair: tuple[str, str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    if pair not in PAIRS[:9] and not pytestconfig.getoption("--thorough"):
        pytest.skip("--thorough: each kind of delay is simulated once without")
    found = simulation.play(tmp_path, simulation.scene(100 + PAIRS.index(pair), pair))
    if found is None:
        pytest.skip("the machine has no time: sleeps of milliseconds take much longer")
    timeline, faults = found
    assert [(delay, fault) for delay, fault in faults if fault] == []
    for step in timeline.steps:
        assert sum(one.seconds for one in step.critical_path) == pytest.approx(step.seconds, rel=0.01)
    errors = [clock.error_seconds for clock in timeline.clocks]
    assert [clock.source for clock in timeline.clocks].count("causality") == 2
    assert all(error is not None and error < 0.002 for error in errors)
