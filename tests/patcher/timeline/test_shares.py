from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from patcher.timeline.files import IterationColumns, KeptSpan
from patcher.timeline.intervals import TimeRange
from patcher.timeline.model import Imbalance, Tail
from patcher.timeline.path import PathPiece
from patcher.timeline.shares import (
    Amounts,
    alive_requests,
    amounts,
    coarser,
    highest_and_last,
    imbalances,
    phase_parts,
    rewards_delay,
    role_uses,
    sync_by_process,
    sync_intervals,
    sync_parts,
    sync_work,
    tail,
    thinned,
    trains_during_rollout,
    what_if,
)
from patcher.timeline.step_records import StepRecords

S = 1_000_000


def piece(role: str, start: float, end: float, kind: str = "work") -> PathPiece:
    return PathPiece(round(start * S), round(end * S), role, kind, "x", "", None)


TAILS = {
    "no request": ([], None),
    "all end at once": ([(0, 20), (10, 0)], None),
    "a tenth is none yet": ([(0, 20), (8, 2), (10, 0)], None),
    "below a tenth": ([(0, 20), (6, 1), (10, 0)], (6, 10)),
    "just below a tenth": ([(0, 21), (6, 2), (10, 0)], (6, 10)),
    "few in the middle are none": ([(0, 20), (3, 1), (5, 20), (10, 0)], None),
    "a few requests have none": ([(0, 9), (3, 1), (10, 0)], None),
    "it goes on over the end of the step": ([(0, 20), (6, 1)], None),
}


@pytest.mark.parametrize("name", TAILS)
def test_the_tail_is_the_end_with_below_a_tenth_of_the_requests(name: str) -> None:
    curve, expected = TAILS[name]
    found = tail([(time * S, count) for time, count in curve], [piece("engine", 0, 8), piece("driver", 8, 10)])
    assert (found and (found.start, found.end)) == expected
    if found:
        assert found.saves_seconds == 2  # what of it is on the path of the rollout


def test_a_thinned_curve_keeps_its_peaks_and_its_end() -> None:
    curve = [(at, 500 if at == 321 else at % 7) for at in range(1_000)]
    found = thinned(curve, 50)
    assert len(found) <= 50
    assert (321, 500) in found
    assert found[-1] == curve[-1]
    assert found == sorted(found)
    assert thinned(curve[:50], 50) == curve[:50]
    assert len(thinned(curve[:51], 50)) < 51
    assert [*coarser([(0, 0), (1, 5), (2, 9), (3, 4), (3.5, 3), (4, 5), (7, 7)], 2)] == [
        (1, 5), (2, 9), (3.5, 3), (4, 5), (7, 7)
    ]  # fmt: skip
    assert highest_and_last([(1, 3), (2, 5)]) == [(2, 5)]
    assert highest_and_last([(1, 5), (2, 5)]) == [(1, 5), (2, 5)]


def test_bounds_are_of_what_lies_on_the_path_and_none_is_said_that_saves_nothing() -> None:
    path = [piece("engine", 0, 6), piece("driver", 6, 7, "poll"), piece("trainer", 7, 10)]
    uneven = [Imbalance("replicas", ((0, 5.0), (1, 6.0)), 0.5), Imbalance("ranks", ((0, 1.0), (1, 9.0)), 4.0)]
    found = {
        one.name: (one.seconds, one.saves_seconds)
        for one in what_if(10 * S, path, None, uneven, [TimeRange(9 * S, 12 * S)])
    }
    assert found == {"perfect balance": (6.5, 3.5), "no waiting for the weight sync": (9, 1), "overlap": (7, 3)}


@pytest.mark.parametrize(
    ("of", "driver", "saves"), [("replicas", "work", 1.0), ("replicas", "poll", 2.0), ("ranks", "work", 2.0)]
)
def test_balance_saves_at_most_what_is_on_the_path_of_who_is_uneven(of: str, driver: str, saves: float) -> None:
    path = [piece("engine", 0, 1), piece("driver", 1, 2, driver), piece("trainer", 2, 10)]
    bounds = what_if(10 * S, path, None, [Imbalance(of, ((0, 1.0), (1, 5.0)), 2.0)], ())
    assert {bound.name: bound.saves_seconds for bound in bounds}["perfect balance"] == saves


def test_an_iteration_that_a_sync_waits_for_is_not_the_syncs() -> None:
    path = [piece("engine", 0, 4, "iteration"), piece("server", 4, 5, "sync"), piece("trainer", 5, 10)]
    bounds = {bound.name: bound.saves_seconds for bound in what_if(10 * S, path, None, (), [TimeRange(0, 6 * S)])}
    assert bounds["no waiting for the weight sync"] == 2


# ---------------------------------------------------------------- a step from its records


DRIVER, FIRST, SECOND, ENGINE, OTHER_ENGINE, SERVER, OTHER_SERVER, AGENT, REWARD = range(9)
ROLES = ("driver", "trainer", "trainer", "engine", "engine", "server", "server", "agent", "reward")
REPLICAS = (None, None, None, 0, 1, 0, 1, None, None)
BY_ROLE = {"driver": [DRIVER], "trainer": [FIRST, SECOND], "engine": [ENGINE, OTHER_ENGINE], "reward": [REWARD]}


class Made:
    """Records of a step from 10 to 20 s, times in seconds."""

    def __init__(self) -> None:
        self.spans: list[KeptSpan] = []
        self.columns = {ENGINE: IterationColumns(), OTHER_ENGINE: IterationColumns()}

    def add(
        self, process: int, kind: str, start: float, end: float | None, name: str = "x", parent: int = 0,
        waited: float | None = None,
    ) -> int:  # fmt: skip
        stop = None if end is None else round(end * S)
        waits, identity = None if waited is None else round(waited * S), len(self.spans) + 1
        self.spans.append(KeptSpan(round(start * S), stop, kind, name, None, identity, parent, process, waits))
        return len(self.spans)

    def iterate(self, process: int, *rows: tuple[float, float, int, int]) -> None:
        for start, end, requests, tokens in rows:
            self.columns[process].extend([round(start * S)], [round(end * S)], [requests], [tokens])

    @property
    def records(self) -> StepRecords:
        return StepRecords(10 * S, 20 * S, DRIVER, self.spans, self.columns, ROLES, REPLICAS)


def of(
    process: int | None, role: str, start: float, end: float, kind: str = "work", what: str = "x", late: float = 0
) -> PathPiece:
    return PathPiece(round(start * S), round(end * S), role, kind, what, "p", process, round(late * S))


def used(made: Made, path: Sequence[PathPiece]) -> dict[str, tuple[object, ...]]:
    return {
        use.role: (
            use.lanes, use.busy_seconds, use.idle_seconds, use.busy_share,
            [(why.role, why.what, why.seconds) for why in use.idle_for],
        )
        for use in role_uses(made.records, path, BY_ROLE)
    }  # fmt: skip


def test_a_role_is_busy_with_its_own_and_idles_for_what_is_on_the_path() -> None:
    made = Made()
    for process, start, end in ((FIRST, 15, 19), (SECOND, 15, 17), (FIRST, 8, 11)):
        made.add(process, "work", start, end)
    made.add(FIRST, "wait", 16, 16.5)
    made.iterate(ENGINE, (9.95, 10.05, 1, 1), (14, 14.1, 1, 1), (19.95, 20.05, 1, 1))
    made.add(REWARD, "reward", 12, 13)
    made.add(REWARD, "reward", 12.5, 14)
    path = [
        of(DRIVER, "driver", 10, 11, "phase"), of(ENGINE, "engine", 11, 15, "iteration", "decode"),
        of(FIRST, "trainer", 15, 18), of(DRIVER, "driver", 18, 18.5, "poll"), of(DRIVER, "driver", 18.5, 19, "call"),
        of(DRIVER, "driver", 19, 20, "gap", "between"),
    ]  # fmt: skip
    found = used(made, path)
    assert found["driver"] == (
        1, 2.0, 8.0, 0.2, [("engine", "decode", 4.0), ("trainer", "x", 3.0), ("driver", "x", 1.0)]
    )  # fmt: skip
    assert found["trainer"] == (
        2, 3.25, 6.75, 0.325, [("engine", "decode", 4.0), ("driver", "x", 1.0), ("driver", "between", 1.0)]
    )  # fmt: skip
    assert found["engine"][:4] == (2, 0.1, 9.9, 0.01)
    assert found["reward"][:4] == (1, 2.0, 8.0, 0.2)


def test_roles_that_recorded_nothing_are_left_out_but_for_the_driver() -> None:
    assert [*used(Made(), [of(None, "driver", 10, 20)])] == ["driver"]


def test_reasons_below_a_hundredth_of_the_step_are_left_out() -> None:
    path = [of(None, "engine", 10, 10.1, what="short"), of(None, "engine", 10.1, 20, what="long")]
    assert used(Made(), path)["driver"][4] == [("engine", "long", 9.9)]


def test_the_work_of_a_rollout_is_counted_without_prefills_and_validation() -> None:
    made = Made()
    made.iterate(ENGINE, (9.9, 10, 4, 4), (10, 11, 4, 400), (11, 12, 4, 4), (12, 13, 4, 4), (20, 21, 4, 4))
    made.iterate(OTHER_ENGINE, (11, 12, 2, 2), (18, 18.1, 9, 9), (18.5, 18.6, 9, 9))
    assert amounts(made.records, [ENGINE, OTHER_ENGINE]) == Amounts(3, 4 * 3 + 2 + 9 + 9)
    assert amounts(made.records, [ENGINE]) == Amounts(2, 4 * 3)  # the other one is another rank of its replica
    made.add(DRIVER, "phase", 18, 18.4, "testing")
    made.add(FIRST, "phase", 10, 20, "testing")
    assert amounts(made.records, [ENGINE, OTHER_ENGINE]) == Amounts(2, 4 * 3 + 2 + 9)
    assert amounts(Made().records, [ENGINE]) == Amounts(0, 0)
    assert amounts(replace(Made().records, iterations={}), [ENGINE]) == Amounts(0, 0)


@pytest.mark.parametrize(
    ("rewarded", "delay"), [((1, 0), 1.0), ((3, 0), 2.0), ((3, 3), 3.0), ((0, 2), 0.0), ((0, 0), 0.0)]
)
def test_rewards_delay_a_rollout_until_another_trajectory_ends(rewarded: tuple[float, float], delay: float) -> None:
    made = Made()
    for seconds, end in zip(rewarded, (18, 16), strict=True):
        trajectory = made.add(AGENT, "trajectory", 10, end)
        made.add(AGENT, "reward", end - seconds, end, parent=trajectory)
    made.add(AGENT, "trajectory", 12, 25)
    made.add(AGENT, "trajectory", 12, None)
    assert rewards_delay(made.records) == round(delay * S)
    made.add(DRIVER, "phase", 18.5, 20, "testing")
    made.add(AGENT, "trajectory", 18.6, 19.9)
    assert rewards_delay(made.records) == round(delay * S)
    assert rewards_delay(Made().records) == 0


def uneven(made: Made, path: Sequence[PathPiece] = ()) -> dict[str, tuple[object, float]]:
    found = imbalances(made.records, path, {FIRST: 0, SECOND: 1})
    return {imbalance.of: (imbalance.done, imbalance.seconds) for imbalance in found}


def test_replicas_are_uneven_by_their_last_answers() -> None:
    made = Made()
    for server, end in (
        (SERVER, 13),
        (SERVER, 16),
        (OTHER_SERVER, 14),
        (OTHER_SERVER, 9),
        (OTHER_SERVER, 21),
        (SERVER, None),
    ):
        made.add(server, "serve", 8, end)
    assert uneven(made) == {"replicas": (((0, 6.0), (1, 4.0)), 1.0)}
    made.add(DRIVER, "phase", 17, 20, "testing")
    made.add(OTHER_SERVER, "serve", 17, 19)
    assert uneven(made) == {"replicas": (((0, 6.0), (1, 4.0)), 1.0)}


def test_a_rank_is_late_by_its_own_work_and_not_by_waiting() -> None:
    """Both have works of 4 s: one of them waits a second for the other, and that one half a second for the first."""
    made = Made()
    for process in (FIRST, SECOND):
        made.add(process, "work", 9, 14)
    path = [
        of(SECOND, "trainer", 10, 13, late=1),
        of(FIRST, "trainer", 13, 14, late=0.5),
        of(None, "trainer", 14, 15, late=9),
    ]
    assert uneven(made, path) == {"ranks": (((0, 3.0), (1, 3.5)), 0.25)}
    assert uneven(made) == {"ranks": (((0, 4.0), (1, 4.0)), 0.0)}


def test_one_rank_or_replica_is_not_uneven() -> None:
    made = Made()
    made.add(SERVER, "serve", 10, 12)
    made.add(FIRST, "work", 10, 12)
    assert uneven(made, [of(FIRST, "trainer", 10, 12, late=1)]) == {}


def test_requests_alive_are_those_of_servers_else_of_agent_loops() -> None:
    made = Made()
    made.add(AGENT, "trajectory", 11, 12)
    assert alive_requests(made.records) == [(11 * S, 1), (12 * S, 0)]
    made.add(AGENT, "request", 11, 13)
    assert alive_requests(made.records)[-1] == (13 * S, 0)
    for start, end in ((8, 14), (10, 20), (15, 25), (16, None)):
        made.add(SERVER, "serve", start, end)
    assert alive_requests(made.records) == [(10 * S, 2), (14 * S, 1), (15 * S, 2), (16 * S, 3), (20 * S, 2)]


def test_the_weight_sync_is_that_of_the_driver_else_of_any_process() -> None:
    made = Made()
    made.add(FIRST, "sync", 12, 15, "send")
    made.add(FIRST, "sync", 14, 16, "send")
    made.add(SECOND, "sync", 9, 11, "send")
    made.add(SERVER, "sync", 19, None, "receive")
    assert sync_intervals(made.records) == [
        TimeRange(10 * S, 11 * S),
        TimeRange(12 * S, 16 * S),
        TimeRange(19 * S, 20 * S),
    ]
    by_process = sync_by_process(made.records)
    assert by_process == {"send": {FIRST: 4 * S, SECOND: S}, "receive": {SERVER: S}}
    assert [(part.name, part.seconds) for part in sync_parts({**by_process, "none": {FIRST: 0}})] == [
        ("send", 4.0), ("receive", 1.0)
    ]  # fmt: skip
    made.add(DRIVER, "phase", 11, 17, "update_weights")
    made.add(FIRST, "phase", 17, 18, "update_weights")
    made.add(DRIVER, "phase", 18, 19, "gen")
    assert sync_intervals(made.records) == [TimeRange(11 * S, 17 * S)]


@pytest.mark.parametrize(
    ("waits", "work"),
    [((0, 4, None), (5, 1, 5)), ((None, 4, None), (5, 5, 5)), ((6, 4, 4), (0, 1, 5)), ((None, None, None), (5, 5, 5))],
)
def test_of_a_weight_sync_trainers_worked_when_they_did_not_wait_for_each_other(
    waits: Sequence[float | None], work: Sequence[float]
) -> None:
    made = Made()
    for process, waited in zip((FIRST, SECOND, SERVER), waits, strict=True):
        made.add(process, "sync", 11, 16, "send", waited=waited)
    assert sync_work(made.records) == {
        "send": {process: us * S for process, us in zip((FIRST, SECOND, SERVER), work, strict=True)}
    }
    assert sync_by_process(made.records) == {"send": dict.fromkeys((FIRST, SECOND, SERVER), 5 * S)}


@pytest.mark.parametrize(("end", "beside"), [(12.2, False), (12.3, True)])
def test_engines_iterate_beside_the_units_of_trainers_only_in_asynchronous_training(end: float, beside: bool) -> None:
    """A fiftieth of the ten seconds of units may be an error of the clocks."""
    made = Made()
    for process in (FIRST, SECOND):
        made.add(process, "unit", 10, 20)
    made.add(FIRST, "unit", 5, 9)
    made.add(FIRST, "work", 0, 30)
    made.iterate(ENGINE, (6, 8, 1, 1), (12, end, 1, 1))
    assert trains_during_rollout(made.records) is beside


def test_phases_are_those_of_the_driver_by_their_starts() -> None:
    made = Made()
    for process, start, end, name in (
        (DRIVER, 15, 16, "adv"),
        (DRIVER, 9, 12, "gen"),
        (DRIVER, 11, 13, "gen"),
        (FIRST, 10, 20, "fit"),
        (DRIVER, 20, 21, "log"),
    ):
        made.add(process, "phase", start, end, name)
    assert [(part.name, part.seconds) for part in phase_parts(made.records)] == [("gen", 3.0), ("adv", 1.0)]


def test_rewards_save_at_most_what_is_on_the_path_and_a_thousandth_is_left_out() -> None:
    path = [piece("engine", 0, 6), piece("reward", 6, 8, "reward"), piece("trainer", 8, 10)]
    for us, saves in ((S, 1.0), (9 * S, 2.0), (S // 100, None), (S // 100 + 1, 0.010001)):
        bounds = {bound.name: bound.saves_seconds for bound in what_if(10 * S, path, None, (), (), us)}
        assert bounds.get("no waiting for rewards") == saves
    assert "no long tail" not in {bound.name for bound in what_if(1, path, None, (), ())}
    tail_of = Tail(5, 9, 4, 20, 3.0)
    assert {bound.name: bound.seconds for bound in what_if(10 * S, path, tail_of, (), ())}["no long tail"] == 7.0


def test_what_ends_while_the_driver_validates_is_no_training() -> None:
    for end, counted in (
        (10, False),
        (10.1, True),
        (15, True),
        (15.1, False),
        (17, False),
        (17.1, True),
        (20, True),
        (20.1, False),
    ):
        made = Made()
        made.add(DRIVER, "phase", 15, 17, "testing")
        made.add(SERVER, "serve", 9, 14)
        made.add(OTHER_SERVER, "serve", 9, end)
        assert (len(dict(uneven(made))) == 1) == counted, end


def test_ranks_of_unequal_works_are_uneven_by_their_delays() -> None:
    made = Made()
    made.add(FIRST, "work", 10, 12)
    made.add(SECOND, "work", 10, 15)
    assert uneven(made, [of(SECOND, "trainer", 10, 15, late=3)]) == {"ranks": (((0, 2.0), (1, 5.0)), 1.5)}


def test_a_role_without_a_second_of_a_step_has_no_share() -> None:
    records = StepRecords(10 * S, 10 * S, DRIVER, [], {}, ROLES, REPLICAS)
    assert [(use.busy_share, use.idle_for) for use in role_uses(records, [], BY_ROLE)] == [(0.0, ())]
