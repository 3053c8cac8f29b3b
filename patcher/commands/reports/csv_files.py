"""``--csv``: the tables of a report as files of a folder, one a table, for pandas and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from patcher.commands.reports.writing import write_folder
from patcher.messages import CommandResult
from patcher.page.markup import visible
from patcher.table import Table

FORMULA = ("=", "+", "-", "@")
"""First characters of a text that a spreadsheet would run as a formula; an apostrophe, which it hides, is added."""

Tables = Iterable[tuple[Mapping[str, Any], Table]]
"""Tables, each with the values, by column name, that go before the columns in all of its rows: such as the rank."""


def write_tables(result: CommandResult, folder: Path, tables: Tables) -> None:
    """Write each table to `folder` as a CSV file with a header; tables with the same name share a file.

    `result` gets a line that `folder` was written, or a problem if a file could not be written.
    """
    write_folder(result, folder, csv_texts(tables), "--csv DIR")


def csv_texts(tables: Tables) -> dict[str, str]:
    """Return file name → its CSV text, a file for each name of a table; tables with the same name are concatenated.

    Columns without a key are left out. A table without rows gives a header.
    """
    heads: dict[str, dict[str, None]] = {}
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for origin, table in tables:
        file = f"{table.name}.csv"
        columns = {column.key: at for at, column in enumerate(table.columns) if column.key}
        heads.setdefault(file, {}).update(dict.fromkeys([*origin, *columns]))
        rows.setdefault(file, []).extend(
            {**origin, **{key: row[at] for key, at in columns.items()}} for row in table.rows
        )
    texts = {file: io.StringIO() for file in heads}
    for file, text in texts.items():
        writer = csv.DictWriter(text, heads[file], lineterminator="\n")
        writer.writeheader()
        writer.writerows({head: _csv_cell(cell) for head, cell in row.items()} for row in rows[file])
    return {file: text.getvalue() for file, text in texts.items()}


def _csv_cell(value: Any) -> Any:
    """Return a CSV cell: floats to 6 decimals, text made harmless (control characters, formulas), all else as it is."""
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(FORMULA) else text
    return round(value, 6) if isinstance(value, float) else value
