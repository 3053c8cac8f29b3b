from __future__ import annotations

from collections.abc import Mapping

import pytest

from patcher.timeline.causes import Spent, What, Who, verdicts
from patcher.timeline.model import TYPICAL

S = 1_000_000
UPDATE, DECODE, SEND = (
    What("trainer", "unit", "micro-batch", "update"),
    What("engine", "iteration", "decode", "gen"),
    What("trainer", "sync", "send", "sync"),
)
LOST = What("unrecorded", "gap", "train", "update")
WHO = [Who(None, None), Who(None, 0), Who(None, 1), Who(0, None), Who(1, None)]


def step(
    update: float = 2, decode: float = 5, *, late: Mapping[int, float] | None = None, replica: tuple[int | None, float] = (None, 0),
    unsafe: str = "", more: Mapping[What, float] | None = None,
) -> Spent:  # fmt: skip
    us = {
        UPDATE: round(update * S),
        DECODE: round(decode * S),
        **{key: round(value * S) for key, value in (more or {}).items()},
    }
    by_process: dict[What, dict[int | None, int]] = {key: {None: value} for key, value in us.items()}
    by_process[DECODE] = {3: us[DECODE]}
    lates = {UPDATE: {rank: round(value * S) for rank, value in (late or {}).items()}}
    return Spent(sum(us.values()), us, lates, by_process, (replica[0], round(replica[1] * S)), {}, unsafe)


def named(*steps: Spent) -> list[tuple[object, ...]]:
    found = verdicts(steps, WHO)
    return [
        (one.verdict, one.limited_by and (one.limited_by.what, one.limited_by.replica, one.limited_by.rank, one.limited_by.excess_seconds))
        for one in found
    ]  # fmt: skip


USUAL = [step(update=2 + at / 100, decode=5 - at / 100) for at in range(4)]

CASES = {
    "nothing stands out": (step(update=2.1), ("typical", None)),
    "all ranks": (step(update=5.02), ("limited", ("micro-batch", None, None, 3.0))),
    "one rank": (step(update=5.02, late={2: 3}), ("limited", ("micro-batch", None, 1, 3.0))),
    "a rank that has less than half of it": (
        step(update=5.02, late={2: 1.2}),
        ("limited", ("micro-batch", None, None, 3.0)),
    ),
    "one replica": (step(decode=7.98, replica=(0, 3)), ("limited", ("decode", 0, None, 3.0))),
    "all replicas": (step(decode=7.98, replica=(0, 0.1)), ("limited", ("decode", None, None, 3.0))),
    "another replica was last": (step(decode=7.98, replica=(1, 3)), ("limited", ("decode", None, None, 3.0))),
    "made up for elsewhere": (step(update=4, decode=3), ("typical", None)),
    "hidden in part, as by polling": (step(update=5.02, decode=3.5), ("limited", ("micro-batch", None, None, 3.0))),
    "not recorded": (step(more={LOST: 3}), ("not known", None)),
    "ranks that recorded nothing": (step(update=5, unsafe="1 of 2"), ("not known", None)),
    "slower in many parts": (
        step(update=4, decode=7, more={What("engine", "gap", "no iteration", "gen"): 2, LOST: 2.5}),
        ("several", None),
    ),
    "less than a twentieth": (step(decode=5.2), ("typical", None)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_a_step(name: str) -> None:
    odd, expected = CASES[name]
    assert named(*USUAL, odd)[-1] == expected


def test_a_rank_that_is_always_late_is_not_named_for_what_all_of_them_do() -> None:
    usual = [step(update=2, late={1: 2}) for _ in range(4)]
    assert named(*usual, step(update=5, late={1: 2}))[-1] == ("limited", ("micro-batch", None, None, 3.0))


def test_who_was_long_in_the_weight_sync_is_named() -> None:
    usual = [step(more={SEND: 1}) for _ in range(4)]
    odd = step(more={SEND: 4})
    for lengths, rank in (({1: 4 * S, 2: S}, 0), ({1: 4 * S, 2: 4 * S}, None)):
        one = Spent(odd.total, odd.us, odd.late, odd.by_process, odd.replica_late, {"send": lengths})
        assert named(*usual, one)[-1] == ("limited", ("send", None, rank, 3.0))


def test_the_first_step_is_no_measure_for_the_others() -> None:
    warm_up = step(update=20)
    assert named(warm_up, *USUAL[:2], step(update=4))[-1][0] == "limited"


def test_what_varies_anyway_does_not_stand_out() -> None:
    assert named(*(step(decode=value) for value in (5, 4, 7, 5, 3, 6, 8)))[-1][0] == "typical"


@pytest.mark.parametrize("count", [1, 2])
def test_few_steps_are_not_compared(count: int) -> None:
    assert [(one.verdict, one.limited_by) for one in verdicts([step()] * count, WHO)] == [(TYPICAL, None)] * count
