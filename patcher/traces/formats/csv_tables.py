"""Tables of CANN and torch_npu in CSV."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path


def rows(file: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table by its heads; nothing where there is no file."""
    cells_of_rows = cells(file)
    heads = next(cells_of_rows, [])
    for row in cells_of_rows:
        yield dict(zip(heads, row, strict=False))


def cells(file: Path) -> Iterator[list[str]]:
    """Yield the cells of each row of a table, its heads first; nothing where there is no file, or no table."""
    if file.is_file():
        with file.open(encoding="utf-8", errors="replace", newline="") as lines, contextlib.suppress(csv.Error):
            yield from filter(None, csv.reader(line.replace("\0", "") for line in lines))
