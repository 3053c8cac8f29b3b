"""``rlpatch compare --baseline`` as a nightly job types it: the first night, more nights, other conditions, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from patcher.traces import baseline
from tests.patcher.traces.recorded import MS, steps

Run = Callable[..., Result]
Nightly = Callable[..., dict[str, Any]]
NIGHTS = (0, 2, 1, 3)


@pytest.fixture
def nightly(run: Run, tmp_path: Path) -> Nightly:
    """Runs the nightly job on a capture whose units take 10 ms and `late` tenths of a ms; returns the JSON document."""

    def night(late: float, *words: str, code: int = 0, **more: Any) -> dict[str, Any]:
        made = steps(9, late=dict.fromkeys(range(30, 39), round(late * MS / 10)), **more)
        trace = made.torch(tmp_path / "traces" / "host_dp0_rank0_1.1.pt.trace.json")
        found = run("compare", "--baseline", tmp_path / "nightly", *words, trace, "--json", code=code)
        return dict(json.loads(found.stdout))

    return night


@pytest.fixture
def some(nightly: Nightly) -> Nightly:
    """The job after four nights."""
    for late in NIGHTS:
        nightly(late, "--update")
    return nightly


def test_the_first_night_is_stored_and_says_so(run: Run, nightly: Nightly, tmp_path: Path) -> None:
    trace = steps(9).torch(tmp_path / "trace.json")
    page = tmp_path / "page.html"
    found = run("compare", "--baseline", tmp_path / "nightly", "--update", "--fail-above", "3", trace, "-o", page)
    assert "first" in found.stdout
    assert ("no HTML page" in found.stderr, page.exists()) == (True, False)
    (file,) = baseline.files(tmp_path / "nightly")
    assert len(file.read_bytes()) < 10_000
    assert nightly(0)["result"]["before"]["captures"] == 1


def test_without_update_nothing_is_stored(nightly: Nightly, tmp_path: Path) -> None:
    (problem,) = nightly(0, code=3)["problems"]
    assert (problem["where"], "--update" in problem["next"]) == (str(tmp_path / "nightly"), True)
    assert not (tmp_path / "nightly").exists()


def test_each_night_is_judged_by_the_nights_before(some: Nightly, tmp_path: Path) -> None:
    told = some(2, "--update", "--fail-above", "0")["result"]
    assert (told["verdict"], told["before"]["captures"]) == ("no clear difference", 4)
    assert len(told["baseline"]["runs"]) == len(told["before"]["medians_ns"]) == 4
    assert told["before"]["medians_ns"] == [10 * MS + late * MS // 10 for late in NIGHTS]
    slower = some(30, "--update", "--fail-above", "3", code=9)
    assert slower["result"]["verdict"] == "slower"
    assert len(baseline.files(tmp_path / "nightly")) == 5, "a slower night does not become the baseline"


def test_few_nights_fail_nothing_and_are_stored_though_they_differ(nightly: Nightly, tmp_path: Path) -> None:
    for late in (0, 20, 10):
        told = nightly(late, "--update", "--fail-above", "3")
    assert "cannot decide whether the slowdown exceeds the limit of --fail-above" in "".join(told["messages"])
    assert len(baseline.files(tmp_path / "nightly")) == 3


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({"device": "NVIDIA A100"}, "undecided: different devices"), ({"with_stack": 1}, "different profiler settings")],
)
def test_a_night_that_was_recorded_otherwise_is_undecided(
    some: Nightly, run: Run, tmp_path: Path, changed: dict[str, Any], verdict: str
) -> None:
    trace = steps(9, late=dict.fromkeys(range(30, 39), 5 * MS)).torch(tmp_path / "other_dp0_rank0_1.1.pt.trace.json")
    content = json.loads(trace.read_text())
    if device := changed.get("device"):
        content["deviceProperties"][0]["name"] = device
    trace.write_text(json.dumps({**content, **changed}))
    words = ("--baseline", tmp_path / "nightly", "--update", "--fail-above", "3", "--json")
    told = json.loads(run("compare", *words, trace).stdout)
    assert told["result"]["verdict"] == verdict
    assert any(note["detail"] == verdict for note in told["notes"])
    assert len(baseline.files(tmp_path / "nightly")) == len(NIGHTS)


def test_another_window_or_other_ranks_are_refused(some: Nightly, run: Run, tmp_path: Path) -> None:
    window = steps(9, first=100).torch(tmp_path / "window.json")
    rank = replace(steps(9), rank=3).torch(tmp_path / "rank.json")
    for trace in (window, rank):
        found = run("compare", "--baseline", tmp_path / "nightly", "--update", trace, code=4)
        assert "not comparable" in found.stderr
    assert len(baseline.files(tmp_path / "nightly")) == len(NIGHTS)


def test_a_damaged_file_is_named_and_nothing_is_stored(some: Nightly, tmp_path: Path) -> None:
    file, *others = baseline.files(tmp_path / "nightly")
    file.write_text(file.read_text()[:500])
    told = some(2, "--update", code=4)
    (problem,) = told["problems"]
    assert problem["where"] == str(file)
    assert told["result"]["baseline"]["runs"] == [path.name for path in others]
    assert len(baseline.files(tmp_path / "nightly")) == len(NIGHTS)


def test_only_the_newest_runs_are_kept(some: Nightly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "KEEP", 3)
    before = baseline.files(tmp_path / "nightly")
    other = tmp_path / "nightly" / "2026T00Z.json"
    other.write_text("somebody else's")
    some(2, "--update")
    assert other.exists()
    kept = baseline.files(tmp_path / "nightly")
    assert (len(kept), kept[:2]) == (3, before[-2:])


def test_a_page_and_tables_are_written_with_a_baseline(some: Nightly, tmp_path: Path) -> None:
    some(2, "-o", str(tmp_path / "page.html"), "--csv", str(tmp_path / "csv"))
    assert "4 runs" in (tmp_path / "page.html").read_text()
    assert [*(tmp_path / "csv").iterdir()]


def test_bad_choices_are_refused(run: Run, tmp_path: Path) -> None:
    trace = steps(4).torch(tmp_path / "trace.json")
    assert "--baseline DIR" in run("compare", "--update", trace, trace, code=2).stderr
    assert "--steps" in run("compare", "--baseline", tmp_path, trace, "--steps", "1:2", code=2).stderr
    run("compare", "--baseline", trace, trace, code=2)
    run("compare", "--baseline", tmp_path / "a" / "b", "--update", trace, code=5)
