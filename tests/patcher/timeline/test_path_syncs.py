"""Weight syncs of two ranks, each to an engine of its own: who of the four is waited for, and who is named."""

from __future__ import annotations

import pytest

from patcher.timeline.causes import ProcessRank, sum_step_times, verdicts
from patcher.timeline.files import KeptSpan
from patcher.timeline.intervals import TimeRange
from patcher.timeline.model import NOT_KNOWN
from patcher.timeline.path import critical_path
from patcher.timeline.shares import sync_work
from patcher.timeline.step_records import StepRecords

MS = 1_000
DRIVER, FIRST, SECOND, ENGINE, OTHER_ENGINE = range(5)
ROLES = ("driver", "trainer", "trainer", "engine", "engine")
REPLICAS = (None, None, None, 0, 1)
WHO = [ProcessRank(None, None), ProcessRank(None, 0), ProcessRank(None, 1), ProcessRank(0, None), ProcessRank(1, None)]


def step(
    begins: int = 0,
    gathers: int = 0,
    loads: int = 0,
    ends: int = 0,
    stalls: tuple[int, int] | None = None,
    waited: int | None = None,
) -> StepRecords:
    """Return a step of one sync, in which the second rank or engine takes so many milliseconds more.

    Its engine ``begins`` to receive later, its rank ``gathers`` weights for longer, its engine ``loads`` them for
    longer, or the sync ``ends`` later after that. ``stalls`` is when the second rank runs nothing, ``waited`` how long
    the first rank waits in collectives.
    """
    spans = list[KeptSpan]()

    def add(process: int, kind: str, name: str, start: int, end: int, parent: int = 0) -> int:
        waits = waited if process == FIRST and kind == "sync" else None
        spans.append(KeptSpan(start * MS, end * MS, kind, name, None, len(spans) + 1, parent, process, waits))
        return len(spans)

    end = 102 + begins + gathers + loads + ends
    add(DRIVER, "call", "update_weights", 0, end)
    for rank, engine in ((FIRST, ENGINE), (SECOND, OTHER_ENGINE)):
        later, sends, takes, answers = (begins, gathers, loads, ends) if rank == SECOND else (0, 0, 0, 0)
        loaded = 90 + later + sends + takes
        work = add(rank, "work", "update_weights", 2, loaded + answers + 10)
        add(rank, "sync", "update_weights", 3, loaded + answers + 8, work)
        receives = add(engine, "sync", "update_weights_from_ipc", 5 + later, loaded + 6)
        add(engine, "sync", "_update_weights", 70 + later + sends, loaded, receives)
    stopped = {SECOND: [TimeRange(stalls[0] * MS, stalls[1] * MS)]} if stalls else {}
    return StepRecords(0, end * MS, DRIVER, spans, {}, ROLES, REPLICAS, stalls=stopped)


@pytest.mark.parametrize(
    ("slow", "role", "what", "who"),
    [
        (step(gathers=900), "trainer", "update_weights", ProcessRank(None, 1)),
        (step(loads=900), "engine", "_update_weights", ProcessRank(1, None)),
        (step(begins=900), "engine", "start of update_weights_from_ipc", ProcessRank(1, None)),
        (step(ends=900, stalls=(110, 990)), "trainer", "update_weights", ProcessRank(None, 1)),
        (step(begins=900, stalls=(10, 890)), "trainer", "update_weights", ProcessRank(None, 1)),
    ],
)
def test_a_slow_sync_is_of_the_rank_or_the_engine_that_took_longer(
    slow: StepRecords, role: str, what: str, who: ProcessRank
) -> None:
    steps = [*[step()] * 4, slow]
    amounts = [sum_step_times(critical_path(records), (None, 0), sync_work(records), "") for records in steps]
    *_, verdict = verdicts(amounts, WHO)
    cause = verdict.limited_by
    assert cause is not None
    assert (cause.role, cause.what, cause.phase) == (role, what, "")
    assert (cause.replica, cause.rank) == who
    assert cause.excess_seconds == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [
        (step(ends=900), NOT_KNOWN), (step(gathers=900, waited=20), NOT_KNOWN), (step(gathers=900), "limited"),
        (step(gathers=900, waited=20, stalls=(110, 900)), "limited"), (step(ends=15), "limited"),
    ],
    ids=["engines have their weights", "all ranks have gathered", "no rank is known to wait", "a rank that stood still", "20 ms"],
)  # fmt: skip
def test_a_sync_that_lasts_after_gathering_is_of_nobody_that_recorded(slow: StepRecords, verdict: str) -> None:
    steps = [*[step()] * 4, slow]
    amounts = [sum_step_times(critical_path(records), (None, 0), sync_work(records), "") for records in steps]
    *_, found = verdicts(amounts, WHO)
    assert found.verdict == verdict
    assert ("end of update_weights" in found.why) == (verdict == NOT_KNOWN)
