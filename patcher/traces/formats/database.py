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
"""How torch_npu calls the database of a rank."""


def parsed_into(output: Path) -> list[Path]:
    """The databases in the folder into which torch_npu parses: one, unless somebody put several ranks together."""
    return sorted(output.glob(NAMED))


class _Budget:
    """The budget for reading a file of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.bytes = _LEAST + _PER_BYTE * size
        self.most = self.steps = _SCHEMA_STEPS

    def allow_queries(self) -> None:
        """Count anew, behind the schema."""
        self.most = self.steps = self.bytes

    def exceeded(self) -> bool:
        """Count one more piece of steps, and return whether these were too many."""
        self.steps -= _PIECE
        return self.steps < 0

    def text(self, data: bytes) -> str:
        """Count and decode a text. Raises sqlite3.DataError where there were too many."""
        import sqlite3

        self.bytes -= len(data)
        if self.bytes < 0:
            raise sqlite3.DataError(
                Text("it holds more than {most:,} bytes of text, more than its size explains", self.most)
            )
        return data.decode("utf-8", "replace")


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The database in ``file``, of which only stored columns of tables can be read.

    One in the mode of a write-ahead log gets two files beside it from whoever looks, and the folder may be somebody
    else's. Those are not made, unless a log with content is there already: then part of the data stands in it.

    Raises sqlite3.Error where it is none, where a query reads anything else, and where reading takes too long.
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
            cause = Text("reading it takes more than {most:,} steps, more than its size explains", budget.most)
            raise sqlite3.OperationalError(cause) from None


def columns(db: sqlite3.Connection) -> dict[str, set[str]]:
    """The columns of each table, without tables that compute one."""
    query = """SELECT m.name, c.name, c.hidden FROM sqlite_master m JOIN pragma_table_xinfo(m.name) c
 WHERE m.type = 'table' AND m.rootpage > 0 AND m.sql NOT LIKE '%VIRTUAL%'"""
    tables: dict[str, set[str]] = {}
    computed = set()
    for table, column, hidden in db.execute(query):
        tables.setdefault(table, set()).add(column)
        if hidden:
            computed.add(table)
    return {table: names for table, names in tables.items() if table not in computed}


def _allow_tables(db: sqlite3.Connection) -> None:
    """Refuse whatever a query reads but stored columns: views, virtual tables and what computes a column."""
    import sqlite3

    plain = {*columns(db), *_SCHEMA}

    def authorize(action: int, name: str | None, _column: str | None, _base: str | None, view: str | None) -> int:
        reads = action == sqlite3.SQLITE_READ and name in plain and view is None
        harmless = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION)
        inspects = action == sqlite3.SQLITE_PRAGMA and name == "table_xinfo"
        return sqlite3.SQLITE_OK if reads or harmless or inspects else sqlite3.SQLITE_DENY

    db.set_authorizer(authorize)


def broken(file: Path) -> bool:
    """Whether a file is not a database, or one that ends in the middle."""
    with reading(file) as stream:
        head = stream.read(100)
    if len(head) < 100 or not head.startswith(b"SQLite format 3\0"):
        return True
    page = int.from_bytes(head[16:18], "big") or 1
    pages = int.from_bytes(head[28:32], "big")
    return pages * (65536 if page == 1 else page) > file.stat().st_size


def rows(file: Path, query: str) -> list[tuple[Any, ...]] | None:
    """The rows of ``query``; None where the file is not a database, or has no such table."""
    import sqlite3

    try:
        with opened(file) as connection:
            return connection.execute(query).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # a damaged schema stands in the message
        return None


def steps_in(file: Path) -> tuple[int, ...] | None:
    """Return the numbers of the steps in a database; None where it has none, or is none."""
    numbers = rows(file, "SELECT id FROM STEP_TIME")
    return None if numbers is None else tuple(sorted(int(step) for (step,) in numbers if str(step).isdigit()))


def texts(db: sqlite3.Connection, query_of_numbers: str) -> dict[int, str]:
    """Return the texts of numbers, by number: ``query_of_numbers`` is a query that gives these, or a list of them.

    All in one query: torch_npu keeps them without a key, so each that is looked up alone is a walk through all.
    """
    query = f"SELECT n.id, n.value FROM STRING_IDS n WHERE n.id IN ({query_of_numbers}) AND n.value IS NOT NULL"  # noqa: S608
    by_number: dict[int, str] = {}
    for number, text in db.execute(query):
        by_number.setdefault(number, str(text))
    return by_number
