"""The bubble of a pipeline, and stages that compute unequally."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patcher.commands.reports import reporting
from patcher.traces import analysis
from patcher.traces.model import TITLES, Check, Collective, Diagnosis, RankProfile, RecordedUnit
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
    assert found.evidence == "For up to 31.2 % of the time it is in sends and receives that nothing hides (2 per unit)."
    assert (found.saving_ns, found.source, found.title) == (50 * MS, "/rank0", TITLES["pipeline-bubble"])
    assert found.advice.startswith("more micro-batches")


def test_no_more_is_gained_than_nothing_hides_and_a_check_allows() -> None:
    found = finding(stage(40, 50))
    assert found is not None
    assert found.saving_ns == 60 * MS
    assert finding(stage(5, 9)) is None
    assert finding(stage(20, 30, checks=(Check("exposed", False, "more", ("pipeline-bubble",)),))) is None


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


def test_stages_that_compute_unequally_are_named() -> None:
    found = finding(stage(50, 9, computes=100), stage(20, 30, computes=109, rank=1))
    assert found is not None
    assert found.evidence.endswith("(2 per unit).")
    found = finding(stage(50, 9, computes=100), stage(20, 1, computes=150, rank=1))
    assert found is not None
    assert found.evidence.endswith("(2 per unit). rank 1 computes 150.00 ms per unit, rank 0 100.00 ms.")
    assert found.advice.startswith("give the stage that computes longest fewer layers")


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
    assert found.saving_ns == pytest.approx(times[found.source] * MS, abs=10)
    assert found.evidence.endswith("rank 3 computes 401.13 ms per unit, rank 1 230.90 ms.")
