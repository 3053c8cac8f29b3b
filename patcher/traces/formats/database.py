"""The databases of torch_npu: which are there, and opening one so that nothing is left beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.store.filesystem.opened import reading

if TYPE_CHECKING:
    import sqlite3


NAMED = "ascend_pytorch_profiler*.db"
"""How torch_npu calls the database of a rank."""


def parsed_into(output: Path) -> list[Path]:
    """The databases in the folder into which torch_npu parses: one, unless somebody put several ranks together."""
    return sorted(output.glob(NAMED))


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The database in ``file``; ``sqlite3.Error`` where it is none.

    One in the mode of a write-ahead log gets two files beside it from whoever looks, and the folder may be somebody
    else's. Those are not made, unless a log with content is there already: then part of the data stands in it.
    """
    import sqlite3

    log = file.with_name(f"{file.name}-wal")
    alone = not log.is_file() or not log.stat().st_size
    how = "mode=ro&immutable=1" if alone else "mode=ro"
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?{how}", uri=True)) as database:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        yield database


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
    """The numbers of the steps in a database; None where it has none, or is none."""
    found = rows(file, "SELECT id FROM STEP_TIME")
    return None if found is None else tuple(sorted(int(step) for (step,) in found if str(step).isdigit()))


def texts(db: sqlite3.Connection, wanted: str) -> dict[int, str]:
    """The texts of numbers, by number: ``wanted`` is a query that gives these, or a list of them.

    All in one query: torch_npu keeps them without a key, so each that is looked up alone is a walk through all.
    """
    query = f"SELECT n.id, n.value FROM STRING_IDS n WHERE n.id IN ({wanted}) AND n.value IS NOT NULL"  # noqa: S608
    found: dict[int, str] = {}
    for number, text in db.execute(query):
        found.setdefault(number, str(text))
    return found
