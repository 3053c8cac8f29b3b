"""A database can compute without an end, and hold more than its size explains: reading it ends all the same."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from patcher.traces.formats import database
from tests.alarms import at_most
from tests.patcher.reliability.package import invoked
from tests.patcher.traces.recorded import steps

ROWS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r {}) "
ENDLESS = ROWS.format("")
TASK = "x AS startNs, x + 1 AS endNs, 0 AS deviceId, x AS connectionId, x AS globalTaskId, 1 AS taskType, 1 AS streamId"

DOCTORED = {
    "a view of tasks": (f"DROP TABLE TASK; CREATE VIEW TASK AS {ENDLESS} SELECT {TASK} FROM r", "TASK is a view"),
    "a view in small letters": (f"DROP TABLE TASK; CREATE VIEW task AS {ENDLESS} SELECT {TASK} FROM r", "TASK is a view"),
    "a view that gives no row": (
        f"DROP TABLE NPU_INFO; CREATE VIEW NPU_INFO AS {ENDLESS} SELECT x AS id, 'a' AS name FROM r WHERE x < 0",
        "NPU_INFO is a view",
    ),
    "a column that is computed": (
        ("DROP TABLE STRING_IDS; CREATE TABLE STRING_IDS (id INTEGER, value TEXT AS (hex(zeroblob(200000000))));"
        "INSERT INTO STRING_IDS (id) VALUES (0), (1), (2), (3)"),
        "STRING_IDS is a view",
    ),
    "a virtual table": (
        "DROP TABLE STRING_IDS; CREATE VIRTUAL TABLE STRING_IDS USING rtree(id, low, high)",
        "STRING_IDS is a view",
    ),
    "a hundred thousand views": (
        ("PRAGMA writable_schema = ON;"
        f"{ROWS.format('LIMIT 100000')} INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql)"
        " SELECT 'view', 'v' || x, 'v' || x, 0, 'CREATE VIEW v' || x || ' AS SELECT 1' FROM r"),
        "SQLite instructions: a file of this size should need fewer",
    ),
    "two hundred thousand ranks": (
        f"{ROWS.format('LIMIT 200000')} INSERT INTO RANK_DEVICE_MAP SELECT x, x FROM r", "and 199,937 more",
    ),
}  # fmt: skip


def doctored(folder: Path, script: str) -> Path:
    steps().db(folder)
    with closing(sqlite3.connect(next(folder.rglob("*.db")))) as db, db:
        db.executescript(script)
    return folder


@pytest.mark.parametrize("name", DOCTORED)
def test_a_report_of_a_doctored_database_ends_with_what_is_wrong(name: str, tmp_path: Path) -> None:
    script, cause = DOCTORED[name]
    folder = doctored(tmp_path / "trace", script)
    with at_most(20):
        result = invoked("report", folder)
    assert result.exit_code == 4, result.output
    assert cause in " ".join(result.stderr.split())
    assert len(result.stderr) < 5_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 has no limits before")
def test_a_value_that_is_longer_than_any_is_not_loaded(tmp_path: Path) -> None:
    script = "INSERT INTO STRING_IDS VALUES (99999, zeroblob(20000000)); UPDATE TASK SET taskType = 99999"
    result = invoked("report", doctored(tmp_path / "trace", script))
    assert result.exit_code == 4
    assert "too big" in result.stderr


def test_texts_that_share_their_pages_are_counted_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_LEAST", 10_000)
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE t (x TEXT)")
        db.execute("INSERT INTO t VALUES (?)", ("x" * 1_000,))
    every = ", ".join(["x"] * 1_000)
    with database.opened(file) as db, pytest.raises(sqlite3.DataError, match="more than"):
        db.execute(f"SELECT {every} FROM t").fetchall()


def pipe(folder: Path, file: Path) -> None:
    os.mkfifo(folder / "analysis.db")


def journal(folder: Path, file: Path) -> None:
    os.mkfifo(f"{file}-journal")
    Path(f"{file}-wal").write_bytes(b"x" * 100)


def view(folder: Path, file: Path) -> None:
    columns = "step, computing, communication_not_overlapped, overlapped, communication, free, stage, bubble"
    with closing(sqlite3.connect(folder / "analysis.db")) as db, db:
        names = ", ".join(f"1.0 AS {name.strip()}" for name in columns.split(","))
        more = "1.0 AS communication_not_overlapped_and_exclude_receive, 1.0 AS preparing"
        db.execute(f"CREATE VIEW StepTraceTime AS {ENDLESS} SELECT {names}, {more} FROM r")


@pytest.mark.parametrize("beside", [pipe, journal, view])
def test_what_lies_beside_a_database_does_not_hold_it_up(beside: Callable[[Path, Path], None], tmp_path: Path) -> None:
    file = next(steps().db(tmp_path / "trace").rglob("*.db"))
    beside(file.parent, file)
    with at_most(20):
        result = invoked("report", tmp_path / "trace")
    assert result.exit_code == 0, result.output


def test_many_streams_are_sorted_in_one_go(tmp_path: Path) -> None:
    script = (
        f"{ROWS.format('LIMIT 50000')} INSERT INTO TASK"
        " SELECT 1736408883000000000 + x, 1736408883000000001 + x, 0, x, 500000 + x, 1, x FROM r"
    )
    folder = doctored(tmp_path / "trace", script)
    with at_most(20):
        assert invoked("report", folder).exit_code == 0
