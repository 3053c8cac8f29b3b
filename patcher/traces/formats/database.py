"""The databases of torch_npu: which are there, and opening one so that nothing is left beside it.

A database is a program, too: a view or a column can be computed for ever. So only the stored columns of tables are
read, and reading ends after so many steps of SQLite and bytes of text as the size of the file explains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.messages import Text
from patcher.store.filesystem.opened import reading

if TYPE_CHECKING:
    import sqlite3


_LEAST, _PER_BYTE = 10_000_000, 10
"""Steps of SQLite, and bytes of text, that reading may take: for any file, and for each byte of it.

The databases of torch_npu take less than two steps a byte.
"""

_PIECE = 10_000
"""Steps after which they are counted."""

_SCHEMA_STEPS = 100_000
"""Steps that reading the schema may take: SQLite keeps its entries in chains, so a hundred thousand take 8 s."""

_LONGEST = 1 << 20
"""Bytes of one value, or of a row."""

_SCHEMA = {"sqlite_master", "sqlite_schema", "pragma_table_xinfo"}

NAMED = "ascend_pytorch_profiler*.db"
"""File name pattern of torch_npu's database of a rank."""


def parsed_into(output: Path) -> list[Path]:
    """Return the databases in torch_npu's output folder: one, unless somebody put several ranks together."""
    return sorted(output.glob(NAMED))


class _Budget:
    """Budget of SQLite steps and bytes of text for reading a file of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.bytes = _LEAST + _PER_BYTE * size
        self.most = self.steps = _SCHEMA_STEPS

    def allow_queries(self) -> None:
        """Replace the budget for the schema by that for the whole file."""
        self.most = self.steps = self.bytes

    def exceeded(self) -> bool:
        """Count 10,000 more steps of SQLite, and tell whether the budget is exceeded."""
        self.steps -= _PIECE
        return self.steps < 0

    def text(self, data: bytes) -> str:
        """Decode a text, and count its bytes. Raises sqlite3.DataError if the budget for texts is exceeded."""
        import sqlite3

        self.bytes -= len(data)
        if self.bytes < 0:
            raise sqlite3.DataError(
                Text(
                    "reading the database yields more than {limit:,} bytes of text, more than a file of this size"
                    " should hold",
                    self.most,
                )
            )
        return data.decode("utf-8", "replace")


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database, for a ``with`` statement, with a connection that can only read stored columns of tables.

    No files are created beside the database, unless it has a write-ahead log with content, which is part of the data.
    Raises sqlite3.Error for a file that is no database, a query that reads anything else, or reading that takes too
    many steps for the file's size.
    """
    import sqlite3

    if not file.is_file():  # SQLite would wait for a pipe
        raise sqlite3.OperationalError(Text("not a regular file"))
    beside = [file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm", "-journal")]
    log = (
        beside[0].stat().st_size
        if all(path.is_file() or not path.exists() for path in beside) and beside[0].exists()
        else 0
    )
    budget = _Budget(file.stat().st_size + log)
    how = "mode=ro" if log else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True)) as database:
        database.text_factory = budget.text
        database.set_progress_handler(budget.exceeded, _PIECE)
        if sys.version_info >= (3, 11):
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        try:
            _allow_tables(database)
            budget.allow_queries()
            yield database
        except sqlite3.OperationalError:
            if budget.steps >= 0:
                raise
            cause = Text(
                "rlpatch stopped reading the database after {limit:,} SQLite instructions: a file of this size should"
                " need fewer",
                budget.most,
            )
            raise sqlite3.OperationalError(cause) from None


def columns(db: sqlite3.Connection) -> dict[str, set[str]]:
    """Return table → its columns, without virtual tables and tables with a computed column."""
    query = """SELECT m.name, c.name, c.hidden FROM sqlite_master m JOIN pragma_table_xinfo(m.name) c
 WHERE m.type = 'table' AND m.rootpage > 0 AND m.sql LIKE 'CREATE TABLE %'"""
    tables: dict[str, set[str]] = {}
    computed = set()
    for table, column, hidden in db.execute(query):
        tables.setdefault(table, set()).add(column)
        if hidden:
            computed.add(table)
    return {table: names for table, names in tables.items() if table not in computed}


def failure_reason(error: Exception) -> object:
    """Return why reading a database failed: SQLite's error, or that a column has values of an unexpected type."""
    import sqlite3

    if isinstance(error, sqlite3.Error):
        return error
    return Text("a column of the database has values of an unexpected type")


def _allow_tables(db: sqlite3.Connection) -> None:
    """Let a connection read only the stored tables: views and computed columns are refused from now on."""
    import sqlite3

    plain = {*columns(db), *_SCHEMA}

    def authorize(action: int, name: str | None, _column: str | None, _base: str | None, view: str | None) -> int:
        """Return SQLITE_OK for SELECT, functions, table_xinfo, and stored columns of tables; else SQLITE_DENY."""
        reads = action == sqlite3.SQLITE_READ and name in plain and view is None
        harmless = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION)
        inspects = action == sqlite3.SQLITE_PRAGMA and name == "table_xinfo"
        return sqlite3.SQLITE_OK if reads or harmless or inspects else sqlite3.SQLITE_DENY

    db.set_authorizer(authorize)


def is_broken(file: Path) -> bool:
    """Tell whether a file is no SQLite database, or shorter than its header says. Raises OSError."""
    with reading(file) as stream:
        head = stream.read(100)
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        return True
    page = int.from_bytes(head[16:18], "big") or 1
    pages = int.from_bytes(head[28:32], "big")
    return pages * (65536 if page == 1 else page) > file.stat().st_size


def rows(file: Path, query: str) -> list[tuple[Any, ...]] | None:
    """Return the rows of ``query`` on a database; None if the file is no database, or the query fails."""
    import sqlite3

    try:
        with opened(file) as connection:
            return connection.execute(query).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # a damaged schema stands in the message
        return None


def steps_in(file: Path) -> tuple[int, ...] | None:
    """Return the step numbers in a database of torch_npu, ascending; None without a table of steps."""
    numbers = rows(file, "SELECT id FROM STEP_TIME")
    return None if numbers is None else tuple(sorted(int(step) for (step,) in numbers if str(step).isdigit()))


def texts(db: sqlite3.Connection, query_of_numbers: str, table: str = "STRING_IDS") -> dict[int, str]:
    """Return number → text in ``table``, for the numbers that ``query_of_numbers`` selects (SQL, or a list of numbers).

    Numbers without a text are left out. One query reads all: torch_npu's table has no index, so each look-up would be a
    full scan.
    """
    query = f"SELECT n.id, n.value FROM {table} n WHERE n.id IN ({query_of_numbers}) AND n.value IS NOT NULL"  # noqa: S608
    by_number: dict[int, str] = {}
    for number, text in db.execute(query):
        by_number.setdefault(number, str(text))
    return by_number
