"""The bubble of a pipeline, and stages that compute unequally."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports import reporting
from patcher.traces import analysis
from patcher.traces.analysis import pipelines
from patcher.traces.model import LEAD_IN, PARTS, Check, Collective, Diagnosis, Kernel, RankProfile, RecordedUnit
from patcher.traces.names import OUTPUT
from tests.patcher.traces.recorded import MS, SHARED, shared


def stage(
    *times: int, computes: int = 100, exposed: int = 60, rank: int = 0, name: str = "hcom_batchSendRecv", kind: str = "",
    checks: tuple[Check, ...] = (),
) -> RankProfile:  # fmt: skip
    """A stage of two units, in each of which its sends and receives take so many ms."""
    units = [
        RecordedUnit(number=at, host_ns=MS, kernels=9, compute_ns=computes * MS, communication_ns=exposed * MS)
        for at in range(2)
    ]
    found = [
        Collective("pp", at, name, ms * MS, unit=unit.number, kind=kind)
        for unit in units
        for at, ms in enumerate(times)
    ]
    return RankProfile(
        f"/rank{rank}",
        "torch",
        rank,
        "H100",
        tuple(units),
        label=f"rank {rank}",
        collectives=tuple(found),
        checks=checks,
    )


def finding(*profiles: RankProfile) -> Diagnosis | None:
    return next((one for one in analysis.reported(profiles).findings if one.id == "pipeline-bubble"), None)


def test_a_stage_is_in_sends_and_receives() -> None:
    found = finding(stage(20, 30))
    assert found is not None
    assert found.parts == {"pipeline": 50 * MS, "transfer": 10 * MS}
    assert (found.saving_ns, found.source) == (50 * MS, "/rank0")
    assert found.title == "Exposed sends and receives: transfer, or waiting for another rank"
    assert found.advice.startswith("find out whether this time is transfer")


def test_no_more_is_gained_than_nothing_hides_and_a_check_allows() -> None:
    found = finding(stage(40, 50))
    assert found is not None
    assert found.saving_ns == 60 * MS
    assert finding(stage(5, 9)) is None
    assert finding(stage(20, 30, checks=(Check("exposed", False, "more", ("pipeline-bubble",)),))) is None


RING = (600, 620, 690, 600) * 2
ROUNDS = {
    "a ring sends steadily": (RING, 16_000_000, "5", "mostly transfer, at 25.5 GB/s"),
    "a ring waits at times": ((600, 900, 1400, 600) * 2, 16_000_000, "5", "transfer, or waiting for another rank"),
    "few of a size": ((6000,), 160_000_000, "5", "transfer, or waiting for another rank"),
    "other times of unknown sizes": ((201, 900, 1400, 1300) * 2, None, "5", "transfer, or waiting for another rank"),
    "a size is unknown": (RING, None, "5", "transfer, or waiting for another rank"),
    "too slow for transfer": (RING, 2_000_000, "5", "transfer, or waiting for another rank"),
    "short ones beside long ones": ((200, 900, 1400, 1300) * 2, 16_000_000, "5", "Pipeline bubble"),
}


@pytest.mark.parametrize(("times", "size", "group", "headline"), ROUNDS.values(), ids=ROUNDS)
def test_a_bubble_takes_waiting(times: tuple[int, ...], size: int | None, group: str, headline: str) -> None:
    """Sends of a ring of context-parallel ranks (µs) are no bubble: they take equally long, as fast as the link is."""
    made = stage(exposed=4, computes=9)
    sends = [
        Collective(group, at, "ncclSendRecv", time * 1000, unit=unit, kind="send", bytes=size)
        for unit in range(2)
        for at, time in enumerate(times)
    ]
    first = analysis.reported([replace(made, collectives=tuple(sends))]).findings[0]
    assert headline in first.title
    assert ("most of this time is waiting" in first.advice) == (min(times) == 200)
    ranks = [replace(made, rank=rank, source=f"/{rank}", collectives=tuple(sends)) for rank in range(2)]
    assert bool(pipelines.stages(ranks)) == ("mostly transfer" not in headline)


@pytest.mark.parametrize(
    ("name", "kind", "counts"),
    [
        ("hcom_send", "", True), ("hcom_receive", "", True), ("ncclDevKernel_SendRecv(…)", "send", True),
        ("ncclDevKernel_SendRecv(…)", "recv", True), ("ncclDevKernel_SendRecv(…)", "all_to_allv", False),
        ("ncclDevKernel_SendRecv(…)", "", False), ("hcom_allReduce", "", False),
    ],
)  # fmt: skip
def test_what_is_between_two_ranks(name: str, kind: str, counts: bool) -> None:
    assert (finding(stage(20, 30, name=name, kind=kind)) is not None) == counts


def pipeline(*computes: int, late: int = 0, ranks: int = 1) -> list[RankProfile]:
    """A pipeline whose stages compute so many ms in a unit of 200, of so many ranks each; the others wait for the rest.

    With ``late`` the last stage is host-bound for so long instead of computing.
    """
    profiles = []
    for number, ms in enumerate(computes):
        for replica in range(ranks):
            rank, last = number * ranks + replica, number == len(computes) - 1
            parts: dict[str, Any] = {"compute_ns": ms * MS, "free_host_late_ns": late * MS if last else 0}
            waits = 200 * MS - sum(parts.values())
            unit = RecordedUnit(number=1, host_ns=MS, kernels=9, communication_ns=waits, **parts)
            profiles.append(
                RankProfile(
                    f"/rank{rank}", "torch", rank, "H100", (unit,), label=f"rank {rank}",
                    collectives=(Collective(f"pp{replica}", 0, "ncclSendRecv", waits, unit=1, kind="recv"),),
                )
            )  # fmt: skip
    return profiles


CULPRITS = [
    (pipeline(100, 101), ""), (pipeline(60, 150), "stage 1 (rank 1)"), (pipeline(150, 60), "stage 0 (rank 0)"),
    (pipeline(80, 80, 150, 80), "stage 2 (rank 2)"), (pipeline(60, 150, ranks=2), "stage 1 (ranks 2, 3)"),
    (pipeline(90, 90, 60, late=100), "stage 2 (rank 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("profiles", "culprit"), CULPRITS)
def test_the_stage_that_takes_longest_is_blamed_and_no_rank(profiles: list[RankProfile], culprit: str) -> None:
    report = analysis.reported(profiles)
    bubble = report.findings[0]
    assert (bubble.id, bubble.culprit, report.ranks) == ("pipeline-bubble", culprit, ())
    assert bubble.saving_ns == max(one.sum_ns("communication_ns") for one in profiles)
    assert ("fewer layers" in bubble.advice) == (bool(culprit) and not profiles[-1].sum_ns("free_host_late_ns"))


def test_waiting_across_stages_is_of_the_bubble() -> None:
    """What all ranks of a world share joins stages: a rank of the shorter stage is not late, nor the other one."""
    first, second = pipeline(60, 150)
    shared_by_all = (
        Collective("world", 0, "allReduce", 30 * MS, unit=1),
        Collective("world", 0, "allReduce", 5 * MS, unit=1),
    )
    made = [
        replace(one, collectives=(*one.collectives, more), units=(replace(one.units[0], communication_ns=160 * MS),))
        for one, more in zip((first, second), shared_by_all, strict=True)
    ]
    report = analysis.reported(made)
    assert report.ranks == ()
    assert report.findings[0].parts["pipeline"] == 160 * MS
    assert report.findings[0].id == "pipeline-bubble"


def test_a_stage_that_is_longer_by_its_own_communication_is_named_without_a_part() -> None:
    first, second = pipeline(100, 100)
    unit = replace(second.units[0], communication_ns=200 * MS)
    own = Collective("tp", 0, "allReduce", 100 * MS, unit=1)
    bubble = finding(first, replace(second, units=(unit,), collectives=(*second.collectives, own)))
    assert bubble is not None
    assert (bubble.culprit, "fewer layers" in bubble.advice) == ("stage 1 (rank 1)", False)


@pytest.mark.parametrize(("part", "words"), [("copy_ns", PARTS["copy_ns"]), (LEAD_IN, "time before the first kernel")])
def test_the_part_that_is_longer_is_in_words(part: str, words: str) -> None:
    assert pipelines.excess_words(pipelines.Excess(part, 1)) == words


@shared
def test_a_real_pipeline_of_two_stages() -> None:
    """By the vendor's communication.json and step file; its own Bubble is 0, for no stage receives alone."""
    folder = SHARED / "npu" / "qwen3-pp2-level2-csv"
    times = {}
    for path in sorted(folder.iterdir()):
        own = json.loads((path / OUTPUT / "communication.json").read_text())["step13"]["p2p"]
        rows = [row for name, row in own.items() if "@" in name]
        times[str(path)] = sum(row["Communication Time Info"]["Elapse Time(ms)"] for row in rows)
    found = finding(*reporting.report([folder], reporting.ReadOptions()).data.captures)
    assert found is not None
    assert found.source == max(times, key=times.__getitem__) == str(Path(folder) / "rank_1_ascend_pt")
    across = 7.26  # ms that it waits in collectives of both stages
    assert found.saving_ns == pytest.approx((times[found.source] + across) * MS, abs=MS / 100)
    assert found.culprit == "stage 1 (ranks 2, 3)"


@pytest.mark.parametrize(("ranks", "numbers"), [([0], [3, 0]), ([0, 4], [3, 0, 4]), ([0, None], [3, 0]), ([None], [3])])
def test_a_stage_is_named_with_the_ranks_that_are_known(ranks: list[int | None], numbers: list[int]) -> None:
    profiles = tuple(replace(stage(1), rank=rank, source=f"/{at}") for at, rank in enumerate(ranks))
    made = pipelines.PipelineStage(3, profiles)
    assert [int(text) for text in re.findall(r"\d+", made.name)] == numbers
    assert made.computing_ns == 100 * MS


LINKED: dict[str, tuple[list[tuple[int | None, tuple[str, ...]]], list[list[int]]]] = {
    "two stages": ([(0, ("a",)), (1, ("a",))], [[0], [1]]), "two pipelines": ([(0, ("a",)), (1, ("b",)), (2, ("a",)), (3, ("b",))], [[0, 1], [2, 3]]),
    "groups of neighbours": ([(0, ("a",)), (1, ("a", "b")), (2, ("b",))], [[0], [1], [2]]),
    "groups that meet late": ([(0, ("a",)), (1, ("b",)), (2, ("a", "b"))], [[0], [1], [2]]),
    "of other lengths": ([(0, ("a",)), (1, ("a",)), (2, ("b",))], []), "one rank sends to itself": ([(0, ("a",)), (1, ("b",))], []),
    "one does not send": ([(0, ("a",)), (1, ("a",)), (2, ())], []), "a rank is unknown": ([(0, ("a",)), (None, ("a",))], []),
    "nobody sends": ([(0, ()), (1, ())], []), "no group is named": ([(0, ("",)), (1, ("",))], []),
}  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_ranks_that_send_to_each_other_are_stages_of_a_pipeline(name: str) -> None:
    rows, expected = LINKED[name]
    profiles = [
        replace(
            stage(), rank=rank, source=f"/{at}", collectives=tuple(Collective(group, 0, "send", MS) for group in groups)
        )
        for at, (rank, groups) in enumerate(rows)
    ]
    found = pipelines.stages(profiles)
    assert [[profile.rank for profile in made.profiles] for made in found] == expected
    assert pipelines.stage_of(found) == {f"/{rank}": at for at, ranks in enumerate(expected) for rank in ranks}


@pytest.mark.parametrize(
    ("parts", "others", "more"),
    [
        ({"copy_ns": 5}, [{}], ("copy_ns", 5)), ({"copy_ns": 5, LEAD_IN: 6}, [{}], (LEAD_IN, 6)), ({"copy_ns": 6, "free_waiting_ns": 5, LEAD_IN: 6}, [{}], ("copy_ns", 6)),
        ({"communication_ns": 99}, [{}], None), ({"overlap_ns": 7}, [{"compute_ns": 6}], ("compute_ns", 1)), ({"overlap_ns": 7}, [{"compute_ns": 7}], None),
        ({"free_host_late_ns": 4, "free_latency_ns": 3, "compute_ns": 5}, [{"free_latency_ns": 1}], ("free_host_late_ns", 6)),
        ({"free_host_late_ns": 3, "free_latency_ns": 4}, [{}], ("free_latency_ns", 4)),
        ({"copy_ns": 5}, [{"copy_ns": 3}, {"copy_ns": 9}, {"copy_ns": 4}], ("copy_ns", 1)), ({"copy_ns": 1}, [{"copy_ns": 9}], None), ({}, [{}], None),
    ],
)  # fmt: skip
def test_the_part_of_which_a_rank_has_most_more_than_the_median_of_the_others(
    parts: dict[str, int], others: list[dict[str, int]], more: tuple[str, int] | None
) -> None:
    def made(times: dict[str, int]) -> RankProfile:
        return RankProfile("a", "torch", 0, "H100", (RecordedUnit(number=0, host_ns=9, kernels=1, **times),))  # type: ignore[arg-type]

    assert pipelines.excess([made(parts)], [made(times) for times in others]) == more
    doubled = made({name: 2 * ns for name, ns in parts.items()})
    mean = pipelines.excess([doubled, made({})], [made(times) for times in others])
    assert mean == more


def test_stages_are_in_the_order_of_their_ranks() -> None:
    made = [
        replace(stage(), rank=rank, source=f"/{rank}", collectives=(Collective("a", 0, "send", MS),))
        for rank in (1, 0, 2)
    ]
    assert [one.profiles[0].rank for one in pipelines.stages(made)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("slow", "times"),
    [({"a": 200, "b": 180}, 1.9), ({"a": 200, "b": 179}, None), ({"a": 100, "b": 100}, None), ({"a": 200}, None)],
    ids=str,
)
def test_kernels_take_as_many_times_as_long_within_a_fifth(slow: dict[str, int], times: float | None) -> None:
    assert pipelines.times_as_long(slow, dict.fromkeys(slow, 100)) == times


def test_a_kernel_that_does_not_run_has_no_time() -> None:
    made = RankProfile("a", "torch", 0, "H100", (RecordedUnit(number=0, host_ns=1, kernels=1),) * 2)
    assert pipelines._calls_and_ns(made, "k") == (0, 0)
    ran = replace(made, kernels=(Kernel("k", "copy", 2, 9), Kernel("k", "compute", 4, 10)))
    assert pipelines._calls_and_ns(ran, "k") == (2, 5)
