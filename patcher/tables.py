"""Tables, drawn by rich; kept apart because importing it takes longer than most commands."""

from __future__ import annotations

from typing import Any


def releases(data: dict[str, Any]) -> list[str]:
    """The lines of the table that ``rlpatch list`` shows, from the data of its report."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("target", "stage", "recipe", "file", "releases", "windows", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in data["targets"]:
        first, last = row["releases"][0], row["releases"][-1]
        span = first if first == last else f"{first} … {last} ({len(row['releases'])})"
        recipe = f"{row['recipe']} {row['structure']}".rstrip()
        table.add_row(row["target"], row["stage"], recipe, row["file"], span, " ".join(row["windows"]))
    console = Console(width=1000, no_color=True)  # every column as wide as its widest cell
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]
