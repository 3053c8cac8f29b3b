"""The parts of exposed communication, and who is a straggler, as tables."""

from __future__ import annotations

import pytest

from patcher.traces.analysis import exposed
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.model import Collective, Rank, RankProfile, RecordedUnit


def told(
    ns: int, wait: int | None = None, idle: int | None = None, unit: int = 0, index: int = 0, kind: str = "allreduce"
) -> Collective:
    return Collective("g", index, "x", ns, None, wait, idle, unit, kind)


def meetings(*ranks: Rank, waits: dict[int, int] | None = None, across: tuple[int, ...] = ()) -> Meetings:
    """Return meetings of rank 0's collectives, by their index."""
    keys = {at: ("r0", 0, "g", at) for at in range(3)}
    return Meetings(
        ranks, True, {keys[at]: ns for at, ns in (waits or {}).items()}, frozenset(keys[at] for at in across), ()
    )


PARTS: dict[str, tuple[list[Collective], Meetings, dict[str, int]]] = {
    "nothing is known": ([told(80)], meetings(), {"transfer": 100}),
    "the vendor tells": ([told(80, 30, 20)], meetings(), {"waiting": 30, "idle": 20, "transfer": 50}),
    "the ranks tell more": ([told(80, 30, 20)], meetings(waits={0: 40}), {"waiting": 40, "idle": 10, "transfer": 50}),
    "the ranks tell less": ([told(80, 30, 20)], meetings(waits={0: 10}), {"waiting": 10, "idle": 20, "transfer": 70}),
    "the ranks tell nothing of waiting": ([told(80, 30, 20)], meetings(waits={0: 0}), {"idle": 20, "transfer": 80}),
    "more than it takes": ([told(80, 90, 20)], meetings(), {"waiting": 80, "transfer": 20}),
    "idle for all of the remainder": ([told(80, 30, 70)], meetings(), {"waiting": 30, "idle": 50, "transfer": 20}),
    "more than is exposed": ([told(80, 70, 5), told(80, 60, 5, index=1)], meetings(), {"waiting": 100}),
    "idle beyond what is exposed": ([told(80, 70, 5), told(80, 20, 55, index=1)], meetings(), {"waiting": 90, "idle": 10}),
    "a send": ([told(30, kind="send"), told(80, 10, 5, index=1)], meetings(), {"pipeline": 30, "waiting": 10, "idle": 5, "transfer": 55}),
    "across stages": ([told(80, 30, 20)], meetings(waits={0: 40}, across=(0,)), {"pipeline": 40, "idle": 10, "transfer": 50}),
    "of another unit": ([told(80, 30, 20, unit=7)], meetings(), {"transfer": 100}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_add_up_to_what_is_exposed(name: str) -> None:
    collectives, met, parts = PARTS[name]
    unit = RecordedUnit(number=0, host_ns=9, kernels=1, communication_ns=100)
    profile = RankProfile("r0", "torch", 0, "H100", (unit,), collectives=tuple(collectives))
    found = exposed.parts_of(profile, met)
    assert {part: ns for part, ns in found.items() if ns} == parts
    assert sum(found.values()) == 100


@pytest.mark.parametrize(
    ("awaited", "slow"),
    [([30, 20], 0), ([29, 20], None), ([20, 30], 1), ([0, 0], None), ([30], None), ([], None), ([10, 45, 30], 1), ([5, 0, 0], 0)],
)  # fmt: skip
def test_the_straggler_is_awaited_half_as_long_again_as_any_other(awaited: list[int], slow: int | None) -> None:
    ranks = [Rank(at, f"r{at}", 1, 100, 3, 5, ns, 1, 0) for at, ns in enumerate(awaited)]
    found = exposed.straggler(meetings(*ranks))
    assert (found and found.rank) == slow
