from __future__ import annotations

from collections.abc import Mapping

import pytest

from patcher.timeline import costs
from patcher.timeline.causes import Activity, StepTimes
from patcher.timeline.costs import ADVICE, advice_key, path_seconds, run_causes, with_applicable_advice
from patcher.timeline.model import Bound, Cause, Imbalance, PathSegment, RunCause, TrainingStep

S = 1_000_000
DECODE, UPDATE = Activity("engine", "iteration", "decode", "gen"), Activity("trainer", "unit", "micro-batch", "update")
POLL, GAP = Activity("driver", "poll", "sample", "gen"), Activity("driver", "gap", "between phases", "")
REWARD, SYNC = Activity("reward", "reward", "score", "gen"), Activity("trainer", "sync", "send", "sync")


def step(
    number: int, causes: tuple[Cause, ...] = (), *, poll: float = 0, saves: Mapping[str, float] | None = None,
    imbalance: tuple[Imbalance, ...] = (), path: tuple[PathSegment, ...] = (), seconds: float = 10,
) -> TrainingStep:  # fmt: skip
    bounds = tuple(Bound(name, 0, value, "") for name, value in (saves or {}).items())
    return TrainingStep(
        number, 0, 0, seconds, "limited" if causes else "typical", "", causes[0] if causes else None, None, path, (),
        0, None, 0, (), poll, (), imbalance, bounds, also=causes[1:],
    )  # fmt: skip


def spent(**us: float) -> StepTimes:
    keys = {
        "other": Activity("driver", "phase", "x", "x"),
        "decode": DECODE,
        "update": UPDATE,
        "poll": POLL,
        "gap": GAP,
        "reward": REWARD,
        "sync": SYNC,
    }
    times = {keys[name]: round(seconds * S) for name, seconds in us.items()}
    return StepTimes(sum(times.values()), times, {}, {})


def cause(excess: float, saves: float | None = None, rank: int | None = None, key: Activity = UPDATE) -> Cause:
    return Cause(key.role, None, rank, key.what, key.phase, 2 + excess, excess, key.kind, saves)


def said(steps: list[TrainingStep], paths: list[StepTimes] | None = None) -> dict[str, RunCause]:
    found = run_causes(steps, paths or [spent(gap=0.0)] * len(steps))
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    return {str(one.title): one for one in found}


def test_excesses_of_a_cause_are_summed_with_what_they_save() -> None:
    steps = [step(1, (cause(50),)), step(2, (cause(3, 2.0),)), step(3), step(4, (cause(1), cause(2, 1.5, key=DECODE)))]
    found = said(steps)
    update, decode = (
        found["trainer: micro-batch in update, longer than in the typical step"],
        found["engine: decode in gen, longer than in the typical step"],
    )
    assert (update.seconds, update.share, update.steps, update.saves_seconds) == (4, 0.1333, (2, 4), 3.0)
    assert update.cause == cause(3, 2.0)
    assert (decode.seconds, decode.steps, decode.saves_seconds) == (2, (4,), 1.5)


def test_causes_of_another_rank_are_another_cause() -> None:
    found = said([step(1), step(2, (cause(3, rank=0),)), step(3, (cause(1, rank=1),)), step(4, (cause(1, rank=1),))])
    assert {one.steps for one in found.values()} == {(2,), (3, 4)}


def test_a_step_that_loses_a_hundredth_of_its_time_is_not_among_those_that_lose() -> None:
    lost = said([step(1), step(2, poll=0.1), step(3, poll=0.11), step(4, poll=3)])
    ((title, poll),) = lost.items()
    assert title.startswith("polling ")
    assert (poll.seconds, poll.steps, poll.saves_seconds) == (3.21, (3, 4), 3.21)


def test_costs_are_rounded_to_a_microsecond_and_shares_to_a_hundredth_of_a_percent() -> None:
    (found,) = said([step(1), step(2, (cause(2 / 3, 1 / 3),)), step(3, poll=0)]).values()
    assert (found.seconds, found.share, found.saves_seconds) == (0.666667, 0.0333, 0.333333)
    (found,) = said([step(1), step(2, poll=2 / 3), step(3)]).values()
    assert (found.seconds, found.share, found.saves_seconds) == (0.666667, 0.0333, 0.666667)
    done = ((0, 1.0), (1, 5.0))
    (found,) = said([step(1), step(2, imbalance=(Imbalance("ranks", done, 2 / 3),)), step(3)]).values()
    assert (found.seconds, found.share, found.saves_seconds) == (0.666667, 0.0333, 0.666667)


def test_an_activity_that_is_shorter_than_its_excess_is_not_long() -> None:
    path = spent(other=3, update=2)
    found = [*costs._long_activities([step(1), step(2, (cause(2.5),)), step(3, (cause(0.5),))], [path] * 3)]
    assert [(one.cause and one.cause.what, one.seconds) for one in found] == [("x", 9), ("micro-batch", 3.5)]


def test_below_a_hundredth_of_the_run_nothing_is_said_and_of_many_the_largest() -> None:
    assert said([step(1), step(2, (cause(0.1),))]) == {}
    assert len(said([step(1), step(2, (cause(0.11),))])) == 1
    many = tuple(cause(at, rank=at) for at in range(1, 9))
    assert [one.seconds for one in run_causes([step(1), step(2, many)], [spent(gap=0.0)] * 2)] == [8, 7, 6, 5, 4]


def test_each_step_loses_less_its_own_excess() -> None:
    paths = [spent(gap=9.0), spent(gap=1.0, poll=1), spent(gap=1.0, poll=1)]
    saves = {"no long tail": 2.0, "no waiting for the weight sync": 1.5, "no waiting for rewards": 0.5}
    segment = PathSegment(0, 1, 1, "driver", None, None, "poll", "sample", "gen", 0)
    longer = PathSegment(1, 3, 2, "driver", None, None, "poll", "sample", "gen", 0)
    steps = [
        step(1, poll=90),
        step(2, poll=3, saves=saves, path=(segment, longer)),
        step(3, (cause(1, key=SYNC), cause(0.25, key=REWARD), cause(9, key=GAP)), poll=3, saves=saves),
    ]
    found = {title.partition(" (")[0]: one for title, one in said(steps, paths).items()}
    poll = found["polling"]
    assert (poll.seconds, poll.steps, poll.saves_seconds) == (6, (2, 3), 6)
    assert "(sample)" in str(poll.title)
    assert poll.cause == Cause("driver", None, None, "sample", "gen", 2, 0.0, "poll")
    assert found["long tail of the rollout: fewer than a tenth of the peak number of requests are running"].seconds == 4
    assert found["weight sync"].seconds == 2.0
    kinds = {
        "poll": poll,
        "tail": found["long tail of the rollout: fewer than a tenth of the peak number of requests are running"],
    }
    assert {kind: one.advice for kind, one in kinds.items()} == {kind: ADVICE[kind] for kind in kinds}
    assert found["weight sync"].advice == ADVICE["sync"]
    small = said(
        [step(1), step(2, (cause(9, key=GAP),), saves={"no waiting for rewards": 0.5})],
        [spent(gap=9.0), spent(gap=8.0)],
    )
    assert {title: one.seconds for title, one in small.items() if "longer than" not in title} == {
        "reward computation at the end of the rollout": 0.5
    }
    gap = said([step(1), step(2)], [spent(gap=9.0), spent(gap=8.0)])["time between the driver's phases"]
    assert gap.seconds == 8


@pytest.mark.parametrize(
    ("kind", "stands"),
    [("update", True), ("decode", True), ("poll", False), ("gap", False), ("reward", False), ("sync", False)],
)
@pytest.mark.parametrize(("seconds", "enough"), [(2.0, True), (1.0, False)])
def test_an_activity_of_more_than_a_tenth_stands_out(kind: str, stands: bool, seconds: float, enough: bool) -> None:
    paths = [spent(**{"other": 10 - seconds, kind: seconds}) for _ in range(3)]
    found = [
        one
        for one in costs._long_activities([step(at) for at in range(3)], paths)
        if one.cause and one.cause.what != "x"
    ]
    assert [(one.seconds, one.steps, one.share) for one in found] == [(3 * seconds, (0, 1, 2), 0.0)] * (
        stands and enough
    )


def test_what_was_not_recorded_does_not_stand_out() -> None:
    lost = Activity("unrecorded", "iteration", "decode", "gen")
    assert [*costs._long_activities([step(1)], [StepTimes(S, {lost: S}, {}, {})])] == []


def test_waiting_for_the_last_rank_names_it_if_it_mostly_is_the_same() -> None:
    def uneven(number: int, last: int, seconds: float = 1.0, causes: tuple[Cause, ...] = ()) -> TrainingStep:
        done = tuple((rank, 5.0 + (rank == last)) for rank in range(3))
        return step(number, causes, imbalance=(Imbalance("ranks", done, seconds),))

    found = said([uneven(1, 0), uneven(2, 1), uneven(3, 1), uneven(4, 2), uneven(5, 0, 0.1)])
    assert [*found] == ["waiting for the last rank: it was rank 1 in 2 of 3 steps"]
    (rank,) = found.values()
    assert (rank.seconds, rank.steps) == (3.1, (2, 3, 4))
    assert [*said([uneven(1, 0), uneven(2, 1), uneven(3, 2)])] == ["waiting for the last rank"]
    assert [*said([uneven(1, 0), uneven(2, 1)])] == ["waiting for the last rank"]
    alone = said([uneven(1, 0), uneven(2, 1, 4, (cause(3, rank=1),)), uneven(3, 1)])
    assert alone["waiting for the last rank: it was rank 1 in 2 of 2 steps"].seconds == 2
    nobodys = said([uneven(1, 0), uneven(2, 1, 4, (cause(3),)), uneven(3, 1)])
    assert nobodys["waiting for the last rank: it was rank 1 in 2 of 2 steps"].seconds == 5
    assert nobodys["waiting for the last rank: it was rank 1 in 2 of 2 steps"].advice == ADVICE["rank"]
    replicas = Imbalance("replicas", ((0, 1.0), (1, 3.0)), 1.0)
    assert [*said([step(1), step(2, imbalance=(replicas,)), step(3, imbalance=(replicas,))])] == [
        "waiting for the last replica: it was replica 1 in 2 of 2 steps"
    ]
    other = Imbalance("replicas", ((0, 3.0), (1, 1.0)), 1.0)
    assert [*said([step(1), step(2, imbalance=(replicas,)), step(3, imbalance=(other,))])] == [
        "waiting for the last replica"
    ]


def test_what_takes_a_tenth_of_the_run_in_each_step_is_said() -> None:
    paths = [spent(decode=90), *[spent(decode=4, update=1, sync=4, reward=1)] * 3]
    found = said([step(1), step(2), step(3), step(4, (cause(1.0, key=DECODE),))], paths)
    assert [(title, one.seconds, one.steps, one.saves_seconds) for title, one in found.items() if "each" in title] == [
        ("engine: decode in gen, in each step", 11.0, (2, 3, 4), None)
    ]
    assert found["engine: decode in gen, in each step"].share == 0.3667
    more = said([step(1), step(2)], [spent(gap=0.0), spent(update=1.1, decode=8.9)])
    assert "trainer: micro-batch in update, in each step" in more


def test_one_step_is_better_than_none() -> None:
    assert len(said([step(1, (cause(3),))])) == 1
    assert run_causes([], []) == ()


def test_the_path_of_a_run_is_that_of_all_steps_but_the_first() -> None:
    found = path_seconds([spent(decode=9), spent(decode=2, update=1), spent(update=4)])
    assert [(one.what, one.seconds, one.kind) for one in found] == [
        ("micro-batch", 5, "unit"),
        ("decode", 2, "iteration"),
    ]
    assert [one.seconds for one in path_seconds([spent(decode=9)])] == [9]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Cause("driver", None, None, "sample", "gen", 1, 0, "poll"), "poll"),
        (Cause("driver", None, None, "adv", "adv", 1, 0, "phase"), "driver"),
        (Cause("trainer", None, 1, "micro-batch", "", 1, 0, "unit"), "rank"),
        (Cause("trainer", None, None, "micro-batch", "", 1, 0, "unit"), "trainer"),
        (Cause("trainer", None, None, "generate", "", 1, 0, "phase"), "generate"),
        (Cause("trainer", None, 1, "start of update", "", 1, 0, "work"), "queue"),
        (Cause("trainer", None, 1, "garbage collection", "", 1, 0, "gc"), "gc"),
        (Cause("engine", 1, None, "garbage collection", "", 1, 0, "gc"), "gc"),
        (Cause("engine", 1, None, "no iteration", "", 1, 0, "gap"), "replica"),
        (Cause("engine", None, None, "decode", "", 1, 0, "iteration"), "engine"),
        (Cause("server", 0, None, "generate", "", 1, 0, "serve"), "replica"),
        (Cause("server", None, None, "receive", "", 1, 0, "sync"), "sync"),
        (Cause("reward", None, None, "compute_score", "", 1, 0, "reward"), "reward"),
        (Cause("reward", None, None, "start", "", 1, 0, "work"), "reward"),
        (Cause("agent", None, None, "compute_score", "", 1, 0, "reward"), "reward"),
        (Cause("agent", None, None, "trajectory", "gen", 1, 0, "trajectory"), "agent"),
        (Cause("balancer", None, None, "acquire_server", "gen", 1, 0, "route"), "balancer"),
        (Cause("balancer", None, None, "start of acquire_server", "gen", 1, 0, "route"), "queue"),
        (Cause("unrecorded", None, None, "generate", "gen", 1, 0, "gap"), "gap"),
        (Cause("other", None, None, "train", "gen", 1, 0, "work"), "driver"),
    ],
)
def test_what_to_do_next(found: Cause, expected: str) -> None:
    assert advice_key(found) == expected


@pytest.mark.parametrize(
    ("windows", "trainers", "expected"),
    [
        (("slow micro-batch", "typical decode"), 2, ("trainer", "rank", "engine", "sync")),
        (("slow micro-batch",), 1, ("trainer", "trainer", "decode", "sync")),
        (("typical decode",), 2, ("unit", "rank", "engine", "sync")),
        ((), 1, ("unit", "unit", "decode", "sync")),
    ],
)
def test_advice_follows_what_can_be_done(windows: tuple[str, ...], trainers: int, expected: tuple[str, ...]) -> None:
    causes = [RunCause("", 1, 0.1, (), ADVICE[key]) for key in ("trainer", "rank", "engine", "sync")]
    assert [cause.advice for cause in with_applicable_advice(causes, windows, trainers)] == [
        ADVICE[key] for key in expected
    ]


def test_the_first_two_names_of_polls_are_told() -> None:
    polls = {POLL._replace(what=name): S for name in ("sample", "fetch", "drain")}
    (found,) = said([step(1, poll=2)], [StepTimes(3 * S, polls, {}, {})])
    assert found == "polling (drain, fetch) after the last trajectory had ended"
