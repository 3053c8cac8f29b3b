"""Tables, drawn by rich; kept apart because importing it takes longer than most commands."""

from __future__ import annotations

import io
from typing import Any


def releases(data: dict[str, Any], width: int | None = None) -> list[str]:
    """The lines of the table that ``rlpatch list`` shows, from the data of its report.

    With a ``width``, that of the terminal, cells are folded into it; without one each row is one line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if width else (0, 1))
    for name in ("target", "stage", "recipe", "file", "releases", "windows"):
        table.add_column(name, overflow="fold")
    for row in data["targets"]:
        first, last = row["releases"][0], row["releases"][-1]
        span = first if first == last else f"{first} … {last} ({len(row['releases'])})"
        recipe = f"{row['recipe']} {row['structure']}".rstrip()
        table.add_row(row["target"], row["stage"], recipe, row["file"], span, " ".join(row["windows"]))
    drawn = io.StringIO()  # a console of its own choice flushes stdout, which may be full
    Console(file=drawn, width=width or 1000).print(table)  # 1000: every column as wide as its widest cell
    return [line.rstrip() for line in drawn.getvalue().splitlines()]
