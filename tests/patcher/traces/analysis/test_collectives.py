"""Collectives among those of their kind: which stands out, by how much, and what of it is waiting."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patcher.commands.reports import reporting
from patcher.traces import analysis, page
from patcher.traces.analysis import collectives, exposed
from patcher.traces.analysis.ranks import Meetings
from patcher.traces.messages import LinkPiece
from patcher.traces.model import TITLES, Check, Collective, Diagnosis, RankProfile, RecordedUnit
from tests.patcher.traces.recorded import MS, SHARED, shared

MB = 1_000_000


def made(*times: tuple[float, float], kind: str = "allreduce", **more: object) -> tuple[Collective, ...]:
    """Collectives of so many MB and ms."""
    return tuple(
        replace(Collective("586", at, "nccl", round(ms * MS), kind=kind, bytes=round(size * MB), unit=30), **more)  # type: ignore[arg-type]
        for at, (size, ms) in enumerate(times)
    )


def profile(
    *found: Collective, exposed: float | None = None, rank: int = 0, checks: tuple[Check, ...] = ()
) -> RankProfile:
    exposed = sum(one.ns for one in found) / MS if exposed is None else exposed
    unit = RecordedUnit(number=30, host_ns=MS, kernels=9, compute_ns=100 * MS, communication_ns=round(exposed * MS))
    return RankProfile(
        f"/rank{rank}", "torch", rank, "H100", (unit,), label=f"rank {rank}", collectives=found, checks=checks
    )


def usual(*found: Collective) -> list[float | None]:
    (sized,) = collectives.with_usual_times([profile(*found)], {})
    return [one.usual_ns and one.usual_ns / MS for one in sized.collectives]


def finding(*profiles: RankProfile) -> Diagnosis | None:
    return next(
        (
            one
            for one in analysis.reported(profiles).findings
            if "At the rate of similar collectives, this collective would take" in one.evidence
        ),
        None,
    )


@pytest.mark.parametrize(
    ("times", "known"),
    [
        ([(10, 1), (10, 3), (10, 2)], [2, 2, 2]),
        ([(10, 1), (10, 3)], [None, None]),
        # A larger one bounds a smaller one by its time, a smaller one a larger one by its rate.
        ([(16.4, 79), (67, 2.2), (151, 2.4), (9.9, 22)], [2.4, 2.4, 151 / 67 * 2.2, 2.4]),
        ([(10, 1)] * 9 + [(1000, 1)], [1] * 9 + [100]),
        ([(10, 1), (20, 5), (40, 6)], [5, 5, 6]),  # half and twice the size are equally near
        # Nine of a size are enough: what is far from it in size does not count.
        ([(10, 5)] * 9 + [(11, 1)] * 20, [5] * 9 + [1] * 20),
        ([(10, 5)] * 8 + [(11, 1)] * 20, [1] * 28), ([(10, 1), (10, 1), (20, 5)], [1, 1, 2]),
    ],
)  # fmt: skip
def test_what_is_usual_follows_from_those_nearest_in_size(
    times: list[tuple[float, float]], known: list[float | None]
) -> None:
    assert usual(*made(*times)) == [want and pytest.approx(want, rel=1e-6) for want in known]


def test_other_kinds_and_groups_and_what_has_no_size_are_not_compared() -> None:
    found = (*made((10, 1), (10, 2)), *made((10, 3), kind="broadcast"), replace(*made((10, 9)), group="tp"))
    assert usual(*found) == [None] * 4
    assert usual(*(replace(one, bytes=None) for one in made((10, 1), (10, 1), (10, 1)))) == [None] * 3
    assert usual(*(replace(one, bytes=None, sent_bytes=MB) for one in made((10, 1), (10, 4), (10, 5)))) == [4] * 3


@pytest.mark.parametrize(
    ("others", "fastest"),
    [
        ([], None), ([(20, 5)], (20, 5)), ([(5, 1)], None), ([(10, 5), (30, 2), (40, 3)], (30, 2)),
        ([(20, 5), (30, 5)], (30, 5)), ([(30, 5), (20, 5)], (30, 5)), ([(20, 99)], None), ([(0, 1), (10, 2)], (10, 2)),
    ],
)  # fmt: skip
def test_a_slow_collective_is_held_against_the_fastest_that_carries_as_much(
    others: list[tuple[float, float]], fastest: tuple[float, float] | None
) -> None:
    worst, *alike = made((10, 50), *others)
    neighbour = collectives._faster_neighbour((worst, *alike, *made((90, 0.1), kind="broadcast")), worst)
    assert (neighbour and (neighbour.bytes / MB, neighbour.ns / MS)) == fastest  # type: ignore[operator]


SLOW = ((264, 2.5), (117, 2.3), (28.6, 86.5), (264, 2.4))


def test_the_outlier_is_named_with_its_size_and_a_neighbour() -> None:
    found = finding(profile(*made(*SLOW)))
    assert found is not None
    assert found.id == "collective-outlier"
    for fact in ("allreduce of 28.6 MB in step 30", "86.50 ms", "117.0 MB", "2.30 ms", "84.10 ms less"):
        assert fact in found.evidence
    assert (found.saving_ns, found.source) == (84_100_000, "/rank0")
    assert found.title == (
        f"{TITLES['collective-outlier']}: allreduce in step 30, 86.50 ms; it may wait for ranks that the report does not"
        " cover"
    )
    assert found.advice.startswith("run the report on all ranks")
    assert finding(profile(*made(*SLOW[:2], *SLOW[3:], (28.6, 4.4)))) is None


@pytest.mark.parametrize(
    ("places", "title"),
    [
        ((0, 0, 0), "In each step, one collective takes much longer than similar ones: allreduce, up to 86.50 ms"),
        ((0, 0, 1), TITLES["collective-outlier"]), ((0, 0, None), TITLES["collective-outlier"]),
    ],
)  # fmt: skip
def test_a_collective_that_is_slow_in_each_step_is_no_exception(places: tuple[int | None, ...], title: str) -> None:
    whole = profile(*made(*SLOW))
    units = tuple(replace(whole.units[0], number=30 + at) for at in range(3))
    found = [
        replace(collective, unit=30 + at, index=(index or 0) if collective.ns > 80 * MS else 9)
        for at, index in enumerate(places)
        for collective in (made(*SLOW) if index is not None else made(*SLOW[:2]))
    ]
    first = finding(replace(whole, units=units, collectives=tuple(found)))
    assert first is not None
    assert first.title.startswith(title)


def test_what_the_vendor_calls_waiting_is_no_outlier() -> None:
    parts: dict[str, Any] = {"transit_ns": MS, "wait_ns": 0, "idle_ns": MS}
    fast = made(*SLOW[:2], **parts)
    waiting, idle = (replace(*made(SLOW[2], **parts), **{name: 85 * MS}) for name in ("wait_ns", "idle_ns"))
    assert finding(profile(*fast, waiting)) is None
    found = finding(profile(*fast, idle))
    assert found is not None
    assert (
        "According to torch_npu, 1.00 ms of this time is transfer, 0.00 ms is waiting and 85.00 ms is idle."
        in found.evidence
    )
    assert found.advice.startswith("the network is not")
    both = finding(profile(*fast, waiting, idle))
    assert both is not None
    assert "of 4 stand" not in both.evidence


def test_other_ranks_tell_waiting_from_transfer() -> None:
    """Rank 1 comes last in the third one: what rank 0 took longer is waiting, what both took is not."""
    ranks = [profile(*made(*SLOW[:2], (28.6, ms), ranks=2), rank=rank) for rank, ms in enumerate((86.5, 46.5))]
    found = finding(*ranks)
    assert found is not None
    assert found.saving_ns == 44 * MS
    assert "Of this time, 40.00 ms is waiting for the straggler and 46.50 ms is transfer." in found.evidence
    assert found.title == f"{TITLES['collective-outlier']}: allreduce in step 30, 86.50 ms"
    first, second = analysis.reported(ranks).captures
    assert [one.waits_ns for one in (*first.collectives, *second.collectives)] == [0, 0, 40 * MS, 0, 0, 0]
    assert first.collectives[2].gb_per_s == second.collectives[2].gb_per_s == pytest.approx(28.6 / 46.5, abs=1e-3)
    alike = [profile(*made(*SLOW[:2], (28.6, ms)), rank=rank) for rank, ms in enumerate((86.5, 4))]
    assert finding(*alike) is None


@pytest.mark.parametrize(
    ("group", "world", "known"), [(2, 8, True), (3, 2, False), (None, 2, True), (None, 3, False), (None, None, False)]
)
def test_ranks_that_are_not_reported_may_be_waited_for(group: int | None, world: int | None, known: bool) -> None:
    """The size of the group tells whether ranks are missing, else that of the run; without both, nothing tells."""
    found = finding(
        *(
            replace(profile(*made(*SLOW[:2], (28.6, ms), ranks=group), rank=rank), world=world)
            for rank, ms in enumerate((86.5, 46.5))
        )
    )
    assert found is not None
    assert ("it may wait for ranks" in found.title) == (not known)
    assert ("46.50 ms is transfer or waiting for ranks" in found.evidence) == (not known)
    assert found.advice.startswith("run the report on all ranks") == (not known)


def test_no_more_is_gained_than_nothing_hides_and_a_check_allows() -> None:
    found = finding(profile(*made(*SLOW), exposed=30))
    assert found is not None
    assert found.saving_ns == 30 * MS
    assert finding(profile(*made(*SLOW), exposed=4)) is None
    failed = Check("exposed", False, "more than all", ("communication", "collective-outlier"))
    assert finding(profile(*made(*SLOW), checks=(failed,))) is None


ODD, EVEN, TINY = (2000, 10, 2 * MS), (2048, 10, 2 * MS), (500, 99, MS)


@pytest.mark.parametrize(
    ("pieces", "evidence", "padded"),
    [
        ([(EVEN,), (TINY,)], (), False),
        (
            [(ODD,)],
            ("1 of 1 ", "2,000 bytes in allreduce", "100.0 %"),
            True,
        ),
        (
            [(ODD, EVEN), (EVEN,)],
            ("0.0 GB/s",),
            False,
        ),
        ([((2_000_000, 1, MS), (2_097_152, 2, MS))], ("2.0 GB/s", "4.2 GB/s"), True),
    ],
)  # fmt: skip
def test_pieces_of_odd_sizes_are_a_note_with_what_they_cost(
    pieces: list[tuple[tuple[int, int, int], ...]], evidence: tuple[str, ...], padded: bool
) -> None:
    every = made(*((1, 1) for _ in pieces))
    ranks = profile(
        *(replace(one, pieces=tuple(LinkPiece(*own) for own in some)) for one, some in zip(every, pieces, strict=True))
    )
    found = [one for one in analysis.reported([ranks]).findings if one.id == "collective-unaligned"]
    assert [(one.severity, one.saving_ns) for one in found] == [("note", None)] * bool(evidence)
    assert all(value in one.evidence for one in found for value in evidence)
    assert [one.advice.startswith("pad ") for one in found] == [padded] * bool(evidence)


@shared
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("text-level1", {0: (28_647_232, 1816.8363, 237.9447), 3: (17_267_200, 1204.6041, 159.0632)}),
        ("db-level1", {0: (28_647_232, 1821.901, 240.505), 3: (17_267_200, 2109.022, 294.406)}),
    ],
)
def test_what_msprof_analyzes_advisor_said_of_alignment(form: str, told: dict[int, tuple[int, float, float]]) -> None:
    """Of rank 0, by ``n-th there``: bytes, µs, and those of unaligned pieces; `test_against_msprof_analyze` asks it."""
    (found,) = reported(SHARED / "npu" / form / "rank0_ascend_pt")
    own = {one.index: collectives.link_transfer(one) for one in found.collectives if collectives.is_unaligned(one)}
    assert own.keys() == told.keys()
    for at, (size, us, odd) in told.items():
        assert own[at] == pytest.approx((size, 1000 * us, 1000 * odd), abs=5)


def test_the_page_has_a_row_for_each() -> None:
    text = page.page(analysis.reported([profile(*made(*SLOW))]))
    table = text.partition("<h2>Collectives</h2>")[2].partition("</table>")[0]
    assert re.findall(r'class="name"[^>]*>([^<]*)</td>', table)[:2] == ["allreduce", "586"]
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    assert re.findall(r">([^<]*)</td>", rows[0]) == [
        "allreduce", "586", "#30", "3", "28.6 MB", "86.50 ms", "0.33", "2.40 ms", "84.10 ms",
    ]  # fmt: skip
    assert "Collectives</h2>" not in page.page(
        analysis.reported([profile(*(replace(one, bytes=None) for one in made(*SLOW)))])
    )


def reported(path: Path) -> list[RankProfile]:
    found = reporting.report([path], reporting.ReadOptions()).data
    return list(found.captures)


@shared
def test_the_bytes_of_nccl_are_those_of_the_json() -> None:
    file = SHARED / "gpu" / "nccl_data.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    rows = [one["args"] | one for one in events if one.get("cat") == "kernel" and "Collective name" in one["args"]]
    sizes = {"Float": 4, "Long": 8}
    (found,) = reported(file)
    assert sum(one.bytes or 0 for one in found.collectives) == sum(
        row["In msg nelems"] * sizes[row["dtype"]] for row in rows
    )
    assert sorted((one.kind, one.ranks, one.ns) for one in found.collectives) == sorted(
        (row["Collective name"], row["Group size"], round(row["dur"] * 1000)) for row in rows
    )


@shared
@pytest.mark.parametrize("form", ["text", "db"])
def test_the_collective_that_is_idle_is_named_in_both_exports(form: str) -> None:
    """16.4 MB took 79 ms where 67 MB took 2.3: bytes and links as in the vendor's files."""
    folder = SHARED / "npu" / f"{form}-level1"
    profiles = reported(folder)
    for one in profiles:
        assert [found.bytes for found in one.collectives] == [
            4 * count for count in (4_097_000, 16_781_312, 37_752_832, 2_469_696)
        ]
        assert [found.sent_bytes for found in one.collectives] == [28_647_232, 117_440_512, 264_241_152, 17_267_200]
    if form == "text":
        text = (folder / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "communication.json").read_text()
        own = json.loads(text)["step50"]["collective"]
        links = [row["Communication Bandwidth Info"] for name, row in own.items() if "@" in name]
        assert [row["SDMA"]["Transit Size(MB)"] for row in links] == pytest.approx(
            [(found.sent_bytes or 0) / MB for found in profiles[0].collectives]
        )
    found = finding(*profiles)
    assert found is not None
    assert "hcom_allReduce of 16.4 MB in step 50 took " in found.evidence
    assert "; another one, of 67.1 MB, took 2." in found.evidence


@pytest.mark.parametrize(
    ("parts", "advice"),
    [
        ({"waits_ns": 3}, "another job"), ({"waits_ns": 3, "idle_ns": 51 * MS}, "the network is not"),
        ({"waits_ns": 3, "idle_ns": 50 * MS}, "another job"), ({"transit_ns": 5, "idle_ns": 51 * MS}, "the network is not"),
        ({"transit_ns": 5, "idle_ns": None}, "another job"),
    ],
)  # fmt: skip
def test_what_to_look_at_next_depends_on_what_the_time_is(parts: dict[str, int | None], advice: str) -> None:
    (collective,) = (replace(one, **parts) for one in made((10, 100)))  # type: ignore[arg-type]
    assert advice in collectives._advice(collective, is_waiting_known=True)
    assert "all ranks" in collectives._advice(collective, is_waiting_known=False)


@pytest.mark.parametrize(
    ("units", "exposed", "saving"),
    [([0, 0], 200, 160), ([0, 1], 200, 80), ([0, 1], 60, 60), ([0, 0], 60, 60), ([0, 2], 200, 40)],
)
def test_an_outlier_saves_what_is_exposed_of_each_unit(units: list[int], exposed: int, saving: int) -> None:
    """Two collectives take 80 ms longer each, in one unit or in two; a unit that was not recorded exposes nothing."""
    usual, slow = made((10, 20), (10, 20), (10, 20)), made((10, 100), (10, 100))
    slow = tuple(replace(one, unit=unit) for one, unit in zip(slow, units, strict=True))
    recorded = tuple(
        RecordedUnit(number=at, host_ns=MS, kernels=9, compute_ns=100 * MS, communication_ns=exposed * MS)
        for at in range(2 if units[1] else 1)
    )
    (sized,) = collectives.with_usual_times([replace(profile(*usual, *slow), units=recorded)], {})
    found = collectives.diagnose_slow_collectives(sized, [sized])
    assert found is not None
    assert (found.saving_ns or 0) / MS == saving


@pytest.mark.parametrize(("ms", "slow"), [(40, False), (40.001, True)])
def test_a_collective_is_slow_if_it_takes_over_twice_its_usual_time(ms: float, slow: bool) -> None:
    assert (finding(profile(*made((10, 20), (10, 20), (10, 20), (10, ms)))) is not None) == slow


@pytest.mark.parametrize(("exposed_ms", "name"), [(320, "communication"), (319, "collective-outlier")])
def test_outliers_are_the_finding_if_they_are_over_half_of_the_transfer(exposed_ms: int, name: str) -> None:
    """They save 160 ms."""
    slow = profile(*made((10, 20), (10, 20), (10, 20), (10, 100), (10, 100)), exposed=exposed_ms)
    (sized,) = collectives.with_usual_times([slow], {})
    found = exposed.diagnose_communication(sized, [sized], Meetings((), True, {}, frozenset(), ()))
    assert found is not None
    assert found.id == name


@pytest.mark.parametrize(
    ("rates", "slower", "said"),
    [
        ((0, 5), True, False),
        ((5, 0), True, False),
        ((4, 5), False, True),
        ((3.9, 5), True, True),
        ((9, 5), False, True),
    ],
)
def test_unaligned_pieces_are_slower_below_four_fifths_of_the_rate(
    rates: tuple[float, float], slower: bool, said: bool
) -> None:
    sentence, is_slower = collectives._compare_rates(*rates)
    assert (is_slower, bool(sentence), "gain nothing" in sentence) == (slower, said, said and not slower)


@pytest.mark.parametrize(
    ("pieces", "sums", "rate", "odd"),
    [
        ((), (0, 0, 0), 0, False), (((512, 2, 10),), (1024, 10, 0), 102.4, False), (((513, 2, 10),), (1026, 10, 10), 102.6, True),
        (((100, 3, 10),), (300, 10, 0), 30, False), (((1024, 1, 5), (2000, 2, 7)), (5024, 12, 7), 5024 / 12, True),
    ],
)  # fmt: skip
def test_pieces_on_links_have_bytes_time_and_a_rate(
    pieces: tuple[tuple[int, int, int], ...], sums: tuple[int, int, int], rate: float, odd: bool
) -> None:
    of_links = tuple(LinkPiece(bytes_, count, ns) for bytes_, count, ns in pieces)
    (collective,) = made((10, 1), pieces=of_links)
    assert collectives.link_transfer(collective) == sums
    assert collectives._rate(of_links) == pytest.approx(rate)
    assert collectives.is_unaligned(collective) == odd


def test_the_block_that_is_named_is_of_the_collective_whose_unaligned_blocks_take_longest() -> None:
    rows = [
        [LinkPiece(1000, 90, 10), LinkPiece(1024, 1, 500)],
        [LinkPiece(2000, 1, 30), LinkPiece(3000, 1, 20)],
        [LinkPiece(1024, 1, 440)],
    ]
    found = [replace(one, pieces=tuple(row)) for one, row in zip(made(*[(10, 1)] * 3), rows, strict=True)]
    diagnosis = collectives.diagnose_unaligned_collectives(profile(*found))
    assert diagnosis is not None
    assert re.findall(r"\d[\d,]*(?:\.\d)?", diagnosis.evidence)[:6] == ["2", "3", "512", "2,000", "30", "6.0"]
    assert collectives.diagnose_unaligned_collectives(profile(found[2])) is None


@pytest.mark.parametrize(("exposed_ms", "told"), [(1500, True), (1501, False)])
def test_slow_collectives_are_told_from_a_twentieth_of_the_time_on(exposed_ms: int, told: bool) -> None:
    """They take 80 ms longer; the step computes for 100 ms."""
    found = profile(*made((10, 20), (10, 20), (10, 20), (10, 100)), exposed=exposed_ms)
    (sized,) = collectives.with_usual_times([found], {})
    assert (collectives.diagnose_slow_collectives(sized, [sized]) is not None) == told


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((), ""),
        ((90,), "One other collective is unusually slow, too (5 in all)"),
        ((90, 80), "2 other collectives are"),
    ],
)
def test_of_slow_collectives_the_slowest_is_named_and_the_others_counted(others: tuple[int, ...], says: str) -> None:
    slow = made(*((10, ms) for ms in (*others, 100)))
    found = profile(*made((10, 20), (10, 20), (10, 20)), *slow)
    sized = replace(found, collectives=tuple(replace(one, usual_ns=20 * MS) for one in found.collectives))
    diagnosis = collectives.diagnose_slow_collectives(sized, [sized])
    assert diagnosis is not None
    assert "would take 80.00 ms less" in diagnosis.evidence
    assert says in diagnosis.evidence
    assert ("unusually slow, too" in diagnosis.evidence) == bool(says)


def test_what_torch_npu_does_not_divide_is_no_time() -> None:
    (whole,) = made((10, 100), transit_ns=5 * MS)
    said = collectives._waiting_sentence(whole, is_known=True)
    assert "5.00 ms of this time is transfer, 0.00 ms is waiting and 0.00 ms is idle" in said
    parts = replace(whole, wait_ns=3 * MS, idle_ns=2 * MS)
    assert "transfer, 3.00 ms is waiting and 2.00 ms is idle" in collectives._waiting_sentence(parts, is_known=True)
