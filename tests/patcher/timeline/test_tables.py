from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fixtures.timeline.scene import joined
from fixtures.timeline.small import small
from patcher.table import Table
from patcher.timeline import tables
from patcher.timeline.model import (
    BALANCE,
    FREE_SYNC,
    NO_TAIL,
    Cause,
    Clock,
    Driver,
    IdleReason,
    Imbalance,
    Part,
    RoleUse,
    RunTimeline,
    TrainingStep,
    Trend,
)


def rows(table: Table, *keys: str) -> list[list[object]]:
    """Return the cells of the columns with these keys, of all columns without; numbers rounded to microseconds."""
    at = [index for index, column in enumerate(table.columns) if not keys or column.key in keys]
    return [[round(row[i], 6) if isinstance(row[i], float) else row[i] for i in at] for row in table.rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunTimeline:
    folder = tmp_path_factory.mktemp("run")
    small(folder, slow={4: 300}, stale={4: 1.5, 5: 0.5})
    return joined(folder)


def test_steps_have_their_times_shares_and_counts(run: RunTimeline) -> None:
    table = tables.steps(run)
    cause = "trainer, rank 1: micro-batch in update_actor +0.300 s"
    usual = [0.1, 0.1, 0, 0.209, 0.388, 0.39]
    assert rows(table) == [
        [1, 1.0, "typical, including warm-up", *usual, 0, True, 12, None, 37, 346, 0],
        [2, 1.0, "typical", *usual, 1, False, 12, None, 37, 346, 0],
        [3, 1.0, "typical", *usual, 2, False, 12, None, 37, 346, 0],
        [4, 1.3, cause, 0.1, 0.1, 0, 0.1608, 0.4138, 0.3, 3, False, 12, 1.5, 37, 346, 0],
        [5, 1.0, "typical", *usual, 4.3, False, 12, 0.5, 37, 346, 0],
    ]
    assert table.hues == ["v-typical"] * 3 + ["v-limited", "v-typical"]
    assert "1.0 steps older" in table.about
    assert [column.key for column in table.columns if column.key.endswith("share")] == [
        "driver_busy_share", "trainer_busy_share", "engine_busy_share"
    ]  # fmt: skip
    assert tables.staleness(replace(run, steps=run.steps[:3])) is None
    assert (
        tables.verdict(replace(run.steps[4], beside=(Part("testing", 0.25),)))
        == "typical; testing (0.250 s) not compared"
    )


def test_the_next_cause_follows_a_lack_of_cpus(run: RunTimeline) -> None:
    slow = run.steps[3]
    host = Cause("host", None, None, "waiting for a free CPU", "", 3, 2, "cpu-wait")
    assert slow.limited_by is not None
    cause = "trainer, rank 1: micro-batch in update_actor +0.300 s"
    assert tables.verdict(replace(slow, limited_by=host)) == "host: waiting for a free CPU +2.00 s"
    both = tables.verdict(replace(slow, limited_by=host, also=(slow.limited_by, host)))
    assert both == f"host: waiting for a free CPU +2.00 s; also {cause}"
    assert tables.verdict(replace(slow, also=(host,))) == cause


def test_seconds_are_a_dash_where_there_are_none() -> None:
    assert [tables.SECONDS.text(length) for length in (0, 0.0004, 1.5)] == ["-", "0.000", "1.50"]
    assert tables.SECONDS.page is not None
    assert [tables.SECONDS.page(length) for length in (0.000499, 0.0005, 1.5)] == ["–", "0.5 ms", "1.50 s"]


def test_bounds_are_of_the_median_step_of_all_and_of_the_best(run: RunTimeline) -> None:
    assert rows(tables.bounds(run))[3][1:5] == [0.15, 0.15, 0.028302, 4]
    assert rows(tables.bounds(run))[2][1:5] == [0.391, 1.955, 0.368868, 5]
    overlap = "overlap of rollout and training, as in an asynchronous trainer"
    assert [row[0] for row in rows(tables.bounds(run), "bound")] == [NO_TAIL, FREE_SYNC, overlap, BALANCE]
    assert rows(tables.bounds(replace(run, steps=()))) == []


def step(number: int, **fields: object) -> TrainingStep:
    usual = TrainingStep(number, 0, 10, 10, "typical", "", None, None, (), (), 0, None, 0, (), 0, ())
    return replace(usual, **fields)  # type: ignore[arg-type]


def of(run: RunTimeline, field: str, values: Sequence[object]) -> RunTimeline:
    return replace(run, steps=tuple(step(at, **{field: value}) for at, value in enumerate(values, 1)))


def test_roles_wait_for_what_took_most_of_their_time(run: RunTimeline) -> None:
    def use(busy: float, idle: float, lanes: int, **seconds: float) -> tuple[RoleUse]:
        reasons = tuple(IdleReason("engine", what, "gen", length) for what, length in seconds.items())
        return (RoleUse("trainer", lanes, busy * 10, idle, busy, reasons),)

    found = of(run, "roles", [use(0.5, 2, 2, a=0.1, b=3, c=0.5), use(0.25, 5, 3, c=0.7, d=0.4), use(0.9, 2, 1)])
    assert rows(tables.roles(found)) == [
        ["trainer", 3, 0.55, 3, "engine: b 1.00 s, engine: c 400 ms, engine: d 133 ms"]
    ]  # fmt: skip


def test_parts_of_a_sync_are_ordered_by_all_their_time(run: RunTimeline) -> None:
    parts = [(Part("send", 0.2), Part("load", 1)), (Part("send", 3),), (Part("send", 0.4), Part("load", 2))]
    assert rows(tables.sync(of(run, "sync", parts))) == [["send", 0.4, 3], ["load", 1.5, 2]]


def test_who_is_most_often_the_slowest_is_counted_where_it_is_slower_than_the_next(run: RunTimeline) -> None:
    found = [
        (Imbalance("ranks", ((0, 1.0), (1, 3.0)), 1.0), Imbalance("replicas", ((5, 3.0),), 0.0)),
        (Imbalance("ranks", ((0, 2.0), (1, 2.0)), 0.0), Imbalance("stages", ((7, 1.0), (8, 1.0)), 0.0)),
        (Imbalance("ranks", ((2, 4.0), (1, 9.0), (0, 1.0)), 3.0),),
        (Imbalance("ranks", ((0, 6.0), (1, 1.0)), 2.5),),
    ]
    assert rows(tables.imbalance(of(run, "imbalance", found))) == [
        ["ranks", 1.75, 3, "1 (2 / 4)", 1, 2], ["replicas", 0, 0, "5 (1 / 1)", 5, 1], ["stages", 0, 0, "?", None, 0]
    ]  # fmt: skip


def test_clocks_and_the_trend_are_told_with_their_numbers(run: RunTimeline) -> None:
    clocks = (Clock(("a", "b"), 1.5, 0.25, "causality", contradicts=True), Clock(("c",), 0.0, None, "same clock"))
    assert rows(tables.clocks(replace(run, clocks=clocks))) == [
        ["a, b", 1.5, 0.25, "order of calls and requests", "recorded times contradict the order of calls"], ["c", 0.0, None, "same clock", ""]
    ]  # fmt: skip
    trend = Trend((2, 4), (8, 10), 1.5, 2.5, (), (Driver("tokens", 10, 30, 0.91), Driver("rest", 1, 2, 0.5)))
    assert tables.trend(trend).startswith("trend: 1.50 s in steps 2 to 4, 2.50 s in steps 8 to 10 ")
    first, last = "in the first third of the steps", "in the last third"
    text = tables.correlated_quantities(trend)
    assert f"tokens: 10 {first}, 30 {last} (Spearman correlation with the step time: 0.91)" in text
    assert f"rest: 1 {first}, 2 {last} " in text
    assert "10" not in tables.correlated_quantities(replace(trend, drivers=()))
    names = ["steps", "bounds", "roles", "weight_sync", "imbalance", "clocks"]
    assert [table.name for _, table in tables.of_run(run)][:6] == names
