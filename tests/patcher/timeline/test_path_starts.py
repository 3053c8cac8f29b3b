"""Agent loops that begin late: who had the time until then."""

from __future__ import annotations

import pytest

from patcher.timeline.files import KeptSpan
from patcher.timeline.intervals import TimeRange
from patcher.timeline.path import critical_path
from patcher.timeline.step_records import StepRecords

MS = 1_000
DRIVER, AGENT, OTHER = range(3)
ROLES = ("driver", "agent", "agent")


@pytest.mark.parametrize(
    ("name", "first", "stalls", "begins"),
    [
        ("gen", 700, {}, ("agent", "start of trajectory", OTHER)),
        ("gen", 700, {DRIVER: [TimeRange(20 * MS, 690 * MS)]}, ("agent", "trajectory", AGENT)),
        ("gen", -50, {}, ("agent", "trajectory", OTHER)),
        ("adv", 700, {}, ("agent", "trajectory", AGENT)),
    ],
)
def test_the_time_until_an_agent_loop_begins_is_its_own_unless_the_driver_stood_still(
    name: str, first: int, stalls: dict[int, list[TimeRange]], begins: tuple[str, str, int]
) -> None:
    """One agent loop begins soon; the other one begins at ``first``, and ends last."""
    spans = [
        KeptSpan(start * MS, end * MS, kind, what, None, at, 0, process)
        for at, (process, kind, what, start, end) in enumerate(
            [
                (DRIVER, "phase", name, 0, 1000), (AGENT, "trajectory", "", 5, 720), (OTHER, "trajectory", "", first, 990)
            ],
            1,
        )
    ]  # fmt: skip
    earlier = (
        KeptSpan(start * MS, end * MS, "trajectory", "", None, 9, 0, OTHER) for start, end in ((-90, -60), (-50, 0))
    )
    spans += earlier if name == "gen" and first > 0 else ()
    records = StepRecords(0, 1000 * MS, DRIVER, spans, {}, ROLES, (None,) * 3, stalls=stalls)
    pieces = {(piece.role, piece.what, piece.process) for piece in critical_path(records) if piece.start < 600 * MS}
    assert begins in pieces
    assert (("agent", "start of trajectory", OTHER) in pieces) == (begins[1] == "start of trajectory")
