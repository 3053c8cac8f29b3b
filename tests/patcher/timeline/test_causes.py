from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from patcher.timeline import causes
from patcher.timeline.causes import CPU_WAIT, Activity, ProcessRank, ProcessWait, StepTimes, sum_step_times, verdicts
from patcher.timeline.intervals import TimeRange
from patcher.timeline.model import TYPICAL
from patcher.timeline.path import PathPiece
from patcher.timeline.shares import Amounts

S = 1_000_000
UPDATE, DECODE, SEND = (
    Activity("trainer", "unit", "micro-batch", "update"),
    Activity("engine", "iteration", "decode", "gen"),
    Activity("trainer", "sync", "send", "sync"),
)
LOST = Activity("unrecorded", "gap", "train", "update")
WHO = [ProcessRank(None, None), ProcessRank(None, 0), ProcessRank(None, 1), ProcessRank(0, None), ProcessRank(1, None)]


def step(
    update: float = 2, decode: float = 5, *, late: Mapping[int, float] | None = None, replica: tuple[int | None, float] = (None, 0),
    incomplete: str = "", more: Mapping[Activity, float] | None = None,
) -> StepTimes:  # fmt: skip
    us = {
        UPDATE: round(update * S),
        DECODE: round(decode * S),
        **{key: round(value * S) for key, value in (more or {}).items()},
    }
    by_process: dict[Activity, dict[int | None, int]] = {key: {None: value} for key, value in us.items()}
    by_process[DECODE] = {3: us[DECODE]}
    lates = {UPDATE: {rank: round(value * S) for rank, value in (late or {}).items()}}
    return StepTimes(sum(us.values()), us, lates, by_process, (replica[0], round(replica[1] * S)), {}, incomplete)


def named(*steps: StepTimes) -> list[tuple[object, ...]]:
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
    "ranks that recorded nothing": (step(update=5, incomplete="1 of 2"), ("not known", None)),
    "slower in many parts": (
        step(update=4, decode=7, more={Activity("engine", "gap", "no iteration", "gen"): 2, LOST: 2.5}),
        ("several", None),
    ),
    "less than a twentieth": (step(decode=5.2), ("typical", None)),
    "no CPU was free": (step(update=2.4, more={CPU_WAIT: 3}), ("limited", (CPU_WAIT.what, None, None, 3.0))),
    "a rank that is slow and also waits": (
        step(update=5.02, late={2: 3}, more={CPU_WAIT: 1}),
        ("limited", ("micro-batch", None, 1, 3.0)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_on_a_step(name: str) -> None:
    odd, expected = CASES[name]
    assert named(*USUAL, odd)[-1] == expected


def test_a_rank_that_is_always_late_is_not_named_for_what_all_of_them_do() -> None:
    usual = [step(update=2, late={1: 2}) for _ in range(4)]
    assert named(*usual, step(update=5, late={1: 2}))[-1] == ("limited", ("micro-batch", None, None, 3.0))


@pytest.mark.parametrize(
    ("usual", "update", "waits", "expected"),
    [
        ((1.0, 1.2, 1.4), 2, 1.4, None), ((1.0, 1.2, 1.4), 5, 1.2, ("micro-batch", 3.0)),
        ((1.0, 1.2, 1.4), 2, 3, (CPU_WAIT.what, 2.0)), ((4.0, 4.2, 4.4), 5, 0, ("micro-batch", 3.0)),
        ((0, 4, 0, 4.5), 2, 4, (CPU_WAIT.what, 4.0)), ((0, 4, 0, 4.5), 5, 0, ("micro-batch", 3.0)),
        ((0, 0.2, 4, 4.5), 5, 9, (CPU_WAIT.what, 8.9)),
    ],
    ids=["usual", "a cause beside usual waits", "more than usual", "fewer waits make up for nothing",
         "most steps are disturbed", "a cause in one that is not", "a cause that costs less"],
)  # fmt: skip
def test_waits_for_a_cpu_are_a_cause_of_their_own(
    usual: Sequence[float], update: float, waits: float, expected: tuple[str, float] | None
) -> None:
    steps = [step(more={CPU_WAIT: usual[at % len(usual)]}) for at in range(12)]
    cause = verdicts([step(), *steps, step(update=update, more={CPU_WAIT: waits})], WHO)[-1].limited_by
    assert (cause and (cause.what, cause.excess_seconds)) == expected


def test_who_was_long_in_the_weight_sync_is_named() -> None:
    usual = [step(more={SEND: 1}) for _ in range(4)]
    odd = step(more={SEND: 4})
    for lengths, rank in (({1: 4 * S, 2: S}, 0), ({1: 4 * S, 2: 4 * S}, None)):
        one = StepTimes(odd.total, odd.us, odd.late, odd.by_process, odd.last_replica, {"send": lengths})
        assert named(*usual, one)[-1] == ("limited", ("send", None, rank, 3.0))


def test_the_first_step_is_no_measure_for_the_others() -> None:
    warm_up = step(update=20)
    assert named(warm_up, *USUAL[:2], step(update=4))[-1][0] == "limited"


def test_what_varies_anyway_does_not_stand_out() -> None:
    assert named(*(step(decode=value) for value in (5, 4, 7, 5, 3, 6, 8)))[-1][0] == "typical"


@pytest.mark.parametrize("count", [1, 2])
def test_few_steps_are_not_compared(count: int) -> None:
    assert [(one.verdict, one.limited_by) for one in verdicts([step()] * count, WHO)] == [(TYPICAL, None)] * count


def judged(*steps: StepTimes) -> tuple[object, ...]:
    """Return the verdict on the last step: who, its excess in seconds, further causes, phases beside."""
    found = verdicts(steps, WHO)[-1]
    cause = found.limited_by
    return (
        found.verdict,
        cause and (cause.what, cause.rank, cause.excess_seconds),
        [(other.what, other.excess_seconds) for other in found.also],
        [(phase.name, phase.seconds) for phase in found.beside],
    )


ADV = Activity("driver", "phase", "adv", "adv")
TEST, SAVE = Activity("reward", "reward", "score", "testing"), Activity("trainer", "work", "save", "save")


def test_causes_of_most_steps_do_not_hide_each_other() -> None:
    """Each step has one, of another kind: the median of whole steps is that of a slow step."""
    usual = [step(update=2 + at / 100, more={ADV: 1}) for at in range(3)]
    slow = [(4.0, 5, 1), (2, 8, 1), (2, 5, 4), (5, 5, 1), (2, 7, 1), (2, 5, 3)]
    steps = [*usual, *(step(update=update, decode=decode, more={ADV: adv}) for update, decode, adv in slow)]
    assert judged(*steps, step(more={ADV: 4})) == ("limited", ("adv", None, 3.0), [], [])
    assert judged(*steps, step(decode=7, more={ADV: 1})) == ("limited", ("decode", None, 2.0), [], [])


def test_the_second_cause_of_a_step_is_kept() -> None:
    assert judged(*USUAL, step(update=5.02, decode=7)) == (
        "limited", ("micro-batch", None, 3.0), [("decode", 2.02)], []
    )  # fmt: skip


def test_an_excess_within_the_variation_of_whole_steps_is_none() -> None:
    """The update varies by seconds, so that two more in the advantage say nothing."""
    usual = [step(update=2 + at * 7 % 5, more={ADV: 1 + at % 3 / 5}) for at in range(20)]
    assert judged(*usual, step(update=4, more={ADV: 3}))[:2] == ("typical", None)
    assert judged(*usual, step(update=4, more={ADV: 9}))[:2] == ("limited", ("adv", None, 7.8))


def test_validation_is_no_cause_but_is_said() -> None:
    usual = [step(more={TEST: 1} if at % 2 else {}) for at in range(12)]
    assert judged(*usual, step(more={TEST: 9})) == ("typical", None, [], [("testing", 9.0)])
    assert judged(*usual, step(update=5, more={TEST: 9})) == (
        "limited", ("micro-batch", None, 3.0), [], [("testing", 9.0)]
    )  # fmt: skip
    assert judged(*usual, step(more={TEST: 0.1}))[3] == []


def test_a_phase_that_most_steps_lack_is_compared_with_those_that_have_it() -> None:
    def usual(saves: int) -> list[StepTimes]:
        return [step(), *[step(more={SAVE: 1})] * saves, *[step()] * 12]

    assert judged(*usual(2), step(more={SAVE: 1})) == ("typical", None, [], [])
    assert judged(*usual(2), step(more={SAVE: 4})) == ("limited", ("save", None, 3.0), [], [])
    assert judged(*usual(1), step(more={SAVE: 4})) == ("typical", None, [], [("save", 4.0)])


def test_a_step_is_compared_with_what_is_usual_at_its_place() -> None:
    def run(at: int, more: float) -> tuple[object, ...]:
        steps = [step(decode=5 + number / 5 + (more if number == at else 0)) for number in range(40)]
        found = verdicts(steps, WHO)[at]
        return found.verdict, found.limited_by and round(found.limited_by.excess_seconds, 1)

    for at in (1, 20, 39):
        assert run(at, 0) == ("typical", None)
        assert run(at, 2) == ("limited", 2.0)


@pytest.mark.parametrize(("count", "verdict"), [(400, "limited"), (110, "typical")])
def test_more_decode_steps_count_where_times_vary(count: int, verdict: str) -> None:
    usual = [
        replace(step(update=2 + (at % 7) / 4, decode=1 + (at % 3) / 20), amounts=Amounts(100 + at % 2, 1_000))
        for at in range(20)
    ]
    found = verdicts([*usual, replace(step(update=2, decode=2.0), amounts=Amounts(count, 1_000))], WHO)[-1]
    assert found.verdict == verdict
    assert ("400 decode steps" in str(found.why)) == (verdict == "limited")


@pytest.mark.parametrize(
    ("count", "cause"),
    [(100, (CPU_WAIT.what, 3.0)), (300, (DECODE.what, 2.6)), (101, (CPU_WAIT.what, 3.0))],
    ids=["as many decode steps", "three times as many", "hardly more"],
)
def test_additional_decode_steps_bring_their_waits_for_a_cpu(count: int, cause: tuple[str, float]) -> None:
    """In the last step, engine 3 waits for 3 s more while it decodes: for 3.9 s in all."""
    usual = [
        replace(
            step(decode=1, more={CPU_WAIT: 0.9}), cpu_waits={DECODE: {3: 900_000}}, amounts=Amounts(100 + at % 3, 1)
        )
        for at in range(12)
    ]
    slow = replace(step(decode=1, more={CPU_WAIT: 3.9}), cpu_waits={DECODE: {3: 3_900_000}}, amounts=Amounts(count, 1))
    slow = replace(slow, by_process={**slow.by_process, CPU_WAIT: {3: 3_900_000}})
    limits = verdicts([step(), *usual, slow], WHO)[-1].limited_by
    assert limits is not None
    assert (limits.what, round(limits.excess_seconds, 1)) == cause


@pytest.mark.parametrize("count", [100, 300])
def test_additional_decode_steps_do_not_bring_waits_of_validation(count: int) -> None:
    """The last step validates, and waits for 3 s meanwhile and for 1 s in its rollout."""
    validated = DECODE._replace(phase="testing")
    usual = [replace(step(more={CPU_WAIT: 1, ADV: 1}), amounts=Amounts(100 + at % 3, 1)) for at in range(12)]
    slow = replace(
        step(more={CPU_WAIT: 4, validated: 1, ADV: 3}), cpu_waits={validated: {3: 3 * S}}, amounts=Amounts(count, 1)
    )
    slow = replace(slow, by_process={**slow.by_process, CPU_WAIT: {3: 4 * S}, validated: {3: S}})
    found = verdicts([step(), *usual, slow], WHO)[-1]
    assert [part.seconds for part in found.beside] == [4.0]
    assert found.limited_by is not None
    assert found.limited_by.what == "adv"
    assert not any(cause.what == CPU_WAIT.what for cause in found.also)


@pytest.mark.parametrize(("phase", "cause"), [("testing", ADV.what), ("gen", CPU_WAIT.what)])
def test_waits_for_a_cpu_during_validation_are_no_cause(phase: str, cause: str) -> None:
    """Only the last step validates, and waits for 3 s while it does."""
    usual = [step(more={CPU_WAIT: 0.5, ADV: 1}) for _ in range(12)]
    decode = DECODE._replace(phase=phase)
    slow = step(more={CPU_WAIT: 3.5, ADV: 3, Activity("driver", "phase", "testing", "testing"): 1, decode: 5})
    slow = replace(
        slow,
        cpu_waits={decode: {3: 3 * S}},
        by_process={**slow.by_process, CPU_WAIT: {3: 3_500_000}, decode: {3: 5 * S}},
    )
    found = verdicts([step(), *usual, slow], WHO)[-1]
    assert found.limited_by is not None
    assert (found.limited_by.what, [part.seconds for part in found.beside]) == (
        cause,
        [9.0 if phase == "testing" else 1.0],
    )


@pytest.mark.parametrize(
    ("waits", "lost", "verdict"), [(6, 0, "limited"), (1, 0.2, "several"), (6, 0.2, "several"), (6, 0.1, "limited")]
)
def test_a_cause_need_not_explain_waits_for_a_cpu(waits: float, lost: float, verdict: str) -> None:
    """The waits vary by seconds, so they are no cause; nor are twenty parts that each take a little longer."""
    parts = [Activity("driver", "phase", str(number), "gen") for number in range(20)]
    usual = [step(more={ADV: 1, CPU_WAIT: at * 7 % 5, **dict.fromkeys(parts, 0)}) for at in range(20)]
    slow = verdicts([*usual, step(more={ADV: 2, CPU_WAIT: waits, **dict.fromkeys(parts, lost)})], WHO)[-1]
    assert (slow.verdict, slow.limited_by and slow.limited_by.what) == (
        verdict,
        "adv" if verdict == "limited" else None,
    )


def test_waits_for_a_cpu_are_summed_by_activity_and_process() -> None:
    path = [PathPiece(0, 5, *DECODE, 3), PathPiece(5, 9, *UPDATE, 1), PathPiece(9, 15, *DECODE, 3)]
    waits = [ProcessWait(3, 2), ProcessWait(None, 0), ProcessWait(3, 4)]
    assert sum_step_times(path, (None, 0), {}, "", cpu_waits=waits).cpu_waits == {DECODE: {3: 6}}


@pytest.mark.parametrize(
    ("stalled", "rank"), [({1: 2.9}, 0), ({2: 1.6}, 1), ({2: 1.4}, None), ({1: 2.9, 2: 2.9}, None), ({1: 2.9, 2: 0.1}, None)]
)  # fmt: skip
def test_the_only_rank_that_stood_still_is_named(stalled: Mapping[int, float], rank: int | None) -> None:
    odd = replace(step(update=5.02), stalled={UPDATE: {at: round(value * S) for at, value in stalled.items()}})
    assert named(*USUAL, odd)[-1] == ("limited", ("micro-batch", None, rank, 3.0))


@pytest.mark.parametrize(
    ("lengths", "usual", "expected"),
    [
        ({0: 4, 1: 4, 2: 1}, {}, (None, 0)), ({0: 4, 3: 4, 1: 3.9, 2: 1}, {}, (None, 0)),
        ({1: 4, 2: 1}, {1: 4, 2: 1}, (None, None)), ({1: 3, 2: 2}, {}, (None, None)), ({1: 4}, {}, (None, None)),
    ],
    ids=["the driver only waits", "other roles count by themselves", "it is always so", "less than half", "alone"],
)  # fmt: skip
def test_the_rank_that_leads_in_a_weight_sync_is_named(
    lengths: Mapping[int, float], usual: Mapping[int, float], expected: tuple[int | None, int | None]
) -> None:
    def synced(seconds: float, by_process: Mapping[int, float]) -> StepTimes:
        return replace(step(more={SEND: seconds}), sync={"send": {at: round(us * S) for at, us in by_process.items()}})

    found = verdicts([*(synced(1, usual) for _ in range(4)), synced(4, lengths)], WHO)[-1].limited_by
    assert found is not None
    assert (found.replica, found.rank) == expected


def test_what_a_fix_saves_is_what_is_not_hidden() -> None:
    reward = Activity("reward", "reward", "score", "gen")
    usual = [step(more={reward: 1}) for _ in range(4)]
    for odd, saves in (
        (replace(step(more={reward: 4}), rewards_delay=2 * S), 2.0),
        (replace(step(more={reward: 4}), rewards_delay=9 * S), 3.0),
        (step(more={reward: 1}, decode=8, replica=(0, 2)), 2.0),
        (step(more={reward: 1}, update=5), 3.0),
    ):
        found = verdicts([*usual, odd], WHO)[-1].limited_by
        assert found is not None
        assert found.saves_seconds == saves


def test_a_path_is_summed_by_activity_and_process_with_the_stalls_during_it() -> None:
    def piece(start: float, end: float, what: str, process: int | None, late: float = 0) -> PathPiece:
        times = (round(start * S), round(end * S))
        return PathPiece(*times, "trainer", "unit", what, "update", process, round(late * S))

    path = [piece(0, 2, "a", 1, 0.5), piece(2, 3, "b", None, 9), piece(3, 7, "a", 2, 1), piece(7, 8, "a", 1, 0.25)]
    stalls = {1: [TimeRange(S, 4 * S)], 2: [TimeRange(20 * S, 30 * S)]}
    found = sum_step_times(path, (1, 7), {"send": {0: 3}}, "why", stalls)
    first, second = (Activity("trainer", "unit", what, "update") for what in "ab")
    assert (found.total, found.us) == (8 * S, {first: 7 * S, second: S})
    assert found.late == {first: {1: 3 * S // 4, 2: S}}
    assert found.by_process == {first: {1: 3 * S, 2: 4 * S}, second: {None: S}}
    assert found.stalled == {first: {1: 2 * S}, second: {1: S}}
    assert (found.last_replica, found.sync, found.incomplete) == ((1, 7), {"send": {0: 3}}, "why")
    assert (found.amounts, found.rewards_delay) == (Amounts(0, 0), 0)
    assert sum_step_times(path, (None, 0), {}, "").stalled == {}
    waits = [ProcessWait(1, S), ProcessWait(2, S // 4), ProcessWait(2, S // 4), ProcessWait(1, S // 4)]
    found = sum_step_times(path, (None, 0), {}, "", cpu_waits=waits)
    assert (found.total, found.us) == (8 * S, {first: 11 * S // 2, second: 3 * S // 4, CPU_WAIT: 7 * S // 4})
    assert found.by_process[CPU_WAIT] == {1: 5 * S // 4, 2: S // 2}
    assert (found.late, {*found.phases}) == ({first: {2: 3 * S // 4}}, {"update"})


@pytest.mark.parametrize(
    ("who", "by_process", "rank"),
    [
        ([ProcessRank(None, None), ProcessRank(None, 0), ProcessRank(0, None)], {1: 5}, 0), ([ProcessRank(None, None), ProcessRank(None, 0), ProcessRank(0, 1)], {1: 5}, 0),
        ([ProcessRank(None, None), ProcessRank(None, 0), ProcessRank(None, 1)], {1: 5}, None), ([ProcessRank(None, None), ProcessRank(None, 0)], {None: 5}, None),
    ],
    ids=["the only trainer", "an engine is none", "one of two", "nobody is known to have done it"],
)  # fmt: skip
def test_the_only_trainer_is_named(who: list[ProcessRank], by_process: dict[int | None, int], rank: int | None) -> None:
    def alone(update: float) -> StepTimes:
        return replace(step(update=update), by_process={UPDATE: by_process, DECODE: {None: 1}})

    found = verdicts([*[alone(2)] * 4, alone(5)], who)[-1].limited_by
    assert found is not None
    assert found.rank == rank


def test_a_replica_is_named_by_its_unusual_delay_or_as_the_only_one() -> None:
    for usual, replica in (((0, 1.6), None), ((0, 1.4), 0), ((1, 9), 0), ((None, 0), 0)):
        steps = [*[step(replica=usual) for _ in range(4)], step(decode=8, replica=(0, 3))]
        found = verdicts(steps, WHO)[-1].limited_by
        assert found is not None
        assert found.replica == replica
    found = verdicts([*[step()] * 4, step(decode=8)], [*WHO[:4], ProcessRank(0, None)])[-1].limited_by
    assert found is not None
    assert (found.replica, found.saves_seconds) == (0, 3.0)


@pytest.mark.parametrize(("more", "verdict"), [(3.9 * 1.4826, "typical"), (4.1 * 1.4826, "limited")])
def test_four_usual_spreads_of_an_activity_stand_out(more: float, verdict: str) -> None:
    usual = [step(more={ADV: 4 + (at % 3 - 1) * (at % 2 * 2 - 1)}) for at in range(31)]
    usual = [replace(one, total=7 * S) for one in usual]
    deviations = sorted(abs(one.us[ADV] / S - 4) for one in usual[1:])
    assert deviations[len(deviations) // 2] == 1
    assert judged(*usual, replace(step(more={ADV: 4 + more}), total=round((11 + more) * S)))[0] == verdict


def test_a_phase_of_half_of_the_steps_is_not_rare() -> None:
    usual = [step(), *[step(more={SAVE: 1}), step()] * 4]
    assert judged(*usual, step(more={SAVE: 4})) == ("limited", ("save", None, 3.5), [], [])
    assert judged(*usual, step(), step(more={SAVE: 4})) == ("limited", ("save", None, 3.0), [], [])


def test_steps_are_compared_with_forty_on_each_side() -> None:
    steps = [*[step(decode=20)] * 60, step(decode=8), *[step()] * 39, step(decode=20)]
    found = verdicts(steps, WHO)
    assert [one.verdict for one in found[:19]] == ["typical"] * 19
    assert causes._steps_to_compare(200, 100) == [*range(60, 100), *range(101, 141)]
    assert causes._steps_to_compare(10, 0) == [*range(1, 10)]
    assert causes._steps_to_compare(10, 9) == [*range(1, 9)]
    assert causes._steps_to_compare(4, 3) == [1, 2]
    assert causes._steps_to_compare(3, 2) == [0, 1]


def test_what_left_no_record_is_no_second_cause() -> None:
    found = judged(*USUAL, step(update=7, more={LOST: 2}))
    assert found[:3] == ("limited", ("micro-batch", None, pytest.approx(4.98)), [])


def test_the_largest_activity_is_kept() -> None:
    mostly = verdicts([step(), step(update=9), StepTimes(0, {}, {}, {})], WHO)
    assert [one.mostly and one.mostly.what for one in mostly] == ["decode", "micro-batch", None]


def test_a_trend_needs_twelve_values() -> None:
    def growing(count: int) -> tuple[float, float]:
        return causes.expected_and_spread([(at, 10.0 + at) for at in range(-count, 0)])

    assert growing(12) == (10.0, 0.0)
    middle, spread = growing(11)
    assert middle == 4.0
    assert spread == pytest.approx(3 * 1.4826)
    assert causes.expected_and_spread([(at, -5.0) for at in range(3)]) == (0.0, 0.0)
    assert causes.expected_and_spread([]) == (0.0, 0.0)


@pytest.mark.parametrize(("decode", "hides"), [(5.0, False), (3.5, False), (3.4, True), (2.6, True)])
def test_what_hides_an_excess_is_said(decode: float, hides: bool) -> None:
    found = verdicts([*[step()] * 5, step(update=5, decode=decode)], WHO)[-1]
    assert (found.verdict, bool(found.why)) == ("limited", hides)
    assert verdicts([*[step()] * 5, step(update=5, decode=2.4)], WHO)[-1].verdict == "typical"


def test_an_excess_is_not_hidden_by_what_whole_steps_differ_by() -> None:
    """1.6 s of 3 s are hidden, which is less than three spreads of the steps."""
    uneven = [step(decode=decode) for decode in (5, 4.5, 5.5, 4.5, 5.5, 5)]
    found = verdicts([*uneven, step(update=5, decode=3.4)], WHO)[-1]
    assert (found.verdict, found.why) == ("limited", "")


@pytest.mark.parametrize(("role", "replica"), [("server", 0), ("engine", 0), ("agent", None)])
def test_the_replica_with_most_of_an_activity_is_named(role: str, replica: int | None) -> None:
    held = Activity(role, "serve", "generate", "gen")

    def stuck(long: float, short: float, late: float) -> StepTimes:
        us = {held: round((long + short) * S), UPDATE: 2 * S}
        return StepTimes(
            sum(us.values()), us, {}, {held: {4: round(short * S), 3: round(long * S)}, UPDATE: {None: 2 * S}},
            (0, round(late * S)),
        )  # fmt: skip

    found = verdicts([*[stuck(1, 1, 0)] * 4, stuck(5, 1, 4)], WHO)[-1].limited_by
    assert found is not None
    assert (found.role, found.replica, found.excess_seconds) == (role, replica, 4.0)


@pytest.mark.parametrize(
    ("more", "update", "regular"),
    [(0, 2, 7), (4, 2, 7), (1, 2, 7), (4, 5, 7), (0, 5, 7), (0, 2.1, 7.1)],
)
def test_rare_phases_and_what_stands_out_are_not_regular(more: float, update: float, regular: float) -> None:
    """A checkpoint counts neither by its usual time nor by what it has more."""
    others = [(at + 1, step(more={SAVE: 1} if at < 4 else {})) for at in range(12)]
    comparison = causes._Comparison(step(update, more={SAVE: more} if more else {}), others, WHO)
    assert comparison.regular_us() == regular * S


@pytest.mark.parametrize(
    ("server", "driver", "verdict"),
    [(0.3, 0.4, "limited"), (0.5, 0.6, "several"), (0.0, 1.5, "limited")],
)
def test_nobody_is_accused_if_several_roles_are_slower_at_once(server: float, driver: float, verdict: str) -> None:
    """A third role must stand out, and all others together must have a quarter of the largest excess."""
    more = {Activity("server", "serve", "generate", "gen"): server, Activity("driver", "phase", "gen", "gen"): driver}
    slow = verdicts([*USUAL, step(decode=9, more=more)], WHO)[-1]
    assert slow.verdict == verdict
    assert (slow.limited_by is None) == (verdict == "several")


@pytest.mark.parametrize(("count", "verdict"), [(100, "several"), (300, "limited")])
def test_decoding_with_more_decode_steps_is_not_slower_together_with_others(count: int, verdict: str) -> None:
    """An answer is long and the agent loop stops: the machine is not overloaded."""
    more = {Activity("server", "serve", "generate", "gen"): 1, Activity("agent", "trajectory", "trajectory", "gen"): 3}
    usual = [replace(one, amounts=Amounts(100 + at % 2, 1)) for at, one in enumerate(USUAL)]
    slow = verdicts([*usual, replace(step(decode=9, more=more), amounts=Amounts(count, 1))], WHO)[-1]
    assert (slow.verdict, slow.limited_by and slow.limited_by.what) == (verdict, "decode" if count == 300 else None)


def test_roles_that_are_slower_in_other_phases_are_not_slower_together() -> None:
    more = {Activity("server", "serve", "generate", "other"): 0.5, Activity("driver", "phase", "adv", "adv"): 0.6}
    assert verdicts([*USUAL, step(decode=9, more=more)], WHO)[-1].verdict == "limited"


@pytest.mark.parametrize(
    ("excess", "spread", "total", "others", "clear"),
    [
        (12, 1, 30, 0, False), (13, 1, 30, 0, True), (9, 0.1, 30, 0, False), (9.1, 0.1, 30, 0, True), (31, 2.6, 30, 0, False),
        (6, 0, 30, 0, False), (6.1, 0.06, 30, 0, True), (6.1, 0.07, 30, 0, False),
        (3.7, 0.24, 30, 12, True), (3.7, 0.25, 30, 12, False), (3.7, 0.24, 30, 11, False), (3.5, 0, 30, 12, False),
    ],
)  # fmt: skip
def test_an_excess_of_many_spreads_and_a_share_of_the_step_is_clear(
    excess: float, spread: float, total: int, others: int, clear: bool
) -> None:
    neighbours = [(at, step()) for at in range(others)]
    comparison = causes._Comparison(StepTimes(total, {ADV: total}, {}, {}), neighbours, WHO)
    vars(comparison).update(
        usual_times={ADV: (total - excess, spread)}, excesses={ADV: excess}, incomparable=frozenset()
    )
    assert comparison._is_clear(ADV) is clear


@pytest.mark.parametrize(
    ("waits", "tests", "usual", "clear"),
    [(0, 0, 20, False), (10, 0, 20, True), (0, 10, 20, True), (10, 0, 25, False)],
    ids=["of the step", "without waits for a CPU", "without validation", "of the expected step"],
)  # fmt: skip
def test_a_clear_excess_is_a_share_of_the_work_of_a_step(waits: int, tests: int, usual: float, clear: bool) -> None:
    """An excess of 7 in a step of 30."""
    times = StepTimes(30, {ADV: 7, UPDATE: 23 - waits - tests, CPU_WAIT: waits, TEST: tests}, {}, {})
    comparison = causes._Comparison(times, (), WHO)
    middles = {ADV: (0, 0.5), UPDATE: (usual, 1), CPU_WAIT: (90, 1), TEST: (90, 1)}
    vars(comparison).update(usual_times=middles, excesses={ADV: 7}, incomparable={"testing"})
    assert comparison._is_clear(ADV) is clear


@pytest.mark.parametrize(
    ("late", "usual", "others", "role", "clear"),
    [
        (4.6, 1.1, 12, "trainer", True), (4.4, 0, 12, "trainer", False), (4.6, 1.2, 12, "trainer", False),
        (4.6, 0, 11, "trainer", False), (4.6, 0, 12, "engine", False), (None, 0, 12, "trainer", False),
    ],
    ids=["late", "too short", "always late", "few other steps", "no trainer", "none is late"],
)  # fmt: skip
def test_the_delay_of_one_rank_is_clear(late: float | None, usual: float, others: int, role: str, clear: bool) -> None:
    """All ranks take longer by 9 of 30, which they vary by; one rank in ten steps is later than the usual delay."""
    activity = UPDATE._replace(role=role)
    delays: Mapping[Activity, Mapping[int, int]] = {activity: {1: 1, 2: round(late * S)}} if late else {}
    neighbours = [(at, StepTimes(1, {}, {activity: {2: round((usual if at else 4) * S)}}, {})) for at in range(others)]
    comparison = causes._Comparison(StepTimes(30 * S, {activity: 30 * S}, delays, {}), neighbours, WHO)
    times = {activity: (21 * S, 8 * S)}
    vars(comparison).update(usual_times=times, excesses={activity: 9 * S}, incomparable=frozenset())
    assert comparison._is_clear(activity) is clear
    vars(comparison).update(excesses={activity: 4.4 * S})
    assert not comparison._is_clear(activity)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"kind": "iteration"}, 7), ({"kind": "iteration", "replica": 1}, inf), ({"kind": "iteration", "replica": None}, inf),
        ({"role": "reward", "phase": "gen"}, 5), ({"role": "reward"}, inf), ({"phase": "gen"}, inf), ({}, inf),
    ],
)  # fmt: skip
def test_what_an_activity_can_shrink_by_is_bounded_by_what_runs_beside_it(fields: dict[str, Any], value: float) -> None:
    replica = fields.get("replica", 0)
    activity = Activity(fields.get("role", "engine"), fields.get("kind", "x"), "x", fields.get("phase", "y"))
    times = StepTimes(1, {}, {}, {}, (0, 7), rewards_delay=5)
    assert causes._Comparison(times, (), WHO)._slack(activity, replica) == value


def test_the_lead_in_a_weight_sync_is_over_the_next_slowest_of_the_role() -> None:
    who = [*WHO, ProcessRank(None, 2)]
    comparison = causes._Comparison(step(), (), who)
    times = replace(step(), sync={"send": {0: 50, 1: 4, 2: 9, 5: 6, 3: 20, 4: 13}})
    assert comparison._slowest_in_sync(times, SEND) == (3, 2)
    assert comparison._slowest_in_sync(times, SEND._replace(role="engine")) == (7, 3)
    assert comparison._slowest_in_sync(times, SEND._replace(what="load")) == (0, None)


@pytest.mark.parametrize(
    ("extra", "verdict"),
    [(2.5, "limited"), (1.2, "typical")],
)
def test_what_takes_a_third_of_its_step_counts_however_uneven_the_steps_are(extra: float, verdict: str) -> None:
    """Whole steps vary by seconds, a reward by hardly anything; below a third of the step it may be chance.

    A step that is only a little longer than the others may just be a short one: nothing needs to hide the excess.
    """
    reward = Activity("reward", "reward", "score", "gen")
    uneven = [step(update=2 + (at % 7) / 2, decode=1, more={reward: 0.01 + (at % 3) / 100}) for at in range(20)]
    found = verdicts([*uneven, step(update=1.8, decode=1, more={reward: extra})], WHO)[-1]
    assert (found.verdict, bool(found.why)) == (verdict, verdict == "typical")


def test_a_short_rare_phase_hides_no_cause() -> None:
    saves = [step(more={SAVE: 4}) if at % 4 == 3 else step() for at in range(16)]
    found = verdicts([*saves, step(update=5, more={SAVE: 1})], WHO)[-1].limited_by
    assert found is not None
    assert (found.what, found.excess_seconds) == ("micro-batch", 3.0)


def test_a_wait_during_the_validation_of_all_trainers_is_of_the_one_that_waited() -> None:
    path = [PathPiece(0, 9 * S, "trainer", "unit", "evaluate", "testing", None)]
    waiting = sum_step_times(path, (None, 0), {}, "", cpu_waits=[ProcessWait(1, 4 * S)])
    assert [verdict.verdict for verdict in verdicts([waiting] * 4, WHO)] == ["typical"] * 4
