"""Captures of whole runs with one known cause each, written as torch.profiler does: headline, culprit, seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.commands.reports import reporting
from patcher.traces import model
from tests.patcher.traces.made_ranks import Rank, late_ranks, pipeline

DISPATCH = "void deep_ep::intranode::dispatch<8, 768>(int4*, float*)"
COMBINE = "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*, float*)"


def report(folder: Path, ranks: list[Rank]) -> model.TraceReport:
    for rank in ranks:
        rank.write(folder)
    data = reporting.report([folder], reporting.ReadOptions()).data
    assert isinstance(data, model.TraceReport)
    return data


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("late", [0, 3, 7])
def test_the_late_rank_of_eight_is_named_at_either_collective(tmp_path: Path, late: int, at: int) -> None:
    made = report(tmp_path, late_ranks(late, at=at))
    first = made.findings[0]
    assert (first.id, first.culprit) == ("slow-rank", f"rank {late}")
    assert first.saving_ns == pytest.approx(30e6, rel=0.05)
    assert "skew" not in first.evidence


def test_the_first_collective_of_a_single_step_may_be_skew(tmp_path: Path) -> None:
    first = report(tmp_path, late_ranks(5, at=0, steps=1)).findings[0]
    assert (first.id, first.culprit) == ("slow-rank", "rank 5")
    assert "profilers started at different times" in first.evidence
    assert "record several steps" in first.certainty


@pytest.mark.parametrize(
    ("times", "replicas", "culprit"),
    [
        ([20_000, 45_000], 1, "stage 1 (rank 1)"), ([45_000, 20_000], 2, "stage 0 (ranks 0, 1)"),
        ([20_000, 20_000, 45_000, 20_000], 1, "stage 2 (rank 2)"), ([20_000, 20_000, 20_000, 45_000], 2, "stage 3 (ranks 6, 7)"),
    ],
)  # fmt: skip
def test_the_bubble_comes_first_and_the_long_stage_is_blamed(
    tmp_path: Path, times: list[int], replicas: int, culprit: str
) -> None:
    first = report(tmp_path, pipeline(times, replicas=replicas)).findings[0]
    assert (first.id, first.culprit) == ("pipeline-bubble", culprit)
    assert first.saving_ns == pytest.approx(2 * 25_500 * 1000, rel=0.05)


def test_experts_on_a_side_stream_communicate(tmp_path: Path) -> None:
    """Dispatch runs beside a matmul, combine does not: half of the communication is exposed."""
    rank = Rank(0, 8)
    for step in range(1, 5):
        rank.busy(step, 5, 40_000)
        rank.busy(step, 10_000, 40_000, DISPATCH, stream=27)
        rank.busy(step, 40_000, 70_000, COMBINE, stream=27, ahead=35_000)
        rank.busy(step, 70_000, 99_990, ahead=60_000)
    made = report(tmp_path, [rank])
    (profile,) = made.captures
    assert profile.sum_ns("overlap_ns") == 4 * 30_000_000
    assert profile.sum_ns("communication_ns") == 4 * 30_000_000
    first = made.findings[0]
    assert (first.id, first.saving_ns) == ("communication", 30_000_000)
    assert "all 8 ranks" in first.advice


def test_the_rank_whose_experts_are_late_is_named_without_groups(tmp_path: Path) -> None:
    ranks = [Rank(rank, 4) for rank in range(4)]
    for rank in ranks:
        for step in range(1, 5):
            work = 40_000 if rank.rank == 2 else 15_000
            rank.busy(step, 5, work)
            rank.busy(step, work, 45_000, DISPATCH, stream=27, ahead=work - 10)
            rank.busy(step, 45_000, 95_000, ahead=30_000)
    first = report(tmp_path, ranks).findings[0]
    assert (first.id, first.culprit) == ("slow-rank", "rank 2")
    assert first.saving_ns == pytest.approx(25e6, rel=0.05)
    assert first.certainty.startswith("heuristic")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "to device"), ("Memcpy DtoH (Device -> Pageable)", "to host"),
        ("Memcpy DtoD (Device -> Device)", "within the device"),
    ],
)  # fmt: skip
def test_copies_get_the_advice_of_their_direction(tmp_path: Path, name: str, way: str) -> None:
    rank = Rank(0, 1)
    for step in range(1, 5):
        rank.busy(step, 5, 60_000)
        rank.busy(step, 60_000, 99_995, name, ahead=40_000)
        rank.events[-1]["cat"] = "gpu_memcpy"
    first = report(tmp_path, [rank]).findings[0]
    assert first.id == "copies"
    assert first.saving_ns == pytest.approx(40e6, rel=0.02)
    assert first.culprit.endswith(way.split()[-1])
    assert ("non_blocking" in first.advice) == (way == "to device")
