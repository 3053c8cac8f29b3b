from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from patcher.timeline import path
from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import TimeRange, end_of
from patcher.timeline.path import (
    COLLECTION,
    PAUSE,
    PathPiece,
    _Walk,
    critical_path,
    iteration_pieces,
    merged,
    walk_back,
)
from patcher.timeline.step_records import DEEPEST, StepRecords, calls_for

MS = 1_000
MINUTE = 60_000  # in milliseconds: the ranks' tolerance is a share of their works, wherever in a run these are
DRIVER, FIRST, SECOND, SERVER, ENGINE, AGENT, REWARD = range(7)
ROLES = ("driver", "trainer", "trainer", "server", "engine", "agent", "reward")
REPLICAS = (None, None, None, 0, 0, None, None)


class Rows:
    """Spans in milliseconds, with ids as they come."""

    def __init__(self) -> None:
        self.spans: list[KeptSpan] = []
        self.iterations = IterationColumns()

    def add(
        self,
        process: int,
        kind: str,
        name: str,
        start: float,
        end: float | None,
        parent: int = 0,
        amount: int | None = None,
        waited: float | None = None,
    ) -> int:
        identity = len(self.spans) + 1
        stop = None if end is None else round(end * MS)
        waits = None if waited is None else round(waited * MS)
        self.spans.append(KeptSpan(round(start * MS), stop, kind, name, amount, identity, parent, process, waits))
        return identity

    def iterate(self, start: float, end: float, tokens: int) -> None:
        self.iterations.extend([round(start * MS)], [round(end * MS)], [1], [tokens])

    def path(self, end: float, start: float = 0, **more: object) -> list[PathPiece]:
        records = StepRecords(
            round(start * MS), round(end * MS), DRIVER, self.spans, {ENGINE: self.iterations}, ROLES, REPLICAS, **more  # type: ignore[arg-type]
        )  # fmt: skip
        found = critical_path(records)
        assert sum(one.end - one.start for one in found) == round((end - start) * MS)
        return found


def short(pieces: Sequence[PathPiece]) -> list[tuple[object, ...]]:
    return [(one.start / MS, one.end / MS, one.role, one.what, one.process) for one in pieces]


WALKS = {
    "nothing": ([], [(None, 0, 10)]),
    "one part": ([(2, 5)], [(None, 5, 10), (0, 2, 5), (None, 0, 2)]),
    "the last that ended": ([(0, 4), (0, 9)], [(None, 9, 10), (1, 0, 9)]),
    "then what was before": ([(0, 4), (3, 9)], [(None, 9, 10), (1, 3, 9), (0, 0, 3)]),
    "beyond both ends": ([(-5, 20)], [(0, 0, 10)]),
    "of several that go on, the first": ([(4, 20), (2, 30), (6, 12)], [(1, 2, 10), (None, 0, 2)]),
    "what is empty is passed by": ([(5, 5), (3, 8)], [(None, 8, 10), (1, 3, 8), (None, 0, 3)]),
}


@pytest.mark.parametrize("name", WALKS)
def test_the_walk_goes_to_who_ended_last(name: str) -> None:
    intervals, expected = WALKS[name]
    parts = [KeptSpan(begin, end, "work", "", None, at, 0, 0) for at, (begin, end) in enumerate(intervals)]
    found = [(None if one is None else one.id, begin, end) for one, begin, end in walk_back(parts, 0, 10)]
    assert found == expected


MERGED: dict[str, tuple[list[tuple[int, int, str, int | None, int]], list[tuple[int, int, str, int]]]] = {
    "alike, with their delays": ([(0, 5, "a", 1, 2), (5, 9, "a", 1, 3)], [(0, 9, "a", 5)]),
    "apart": ([(0, 5, "a", 1, 0), (6, 9, "a", 1, 0)], [(0, 5, "a", 0), (6, 9, "a", 0)]),
    "of two activities": ([(0, 5, "a", 1, 0), (5, 9, "b", 1, 0)], [(0, 5, "a", 0), (5, 9, "b", 0)]),
    "of two processes": ([(0, 5, "a", 1, 0), (5, 9, "a", None, 0)], [(0, 5, "a", 0), (5, 9, "a", 0)]),
    "empty": ([(0, 0, "a", 1, 0), (0, 5, "b", 1, 0), (5, 5, "c", 1, 0)], [(0, 5, "b", 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_pieces_that_differ_only_in_time_are_one(name: str) -> None:
    rows, expected = MERGED[name]
    pieces = [PathPiece(start, end, "r", "k", what, "p", at, late) for start, end, what, at, late in rows]
    assert [(piece.start, piece.end, piece.what, piece.late) for piece in merged(pieces)] == expected


ITERATIONS: dict[str, tuple[list[tuple[int, int, int, int]], list[tuple[int, int, str]]]] = {
    "decode steps": ([(10, 20, 2, 2), (25, 30, 2, 1)], [(10, 30, "decode")]),
    "a prefill before them": ([(10, 20, 2, 30), (25, 30, 2, 2)], [(10, 25, "prefill"), (25, 30, "decode")]),
    "20 ms apart": ([(15, 20, 2, 2), (40, 45, 2, 2)], [(15, 45, "decode")]),
    "21 ms apart": ([(15, 20, 2, 2), (41, 46, 2, 2)], [(15, 20, "decode"), (41, 46, "decode")]),
    "thrice their length apart": ([(0, 30, 1, 1), (90, 99, 1, 1), (120, 150, 1, 1)], [(0, 150, "decode")]),
    "one before that goes on": ([(-5, 4, 2, 2), (-3, 9, 2, 2), (20, 30, 2, 2)], [(-3, 30, "decode")]),
    "one before, whose gap is short": ([(-30, -4, 2, 2), (5, 30, 2, 2)], [(-30, 30, "decode")]),
    "one long before": (
        [(-200, -170, 1, 1), (5, 30, 1, 1), (30, 31, 1, 1)],
        [(-200, -170, "decode"), (5, 31, "decode")],
    ),
    "one behind": ([(10, 20, 1, 1), (200, 210, 1, 1)], [(10, 20, "decode")]),
    "one that overlaps the next": ([(10, 60, 2, 9), (20, 30, 2, 2)], [(10, 20, "prefill"), (20, 30, "decode")]),
    "none": ([], []),
}


@pytest.mark.parametrize("name", ITERATIONS)
def test_iterations_head_to_head_are_one_piece(name: str) -> None:
    rows, expected = ITERATIONS[name]
    columns = IterationColumns()
    for start, end, requests, tokens in rows:
        columns.extend([start * MS], [end * MS], [requests], [tokens])
    pieces = iteration_pieces(columns, 0, 200 * MS, "gen", ENGINE)
    assert [(piece.start // MS, piece.end // MS, piece.what) for piece in pieces] == expected
    assert {piece[2:4] + piece[5:] for piece in pieces} <= {("engine", "iteration", "gen", ENGINE, 0)}


@pytest.mark.parametrize(
    ("lengths", "first", "last", "gap"),
    [
        ([30, 30, 7], 0, 3, 90), ([6, 7, 8], 0, 3, 21), ([6, 6], 0, 2, 20), ([40, 7, 30], 0, 1, 120), ([40, 7, 7, 9], 1, 3, 21),
        ([30], 0, 1, 90), ([], 0, 0, 20), ([7] * 2048 + [30] * 2049, 0, 4097, 90), ([7] * 2049 + [30] * 2049, 0, 4098, 21),
    ],
)  # fmt: skip
def test_a_gap_of_thrice_the_usual_iteration_counts_as_none(
    lengths: list[int], first: int, last: int, gap: int
) -> None:
    columns = IterationColumns()
    columns.extend([0] * len(lengths), [length * MS for length in lengths])
    assert path.largest_joined_gap(columns, first, last) == gap * MS


def test_phases_calls_works_and_units() -> None:
    rows = Rows()
    step = rows.add(DRIVER, "phase", "step", 0, 100)
    update = rows.add(DRIVER, "phase", "update_actor", 10, 90, step)
    rows.add(DRIVER, "call", "group_update_actor", 12, 88, update)
    work = rows.add(FIRST, "work", "update_actor", 14, 86)
    rows.add(FIRST, "unit", "micro-batch", 20, 80, work)
    assert short(rows.path(105)) == [
        (0, 10, "driver", "between phases", DRIVER), (10, 12, "driver", "update_actor", DRIVER),
        (12, 14, "trainer", "start of update_actor", FIRST), (14, 20, "trainer", "update_actor", FIRST),
        (20, 80, "trainer", "micro-batch", FIRST), (80, 86, "trainer", "update_actor", FIRST),
        (86, 88, "driver", "call group_update_actor", DRIVER), (88, 90, "driver", "update_actor", DRIVER),
        (90, 100, "driver", "between phases", DRIVER), (100, 105, "driver", "after the last phase", DRIVER),
    ]  # fmt: skip


def test_what_is_nested_too_deeply_is_of_the_span_around_it() -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "train", 0, 400)
    parent = rows.add(FIRST, "work", "train", 0, 400)
    for depth in range(1, DEEPEST + 9):
        parent = rows.add(FIRST, "phase", f"level {depth}", depth, 400 - depth, parent)
    levels = [int(one.what.split()[1]) for one in rows.path(400) if one.what.startswith("level")]
    assert levels == [*range(1, max(levels)), *range(max(levels), 0, -1)]
    assert DEEPEST - 3 <= max(levels) <= DEEPEST + 1


@pytest.mark.parametrize(("levels", "beside", "spans"), [(DEEPEST + 9, 0, DEEPEST), (3, 2 * DEEPEST, 3 + 4 * DEEPEST)])
def test_ranks_are_compared_at_as_many_levels(levels: int, beside: int, spans: int) -> None:
    rows = Rows()
    parent = work = rows.add(FIRST, "work", "train", 0, 999)
    for depth in range(1, levels):
        parent = rows.add(FIRST, "phase", "inner", depth, 999 - depth, parent)
    for at in range(beside):
        rows.add(
            FIRST, "unit", "beside", 2 * at, 2 * at + 1, rows.add(FIRST, "unit", "beside", 2 * at, 2 * at + 1, work)
        )
    records = StepRecords(0, 999 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    work_span = rows.spans[work - 1]
    assert len([*_Walk(records)._points(work_span, work_span)]) == 2 * spans


def test_a_call_that_gives_a_future_is_waited_for_in_its_phase() -> None:
    rows = Rows()
    phase = rows.add(DRIVER, "phase", "update", 0, 100)
    rows.add(DRIVER, "call", "train", 0, 1, phase)
    rows.add(FIRST, "work", "train", 5, 95)
    assert (5, 95, "trainer", "train", FIRST) in short(rows.path(100))


@pytest.mark.parametrize("gap", [0, 1])
def test_calls_that_give_futures_at_once_are_waited_for_one_behind_the_other(gap: int) -> None:
    """While a worker has the work before, what comes next is only queued."""
    rows = Rows()
    for name in ("generate", "train"):
        rows.add(DRIVER, "call", name, 1, 2)
    for process, until in ((FIRST, 60), (SECOND, 40)):
        rows.add(process, "work", "generate", 3, until)
        rows.add(process, "work", "train", until + gap, 100)
    path = [(one.start / MS, one.end / MS, one.what, one.process) for one in rows.path(100, 1)]
    assert path == [
        (1, 2, "call generate", DRIVER), (2, 3, "start of generate", None), (3, 60, "generate", FIRST),
        *[(60, 61, "start of train", FIRST)] * gap,
        (60 + gap, 100, "train", None),
    ]  # fmt: skip


CALLS: dict[str, tuple[float, float, float, list[tuple[object, ...]]]] = {
    "to all ranks late": (60, 60, 98, [(0, 60, "driver", "call train", DRIVER)]),
    "to one of them later": (
        60, 80, 98, [(0, 60, "driver", "call train", DRIVER), (60, 80, "trainer", "start of train", SECOND)],
    ),
    "late to one of them": (
        2, 60, 98, [(0, 2, "driver", "call train", DRIVER), (2, 60, "trainer", "start of train", SECOND)],
    ),
    "with a future, to ranks that are busy": (
        60, 60, 1, [(0, 1, "driver", "call train", DRIVER), (1, 60, "trainer", "start of train", None)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_the_time_until_several_ranks_begin_is_of_the_call(name: str, alike: bool) -> None:
    """Only ranks that do the same within it are named."""
    first, second, returns, expected = CALLS[name]
    rows = Rows()
    rows.add(DRIVER, "call", "train", 0, returns)
    for process, begins in ((FIRST, first), (SECOND, second)):
        work = rows.add(process, "work", "train", begins, 90 + process)
        if alike or process == FIRST:
            rows.add(process, "unit", "micro-batch", begins, 90, work)
    pieces = rows.path(98)[: len(expected)]
    if not alike:
        expected = [(*piece[:4], piece[4] if piece[2] == "driver" else None) for piece in expected]
    assert short(pieces) == expected


def test_a_call_to_ranks_that_are_busy_with_an_earlier_one_is_sent_late_only_after_that() -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "prepare", 0, 1)
    rows.add(DRIVER, "call", "train", 2, 98)
    for process, until in ((FIRST, 40), (SECOND, 50)):
        rows.add(process, "work", "prepare", 1, until)
        rows.add(process, "work", "train", 60, 90)
    assert short(rows.path(98, 2)) == [
        (2, 50, "trainer", "start of train", None), (50, 60, "driver", "call train", DRIVER), (60, 90, "trainer", "train", None),
        (90, 98, "driver", "call train", DRIVER),
    ]  # fmt: skip


def test_the_time_until_the_recorded_ranks_begin_is_not_of_the_call_if_others_are_missing() -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "train", 0, 98)
    for process in (FIRST, SECOND):
        rows.add(process, "work", "train", 60, 90)
    assert short(rows.path(98, partial=True))[0] == (0, 60, "trainer", "start of train", None)


Course = tuple[str, str, float, float, float | None]


def ranks(first: Sequence[Course], second: Sequence[Course], end: float, start: float = 0) -> Rows:
    """A call of two ranks that begins at ``start``; the times of their courses are from there on."""
    rows = Rows()
    rows.add(DRIVER, "call", "train", start, start + end)
    for process, course in ((FIRST, first), (SECOND, second)):
        work = rows.add(process, "work", "train", start, start + max(one[3] for one in course))
        for kind, name, begin, stop, waited in course:
            rows.add(process, kind, name, start + begin, start + stop, work, waited=waited)
    return rows


def unit(begin: float, end: float, waited: float | None = None) -> Course:
    return "unit", "micro-batch", begin, end, waited


def gather(begin: float, end: float, waited: float | None = None) -> Course:
    return "wait", "all_gather", begin, end, waited


def test_ranks_without_a_driver_are_compared_by_the_number_of_their_work() -> None:
    """The first rank marks the steps, and is itself one of those that work."""
    rows = Rows()
    for process, delay, begins in ((DRIVER, 0, 2), (FIRST, 40, 0), (SECOND, 0, 1)):
        for number, begin in ((4, begins), (5, 150 + begins)):
            late = delay if number == 5 else 0
            work = rows.add(process, "work", "train", begin, begin + 140, 0, number)
            rows.add(process, "phase", "generate", begin + 5, begin + 15 + late, work)
            rows.add(process, "phase", "loss", begin + 15 + late, begin + 135, work)
    path = rows.path(292, 142)
    assert (157, 205, "generate", FIRST) in [(one.start / MS, one.end / MS, one.what, one.process) for one in path]
    assert {one.process for one in path if one.what != "generate" and one.kind != "gap"} == {None}
    assert {one.phase for one in path} == {""}


def test_what_a_trainer_does_behind_its_micro_batches_has_a_name() -> None:
    rows = Rows()
    work = rows.add(FIRST, "work", "train", 0, 100, 0, 1)
    for begin in (5, 30):
        rows.add(FIRST, "phase", "training_step", begin, begin + 20, work)
    rows.add(FIRST, "phase", "log", 80, 85, work)
    roles = ("trainer", "trainer", *ROLES[2:])
    records = StepRecords(0, 100 * MS, FIRST, rows.spans, {}, roles, REPLICAS)
    found = [(one.role, one.what) for one in critical_path(records)]
    assert found == [
        ("trainer", "train"), ("trainer", "training_step"), ("trainer", "train"), ("trainer", "training_step"),
        ("trainer", "optimizer step and callbacks"), ("trainer", "log"), ("trainer", "callbacks and loading"),
    ]  # fmt: skip


def test_ranks_are_not_compared_with_works_of_another_number_or_name() -> None:
    rows = Rows()
    for process in (DRIVER, FIRST):
        for number, begin in ((4, 0), (5, 50)):
            rows.add(process, "work", "train", begin, begin + 40, 0, number)
        rows.add(process, "work", "evaluate", 90, 99, 0, 5)
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    for group in records.groups.values():
        assert [(work.name, work.amount) for work in group.works] == [(group.call.name, group.call.amount)] * 2


def test_what_a_trainer_does_with_an_engine_in_its_process_is_not_of_the_engine() -> None:
    rows = Rows()
    work = rows.add(ENGINE, "work", "train", 0, 100, 0, 1)
    rows.add(ENGINE, "phase", "rewards", 10, 90, work)
    records = StepRecords(0, 100 * MS, ENGINE, rows.spans, {}, ROLES, REPLICAS)
    assert {(one.role, one.what) for one in critical_path(records)} == {("trainer", "train"), ("trainer", "rewards")}


LOCKSTEP = {
    "together": ([unit(0, 50), unit(50, 100)], [unit(0, 50.5), unit(50.5, 100)], {None: 100.0}, 0),
    "one late before a collective": (
        [unit(0, 50), gather(50, 200), unit(200, 300)], [unit(0, 200), gather(200, 200.5), unit(200.5, 300)],
        {SECOND: 200.0, None: 100.0}, 150,
    ),
    "late once, and behind from then on": (
        [unit(0, 50), unit(50, 100), gather(100, 200)], [unit(0, 150), unit(150, 200), gather(200, 200)],
        {SECOND: 200.0}, 100,
    ),
    "a collective within hides who was late": ([unit(0, 200), unit(200, 300)], [unit(0, 200), unit(200, 300)], {None: 300.0}, 0),
    "waits within tell who was late": (
        [unit(0, 200, 120), unit(200, 300, 2)], [unit(0, 200, 0), unit(200, 300, 1)], {SECOND: 200.0, None: 100.0}, 120,
    ),
    "alike without their waits": ([unit(0, 200, 90)], [unit(0, 200, 88)], {None: 200.0}, 0),
    "waits that one rank lacks tell nothing": ([unit(0, 200, 120)], [unit(0, 200)], {None: 200.0}, 0),
    "late before, and as long within": (
        [unit(0, 50, 0), unit(50, 200, 100)], [unit(0, 150, 0), unit(150, 200, 0)], {SECOND: 150.0, None: 50.0}, 100,
    ),
    "a wait in C++ for a rank that begins later": (
        [unit(0, 50, 0), unit(50, 250, 0)], [unit(0, 150, 0), unit(150, 250, 0)], {SECOND: 150.0, None: 100.0}, 100,
    ),
    "a rank that begins later, and works longer": (
        [unit(0, 50, 0), unit(50, 400, 200)], [unit(0, 150, 0), unit(150, 400, 0)], {SECOND: 400.0}, 200,
    ),
    "courses that differ, ends that do too": ([unit(0, 50)], [unit(0, 50), unit(50, 90)], {SECOND: 90.0}, 40),
    "courses that differ, ends that do not": ([unit(0, 90)], [unit(0, 50), unit(50, 90)], {None: 90.0}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCKSTEP)
def test_among_ranks_who_comes_last_decides(name: str) -> None:
    first, second, expected, late = LOCKSTEP[name]
    end = max(one[3] for one in (*first, *second))
    found = ranks(first, second, end, MINUTE).path(MINUTE + end, MINUTE)
    by_process: dict[int | None, float] = {}
    for one in found:
        by_process[one.process] = by_process.get(one.process, 0) + (one.end - one.start) / MS
    assert by_process == pytest.approx(expected)
    assert sum(one.late for one in found) == pytest.approx(late * MS, abs=2 * MS)


@pytest.mark.parametrize(
    ("values", "room", "expected"),
    [
        ([10, 30], 19, (1, 20)), ([10, 30], 20, (1, 0)), ([50, 0, 10, 20], 5, (0, 40)), ([0, 10, 20, 30, 50], 5, (4, 30)),
        ([7, 7], 0, (0, 0)), ([0, 49, 50], 5, (2, 0)),
    ],
)  # fmt: skip
def test_the_last_rank_leads_over_the_median_of_the_others(
    values: list[int], room: int, expected: tuple[int, int]
) -> None:
    assert path._largest_and_lead(values, room) == expected


def test_no_rank_is_named_where_some_left_no_file() -> None:
    rows = ranks([unit(0, 50)], [unit(0, 90)], 100)
    assert {one.process for one in rows.path(100, partial=True) if one.role == "trainer"} == {None}
    assert short(rows.path(100, partial=True))[-1] == (90, 100, "unrecorded", "train", None)


def test_a_call_whose_works_are_missing_is_not_the_drivers() -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "train", 0, 100)
    assert short(rows.path(100, expected={"train": 2})) == [(0, 100, "unrecorded", "train", None)]
    assert short(rows.path(100)) == [(0, 100, "driver", "call train", DRIVER)]


@pytest.mark.parametrize(("apart", "missed"), [(0.5, False), (50, True)])
def test_of_calls_that_go_out_together_none_lacks_what_the_other_has(apart: float, missed: bool) -> None:
    """verl sends a checkpoint engine's calls to trainers and rollout without waiting: whose a work is, nobody wrote."""
    rows = Rows()
    rows.add(DRIVER, "call", "actor_send", 0, 0.2)
    rows.add(DRIVER, "call", "send", apart, apart + 0.2)
    for process in (ENGINE, SECOND):
        rows.add(process, "work", "send", apart + 1, apart + 10)
    found = short(rows.path(100, expected={"actor_send": 1, "send": 1}))
    assert any(role == "unrecorded" for _, _, role, _, _ in found) is missed


def rollout(*, kept: float = 0, frozen: float = 0, others: bool = True) -> Rows:
    """A trajectory whose request is served from 2 to 90 ms, with an iteration for each 10 ms from 10 on."""
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 0, 100 + kept + frozen)
    trajectory = rows.add(AGENT, "trajectory", "", 1, 95 + kept + frozen)
    rows.add(AGENT, "request", "generate", 2, 92 + kept + frozen, trajectory, 100)
    rows.add(SERVER, "serve", "generate", 3, 91 + kept + frozen, amount=100)
    if others:
        rows.add(SERVER, "serve", "generate", 3, 90 + frozen, amount=7)
    rows.add(AGENT, "reward", "compute_score", 92 + kept + frozen, 95 + kept + frozen, trajectory)
    first = 10 + kept
    rows.iterate(first, first + 20, 100)
    for at in range(30, 90, 10):
        begin = at + kept + (frozen if at >= 60 else 0)
        rows.iterate(begin, begin + 10, 1)
    return rows


def test_a_rollout_goes_to_its_last_trajectory_its_request_and_the_iterations() -> None:
    assert short(rollout().path(100)) == [
        (0, 1, "agent", "start of trajectory", AGENT), (1, 2, "agent", "trajectory", AGENT),
        (2, 3, "server", "start of generate", SERVER),
        (3, 10, "server", "generate", SERVER), (10, 30, "engine", "prefill", ENGINE), (30, 90, "engine", "decode", ENGINE),
        (90, 91, "server", "generate", SERVER), (91, 92, "agent", "request", AGENT),
        (92, 95, "reward", "compute_score", AGENT), (95, 100, "driver", "gen", DRIVER),
    ]  # fmt: skip


def test_a_request_that_no_server_recorded_is_explained_by_what_lies_within() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 0, 100)
    trajectory = rows.add(AGENT, "trajectory", "", 0, 100)
    request = rows.add(AGENT, "request", "generate", 10, 90, trajectory, 100)
    rows.add(AGENT, "phase", "tool", 20, 60, request)
    assert short(rows.path(100))[1:4] == [
        (10, 20, "agent", "request", AGENT), (20, 60, "agent", "tool", AGENT), (60, 90, "agent", "request", AGENT)
    ]  # fmt: skip
    rows.spans.pop()
    unrecorded = [piece for piece in rows.path(100) if piece.role == "unrecorded"]
    assert [(piece.start, piece.end, piece.kind, piece.what) for piece in unrecorded] == [
        (10 * MS, 90 * MS, "gap", "generate")
    ]  # fmt: skip


def test_the_log_of_a_step_and_what_comes_before_and_behind_its_phases_have_names_of_their_own() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "log", 0, 10)
    rows.add(DRIVER, "phase", "gen", 30, 60)
    rows.add(DRIVER, "phase", "adv", 70, 80)
    assert [what for _, _, _, what, _ in short(rows.path(100))] == [
        "log", "before the first phase", "gen", "between phases", "adv", "after the last phase"
    ]  # fmt: skip


def test_a_server_that_stops_its_requests_waits_for_the_iteration_that_goes_on() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "update_weights", 0, 400)
    rows.add(SERVER, "sync", "abort_all_requests", 10, 310)
    rows.iterate(5, 305, 1)
    assert short(rows.path(400))[1:3] == [
        (10, 305, "engine", "decode", ENGINE), (305, 310, "server", "abort_all_requests", SERVER)
    ]  # fmt: skip


def test_of_a_weight_sync_the_engine_has_what_it_does_with_the_weights_and_the_trainer_the_remainder() -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "update_weights", 0, 100)
    work = rows.add(FIRST, "work", "update_weights", 2, 98)
    rows.add(FIRST, "sync", "update_weights", 3, 97, work)
    receives = rows.add(ENGINE, "sync", "update_weights_from_ipc", 5, 96)
    rows.add(ENGINE, "sync", "_update_weights", 30, 90, receives)
    assert short(rows.path(100))[2:7] == [
        (3, 5, "engine", "start of update_weights_from_ipc", ENGINE), (5, 30, "trainer", "update_weights", FIRST),
        (30, 90, "engine", "_update_weights", ENGINE),
        (90, 96, "engine", "update_weights_from_ipc", ENGINE), (96, 97, "trainer", "update_weights", FIRST),
    ]  # fmt: skip


def test_of_engines_that_begin_their_weight_sync_together_the_one_that_ends_last_was_waited_for() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "update_weights", 0, 100)
    for process, end in ((AGENT, 50), (ENGINE, 90)):
        rows.add(process, "sync", "receive", 10, end)
    roles = tuple("engine" if process == AGENT else role for process, role in enumerate(ROLES))
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, roles, REPLICAS)
    assert short(critical_path(records))[1] == (10, 90, "engine", "receive", ENGINE)


def test_an_engine_that_does_nothing_for_its_requests_is_what_was_waited_for() -> None:
    assert (60, 360, "engine", "no iteration", ENGINE) in short(rollout(frozen=300).path(400))
    rows, other = rollout(frozen=300), len(ROLES)
    roles, replicas = (*ROLES, "engine"), (*REPLICAS, REPLICAS[ENGINE])
    records = StepRecords(
        0, 400 * MS, DRIVER, rows.spans, {ENGINE: rows.iterations, other: rows.iterations}, roles, replicas
    )
    assert (60, 360, "engine", "no iteration", None) in short(critical_path(records))


def test_a_request_that_is_kept_from_its_engine_is_the_servers() -> None:
    assert (3, 310, "server", "generate", SERVER) in short(rollout(kept=300, others=False).path(400))


def test_a_request_whose_engine_has_no_file_is_not_recorded() -> None:
    rows = rollout()
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    assert (3.0, 91.0, "unrecorded", "generate", None) in short(critical_path(records))


UNPACKED: dict[str, tuple[str, str, float, float, str, str]] = {
    "polling": ("poll", "sample", 60, 0, "driver", "sample"),
    "agent loops or driver": ("phase", "gen", 60, 0, "unrecorded", "processing after the last trajectory"),
    "up to 20 ms": ("phase", "gen", 80, 0, "driver", "gen"),
    "a driver that stood still": ("phase", "gen", 60, 25, "driver", "gen"),
}


@pytest.mark.parametrize("name", UNPACKED)
def test_who_generates_waits_for_trajectories_and_then_for_what_is_made_of_them(name: str) -> None:
    kind, what, until, still, role, expected = UNPACKED[name]
    rows = Rows()
    rows.add(DRIVER, kind, what, 10, 100)
    rows.add(AGENT, "trajectory", "", 5, until)
    rows.add(AGENT, "trajectory", "", 70, 200)  # of a later step
    stalls = {DRIVER: [TimeRange(70 * MS, round((70 + still) * MS))]}
    process = DRIVER if role == "driver" else None
    assert short(rows.path(100, stalls=stalls)) == [
        (0, 10, "driver", "before the first phase", DRIVER), (10, until, "agent", "trajectory", AGENT),
        (until, 100, role, expected, process),
    ]  # fmt: skip


def test_what_the_driver_does_after_a_span_of_its_own_is_no_processing_of_trajectories() -> None:
    rows = Rows()
    phase = rows.add(DRIVER, "phase", "gen", 0, 200)
    rows.add(DRIVER, "sleep", "sleep_replicas", 90, 110, phase)
    rows.add(AGENT, "trajectory", "", 0, 60)
    assert short(rows.path(200)) == [
        (0, 60, "agent", "trajectory", AGENT), (60, 90, "unrecorded", "processing after the last trajectory", None),
        (90, 110, "driver", "sleep_replicas", DRIVER), (110, 200, "driver", "gen", DRIVER),
    ]  # fmt: skip


def test_a_phase_beside_a_rollout_is_the_drivers_own() -> None:
    """In an asynchronous trainer trajectories go on all the time: nobody waits for them while an advantage is computed."""
    rows = Rows()
    rows.add(DRIVER, "phase", "adv", 0, 100)
    rows.add(AGENT, "trajectory", "", -50, 30)
    rows.add(AGENT, "trajectory", "", 20, 60)
    rows.add(AGENT, "trajectory", "", 50, 150)
    assert short(rows.path(100)) == [(0, 100, "driver", "adv", DRIVER)]


def test_trajectories_explain_no_phase_that_has_others_within() -> None:
    """They may begin and end within the whole step of an asynchronous trainer, too."""
    rows = Rows()
    step = rows.add(DRIVER, "phase", "step", 0, 100)
    rows.add(DRIVER, "phase", "adv", 10, 60, step)
    rows.add(AGENT, "trajectory", "", 5, 80)
    assert short(rows.path(100)) == [
        (0, 10, "driver", "between phases", DRIVER), (10, 60, "driver", "adv", DRIVER), (60, 100, "driver", "between phases", DRIVER)
    ]  # fmt: skip


def test_a_reward_of_another_trajectory_that_blocks_the_loop_is_what_was_waited_for() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 0, 100)
    rows.add(AGENT, "trajectory", "", 0, 100)
    other = rows.add(AGENT, "trajectory", "", 0, 80)
    rows.add(AGENT, "reward", "compute_score", 20, 70, other)
    assert (20, 70, "reward", "compute_score", AGENT) in short(rows.path(100))


def sent(kind: str, begin: float, end: float, *, agent: Sequence[float] = (), receiver: Sequence[float] = ()) -> Rows:
    """A request or a reward from 2 to 98 ms, which its receiver works on from `begin` to `end`.

    At the moments of `agent` and `receiver` these do something else.
    """
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 0, 100)
    trajectory = rows.add(AGENT, "trajectory", "", 1, 99)
    process = SERVER if kind == "request" else REWARD
    if kind == "request":
        rows.add(AGENT, "request", "generate", 2, 98, trajectory, 50)
        rows.add(SERVER, "serve", "generate", begin, end, amount=50)
        rows.iterate(begin, end, 1)
    else:
        reward = rows.add(AGENT, "reward", "compute_score", 2, 98, trajectory)
        rows.add(AGENT, "phase", "compute_score", 2, 98, reward)
        rows.add(REWARD, "reward", "compute_score", begin, end)
    for at in agent:
        rows.add(AGENT, "sleep", "tool", at, at + 1)
    for at in receiver:
        rows.add(process, "sleep", "other", at, at + 1)
    return rows


BUSY = range(5, 90, 5)
SENT = {
    "a frozen server": ("request", 80, 97, {}, ("server", "start of generate", SERVER)),
    "a frozen server, while the agent loop goes on": ("request", 80, 97, {"agent": BUSY}, ("server", "start of generate", SERVER)),
    "a frozen agent loop before it sends": ("request", 80, 97, {"receiver": BUSY}, ("agent", "request", AGENT)),
    "a frozen agent loop before it receives": ("request", 4, 20, {}, ("agent", "request", AGENT)),
    "a slow reward": ("reward", 4, 97, {}, ("reward", "compute_score", REWARD)),
    "a frozen reward worker": ("reward", 80, 97, {}, ("reward", "start of compute_score", REWARD)),
    "an agent loop frozen behind a reward": ("reward", 4, 20, {}, ("agent", "compute_score", AGENT)),
    "an agent loop frozen before a reward": ("reward", 80, 97, {"receiver": BUSY}, ("agent", "compute_score", AGENT)),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_who_sends_and_who_receives_are_told_apart_by_what_they_did(name: str) -> None:
    kind, begin, end, moments, expected = SENT[name]
    path = sent(kind, begin, end, **moments).path(100)
    longest = max(path, key=lambda piece: piece.end - piece.start)
    assert (longest.role, longest.what, longest.process) == expected
    assert longest.end - longest.start > 70 * MS


@pytest.mark.parametrize(
    ("sends", "begins", "stalls", "role"),
    [
        (3, 79, {}, "unrecorded"), (50, 79, {}, "server"), (3, 30, {}, "server"),
        (3, 79, {SERVER: [TimeRange(20 * MS, 75 * MS)]}, "server"),
    ],
    ids=["all late", "sent later", "begun earlier", "one that stood still"],
)  # fmt: skip
def test_no_server_is_late_if_requests_of_several_replicas_wait(
    sends: float, begins: float, stalls: dict[int, list[TimeRange]], role: str
) -> None:
    """A request to the first replica waits from 2 to 80 ms, one to the other from ``sends`` to ``begins``."""
    rows, other = sent("request", 80, 97), len(ROLES)
    rows.add(AGENT, "request", "generate", sends, 90, 0, 51)
    rows.add(other, "serve", "generate", begins, 89, amount=51)
    roles, replicas = (*ROLES, "server"), (*REPLICAS, 1)
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, roles, replicas, stalls=stalls)
    assert (2.0, 80.0, role, "start of generate", SERVER if role == "server" else None) in short(critical_path(records))


def test_a_process_that_certainly_ran_nothing_is_who_stood_still() -> None:
    for process, role in ((AGENT, "agent"), (SERVER, "server")):
        path = sent("request", 80, 97).path(100, stalls={process: [TimeRange(20 * MS, 75 * MS)]})
        assert max(path, key=lambda piece: piece.end - piece.start).role == role


@pytest.mark.parametrize("kind", ["request", "reward"])
def test_what_no_receiver_recorded_is_not_the_agent_loops(kind: str) -> None:
    path = sent(kind, -90, -80).path(100)
    assert max(path, key=lambda piece: piece.end - piece.start).role == "unrecorded"


def test_a_reward_that_waits_blocks_no_other_trajectory() -> None:
    rows = sent("reward", 4, 90)
    rows.add(AGENT, "trajectory", "", 0, 99.5)
    assert (0.0, 99.5, "agent", "trajectory", AGENT) in short(rows.path(100))


def test_spans_that_go_on_beside_others_that_began_with_them() -> None:
    rows = ranks([unit(0, 50), unit(50, 60)], [unit(0, 50), unit(50, 90)], 100)
    for process in (FIRST, SECOND):
        work = next(one.id for one in rows.spans if one.process == process)
        for end in (None, 40, None):
            rows.add(process, "unit", "micro-batch", 0, end, work)
    rows.add(FIRST, "work", "train", 0, None)
    assert rows.path(100)


def test_spans_that_are_their_own_parents_end() -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "a", 0, 50, 1)
    rows.add(DRIVER, "phase", "b", 10, 40, 3)
    rows.add(DRIVER, "phase", "c", 12, 38, 2)
    assert rows.path(60)


def paused(rows: Rows, end: float, *pauses: tuple[int, float, float]) -> list[tuple[object, ...]]:
    ranges: dict[int, list[TimeRange]] = {}
    for process, begin, stop in pauses:
        ranges.setdefault(process, []).append(TimeRange(round(begin * MS), round(stop * MS)))
    return [
        (start, stop, role, what, at)
        for start, stop, role, what, at in short(rows.path(end, pauses=ranges))
        if role != "driver"
    ]


def test_what_rlpatch_holds_back_is_its_own() -> None:
    """Rank 1 saves a window for 140 ms, and rank 0 waits for it in a collective."""
    rows = ranks(
        [unit(0, 50), gather(50, 200), unit(200, 300)], [unit(0, 200), gather(200, 200.5), unit(200.5, 300)], 300
    )
    found = rows.path(300, pauses={SECOND: [TimeRange(40 * MS, 180 * MS)]})
    assert (40, 180, "rlpatch", PAUSE, SECOND) in short(found)
    assert sum(one.late for one in found) == pytest.approx(10 * MS, abs=2 * MS)
    all_ranks = ranks([unit(0, 200)], [unit(0, 200)], 200)
    assert paused(all_ranks, 200, (FIRST, 40, 180), (SECOND, 50, 190))[1] == (50, 180, "rlpatch", PAUSE, None)


@pytest.mark.parametrize(
    ("role", "process", "pauses", "expected"),
    [
        ("driver", DRIVER, {DRIVER: [(20, 30), (50, 55)]}, [(10, 20, 25), (20, 30, None), (30, 50, 0), (50, 55, None), (55, 90, 0)]),
        ("driver", DRIVER, {DRIVER: [(0, 15), (80, 99)], FIRST: [(20, 30)]}, [(10, 10, 25), (10, 15, None), (15, 80, 0), (80, 90, None), (90, 90, 0)]),
        ("driver", DRIVER, {DRIVER: [(0, 10), (90, 99)]}, [(10, 90, 40)]), ("driver", None, {DRIVER: [(20, 30)]}, [(10, 90, 40)]),
        ("driver", DRIVER, {DRIVER: [(20, 70)]}, [(10, 20, 0), (20, 70, None), (70, 90, 0)]),
        ("trainer", None, {FIRST: [(20, 40)], SECOND: [(30, 60)]}, [(10, 30, 30), (30, 40, None), (40, 90, 0)]),
        ("trainer", FIRST, {ENGINE: [(20, 30)]}, [(10, 90, 40)]), ("engine", ENGINE, {SERVER: [(20, 30)]}, [(10, 90, 40)]),
        ("server", SERVER, {ENGINE: [(20, 30)]}, [(10, 20, 30), (20, 30, None), (30, 90, 0)]),
    ],
)  # fmt: skip
def test_a_piece_is_split_at_the_pauses_of_its_process(
    role: str, process: int | None, pauses: dict[int, list[tuple[int, int]]],
    expected: list[tuple[int, int, int | None]],
) -> None:  # fmt: skip
    """Its delay is less by them, and stays with its first part; pauses have none."""
    ranges = {at: [TimeRange(*pause) for pause in of_process] for at, of_process in pauses.items()}
    records = StepRecords(0, 100, DRIVER, [], {ENGINE: IterationColumns()}, ROLES, REPLICAS, pauses=ranges)
    piece = PathPiece(10, 90, role, "work", "x", "p", process, 40)
    parts = [*path._split_at_pauses(records, piece)]
    assert [(part.start, part.end, None if part.kind == "pause" else part.late) for part in parts] == expected
    assert {part[2:7] for part in parts if part.kind == "pause"} <= {("rlpatch", "pause", PAUSE, "p", process)}


def test_a_garbage_collection_is_an_activity_of_its_process() -> None:
    """Rank 1 collects for 140 ms, and rank 0 waits for it in a collective; the driver collects while it waits."""
    rows = ranks(
        [unit(0, 50), gather(50, 200), unit(200, 300)], [unit(0, 200), gather(200, 200.5), unit(200.5, 300)], 300
    )
    found = rows.path(300, collections={SECOND: [TimeRange(40 * MS, 180 * MS)], DRIVER: [TimeRange(10 * MS, 290 * MS)]})
    (collection,) = (piece for piece in found if piece.kind == "gc")
    assert collection[:7] == (40 * MS, 180 * MS, "trainer", "gc", COLLECTION, "", SECOND)
    assert collection.late == 140 * MS
    assert sum(piece.late for piece in found) == pytest.approx(150 * MS, abs=2 * MS)
    assert not any(
        piece.kind == "gc" for piece in rows.path(300, collections={FIRST: [TimeRange(40 * MS, 180 * MS)]})
    )  # while it waits for the other rank, anyway


@pytest.mark.parametrize(
    ("kind", "role", "process", "collections", "expected"),
    [
        ("work", "driver", DRIVER, {DRIVER: [(20, 30), (50, 55)]}, [(10, 20, 25), (20, 30, 10), (30, 50, 0), (50, 55, 5), (55, 90, 0)]),
        ("work", "driver", DRIVER, {DRIVER: [(20, 70)]}, [(10, 20, 0), (20, 70, 40), (70, 90, 0)]),
        ("work", "driver", DRIVER, {DRIVER: [(20, 50), (60, 80)]}, [(10, 20, 0), (20, 50, 30), (50, 60, 0), (60, 80, 10), (80, 90, 0)]),
        ("work", "driver", DRIVER, {DRIVER: [(0, 15), (80, 99)], FIRST: [(20, 30)]}, [(10, 10, 25), (10, 15, 5), (15, 80, 0), (80, 90, 10), (90, 90, 0)]),
        ("work", "driver", DRIVER, {DRIVER: [(0, 10), (90, 99)]}, [(10, 90, 40)]), ("work", "driver", None, {DRIVER: [(20, 30)]}, [(10, 90, 40)]),
        ("work", "trainer", None, {FIRST: [(20, 40)], SECOND: [(30, 60)]}, [(10, 30, 30), (30, 40, 10), (40, 90, 0)]),
        ("work", "trainer", None, {FIRST: [(20, 40)]}, [(10, 90, 40)]), ("work", "trainer", FIRST, {SECOND: [(20, 30)]}, [(10, 90, 40)]),
        ("iteration", "engine", ENGINE, {ENGINE: [(20, 30)]}, [(10, 20, 30), (20, 30, 10), (30, 90, 0)]),
        ("gap", "unrecorded", None, {FIRST: [(20, 40)], SECOND: [(30, 60)]}, [(10, 90, 40)]), ("pause", "rlpatch", FIRST, {FIRST: [(20, 30)]}, [(10, 90, 40)]),
    ],
)  # fmt: skip
def test_a_piece_is_split_at_the_garbage_collections_of_its_process(
    kind: str, role: str, process: int | None, collections: dict[int, list[tuple[int, int]]],
    expected: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    """Each explains as much of its delay as it is long, and the first part has what remains."""
    ranges = {at: [TimeRange(*collection) for collection in several] for at, several in collections.items()}
    records = StepRecords(0, 100, DRIVER, [], {}, ROLES, REPLICAS, collections=ranges)
    parts = [*path._split_at_collections(records, PathPiece(10, 90, role, kind, "x", "p", process, 40))]
    assert [(part.start, part.end, part.late) for part in parts] == expected
    for at, part in enumerate(parts):
        assert part[2:7] == ((role, "gc", COLLECTION, "p", process) if at % 2 else (role, kind, "x", "p", process))


def test_the_phases_of_a_step_are_spans_of_the_driver_alone() -> None:
    rows = Rows()
    for process, kind, name, start, end in (
        (DRIVER, "phase", "gen", 20, 40), (DRIVER, "sync", "send", 50, 60), (DRIVER, "reward", "score", 61, 95),
        (DRIVER, "phase", "log", 70, 90), (FIRST, "work", "train", 5, 80),
    ):  # fmt: skip
        rows.add(process, kind, name, start, end)
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    assert records.phase_range == TimeRange(20 * MS, 60 * MS)
    assert StepRecords(0, 100, DRIVER, rows.spans[4:], {}, ROLES, REPLICAS).phase_range == TimeRange(0, 100)


def test_the_syncs_of_engines_are_without_others_of_their_kind_within() -> None:
    rows = Rows()
    outer = rows.add(ENGINE, "sync", "receive", 10, 50)
    rows.add(ENGINE, "sync", "load", 20, 30, outer)
    rows.add(ENGINE, "phase", "compile", 30, 45, outer)
    other = rows.add(ENGINE, "sync", "flush", 60, 80)
    rows.add(ENGINE, "phase", "compile", 61, 70, other)
    rows.add(FIRST, "sync", "send", 10, 50)
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    assert [(span.name, span.start // MS, end_of(span) // MS) for span in records.engine_syncs] == [
        ("receive", 30, 50), ("load", 20, 30), ("flush", 60, 80)
    ]  # fmt: skip
    assert [span.name for span in records.receivers] == ["receive"]


def test_a_server_waits_for_an_engine_that_rlpatch_holds_back() -> None:
    assert (60, 350, "rlpatch", PAUSE, ENGINE) in paused(rollout(frozen=300), 400, (ENGINE, 60, 350))
    assert (10, 300, "rlpatch", PAUSE, SERVER) in paused(rollout(kept=300, others=False), 400, (ENGINE, 10, 300))


def test_each_of_two_calls_of_a_method_has_the_work_that_began_behind_it() -> None:
    rows = Rows()
    for begin in (0, 50):
        rows.add(DRIVER, "call", "train", begin, begin + 40)
        rows.add(FIRST, "work", "train", begin + 2, begin + 38)
    assert short(rows.path(90)) == [
        (0, 2, "trainer", "start of train", FIRST), (2, 38, "trainer", "train", FIRST), (38, 40, "driver", "call train", DRIVER),
        (40, 50, "driver", "between phases", DRIVER),
        (50, 52, "trainer", "start of train", FIRST), (52, 88, "trainer", "train", FIRST), (88, 90, "driver", "call train", DRIVER),
    ]  # fmt: skip


def test_a_work_belongs_to_the_call_that_began_last_although_an_earlier_one_was_written_after_it() -> None:
    rows = Rows()
    last = rows.add(DRIVER, "call", "train", 10, 60)
    rows.add(DRIVER, "call", "train", 0, 90)
    rows.add(FIRST, "work", "train", 12, 40)
    assert [*of(rows).groups] == [last]


@pytest.mark.parametrize(("process", "kind", "what"), [(REWARD, "reward", "score"), (SERVER, "serve", "generate")])
def test_without_trajectories_a_phase_waits_for_what_servers_and_rewards_do(process: int, kind: str, what: str) -> None:
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 0, 100)
    rows.add(process, kind, what, 10, 80)
    roles = [(start, end, role) for start, end, role, _, _ in short(rows.path(100))]
    assert (10, 80, "reward" if kind == "reward" else "server") in roles


OWN_ROLES: dict[tuple[int, str, str], tuple[str, str]] = {
    (DRIVER, "call", "train"): ("driver", "call train"), (DRIVER, "work", "train"): ("trainer", "train"),
    (DRIVER, "unit", "micro-batch"): ("trainer", "micro-batch"), (DRIVER, "wait", "all_reduce"): ("trainer", "all_reduce"),
    (DRIVER, "phase", "adv"): ("driver", "adv"), (ENGINE, "phase", "adv"): ("trainer", "adv"),
    (ENGINE, "work", ""): ("trainer", "work"), (ENGINE, "unit", "x"): ("trainer", "x"), (ENGINE, "wait", "x"): ("trainer", "x"),
    (ENGINE, "sync", "x"): ("engine", "x"), (ENGINE, "serve", "generate"): ("server", "generate"),
    (SERVER, "work", "x"): ("server", "x"), (AGENT, "request", "generate"): ("agent", "request"),
    (SERVER, "request", "generate"): ("agent", "request"), (SERVER, "trajectory", "x"): ("agent", "trajectory"),
    (AGENT, "reward", "score"): ("reward", "score"), (REWARD, "reward", ""): ("reward", "reward"),
    (FIRST, "phase", "x"): ("trainer", "x"),
}  # fmt: skip


@pytest.mark.parametrize(("process", "kind", "name"), OWN_ROLES)
def test_the_kind_of_a_span_tells_its_role(process: int, kind: str, name: str) -> None:
    rows = Rows()
    rows.add(process, kind, name, 0, 10)
    records = StepRecords(0, 10 * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, ROLES, REPLICAS)
    walk = path._Walk(records)
    walk.phase = "gen"
    walk.add_piece(rows.spans[0], 0, 10)
    (piece,) = walk.pieces
    assert (piece.role, piece.what) == OWN_ROLES[process, kind, name]
    assert (piece.start, piece.end, piece.kind, piece.phase, piece.process) == (0, 10, kind, "gen", process)


@pytest.mark.parametrize(("replica", "role"), [(0, "engine"), (1, "server"), (None, "server")])
def test_a_server_waits_for_the_iterations_of_its_own_replica_alone(replica: int | None, role: str) -> None:
    replicas = (None, None, None, 0, replica, None, None)
    for kind, name in (("sync", "abort_all_requests"), ("serve", "generate")):
        rows = Rows()
        rows.add(DRIVER, "phase", "gen", 0, 400)
        rows.add(SERVER, kind, name, 10, 310, amount=5)
        rows.iterate(20, 300, 1)
        records = StepRecords(0, 400 * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, ROLES, replicas)
        roles = {one.role for one in critical_path(records) if (one.start, one.end) == (20 * MS, 300 * MS)}
        assert roles == ({"engine"} if role == "engine" else set())


@pytest.mark.parametrize(
    ("stalls", "still"),
    [
        ({SERVER: (0, 51)}, False), ({AGENT: (0, 51)}, True), ({AGENT: (0, 50)}, False), ({AGENT: (0, 60), SERVER: (0, 70)}, False),
        ({AGENT: (0, 70), SERVER: (0, 60)}, True), ({AGENT: (0, 60), SERVER: (0, 60)}, False), ({AGENT: (-90, 40)}, False), ({}, False),
    ],
)  # fmt: skip
def test_a_sender_that_certainly_ran_nothing_for_most_of_the_time_stood_still(
    stalls: dict[int, tuple[int, int]], still: bool
) -> None:
    """Both start spans every 10 ms of the 100."""
    rows = Rows()
    for process in (AGENT, SERVER):
        for at in range(5, 100, 10):
            rows.add(process, "sleep", "x", MINUTE + at, MINUTE + at + 1)
    ranges = {
        process: [TimeRange((MINUTE + low) * MS, (MINUTE + high) * MS)] for process, (low, high) in stalls.items()
    }
    end = MINUTE + 200
    records = StepRecords(0, end * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, ROLES, REPLICAS, stalls=ranges)
    assert records.sender_stood_still(AGENT, SERVER, MINUTE * MS, (MINUTE + 100) * MS) == still


@pytest.mark.parametrize(
    ("sender", "receiver", "still"),
    [
        (51, 10, True),
        (50, 10, False),
        (51, 51, False),
        (10, 51, False),
        (10, 10, False),
        (99, 60, True),
        (60, 56, False),
    ],
)
def test_a_sender_that_started_nothing_for_most_of_the_time_stood_still(
    sender: int, receiver: int, still: bool
) -> None:
    """Each starts something every so many milliseconds, of 100."""
    rows = Rows()
    for process, every in ((AGENT, sender), (SERVER, receiver)):
        for at in range(every, 100, every):
            rows.add(process, "sleep", "x", MINUTE + at, None)
    end = MINUTE + 200
    records = StepRecords(0, end * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, ROLES, REPLICAS)
    assert records.sender_stood_still(AGENT, SERVER, MINUTE * MS, (MINUTE + 100) * MS) == still


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [(9, 21, True), (8.999, 20, False), (10, 21.001, False), (12, 13, True), (12, None, False)],
)
def test_spans_are_within_another_up_to_the_tolerance_of_clocks(start: float, end: float | None, inside: bool) -> None:
    rows = Rows()
    for process, times in ((AGENT, (10, 20)), (SERVER, (start, end))):
        rows.add(process, "serve", "generate", *times)
    node, span = rows.spans
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, REPLICAS)
    assert (records.within(node, [span]) == [span]) == inside


def of(rows: Rows, **more: Any) -> StepRecords:
    """Return records of a step from 0 to 1 s with spans in milliseconds."""
    return StepRecords(0, 1_000 * MS, DRIVER, rows.spans, {ENGINE: rows.iterations}, ROLES, REPLICAS, **more)


@pytest.mark.parametrize(
    ("call", "work", "found"),
    [("train", "train", True), ("group_train", "train", True), ("grouptrain", "train", False), ("train", "group_train", False), ("train_x", "train", False)],
)  # fmt: skip
def test_a_call_runs_the_method_of_its_name_or_behind_a_prefix(call: str, work: str, found: bool) -> None:
    assert calls_for(call, work) is found


@pytest.mark.parametrize(
    ("other", "start", "twin"),
    [
        ("other_send", 109.999, True), ("other_send", 110, False), ("other_send", 90.001, True), ("other_send", 90, False), ("actor_send", 101, False),
        ("other_load", 101, False),
    ],
)  # fmt: skip
def test_a_twin_of_a_call_has_its_method_and_was_sent_within_ten_milliseconds(
    other: str, start: float, twin: bool
) -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "actor_send", 100, 101)
    rows.add(DRIVER, "call", other, start, start + 1)
    rows.add(FIRST, "call", "other_send", 100, 101)
    rows.add(FIRST, "work", "send", 102, 110)
    assert of(rows).has_twin(rows.spans[0]) is twin


@pytest.mark.parametrize(
    ("more", "lack"),
    [
        ({}, False), ({"expected": {"train": 2}}, True), ({"expected": {"train": 1}}, False), ({"trainers_known": False}, True), ({"partial": True}, True),
        ({"expected": {"other": 9}}, False),
    ],
)  # fmt: skip
def test_a_call_may_lack_works_if_it_had_more_or_trainers_left_no_file(more: dict[str, Any], lack: bool) -> None:
    rows = Rows()
    rows.add(DRIVER, "call", "train", 0, 100)
    rows.add(FIRST, "work", "train", 1, 90)
    records = of(rows, **more)
    assert records.may_lack_works(rows.spans[0]) is lack
    assert records.count_works(rows.spans[0]) == 1
    assert records.count_works(rows.spans[1]._replace(id=99)) == 0


CAUSED: dict[str, tuple[list[tuple[float, float | None]], int | None]] = {
    "the latest that began before": ([(0, 90), (10, 90), (52, 90)], 1), "one that begins with it": ([(50, 90)], 0), "within the clocks": ([(51, 90)], 0),
    "one that lasted": ([(0, 90), (10, 20)], 0), "within the clocks of its end": ([(0, 79), (10, 20)], 0), "none that lasted": ([(0, 70), (10, 20)], 1),
    "one that goes on": ([(0, None), (10, 20)], 0), "none before": ([(51.001, 90)], None), "none": ([], None),
    "of many the last 64": ([(0, 90), *[(1, 2)] * 64], 64), "of many the last 64 with it": ([(0, 90), *[(1, 2)] * 63], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSED)
def test_a_work_was_caused_by_the_latest_call_that_lasted(name: str) -> None:
    """It runs from 50 to 80 ms; the clocks may be wrong by one."""
    times, caused = CAUSED[name]
    rows = Rows()
    for start, end in times:
        rows.add(DRIVER, "call", "train", start, end)
    work = KeptSpan(50 * MS, 80 * MS, "work", "train", None, 99, 0, FIRST)
    found = of(rows)._call_that_caused(work, rows.spans)
    assert (found and rows.spans.index(found)) == caused


@pytest.mark.parametrize(
    ("other", "replica", "alone"),
    [((10, 90), 0, False), ((20, 80), 0, False), ((21, 90), 0, True), ((10, 79), 0, True), ((10, None), 0, False), ((10, 90), 1, True)],
)  # fmt: skip
def test_a_request_is_alone_unless_another_is_there_all_the_time(
    other: tuple[float, float | None], replica: int, alone: bool
) -> None:
    rows = Rows()
    rows.add(SERVER, "serve", "generate", 0, 100)
    rows.add(AGENT, "serve", "generate", *other)
    replicas = (None, None, None, 0, 0, replica, None)
    records = StepRecords(0, 100 * MS, DRIVER, rows.spans, {}, ROLES, replicas)
    assert records.is_alone(rows.spans[0], 20 * MS, 80 * MS) is alone


AWAITED: dict[str, tuple[tuple[int, str, float, float | None], bool]] = {
    "a work within": ((FIRST, "work", 9, 91), True), "a work that begins before": ((FIRST, "work", 8.999, 91), False), "a work that ends later": ((FIRST, "work", 9, 91.001), False),
    "a sync of a server": ((SERVER, "sync", 20, 30), True), "a sync of an engine": ((ENGINE, "sync", 20, 30), True), "a sleep": ((SERVER, "sleep", 20, 30), True),
    "a trajectory": ((AGENT, "trajectory", -50, 91), True), "a trajectory that ends later": ((AGENT, "trajectory", 20, 91.001), False),
    "one that ended before": ((AGENT, "trajectory", -50, 9), False), "just within": ((AGENT, "trajectory", -50, 9.001), True), "another phase": ((FIRST, "phase", 20, 30), False),
    "a span of the driver": ((DRIVER, "work", 20, 30), False),
}  # fmt: skip


@pytest.mark.parametrize("name", AWAITED)
def test_a_generating_driver_waits_for_what_lies_within_its_span_and_for_trajectories_that_end_in_it(name: str) -> None:
    """It does so from 10 to 90 ms; the clocks may be wrong by one."""
    (process, kind, start, end), awaited = AWAITED[name]
    rows = Rows()
    rows.add(DRIVER, "phase", "gen", 10, 90)
    rows.add(process, kind, "x", start, end)
    assert of(rows).awaited_spans(rows.spans[0]) == rows.spans[1:] * awaited


@pytest.mark.parametrize(
    ("kind", "name", "across", "awaited"),
    [
        ("phase", "gen", (80, 200), True), ("poll", "x", (80, 200), True), ("phase", "adv", (80, 200), False), ("phase", "adv", (-9, 10), False), ("phase", "adv", (91, 200), True),
        ("phase", "adv", (-9, 9), True),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_generate_waits_for_no_rollout_that_goes_on_beside_it(
    kind: str, name: str, across: tuple[float, float], awaited: bool
) -> None:
    rows = Rows()
    rows.add(DRIVER, kind, name, 10, 90)
    rows.add(AGENT, "trajectory", "", 20, 60)
    rows.add(AGENT, "trajectory", "", *across)
    assert (rows.spans[1] in of(rows).awaited_spans(rows.spans[0])) is awaited


@pytest.mark.parametrize(
    ("low", "name"), [(59.999, ""), (60, "optimizer"), (70, "optimizer"), (70.001, "callbacks and loading"), (90, "callbacks and loading")]
)  # fmt: skip
def test_behind_the_last_micro_batch_come_the_optimizer_and_then_the_log(low: float, name: str) -> None:
    rows = Rows()
    work = rows.add(FIRST, "work", "train", 0, 100, 0, 1)
    for kind, what, begin, end in (
        ("unit", "micro-batch", 5, 30),
        ("phase", "training_step", 40, 60),
        ("phase", "log", 70, 75),
        ("phase", "log", 80, 85),
    ):
        rows.add(FIRST, kind, what, begin, end, work)
    records = of(rows)
    assert records.name_after_micro_batches(rows.spans[0], round(low * MS)).startswith(name)
    assert bool(records.name_after_micro_batches(rows.spans[0], round(low * MS))) == bool(name)
    assert records.name_after_micro_batches(rows.spans[0]._replace(amount=None), 90 * MS) == ""
    assert records.name_after_micro_batches(rows.spans[1], 90 * MS) == ""
    assert of(Rows()).name_after_micro_batches(rows.spans[0], 90 * MS) == ""


@pytest.mark.parametrize(
    ("pauses", "together"),
    [
        ({}, []), ({FIRST: [(10, 40)]}, []), ({FIRST: [(10, 40)], SECOND: [(30, 60)]}, [(30, 40)]), ({FIRST: [(-10, 40)], SECOND: [(-30, 60)]}, [(0, 40)]),
        ({FIRST: [(10, 40)], SECOND: [(40, 60)]}, []), ({DRIVER: [(10, 40)], FIRST: [(10, 40)], SECOND: [(10, 40)]}, [(10, 40)]),
    ],
)  # fmt: skip
def test_trainers_are_paused_where_all_of_them_are(
    pauses: dict[int, list[tuple[int, int]]], together: list[tuple[int, int]]
) -> None:
    ranges = {process: [TimeRange(*pause) for pause in several] for process, several in pauses.items()}
    records = StepRecords(0, 100, DRIVER, [], {}, ROLES, REPLICAS, pauses=ranges)
    assert records.trainers_paused == together
    assert StepRecords(0, 100, DRIVER, [], {}, ("driver",) * 7, REPLICAS, pauses=ranges).trainers_paused == []
