"""``--csv`` of report, compare and timeline: which files, which columns, plain numbers, and folders that cannot be."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fixtures.cache import REPOSITORY
from fixtures.timeline.small import small
from patcher.commands.reports import csv_files
from patcher.table import NUMBER, Column, Shown, Table
from tests.patcher.traces.recorded import MS, Range, Task, steps
from tests.patcher.traces.recorded import Run as Recorded

Run = Callable[..., Result]


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def report_of_two_ranks(run: Run, place: Path) -> Path:
    """Two ranks that meet in a collective: the second comes last."""
    marks = (Range("ProfilerStep#1", 0, 100 * MS),)
    for rank, ends in ((0, 90), (1, 30)):
        tasks = (Task(MS, 21 * MS, launch=10), Task(21 * MS, ends * MS, "communication", "AllReduce", 9, 20))
        Recorded(tasks, marks, rank=rank).db(place / f"rank{rank}_ascend_pt")
    run("report", place, "--csv", place / "csv")
    return place / "csv"


def compared(run: Run, place: Path) -> Path:
    paths = [steps(9, late=dict.fromkeys(range(30, 39), late * MS)).torch(place / f"{late}.json") for late in (0, 3)]
    run("compare", *paths, "--csv", place / "csv")
    return place / "csv"


def timeline(run: Run, place: Path) -> Path:
    small(place, slow={4: 500})
    run("timeline", place, "--csv", place / "csv")
    return place / "csv"


def compared_runs(run: Run, place: Path) -> Path:
    small(place / "a", slow={4: 500})
    small(place / "b")
    run("compare", place / "a", place / "b", "--csv", place / "csv")
    return place / "csv"


MADE = {
    "`report`": report_of_two_ranks,
    "`compare`": compared,
    "`compare` of timelines": compared_runs,
    "`timeline`": timeline,
}
"""Heading of the reference → what makes the files."""


@pytest.mark.parametrize("command", MADE)
def test_the_reference_has_every_file_and_column(run: Run, tmp_path: Path, command: str) -> None:
    """In this order: scripts rely on the names. Files without rows are there, too."""
    files = {file.stem: next(csv.reader(file.open())) for file in MADE[command](run, tmp_path).iterdir()}
    text = (REPOSITORY / "docs/reference/csv.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    promised = {
        name: re.findall(r"`([^`]+)`", columns)
        for name, columns in re.findall(r"\| `(\w+)\.csv` \|[^|]*\| (.*) \|", section)
    }
    shared = re.findall(r"`([^`]+)`", section.partition("\n|")[0].partition("begins with")[2])
    of_all = {"ranks": ["stage"], "meetings": ["stage"]}
    roles = [f"{role}_busy_share" for role in ("driver", "trainer", "engine")]
    every = {name: [*of_all.get(name, shared[:3]), *columns] for name, columns in promised.items()}
    assert files == {
        name: [column for one in columns for column in (roles if "ROLE" in one else [one])]
        for name, columns in every.items()
    }


def test_the_numbers_are_those_of_json_in_base_units(run: Run, tmp_path: Path) -> None:
    trace = steps(4, late={32: 5 * MS}).torch(tmp_path / "a.json")
    (capture,) = json.loads(run("report", trace, "--csv", tmp_path / "csv", "--json").stdout)["result"]["captures"]
    units = rows(tmp_path / "csv/units.csv")
    assert [int(row["device_ns"]) for row in units] == [unit["device_ns"] for unit in capture["units"]]
    for row in units:
        parts = (
            "compute",
            "overlap",
            "communication",
            "copy",
            "free_host_late",
            "free_latency",
            "free_blocked",
            "free_waiting",
            "free_unknown",
        )
        assert sum(int(row[f"{part}_ns"]) for part in parts) == int(row["device_ns"])
        assert row["requests"] == "", "not known, and not 0"
    kernels = {row["name"]: float(row["ns_per_step"]) * len(units) for row in rows(tmp_path / "csv/kernels.csv")}
    assert kernels == {kernel["name"]: kernel["ns"] for kernel in capture["kernels"]}
    assert sum(float(row["share"]) for row in rows(tmp_path / "csv/parts.csv")) == pytest.approx(1)


def test_the_ranks_of_a_run_are_rows_of_one_file(run: Run, tmp_path: Path) -> None:
    folder = report_of_two_ranks(run, tmp_path)
    assert {row["rank"] for row in rows(folder / "kernels.csv")} == {"0", "1"}
    assert [(row["rank"], row["waits_ns_per_step"]) for row in rows(folder / "ranks.csv")] == [
        ("0", f"{60 * MS}"), ("1", "0"),
    ]  # fmt: skip


def test_the_files_are_the_same_in_any_language(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path, slow={4: 500})
    for language in ("en", "zh"):
        monkeypatch.setenv("RLPATCH_LANG", language)
        run("timeline", tmp_path, "--csv", tmp_path / language)
    english, chinese = ({file.name: file.read_text() for file in (tmp_path / one).iterdir()} for one in ("en", "zh"))
    assert english == chinese
    assert "trainer, rank 1: micro-batch in update_actor +0.500 s" in english["steps.csv"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=cmd()", "'=cmd()"), ("@a", "'@a"), ("+1", "'+1"), ("-1", "'-1"), ("a=1", "a=1"), ('a,"b"\nc', '"a,""b""\nc"'),
        ("\ud800\x1b\u202e", "\N{REPLACEMENT CHARACTER}" * 3), (-1, "-1"), (None, ""), (1 / 3, "0.333333"), (1e15, "1000000000000000.0"),
    ],
)  # fmt: skip
def test_what_a_cell_holds(value: object, cell: str) -> None:
    """No text is a formula, a wrong name breaks no line, and numbers have no thousands."""
    table = Table(
        "one",
        "",
        (Column("a"), Column("", "for people"), Column("b", unit=NUMBER, shown_in=Shown.CSV)),
        [(value, 1, 2)],
    )
    assert csv_files.csv_texts([({"of": "x"}, table)]) == {"one.csv": f"of,a,b\nx,{cell},2\n"}


def test_tables_of_one_name_may_have_other_columns() -> None:
    one, other = (Table("one", "", (Column("a"), Column(name)), [(1, 2)]) for name in ("b", "c"))
    assert csv_files.csv_texts([({}, one), ({}, other)]) == {"one.csv": "a,b,c\n1,2,\n1,,2\n"}


# ---------------------------------------------------------------- folders that cannot be


@contextmanager
def no_room() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def contents(folder: Path) -> dict[str, str | None]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def a_file(place: Path) -> None:
    (place / "csv").write_text("mine")


def a_folder_in_the_place_of_a_table(place: Path) -> None:
    (place / "csv/kernels.csv").mkdir(parents=True)


def a_pipe_in_the_place_of_a_table(place: Path) -> None:
    (place / "csv").mkdir()
    os.mkfifo(place / "csv/kernels.csv")


def nothing(place: Path) -> None:
    pass


REFUSED: dict[str, tuple[Callable[[Path], None], str, int, str, str]] = {
    "a file of that name": (a_file, "csv", 2, "is a file", ""),
    "the name of one file": (
        nothing,
        "out.csv",
        2,
        "names a file, but --csv takes a folder, which gets one file for each table",
        "next: --csv {place}/out\n",
    ),
    "a parent that is missing": (nothing, "a b/csv", 5, "cannot be written", "next: mkdir -p '{place}/a b'\n"),
    "a name that is too long": (
        nothing,
        "x" * 300,
        5,
        "cannot be written",
        "next: write to another place: --csv DIR\n",
    ),
    "a folder": (a_folder_in_the_place_of_a_table, "csv", 5, "kernels.csv is not a regular file", "--csv DIR\n"),
    "a pipe": (a_pipe_in_the_place_of_a_table, "csv", 5, "kernels.csv is not a regular file", "--csv DIR\n"),
}


@pytest.mark.parametrize(("there", "name", "code", "says", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_said_and_nothing_is(
    run: Run, tmp_path: Path, there: Callable[[Path], None], name: str, code: int, says: str, hint: str
) -> None:
    trace = steps(4).torch(tmp_path / "a.json")
    there(tmp_path)
    before = [*tmp_path.rglob("*")]
    refused = run("report", trace, "--csv", tmp_path / name, code=code)
    assert says in " ".join(refused.stderr.split())
    assert hint.format(place=tmp_path) in refused.stderr
    assert [*tmp_path.rglob("*")] == before


@pytest.mark.parametrize("there", ["no folder", "an empty one", "tables"])
def test_a_full_disk_leaves_the_folder_as_it_was(run: Run, tmp_path: Path, there: str) -> None:
    trace = steps(4).torch(tmp_path / "a.json")
    if there == "an empty one":
        (tmp_path / "csv").mkdir()
    if there == "tables":
        run("report", trace, "--csv", tmp_path / "csv")
    before = contents(tmp_path)
    late = replace(steps(5), rank=3).torch(tmp_path / "b.json")
    before["b.json"] = late.read_text()
    with no_room():
        refused = run("report", late, "--csv", tmp_path / "csv", code=5)
    assert "csv cannot be written: File too large" in refused.stderr
    assert contents(tmp_path) == dict(sorted(before.items()))


def test_the_tables_of_before_are_replaced_and_other_files_stay(run: Run, tmp_path: Path) -> None:
    folder = report_of_two_ranks(run, tmp_path)
    (folder / "mine.txt").write_text("mine")
    run("report", steps(4).torch(tmp_path / "a.json"), "--csv", folder)
    assert rows(folder / "ranks.csv") == []
    assert {row["rank"] for row in rows(folder / "units.csv")} == {"0"}
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("command", ["report", "timeline"])
def test_the_page_may_go_into_the_new_folder(run: Run, tmp_path: Path, command: str) -> None:
    small(tmp_path / "run")
    source = steps(4).torch(tmp_path / "a.json") if command == "report" else tmp_path / "run"
    run(command, source, "-o", tmp_path / "new/page.html", "--csv", tmp_path / "new")
    assert "<html" in (tmp_path / "new/page.html").read_text(encoding="utf-8")


def test_two_runs_differ_in_no_byte(run: Run, tmp_path: Path) -> None:
    first: Any = contents(compared(run, tmp_path))
    assert first == contents(compared(run, tmp_path))
