"""A stored run is the same to a comparison as the captures it was made of, and a damaged one is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fixtures.captures.record import TRACE
from patcher.commands.reports.reporting import ReadOptions, read_profiles
from patcher.messages import CommandResult, Kind, Problem
from patcher.progress import silent
from patcher.traces import analysis, baseline, model
from patcher.traces.analysis import compare, compared
from patcher.traces.model import RankProfile, RecordedUnit
from patcher.traces.sidecar import metadata_from
from tests.patcher.traces.recorded import MS, NO_CAPTURES, SHARED, steps, timeline

VALUES: list[Any] = [None, 7, -1, "x", [], {}, [[1]], [None], {"x": []}]
METADATA = {"target": "vllm", "release": "0.12", "stage": "rollout", "window": "30:39,50:60", "tail": 8}


def profile(delay: int = 0, **more: Any) -> RankProfile:
    made = analysis.attributed(timeline(steps(9, late=dict.fromkeys(range(30, 39), delay * MS)))).profile
    units = tuple(
        replace(unit, requests=unit.number % 4, tokens=8, context=800 + unit.number**2 % 7) for unit in made.units
    )
    return replace(made, units=units, settings={"level": "Level1"}, world=2, **more)


def recorded(*paths: Path) -> list[RankProfile]:
    return read_profiles(CommandResult("compare"), paths, ReadOptions(classes=False), lambda total: silent("", total))


def stored(folder: Path, *profiles: RankProfile) -> Path:
    file = baseline.new_file(folder)
    file.write_text(baseline.summary(profiles))
    return file


def assert_alike(restored: list[RankProfile], original: list[RankProfile], after: list[RankProfile]) -> None:
    def told(before: list[RankProfile]) -> model.Comparison:
        comparison = compared(before, after, force=True)
        return replace(comparison, reports=((), ()), before=replace(comparison.before, sources=()), notes=())

    assert told(restored) == told([replace(profile, baseline_run="run") for profile in original])


def test_a_stored_run_compares_as_its_captures(tmp_path: Path) -> None:
    ranks = [
        profile(rank, rank=rank, metadata=metadata_from({**METADATA, "units": [{"number": 30}]})) for rank in range(2)
    ]
    restored = baseline.read(stored(tmp_path, *ranks))
    for other in ({}, {"tail": 9}, {"release": "0.13"}, {"stage": "update-policy"}):
        assert_alike(restored, ranks, [profile(2, metadata=metadata_from({**METADATA, **other}))])
    assert restored[0].units[0].kernels == ranks[0].units[0].kernels > 0


CAPTURES = [
    TRACE, SHARED / "npu/text-level1", SHARED / "npu/db-level1", SHARED / "gpu/tracelens-mi300-qwen.json.gz",
    SHARED / "npu/qwen3-pp2-level2-csv",
]  # fmt: skip


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.name)
def test_a_real_capture_compares_as_itself(tmp_path: Path, capture: Path) -> None:
    if not capture.exists():
        pytest.skip(NO_CAPTURES)
    profiles = recorded(capture)
    assert_alike(baseline.read(stored(tmp_path, *profiles)), profiles, profiles)


def problem_of(file: Path) -> Problem | None:
    """The problem with a file; None if a comparison takes what is in it."""
    try:
        profiles = baseline.read(file)
    except Problem as problem:
        return problem
    compared(profiles, [profile()], force=True)
    return None


def test_a_damaged_file_is_named_whatever_is_wrong_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RESAMPLES", 200)
    text = stored(tmp_path, profile(metadata=metadata_from(METADATA))).read_text()
    file, draw, damaged = tmp_path / "20260101T000000000000Z.json", Random(0), 0
    whole = json.loads(text)
    texts = ["", "null", "[]", "{}", text[: len(text) // 2], json.dumps({**whole, "format": 2}), "9" * 10_000]
    texts += [
        json.dumps({**whole, "profiles": [{**whole["profiles"][0], name: value}]})
        for name in whole["profiles"][0]
        for value in VALUES
    ]
    for _ in range(40):
        at = draw.randrange(len(text))
        texts.append(text[:at] + draw.choice('"{}[],:0-.nx') + text[at + 1 :])
    for content in texts:
        file.write_text(content)
        problem = problem_of(file)
        damaged += problem is not None
        assert problem is None or (problem.kind, problem.where) == (Kind.TRACE, str(file))
    assert damaged > 60


def night(number: int, median: int, units: int = 12) -> RankProfile:
    """A run whose units differ by 1 %, and whose median is at `median` ns."""
    draw = Random(number)
    times = [median + draw.randrange(-median // 100, median // 100) for _ in range(units)]
    return RankProfile(
        f"/{number}", "torch", 0, "H100", tuple(RecordedUnit(number=n, host_ns=t, kernels=9, compute_ns=t) for n, t in enumerate(times)),
        marks="ProfilerStep#", baseline_run=str(number),
    )  # fmt: skip


@pytest.mark.parametrize("before", [3, 4, 10])
def test_nights_of_one_program_are_rarely_told_apart(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ by 5 % from night to night, and units within one by 1 %: a fixed limit of 3 % would fail half."""
    monkeypatch.setattr(compare, "RESAMPLES", 200)
    draw, told = Random(before), 0
    for _ in range(40):
        nights = [night(n, round(draw.gauss(10_000, 500))) for n in range(before + 1)]
        told += compared(nights[:-1], nights[-1:]).verdict != model.ALIKE
    assert told <= 3


def test_a_night_that_is_slower_than_all_nights_before_is_told() -> None:
    nights = [night(n, 10_000 + 20 * (n % 3)) for n in range(8)]
    slower = compared(nights, [night(9, 10_300)])
    assert slower.verdict == model.SLOWER
    assert 100 < slower.least_change_ns <= 300
    assert compared(nights[:3], [night(9, 10_030)]).verdict == model.ALIKE


def test_nights_of_a_single_unit_are_judged_by_each_other() -> None:
    nights = [night(n, 10_000 + 20 * (n % 3), units=1) for n in range(8)]
    assert compared(nights, [night(9, 10_020, units=1)]).verdict == model.ALIKE
    slower = compared(nights, [night(9, 12_000, units=1)])
    assert (slower.verdict, slower.notes) == (model.SLOWER, ())
    assert compared(nights[:2], [night(9, 12_000, units=1)]).verdict == model.FEW


def test_the_windows_of_a_night_are_one_sample() -> None:
    windows = [replace(night(n, 10_000), source=f"/{n}/{at}", baseline_run="one") for at, n in enumerate((1, 2))]
    told = compared(windows, [night(3, 10_000)])
    assert (told.before.captures, told.before.units) == (1, 24)
