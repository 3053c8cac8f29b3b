from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.timeline import made
from patcher.timeline.model import IterationRun, Lane, LaneSpan, RunTimeline
from patcher.timeline.page import rows
from patcher.timeline.page.rows import Interval

NAMES = 500


def lane(role: str, *spans: tuple[float, float | None, str, str], rank: int | None = None, **more: object) -> Lane:
    return Lane(role, 0, None, rank, "a", 1, "c", tuple(LaneSpan(*one) for one in spans), seen=(0, 9), **more)  # type: ignore[arg-type]


def timeline(*lanes: Lane) -> RunTimeline:
    found = made.empty()
    return RunTimeline(found.run, 10.0, lanes, (), (), ())


def drawn(row: rows.Row) -> list[tuple[str, float, bool, list[tuple[float, float]]]]:
    return [(one.name, one.top, one.pale, [interval[:2] for interval in one.intervals]) for one in row.bars]


@pytest.mark.parametrize(
    ("kind", "name", "colour"),
    [
        ("phase", "gen", "gen"), ("phase", "old_log_prob", "old"), ("phase", "update_actor", "update"), ("phase", "step_x", "rest"),
        ("work", "compute_ref_log_prob", "old"), ("phase", "update_weights", "sync"), ("sync", "abort", "sync"),
        ("poll", "sample", "wait"), ("wait", "all_gather_object", "wait"), ("sleep", "wake_up", "sleep"),
        ("sync", "x", "sync"), ("sleep", "x", "sleep"), ("wait", "x", "wait"), ("poll", "x", "wait"), ("unit", "x", "rest"),
        ("phase", "rollout", "gen"), ("phase", "compute_rm_score", "reward"), ("phase", "adv", "adv"),
    ],
)  # fmt: skip
def test_a_colour_for_what_is_done(kind: str, name: str, colour: str) -> None:
    assert rows.hue(kind, name) == colour


@pytest.mark.parametrize(
    ("of", "intervals", "found"),
    [
        (1, [(0, 2), (1, 3), (5, 6)], [(0, 3), (5, 6)]),
        (2, [(0, 2), (1, 3), (5, 6)], [(1, 2)]),
        (2, [(0, 2), (2, 3)], []),
        (1, [(0, 2), (2, 3)], [(0, 3)]),
        (1, [], []),
    ],
)  # fmt: skip
def test_where_so_many_lie_at_once(
    of: int, intervals: list[tuple[float, float]], found: list[tuple[float, float]]
) -> None:
    assert [one[:2] for one in rows.at_least(of, (Interval(*one) for one in intervals))] == found


@pytest.mark.parametrize(
    ("intervals", "found"),
    [
        ([(0, 1), (1.05, 2)], [(0, 1), (1.05, 2)]),  # both are long enough to be seen
        ([(0, 1), (1.05, 1.06), (1.1, 2)], [(0, 1.06), (1.1, 2)]),
        ([(0, 0.01), (0.5, 0.51)], [(0, 0.01), (0.5, 0.51)]),  # too far apart
        ([(-0.01, 0), (0.1, 0.11)], [(-0.01, 0), (0.1, 0.11)]),  # at the limit
    ],
)
def test_short_bars_join_their_neighbours(
    intervals: list[tuple[float, float]], found: list[tuple[float, float]]
) -> None:
    assert [one[:2] for one in rows.merged((Interval(*one) for one in intervals), 0.1)] == found


def test_joined_iterations_are_added_up() -> None:
    joined = rows.merged([Interval(0, 0.01, (3, 2, 8)), Interval(0.02, 0.03, (6, 1, 5))], 0.1)
    assert joined == [Interval(0, 0.03, (9, 3, 8))]


def test_what_nests_has_levels_and_the_phase_of_the_step_is_left_out() -> None:
    spans = [(0, 9, "phase", "step"), (0, 4, "phase", "gen"), (1, 2, "call", "wg.generate"), (4, 9, "phase", "adv")]
    (row,) = rows.rows(timeline(lane("driver", *spans)), NAMES)
    assert drawn(row) == [
        ("adv", 0, False, [(4, 9)]), ("gen", 0, False, [(0, 4)]), ("wg.generate", 17, False, [(1, 2)]),
    ]  # fmt: skip


@pytest.mark.parametrize(("lanes", "levels"), [(1, 3), (2, 3), (3, 2)])
def test_two_rows_of_a_role_have_room_for_a_third_level(lanes: int, levels: int) -> None:
    spans = [(0, 9, "phase", "gen"), (0, 8, "call", "a"), (1, 7, "call", "b"), (2, 6, "call", "c")]
    for row in rows.rows(timeline(*[lane("driver", *spans, rank=at) for at in range(lanes)]), NAMES):
        tops = {name: top for name, top, _, _ in drawn(row)}
        assert tops == {"gen": 0, "a": 17, "b": 30 if levels == 3 else 17, "c": 30 if levels == 3 else 17}
        assert row.height == (36 if levels == 3 else 29) + 5


def test_a_span_that_goes_on_ends_with_its_process() -> None:
    (row,) = rows.rows(timeline(lane("driver", (1, None, "phase", "gen"))), NAMES)
    assert drawn(row) == [("gen", 0, False, [(1, 9)])]


def test_units_have_the_hue_of_their_work_and_every_other_one_is_told_apart() -> None:
    spans = [(0, 4, "work", "compute_ref"), (0, 1, "unit", "micro-batch"), (1, 2, "unit", "micro-batch")]
    (row,) = rows.rows(timeline(lane("trainer", *spans)), NAMES)
    assert [(one.name, one.hue, one.odd) for one in row.bars] == [
        ("compute_ref", "ref", False), ("micro-batch", "ref", False), ("micro-batch", "ref", True),
    ]  # fmt: skip


def test_what_is_many_times_at_once_is_paler_where_it_is_few() -> None:
    spans = [(0, end, "trajectory", "prompt") for end in (2, 3, 8, 9)]
    (row,) = rows.rows(timeline(lane("agent", *spans)), NAMES)
    assert drawn(row) == [("prompt", 0, True, [(0, 9)]), ("prompt", 0, False, [(0, 8)])]
    spans = [(0, end, "trajectory", "prompt") for end in (2, 3, 7, 8, 9)]  # half of five are three
    (row,) = rows.rows(timeline(lane("agent", *spans)), NAMES)
    assert drawn(row)[1] == ("prompt", 0, False, [(0, 7)])


def test_a_single_request_is_solid() -> None:
    (row,) = rows.rows(timeline(lane("agent", (0, 2, "request", ""))), NAMES)
    assert drawn(row) == [("request", 0, False, [(0, 2)])]


def test_kinds_that_go_on_at_once_lie_below_each_other_and_below_what_nests() -> None:
    crowds = [(0, 2, "trajectory", "prompt"), (0, 1, "request", "generate"), (1, 2, "reward", "score")]
    (row,) = rows.rows(timeline(lane("agent", *crowds)), NAMES)
    assert [(bars.name, bars.top, bars.height) for bars in row.bars] == [
        ("prompt", 0, 8), ("generate", 9, 8), ("score", 18, 8)
    ]  # fmt: skip
    assert row.height == 31
    (row,) = rows.rows(timeline(lane("reward", (0, 2, "phase", "x"), (0, 1, "phase", "y"), crowds[2])), NAMES)
    assert [(bars.name, bars.top, bars.height) for bars in row.bars] == [("x", 0, 12), ("y", 13, 6), ("score", 20, 10)]


def test_rows_are_in_the_order_of_roles_replicas_and_ranks() -> None:
    span = (0, 1, "work", "x")
    places = [
        ("trainer", None, 1),
        ("engine", 1, 0),
        ("trainer", None, 0),
        ("engine", 0, 1),
        ("engine", 0, 0),
        ("engine", None, 0),
    ]
    lanes = [replace(lane(role, span, rank=rank), replica=replica) for role, replica, rank in places]
    found = rows.rows(timeline(*lanes, lane("driver", span), lane("server")), NAMES)
    assert [row.lanes for row in found] == [(6,), (4,), (3,), (1,), (5,), (2,), (0,)]


def test_many_lanes_are_one_but_for_those_that_steps_waited_for() -> None:
    found = made.run(steps=2, ranks=16)
    awaited = [one.rank for step in found.steps for one in step.critical_path if one.rank and one.role == "trainer"]
    trainers = [row for row in rows.rows(found, NAMES) if row.role == "trainer"]
    assert [len(row.lanes) for row in trainers][-1] == 16 - len(trainers) + 1
    assert {found.lanes[row.lanes[0]].rank for row in trainers[:-1]} <= {*awaited, 0}
    update = [one for one in trainers[-1].bars if one.name == "update_actor"]
    assert [one.pale for one in update] == [True, False]
    for some, every in zip(update[0].intervals, update[1].intervals, strict=True):
        assert some.start <= every.start < every.end <= some.end


@pytest.mark.parametrize(
    ("most", "names"), [(3, {"a", "b", "c"}), (2, {"a", "b", rows.OTHERS}), (1, {"b", rows.OTHERS})]
)
def test_the_names_that_take_least_are_one(most: int, names: set[str]) -> None:
    (row,) = rows.rows(timeline(lane("driver", (0, 3, "call", "a"), (3, 7, "call", "b"), (7, 8, "call", "c"))), most)
    assert {bars.name for bars in row.bars} == names
    assert sum(interval.end - interval.start for bars in row.bars for interval in bars.intervals) == 8


def test_lanes_of_engines_have_their_iterations() -> None:
    runs = (IterationRun(0, 1, 60, 31, 8), IterationRun(1, 2, 4, 2, 9))
    (row,) = rows.rows(timeline(lane("engine", rank=0, iterations=runs)), NAMES)
    assert [(one.name, one.intervals) for one in row.bars] == [
        ("iterations", (Interval(1, 2, (4, 2, 9)),)), ("decodes", (Interval(0, 1, (60, 31, 8)),)),
    ]  # fmt: skip
    assert row.height == rows.HEIGHTS[0] + 5


def test_spans_of_an_engine_with_iterations_lie_on_one_level() -> None:
    spans = [(0, 9, "phase", "gen"), (1, 7, "call", "a")]
    for iterations, top in (((IterationRun(0, 1, 60, 31, 8),), 0), ((), 17)):
        (row,) = rows.rows(timeline(lane("engine", *spans, iterations=iterations)), NAMES)
        assert {name: at for name, at, _, _ in drawn(row)} | {"decodes": 0} == {"gen": 0, "a": top, "decodes": 0}


@pytest.mark.parametrize(("lanes", "odd"), [(1, {True, False}), (7, {False})])
def test_units_are_told_apart_in_a_row_of_a_single_lane(lanes: int, odd: set[bool]) -> None:
    units = [(0, 1, "unit", "micro-batch"), (1, 2, "unit", "micro-batch")]
    *_, row = rows.rows(timeline(*[lane("trainer", *units, rank=at) for at in range(lanes)]), NAMES)
    assert (len(row.lanes), {bars.odd for bars in row.bars}) == (lanes, odd)
