"""Progress of each worker: saved, without a trace, at work, or not asked at all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from patcher.workers import progress
from patcher.workers.folder import StateFolder
from patcher.workers.progress import AT_WORK, DONE, IDLE, LOST, RunProgress
from patcher.workers.request import FiledRequest
from tests.patcher.workers.maker import ON_DEMAND, Saved, ended, here

NOW = time.time()
GONE = ended()
TWO = {"window": "30:60,100:110", "done": False}


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "traces")


def surveyed(saved: Saved, **more: Any) -> RunProgress:
    return progress.collect(StateFolder(saved.path), NOW + 1, **more)


STATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "installed": ({"state": "installed"}, AT_WORK, ""),
    "waiting": ({"state": "waiting"}, AT_WORK, ""),
    "armed": ({"state": "armed"}, AT_WORK, ""),
    "recording": ({"state": "recording"}, AT_WORK, ""),
    "saved": ({"state": "saved", "traces": ["/t/a.json"]}, DONE, ""),
    "saved, and the trace was moved": ({"state": "saved", "traces": ["/t/elsewhere.json"]}, DONE, ""),
    "not recorded": ({"state": "not recorded", "why": "the run ended"}, LOST, "the run ended"),
    "too short": (
        {"state": "not recorded", "why": "idle after 25 decode steps"}, LOST, "idle after 25 decode steps; this window would fit: --decode 12:25",
    ),
    "long enough elsewhere": (
        {"state": "not recorded", "why": "idle after 90 decode steps", "window": "200:230"}, LOST,
        "idle after 90 decode steps; this window would fit: --decode 45:75",
    ),
    "without an end, in millions": (
        {"state": "not recorded", "why": "idle after 2500000 decode steps", "window": "3000000:"}, LOST,
        "idle after 2500000 decode steps; this window would fit: --decode 1250000:2500000",
    ),
    "a single unit": ({"state": "not recorded", "why": "idle after 1 decode steps"}, LOST, "idle after 1 decode steps"),
    "a state that did not come": (
        {"state": "not recorded", "why": "idle after 90 decode steps", "load": 9, "origin": None}, LOST, "idle after 90 decode steps",
    ),
    "failed": ({"state": "failed", "why": "RuntimeError: full"}, LOST, "RuntimeError: full"),
    "failed without a word": ({"state": "failed"}, LOST, "failed"),
    "alive here": ({"state": "recording", **here()}, AT_WORK, ""),
    "gone here": ({"state": "recording", **here(pid=GONE)}, LOST, f"process {GONE} ended; its last state was recording"),
    "saved, then gone": ({"state": "saved", "traces": ["/t/a.json"], **here(pid=GONE)}, DONE, ""),
    "saving": ({"state": "saving", **here()}, AT_WORK, ""),
    "compressing": ({"state": "saving", "traces": ["/t/a.json"], **here()}, AT_WORK, ""),
    "compressing elsewhere": ({"state": "saving", "traces": ["/t/a.json"]}, DONE, ""),
    "saving elsewhere": ({"state": "saving"}, AT_WORK, ""),
    "compressing, then gone": ({"state": "saving", "traces": ["/t/a.json"], **here(pid=GONE)}, DONE, ""),
    "saving, then gone": ({"state": "saving", **here(pid=GONE)}, LOST, f"process {GONE} ended; its last state was saving"),
    "a piece, then gone": (
        {"state": "saving", "done": False, "traces": ["/t/a.json"], **here(pid=GONE)}, LOST,
        f"process {GONE} ended before everything was recorded",
    ),
    "silent elsewhere": ({"state": "recording", "at": NOW - 10_000}, AT_WORK, ""),
    "one of two windows": ({"state": "saved", **TWO, "traces": ["/t/a.json"]}, AT_WORK, ""),
    "both windows": ({"state": "saved", **TWO, "done": True, "traces": ["/t/a.json", "/t/b.json"]}, DONE, ""),
    "saved, and says that it is not": ({"state": "saved", "done": False, "traces": ["/t/a.json"]}, AT_WORK, ""),
    "not recorded in this rollout": ({"state": "not recorded", "done": False}, AT_WORK, ""),
    "not recorded in the last one": ({"state": "not recorded", "done": True, "why": "no disk"}, LOST, "no disk"),
    "not done, and gone": (
        {"state": "saved", "done": False, "traces": ["/t/a.json"], **here(pid=GONE)}, LOST,
        f"process {GONE} ended before everything was recorded",
    ),
    "one of two windows, then gone": (
        {"state": "saved", **TWO, "traces": ["/t/a.json"], **here(pid=GONE)}, LOST,
        f"process {GONE} ended before everything was recorded",
    ),
    "on demand, and not asked": ({"state": "waiting", **ON_DEMAND}, IDLE, ""),
    "on demand, not asked, and gone": ({"state": "waiting", **ON_DEMAND, **here(pid=GONE)}, IDLE, ""),
}  # fmt: skip


@pytest.mark.parametrize(("told", "outcome", "why"), STATES.values(), ids=STATES)
def test_what_comes_of_a_worker(saved: Saved, told: dict[str, Any], outcome: str, why: str) -> None:
    saved.trace("a.json")
    saved.trace("b.json")
    saved.state(**{"at": NOW, **told})
    found = surveyed(saved)
    (row,) = found.rows
    assert (row.outcome, row.why) == (outcome, why)
    assert found.settled is (outcome in (DONE, LOST))
    assert found.complete is (outcome == DONE)


# ---------------------------------------------------------------- on demand

TOOK = {"request": "abc123"}
ASKED: dict[str, tuple[dict[str, Any], str, str]] = {
    "not seen yet": ({"state": "waiting"}, AT_WORK, ""),
    "for a later rollout": ({"state": "waiting", "rollout": 1}, AT_WORK, ""),
    "too late": ({"state": "waiting", "rollout": 3}, LOST, "the recording request asks for rollout 2, but the worker is already at 3"),
    "gone before it was asked": ({"state": "waiting", "at": NOW - 9, **here(pid=GONE)}, IDLE, ""),
    "gone since": (
        {"state": "waiting", "at": NOW + 9, **here(pid=GONE)}, LOST, f"process {GONE} ended; its last state was waiting"
    ),
    "taken, window ahead": ({"state": "waiting", **TOOK, "rollout": 2}, AT_WORK, ""),
    "taken, recording": ({"state": "recording", **TOOK, "rollout": 2}, AT_WORK, ""),
    "taken, saved": ({"state": "saved", **TOOK, "rollout": 2, "traces": ["/t/new.json"]}, DONE, ""),
    "refused": ({"state": "not recorded", **TOOK, "why": "request refused: window"}, LOST, "request refused: window"),
    "refused unread": ({"state": "not recorded", "refused": True, "why": "no JSON", "at": NOW + 1}, LOST, "no JSON"),
    "not refused, whatever its words": (
        {"state": "not recorded", "refused": False, "why": "request refused: x", "at": NOW + 1}, AT_WORK, "",
    ),
    "another was refused unread": ({"state": "not recorded", "refused": True, "why": "no JSON"}, AT_WORK, ""),
    "saved, and never done": (
        {"state": "saved", **TOOK, "rollout": 2, "done": False, "traces": ["/t/new.json"]}, DONE, "",
    ),
    "served, and waiting again": ({"state": "waiting", **TOOK, "rollout": 3, "traces": ["/t/old.json", "/t/new.json"]}, DONE, ""),
    "waiting again without a trace": (
        {"state": "waiting", **TOOK, "rollout": 3, "traces": ["/t/old.json"]}, LOST,
        "rollout 2 ended, but no trace was saved",
    ),
    "served one before": ({"state": "saved", "request": "older", "traces": ["/t/old.json"], "rollout": 1}, AT_WORK, ""),
    "another rank": ({"state": "waiting", "rank": 5}, IDLE, ""),
}  # fmt: skip


@pytest.fixture
def asked(saved: Saved) -> Saved:
    """A request of which one trace is older and one younger."""
    os.utime(saved.request(at=2), (NOW, NOW))
    for name, age in (("old.json", -50), ("new.json", 50)):
        path = saved.trace(name)
        for file in (path, path.with_name(f"{name}.rlpatch.json")):
            os.utime(file, (NOW + age, NOW + age))
    os.utime(saved.path / "old.json", (NOW + 60, NOW + 60))  # it was looked at since
    return saved


@pytest.mark.parametrize(("told", "outcome", "why"), ASKED.values(), ids=ASKED)
def test_what_comes_of_a_worker_that_is_asked(asked: Saved, told: dict[str, Any], outcome: str, why: str) -> None:
    asked.state(**{"at": NOW, **ON_DEMAND, **told})
    (row,) = surveyed(asked).rows
    assert (row.outcome, row.why) == (outcome, why)


def test_a_request_that_expired_is_waited_for_no_longer(saved: Saved) -> None:
    saved.request(expires=NOW - 1)
    saved.state("waiting", **ON_DEMAND, at=NOW)
    (row,) = surveyed(saved).rows
    assert (row.outcome, row.why) == (LOST, "the recording request has expired")


@pytest.mark.parametrize(
    ("lies", "told", "outcome"),
    [
        ("def456", {}, LOST),
        (None, {}, LOST),
        ("def456", {**TOOK, "state": "recording"}, AT_WORK),
        (None, {**TOOK, "state": "saved", "traces": ["/t/new.json"]}, DONE),
    ],
)
def test_what_came_of_one_request(asked: Saved, lies: str | None, told: dict[str, Any], outcome: str) -> None:
    filed = FiledRequest(id="abc123", window="30:60", ranks="0", at=2, expires=NOW + 60, written=NOW)
    if lies:
        asked.request(id=lies)
    else:
        (asked.folder / "rollout.request").unlink()
    asked.state(**{"state": "waiting", "at": NOW, "rollout": 2, **ON_DEMAND, **told})
    (row,) = surveyed(asked, requested=filed).rows
    assert (row.outcome, bool(row.why)) == (outcome, outcome == LOST)


@pytest.mark.parametrize(("role", "outcome"), [("ref", AT_WORK), ("actor", IDLE)])
def test_a_request_for_a_role_is_for_its_workers_only(saved: Saved, role: str, outcome: str) -> None:
    saved.request(role="ref", at=2)
    saved.state("waiting", **ON_DEMAND, at=NOW, role=role)
    (row,) = surveyed(saved).rows
    assert row.outcome == outcome


# ---------------------------------------------------------------- whom to wait for


@pytest.mark.parametrize(
    ("ranks", "world", "there", "missing"),
    [
        ("0", 8, (0,), ()),
        ("0,3", 8, (0,), (3,)),
        ("0,3", 2, (0,), ()),  # there is no rank 3
        ("0,3", 0, (3,), (0,)),  # nobody knows how many there are
        ("all", 4, (0, 1), (2, 3)),
        ("all", 2, (0, 1), ()),
        ("all", 0, (0, 5), ()),
        ("", 4, (0,), ()),
    ],
)
def test_ranks_that_are_still_to_come(
    saved: Saved, ranks: str, world: int, there: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    saved.trace("a.json")
    for rank in there:
        saved.state("saved", rank=rank, ranks=ranks, world=world, pid=100 + rank, traces=["/t/a.json"])
    found = surveyed(saved)
    assert [rank for one in found.missing for rank in one.ranks] == list(missing)
    assert found.settled is found.complete is (not missing)


def test_each_stage_and_replica_has_ranks_of_its_own(saved: Saved) -> None:
    saved.state("saved", rank=0, ranks="0,1", world=2, replica="0")
    saved.state("saved", rank=1, ranks="0,1", world=2, replica="1", pid=5)
    saved.state("saved", step=1, rank=0, ranks="0,1", world=2, pid=6)
    assert [(one.stage, one.replica, one.ranks, one.lost) for one in surveyed(saved).missing] == [
        ("update-policy", "", (1,), False), ("rollout", "0", (1,), False), ("rollout", "1", (0,), False),
    ]  # fmt: skip


def test_where_all_have_ended_nobody_is_waited_for(saved: Saved) -> None:
    saved.state("saved", ranks="0,1", world=2, **here(pid=GONE), traces=["/t/a.json"])
    found = surveyed(saved)
    assert [(one.ranks, one.lost) for one in found.missing] == [((1,), True)]
    assert (found.settled, found.complete) == (True, False)
    saved.state("saved", rank=2, ranks="0,1,2", world=3, **here(), traces=["/t/a.json"])
    assert [(one.ranks, one.lost) for one in surveyed(saved).missing] == [((1,), False)]


def test_a_world_without_end_costs_nothing(saved: Saved) -> None:
    saved.state("saved", ranks="all", world=2**62)
    assert len(surveyed(saved).missing[0].ranks) == 999_999


def test_a_folder_without_workers_is_not_settled(saved: Saved) -> None:
    found = surveyed(saved)
    assert (found.settled, found.complete) == (False, False)


# ---------------------------------------------------------------- runs before

EARLIER: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "gone, and another one in its place": (here(pid=GONE, at=NOW - 60), here(at=NOW), 1),
    "gone, and nobody in its place": (here(pid=GONE, at=NOW - 60), here(at=NOW, rank=1), 0),
    "gone, and its place was taken before": (here(pid=GONE, at=NOW + 60), here(at=NOW), 0),
    "two replicas that do not know of each other": (here(pid=os.getppid(), at=NOW - 1), here(at=NOW), 0),
    "silent elsewhere, and another one in its place": ({"pid": 1, "at": NOW - 9000}, {"pid": 2, "at": NOW}, 1),
    "elsewhere within the hour": ({"pid": 1, "at": NOW - 900}, {"pid": 2, "at": NOW}, 0),
    "another role": (
        {"pid": 1, "at": NOW - 9000, "step": 1, "role": "ref"}, {"pid": 2, "at": NOW, "step": 1, "role": "actor"}, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "second", "earlier"), EARLIER.values(), ids=EARLIER)
def test_workers_of_an_earlier_run(saved: Saved, first: dict[str, Any], second: dict[str, Any], earlier: int) -> None:
    for told in (first, second):
        saved.state(**{"state": "recording", **told})
    found = surveyed(saved)
    assert found.earlier == earlier
    assert len(found.rows) == 2 - earlier


def test_only_those_that_are_watched(saved: Saved) -> None:
    saved.state(rank=0)
    saved.state(rank=1, pid=7)
    assert [row.worker.rank for row in surveyed(saved, is_watched=lambda worker: worker.rank == 1).rows] == [1]
