"""``rlpatch compare`` on timelines as people type it: what is printed, what is promised as JSON, and bad input."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fixtures.cache import REPOSITORY
from fixtures.timeline.small import small
from fixtures.timeline.writer import Writer
from patcher.commands.reports import timelines
from patcher.timeline import run_comparison
from tests.patcher.traces.recorded import MS, SHARED, steps

Run = Callable[..., Result]
RUNS = SHARED.parent / "timeline-runs"


def told(found: Result) -> dict[str, Any]:
    return dict(json.loads(found.stdout)["result"])


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs of ten steps; rank 1 of the second one takes half a second longer from step 5 on."""
    before, after = tmp_path / "before", tmp_path / "after"
    small(before, steps=10, slow={at: 5 * at for at in range(10)})
    small(after, steps=10, slow={at: 5 * at + 500 * (at >= 5) for at in range(11)})
    return before, after


def test_two_runs_side_by_side(run: Run, two: tuple[Path, Path]) -> None:
    found = told(run("compare", *two, "--json", "--steps", "5:11"))
    assert (found["verdict"], found["step"]["changed"]) == ("slower in these steps", "longer")
    assert found["step"]["change_seconds"] == pytest.approx(0.5, abs=0.02)
    changed = {part["name"]: part["change_seconds"] for part in found["parts"] if part["changed"] != "no clear change"}
    assert changed == {"update": pytest.approx(0.5, abs=0.02)}
    assert found["before"]["steps"] == found["after"]["steps"] == [*range(5, 11)]
    assert found["before"]["decode_tokens"] == 12 * 27 + 10
    assert found["before"]["prefill_tokens"] == 1200


def test_a_run_on_both_sides_is_read_once(run: Run, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folders, read = [], timelines.read

    def counted(folder: Path, *words: Any) -> Any:
        folders.append(folder)
        return read(folder, *words)

    monkeypatch.setattr(timelines, "read", counted)
    run("compare", two[1], "--steps", "1:5", "--steps", "5:11")
    assert folders == [two[1]]
    run("compare", *two)
    assert folders[1:] == [*two]


def test_a_run_is_compared_with_itself(run: Run, two: tuple[Path, Path]) -> None:
    words = ("--steps", "1:5", "--steps", "5:11")
    alone = told(run("compare", two[1], *words, "--json"))
    assert alone == told(run("compare", two[1], two[1], *words, "--json"))
    assert (alone["before"]["steps"], alone["after"]["steps"]) == ([2, 3, 4], [*range(5, 11)])
    assert told(run("compare", two[1], "--steps", "1:6", "--steps", "6:11", "--json"))["step"]["changed"] == "longer"


def test_the_terminal_has_80_columns(run: Run, two: tuple[Path, Path]) -> None:
    found = run("compare", *two, "-v")
    lines = [line for line in found.stdout.splitlines() if not re.search(r"before|after", line) or "  " in line]
    assert max(map(len, lines)) <= max(80, len(str(two[1])) + 4)
    assert "mean step: " in found.stdout
    assert "update " in found.stdout


def test_the_page_says_the_same_and_escapes_names(run: Run, tmp_path: Path) -> None:
    small(tmp_path / "<b>a", steps=6)
    small(tmp_path / "b", steps=6)
    page = tmp_path / "page.html"
    run("compare", tmp_path / "<b>a", tmp_path / "b", "-o", page)
    text = page.read_text(encoding="utf-8")
    assert "mean step: " in text
    assert "&lt;b&gt;a" in text
    assert "<b>a" not in text


def test_the_reference_has_the_fields(run: Run, two: tuple[Path, Path]) -> None:
    text = (REPOSITORY / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    kinds = {
        "`compare` of timelines": run_comparison.RunComparison,
        "… `before` and `after`": run_comparison.RunSide,
        "… `step`, each of `parts` and `beside`": run_comparison.SecondsChange,
        "… each of `causes` of a comparison": run_comparison.CauseChange,
    }
    for row, kind in kinds.items():
        (cell,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", text, re.MULTILINE)
        named = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cell))
        assert named == [field.name for field in dataclasses.fields(kind)]
    assert [*told(run("compare", *two, "--json"))] == [
        field.name for field in dataclasses.fields(run_comparison.RunComparison)
    ]


def test_a_mixture_of_a_timeline_and_a_capture_is_refused(run: Run, two: tuple[Path, Path], tmp_path: Path) -> None:
    trace = steps(4).torch(tmp_path / "trace.json")
    for words in ((two[0], trace), (trace, two[0])):
        found = run("compare", *words, code=2)
        assert f"rlpatch compare {two[0]} RUN" in found.stderr
        assert f"rlpatch report {trace}" in found.stderr


def test_a_folder_that_is_not_there_is_said_to_be_missing(run: Run, two: tuple[Path, Path], tmp_path: Path) -> None:
    assert f"{tmp_path / 'none'} does not exist" in run("compare", two[0], tmp_path / "none", code=3).stderr


def test_folders_with_both_are_compared_as_captures_unless_steps_are_chosen(run: Run, two: tuple[Path, Path]) -> None:
    for at, folder in enumerate(two):
        steps(4, late={31: at * MS}).torch(folder / "trace.json")
    assert "median_ns" in told(run("compare", *two, "--json"))
    assert "step" in told(run("compare", *two, "--steps", "2:9", "--json"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--steps", "90:91"), "--steps 90:91"),
        (("--steps", "2:5", "--steps", "90:91"), "steps of the run: 1 to 10"),
        (("--steps", "5:2"), "--steps 5:2"),
        (("--steps", "1:2", "--steps", "2:3", "--steps", "3:4"), "3 times"),
        (("--run", "3"), "--run 3"),
        (("--units", "1:2"), "--units is only for traces"),
        (("--marks", "x"), "--marks is only for traces"),
        (("--fail-above", "5"), "--fail-above is only for traces"),
    ],
)
def test_bad_choices_are_refused(run: Run, two: tuple[Path, Path], words: tuple[str, ...], says: str) -> None:
    assert says in run("compare", *two, *words, code=2).stderr


def test_steps_of_captures_and_several_runs_a_side_are_refused(
    run: Run, two: tuple[Path, Path], tmp_path: Path
) -> None:
    traces = [steps(4).torch(tmp_path / f"{name}.json") for name in "ab"]
    assert "--units" in run("compare", *traces, "--steps", "1:2", code=2).stderr
    assert "to compare timelines, give one run per side" in run("compare", two[0], two[1], "--", two[0], code=2).stderr


def test_of_several_runs_in_a_folder_one_is_chosen(run: Run, two: tuple[Path, Path]) -> None:
    small(two[0], steps=5, run="later", after_ms=60_000)
    assert "--run 2: " in run("compare", *two, code=2).stderr
    assert told(run("compare", *two, "--run", "2", "--run", "1", "--json"))["before"]["steps"] == [2, 3, 4, 5]


def test_a_run_without_steps_and_other_trainers_are_not_comparable(
    run: Run, two: tuple[Path, Path], tmp_path: Path
) -> None:
    engine = Writer(tmp_path / "alone", pid=1, package="vllm")
    engine.iterate(0, 1000, 1, 1, 1)
    engine.close()
    assert f"rlpatch timeline {tmp_path / 'alone'}" in run("compare", two[0], tmp_path / "alone", code=4).stderr
    ranks = Writer(tmp_path / "trl", pid=1, package="trl", environ={"RANK": "0", "WORLD_SIZE": "1"})
    for at in range(1, 8):
        begin, end = at * 1000 * 1000, (at * 1000 + 900) * 1000
        ranks.add("work", "train", begin, end, amount=at)
        ranks.add("step", "", end, end, amount=at)
    ranks.close((9_000_000, 9_000_000))
    assert "--force" in run("compare", two[0], tmp_path / "trl", code=4).stderr
    assert run("compare", two[0], tmp_path / "trl", "--force").stdout.startswith("warning: ")


def test_one_step_a_side_has_no_interval(run: Run, two: tuple[Path, Path]) -> None:
    found = told(run("compare", two[0], "--steps", "3:4", "--steps", "4:5", "--json"))
    assert (found["verdict"], found["step"]["raw"]) == ("not enough steps", None)
    assert any("too few steps for a confidence interval" in note for note in found["notes"])


@pytest.mark.skipif(not RUNS.is_dir(), reason="no recorded runs")
def test_recorded_runs(run: Run, tmp_path: Path) -> None:
    """The answers of the first run grow, and with them decode; the second one has the same program throughout."""
    for name in ("drift", "A"):
        shutil.copytree(RUNS / name, tmp_path / name)
    drift = told(run("compare", tmp_path / "drift", "--steps", "2:15", "--steps", "28:41", "--json"))
    decode = next(part for part in drift["parts"] if part["name"] == "decode")
    assert (round(drift["step"]["change_seconds"], 1), round(decode["change_seconds"], 1)) == (1.8, 1.1)
    assert (drift["step"]["changed"], drift["step"]["changed_at_equal_tokens"]) == ("longer", "no clear change")
    same = told(run("compare", tmp_path / "A", "--steps", "0:24", "--steps", "24:49", "--json"))
    assert same["verdict"] == "no clear difference"
    assert {row["changed"] for row in (*same["parts"], *same["beside"], *same["causes"])} == {"no clear change"}
