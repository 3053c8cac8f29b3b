"""The meetings of ranks, against sums worked out by hand, and the labels of profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from patcher.traces.analysis import ranks
from patcher.traces.model import Collective, Rank, RankProfile, RecordedUnit

Steps = Mapping[int, Sequence[int]]
"""Step → ns of each of its collectives, in order."""


def profile(rank: int | None, steps: Steps, *, names: str = "abcdef", group: str = "g", **more: object) -> RankProfile:
    """Profile of a rank whose collectives of one group are called ``names`` in each step."""
    units = tuple(RecordedUnit(number=number, host_ns=1, kernels=1) for number in steps)
    collectives = tuple(
        Collective(group, at, names[at], ns, unit=number, kind="allreduce")
        for number, lengths in steps.items()
        for at, ns in enumerate(lengths)
    )
    return RankProfile(f"/rank{rank}", "torch", rank, "H100", units, collectives=collectives, **more)  # type: ignore[arg-type]


def sums(*profiles: RankProfile) -> list[tuple[int | None, ...]]:
    return [
        (row.rank, row.collectives, row.waits_ns, row.awaited_ns, row.last, row.at_first_ns)
        for row in ranks.match_collectives(profiles).ranks
    ]


@pytest.mark.parametrize(
    ("awaited", "units", "step"),
    [
        ({4: 60, 5: 1}, 5, 4), ({4: 10, 5: 5, 6: 4}, 3, None), ({4: 60}, 2, 4), ({4: 60}, 1, None), ({}, 3, None),
        ({4: 17, 5: 16}, 2, None), ({4: 21, 5: 20}, 9, None), ({4: 20, 5: 10}, 9, 4), ({4: 20, 5: 11}, 9, None),
    ],
)  # fmt: skip
def test_a_rank_is_late_in_one_step_if_that_has_over_half_of_the_waiting(
    awaited: dict[int, int], units: int, step: int | None
) -> None:
    assert Rank(0, "r0", units, 100, 9, 0, sum(awaited.values()), 1, 0, awaited).late_in == step


THREE = (
    profile(2, {30: [7, 4], 31: [5, 4]}),
    profile(0, {30: [10, 4], 31: [7, 3]}),
    profile(1, {30: [2, 4], 31: [5, 9]}),
)


def test_the_first_wait_of_a_recording_counts_as_much_as_the_first_of_a_later_step() -> None:
    """Rank 0 waited 8 ns and then 2, rank 2 waited 5 and then none; nobody came last alone where two did."""
    assert sums(*THREE) == [(0, 4, 2 + 2, 6 + 1, 1, 0), (1, 4, 6, 2, 1, 2), (2, 4, 1, 0, 0, 0)]
    of_one_step = [replace(one, units=one.units[:1], collectives=one.collectives[:2]) for one in THREE]
    assert sums(*of_one_step) == [(0, 2, 8, 0, 0, 0), (1, 2, 0, 13, 1, 13), (2, 2, 5, 0, 0, 0)]
    meetings = ranks.match_collectives(THREE)
    assert (meetings.exact, meetings.across, meetings.pipeline) == (True, frozenset(), ())
    assert {key[1:]: ns for key, ns in meetings.waits.items() if key[0] == "/rank0"} == {
        (30, "g", 0): 8, (30, "g", 1): 0, (31, "g", 0): 2, (31, "g", 1): 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        ([profile(0, {30: [3, 4]})], []),
        ([profile(0, {30: [3, 4]}), profile(0, {30: [5, 4]})], []),
        ([profile(0, {30: [3, 4]}), profile(1, {30: [5]})], []),
        ([profile(0, {30: [3, 4]}), profile(1, {30: [5, 4]}, names="ba")], []),
        ([profile(0, {30: [3, 4]}, group=""), profile(1, {30: [5, 4]}, names="ba", group="")], [(0, 0, 2, 2), (1, 2, 0, 0)]),
        ([profile(None, {30: [3]}), profile(1, {30: [5]})], [(1, 2, 0, 0), (None, 0, 2, 1)]),
        ([profile(0, {30: [3]}, world=2), profile(1, {30: [5]}, world=4)], []),
        ([profile(0, {30: [3]}, world=2), profile(1, {30: [5]})], [(0, 0, 2, 1), (1, 2, 0, 0)]),
    ],
    ids=[
        "one", "of one rank", "one more", "another order", "another order without a name", "without a rank",
        "of different runs", "of a run of unknown size",
    ],
)  # fmt: skip
def test_only_equal_collectives_meet(profiles: list[RankProfile], expected: list[tuple[int, ...]]) -> None:
    found = ranks.match_collectives(profiles)
    assert [(row.rank, row.waits_ns, row.awaited_ns, row.last) for row in found.ranks] == expected
    assert bool(found.waits) == bool(expected)


@pytest.mark.parametrize(
    ("reported", "worlds", "missing"),
    [([0, 2], [4, 4], [1, 3]), ([0, 1], [2, 2], []), ([0, 2], [4, 5], []), ([0, None], [4, 4], []), ([0], [None], [])],
)
def test_the_ranks_that_no_profile_is_of(
    reported: list[int | None], worlds: list[int | None], missing: list[int]
) -> None:
    profiles = [profile(rank, {}, world=world) for rank, world in zip(reported, worlds, strict=True)]
    assert ranks.missing_ranks(profiles) == missing


@pytest.mark.parametrize(
    ("profiles", "labels"),
    [
        ([profile(3, {7: []})], [""]),
        ([profile(0, {7: []}), profile(1, {7: []})], ["rank 0", "rank 1"]),
        ([profile(0, {7: []}), profile(0, {8: []})], ["rank 0, #7", "rank 0, #8"]),
        ([replace(profile(0, {7: []}), source=f"/{name}/x/a") for name in "bc"], ["b/x/a", "c/x/a"]),
        ([replace(profile(None, {7: []}), source=f"/{name}/x/a/") for name in "bc"], ["b/x/a", "c/x/a"]),
        ([replace(profile(None, {7: []}), source=f"{name}/a") for name in "bc"], ["b/a", "c/a"]),
        ([replace(profile(None, {7: []}), source=f"{name}/b/a") for name in ("/c", "c")], ["/c/b/a", "c/b/a"]),
    ],
    ids=["one", "ranks", "steps", "paths", "without ranks", "whole paths", "a longer path"],
)
def test_profiles_have_the_shortest_labels_that_tell_them_apart(profiles: list[RankProfile], labels: list[str]) -> None:
    assert [one.label for one in ranks.labelled(profiles)] == labels
