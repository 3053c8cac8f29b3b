"""A table in the terminal: aligned, names last and cut so that a line has 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from patcher.messages import Text
from patcher.messages.language import cell, translate
from patcher.messages.notes import WIDTH
from patcher.table import NameUnit, Shown, Table, TextUnit
from patcher.traces.words import shorten_distinct

SHOWN = 10
"""Most rows of a table with names; the page and --json have all."""

INDENT = "  "


def lines(table: Table, hidden: Collection[str] = ()) -> Iterator[str]:
    """Yield the header and rows of `table`, with names shortened to fit 80 columns; nothing if it has no rows.

    `hidden` has the keys of columns to leave out. A column of names, such as those of kernels, comes last. A table with
    names shows at most `SHOWN` rows, then a line with the number of the others.
    """
    if not table.rows:
        return
    columns = [pair for pair in table.columns_in(Shown.TERMINAL) if pair[0].key not in hidden]
    columns.sort(key=lambda pair: isinstance(pair[0].unit, NameUnit))
    has_names = isinstance(columns[-1][0].unit, NameUnit)
    count = min(SHOWN, len(table.rows)) if has_names else len(table.rows)
    drawn: list[list[str]] = []
    room = WIDTH - len(INDENT)
    for column, values in columns:
        unit = column.unit
        if isinstance(unit, NameUnit):
            texts = shorten_distinct([translate(value) for value in values[:count]], room)
        else:
            texts = [unit.missing if value is None else unit.text(value) for value in values[:count]]
        cells = [*map(cell, (column.title, *texts))]
        wide = 0 if isinstance(unit, NameUnit) else max(map(len, cells))
        room -= wide + len(INDENT)
        drawn.append([f"{text:{'<' if isinstance(unit, TextUnit) else '>'}{wide}}" for text in cells])
    gap = INDENT if room >= -len(INDENT) else " "
    for row in zip(*drawn, strict=True):
        yield f"{INDENT}{gap.join(row)}".rstrip()
    if count < len(table.rows):
        yield Text("  … {count:,} more rows in -o FILE.html and --json", len(table.rows) - count)


def titled(table: Table, label: str = "") -> Iterator[str]:
    """Yield the title of `table`, with the `label` of its profile if given, then its lines; nothing without rows."""
    if table.rows:
        yield Text("{title} of {profile}", title=table.title, profile=label) if label else table.title
        yield from lines(table)
