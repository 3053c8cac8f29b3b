"""Tables of CANN and torch_npu in CSV."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path


def rows(file: Path) -> Iterator[Mapping[str, str]]:
    """Yield each row of a CSV table as column head → cell; nothing without the file. Short rows lack the last heads."""
    cells_of_rows = cells(file)
    heads = next(cells_of_rows, [])
    for row in cells_of_rows:
        yield dict(zip(heads, row, strict=False))


def cells(file: Path) -> Iterator[list[str]]:
    """Yield the cells of each row of a CSV table, the header first; nothing without the file.

    Empty rows are skipped; reading ends silently at the first row that is no CSV.
    """
    if file.is_file():
        with file.open(encoding="utf-8", errors="replace", newline="") as lines, contextlib.suppress(csv.Error):
            yield from filter(None, csv.reader(line.replace("\0", "") for line in lines))
