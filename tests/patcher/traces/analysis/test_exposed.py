"""The parts of exposed communication, and who is a straggler, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from patcher.traces.analysis import exposed
from patcher.traces.analysis.diagnoses import reported
from patcher.traces.analysis.pipelines import PipelineStage
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.model import TITLES, Collective, Rank, RankProfile, RecordedUnit


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


IN_TURN: dict[str, tuple[list[dict[int, int]], list[int] | None, int | None]] = {
    "another rank in each step": ([{0: 30}, {1: 30}, {2: 30}], [0, 1, 2], None),
    "two ranks, three steps to two": ([{0: 30, 2: 30, 4: 30}, {1: 30, 3: 30}], [0, 1, 0, 1, 0], None),
    "one rank in two thirds of the steps": ([{0: 30, 2: 30}, {1: 30}], None, 0),
    "one rank for two thirds of the waiting": ([{0: 40, 1: 40}, {2: 20}, {3: 20}], None, 0),
    "one rank for a little less": ([{0: 40, 1: 39}, {2: 20}, {3: 20}], [0, 0, 1, 2], None),
    "half of the waiting in one step": ([{0: 40}, {1: 20}, {2: 20}], [0, 1, 2], None),
    "a little more in one step": ([{0: 41}, {1: 20}, {2: 20}], None, 0),
    "two steps, one of them with half as much": ([{0: 40}, {1: 20}], None, 0),
    "two steps, one of them with a little more": ([{0: 40}, {1: 21}], [0, 1], None),
    "a step with little waiting": ([{0: 30, 1: 30}, {2: 9}], None, 0),
    "no straggler in any step": ([{0: 30, 1: 29}, {0: 29, 1: 30}], None, None),
    "most waiting in steps without one": ([{0: 30, 2: 50, 3: 50}, {1: 30, 2: 49, 3: 49}], None, None),
}  # fmt: skip


@pytest.mark.parametrize(("awaited", "last", "slow"), IN_TURN.values(), ids=IN_TURN)
def test_the_straggler_may_change_from_step_to_step(
    awaited: list[dict[int, int]], last: list[int] | None, slow: int | None
) -> None:
    ranks = [
        Rank(at, f"r{at}", 5, 100, 3, 5, sum(steps.values()), 1, 0, awaited_in=steps)
        for at, steps in enumerate(awaited)
    ]
    found = [rank.rank for rank in exposed._stragglers_in_turn(meetings(*ranks)).values()]
    assert found == (last or [])
    straggler = exposed.straggler(meetings(*ranks))
    assert (straggler and straggler.rank) == slow


@pytest.mark.parametrize(("alone", "slow"), [(51, 0), (50, None), (None, 0)])
def test_the_straggler_alone_causes_over_half_of_the_waiting_for_it(alone: int | None, slow: int | None) -> None:
    alone_in = None if alone is None else {0: alone - 20, 1: 20}
    ranks = [
        Rank(0, "r0", 2, 100, 3, 5, 100, 1, 0, {0: 60, 1: 40}, alone_in), Rank(1, "r1", 2, 100, 3, 5, 20, 1, 0, {1: 20}),
    ]  # fmt: skip
    found = exposed.straggler(meetings(*ranks))
    assert (found and found.rank) == slow


@pytest.mark.parametrize(
    ("longer", "headline", "evidence"),
    [
        (20, "the rank that computes longest changes from step to step", "the straggler computes 20.00 ms longer"),
        (10, "the straggler changes from step to step", "(rank 0 in step 0, rank 1 in step 1, rank 2 in step 2)"),
    ],
)
def test_stragglers_in_turn_are_blamed_on_computing_that_explains_the_waiting(
    longer: int, headline: str, evidence: str
) -> None:
    ms = 1_000_000
    profiles = [
        RankProfile(
            f"r{rank}", "torch", rank, "H100",
            tuple(
                RecordedUnit(
                    number=step, host_ns=9, kernels=1, compute_ns=(50 + longer * (step == rank)) * ms,
                    communication_ns=(1 if step == rank else 21) * ms,
                )
                for step in range(3)
            ),
            collectives=tuple(
                Collective("tp", 0, "allReduce", (1 if step == rank else 21) * ms, unit=step) for step in range(3)
            ),
        )
        for rank in range(3)
    ]  # fmt: skip
    report = reported(profiles)
    assert report.verdict.title == f"Ranks wait for each other: {headline}"
    assert evidence in report.findings[0].evidence
    assert "the others wait 20.00 ms for it on average" in report.findings[0].evidence


@pytest.mark.parametrize(
    ("computes", "named"),
    [([100, 111], (1, 0)), ([100, 110], None), ([111, 100], (0, 1)), ([120, 90, 100], (0, 1)), ([100], None), ([], None)],
)  # fmt: skip
def test_stages_are_unequal_if_one_takes_a_tenth_longer_without_the_bubble(
    computes: list[int], named: tuple[int, int] | None
) -> None:
    stages = [
        PipelineStage(at, (RankProfile(f"r{at}", "torch", at, "H100", (RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=ns, communication_ns=50),), collectives=(told(50, kind="send"),)),))
        for at, ns in enumerate(computes)
    ]  # fmt: skip
    slowest, fastest = exposed._slowest_and_fastest(Meetings((), True, {}, frozenset(), tuple(stages)))
    assert (slowest and fastest and (slowest.number, fastest.number)) == named


@pytest.mark.parametrize(("units", "times"), [(0, 6), (1, 6), (2, 3)])
def test_sends_of_a_pipeline_are_counted_per_step(units: int, times: int) -> None:
    steps = tuple(RecordedUnit(number=at, host_ns=9, kernels=1) for at in range(units))
    sends = tuple(told(50, kind="send", index=at) for at in range(6))
    profile = RankProfile("r0", "torch", 0, "H100", steps, collectives=(*sends, told(50)))
    assert f"sends or receives data {times} times per step" in exposed._bubble_text(profile, meetings()).evidence


@pytest.mark.parametrize(
    ("idle", "world", "headline"),
    [
        ((51, 50), 1, ", mostly in allreduce"), ((50, 50), 1, None),
        ((51, 50), None, ", mostly in allreduce; it may wait for ranks that the report does not cover"),
        ((51, 50), 2, ", mostly in allreduce; it may wait for ranks that the report does not cover"),
    ],
)  # fmt: skip
def test_idle_time_inside_collectives_is_named_by_their_kind(
    idle: tuple[int, int], world: int | None, headline: str | None
) -> None:
    found = (told(100, 0, idle[0]), told(100, 0, idle[1], kind="broadcast", index=1))
    profile = RankProfile("r0", "torch", 0, "H100", (), collectives=found, world=world)
    title = "" if headline is None else f"{TITLES['collective-idle']}{headline}"
    assert exposed._idle_headline(profile, [profile]) == title


@pytest.mark.parametrize(
    ("communicates", "waits", "largest"),
    [
        (100, 0, "communication"), (99, 0, None), (99, 25, "slow-rank"), (99, 24, None), (25, 25, "slow-rank"), (200, 101, "slow-rank"),
        (200, 99, "communication"), (200, 25, "communication"), (200, 24, "communication"),
    ],
)  # fmt: skip
def test_a_tenth_of_exposed_communication_or_a_fortieth_of_waiting_is_told(
    communicates: int, waits: int, largest: str | None
) -> None:
    """Of two steps of 1,000 ns; the saving is per step."""
    units = tuple(
        RecordedUnit(number=at, host_ns=9, kernels=1, compute_ns=1000 - communicates, communication_ns=communicates)
        for at in range(2)
    )
    every = tuple(told(communicates, waits, 0, unit=at) for at in range(2))
    profile = RankProfile("r0", "torch", 0, "H100", units, collectives=every)
    found = exposed.diagnose_communication(profile, [profile], meetings())
    assert (found and found.id) == largest
    slow = [Rank(at, f"r{at}", 2, 1000, 3, 5, ns, 1, 0) for at, ns in enumerate((30, 20))]
    with_ranks = exposed.diagnose_communication(
        profile, [profile, replace(profile, source="r1", rank=1)], meetings(*slow)
    )
    assert (with_ranks is not None and "rank 0" in with_ranks.evidence) == (waits >= 25)
    if found:
        assert found.saving_ns == (waits if largest == "slow-rank" else communicates - waits)
        assert found.parts == {name: ns for name, ns in (("waiting", waits), ("transfer", communicates - waits)) if ns}


@pytest.mark.parametrize(
    ("at_first", "units", "said"), [(16, 1, True), (15, 1, False), (11, 1, False), (30, 1, True), (30, 2, False)]
)
def test_waiting_at_the_first_collective_of_the_only_step_may_be_the_profilers(
    at_first: int, units: int, said: bool
) -> None:
    """The others wait for 30 ns in all."""
    profiles = [
        RankProfile(f"r{at}", "torch", at, "H100", (RecordedUnit(number=0, host_ns=9, kernels=1),)) for at in (0, 1)
    ]
    slow = [Rank(at, f"r{at}", units, 100, 3, 5, ns, 1, at_first) for at, ns in enumerate((30, 20))]
    text = exposed._straggler_text(profiles[0], profiles, meetings(*slow))
    assert ("start times" in text.certainty, "the only recorded step" in text.evidence) == (said, said)


def test_a_rank_is_named_by_its_number_else_by_its_source() -> None:
    ranks = [Rank(number, "x.json", 1, 100, 3, 5, 9, 1, 0) for number in (0, None)]
    assert [exposed.rank_words(rank) for rank in ranks] == ["rank 0", "x.json"]


@pytest.mark.parametrize(
    ("collectives", "kind"),
    [
        ([told(60), told(40, kind="broadcast")], "allreduce"), ([told(50), told(50, kind="broadcast")], ""),
        ([told(60, kind=""), told(40)], "x"), ([told(30), told(30), told(40, kind="broadcast")], "allreduce"), ([], ""),
    ],
)  # fmt: skip
def test_the_headline_names_the_collective_with_over_half_of_the_communication(
    collectives: list[Collective], kind: str
) -> None:
    unit = RecordedUnit(number=0, host_ns=100, kernels=1, communication_ns=100)
    profile = RankProfile("r0", "torch", 0, "H100", (unit,), collectives=tuple(collectives))
    found = exposed.diagnose_communication(profile, [profile], meetings())
    assert found
    assert found.title == "Exposed communication" + bool(kind) * f"; collective with the most time: {kind}"


@pytest.mark.parametrize(("more", "told", "named"), [(14, False, False), (15, True, False), (16, True, True)])
def test_what_takes_the_straggler_longer_is_told_from_a_fortieth_of_its_step_on(
    more: int, told: bool, named: bool
) -> None:
    """Its step takes 600 ns, and each of the others waits 30 ns for it."""
    profiles = [
        RankProfile(
            f"r{at}", "torch", at, "H100",
            (RecordedUnit(number=0, host_ns=9, kernels=1, compute_ns=570 - more * (at > 0), communication_ns=30),),
        )
        for at in range(3)
    ]  # fmt: skip
    slow = [Rank(at, f"r{at}", 1, 100, 3, 5, 60 * (at == 0), 1, 0) for at in range(3)]
    text = exposed._straggler_text(profiles[0], profiles, meetings(*slow))
    assert ("more than the other ranks on this part" in text.evidence) == told
    assert ("it computes" in text.headline) == named
