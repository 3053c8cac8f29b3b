"""Tables, drawn by rich; kept apart because importing it takes longer than most commands."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from patcher.messages.language import cell
from patcher.messages.notes import terminal_width, wrapped
from patcher.messages.text import Text, joined


def room() -> int | None:
    """Return the columns of the terminal on stdout, None if stdout is no terminal."""
    return terminal_width(sys.stdout)


def targets(listed: Iterable[tuple[str, str, str, Sequence[str]]], width: int | None = None) -> list[str]:
    """Return the table of `rlpatch list`, with a row for each (target, stages, windows, releases).

    `width` is the columns of the terminal here and below; with None each row is a line of any length.
    """
    rows = [(target, stages, windows, _span(releases)) for target, stages, windows, releases in listed]
    return draw((Text("target"), Text("stages"), Text("windows"), Text("releases")), rows, width)


def recipes(listing: Any, width: int | None = None) -> list[str]:
    """Return the table of `rlpatch list TARGET`; for a terminal, lines that are grouped by stage and file."""
    if width is None:
        rows = [
            (row.target, row.stage, row.recipe, row.structure, row.file, _span(row.releases), " ".join(row.windows))
            for row in listing.targets
        ]
        heads = (
            Text("target"), Text("stage"), Text("recipe"), Text("structure"), Text("file"), Text("releases"),
            Text("windows"),
        )  # fmt: skip
        return draw(heads, rows, None)
    lines: list[str] = []
    for head, of_stage in groupby(listing.targets, lambda row: (row.target, row.stage, *row.windows)):
        lines += ["", *wrapped(" ".join(head), "", "    ", width)]
        for (recipe, file), of_file in groupby(of_stage, lambda row: (row.recipe, row.file)):
            spans = (" ".join(filter(None, (row.structure, _span(row.releases)))) for row in of_file)
            text = Text("  {recipe}: {releases}", recipe=recipe, releases=", ".join(spans))
            lines += [*wrapped(text, "", "    ", width), f"    {file}"]
    return lines[1:]


def _span(releases: Sequence[str]) -> str:
    """Return the first and the last release as text, with their number: `0.9 … 0.12 (4)`."""
    first, last = releases[0], releases[-1]
    return first if first == last else f"{first} … {last} ({len(releases)})"


def _turn_words(name: str, number: int) -> Text:
    """Return a worker's rollout, training step or weight sync with its number."""
    if name == "rollout":
        return Text("rollout {number}", number)
    return Text("step {number}", number) if name == "step" else Text("sync {number}", number)


def traces(data: dict[str, Any], width: int | None = None) -> list[str]:
    """Return the table of `rlpatch traces` from the `data` of its report; an unknown value is "?"."""
    rows = []
    for number, row in enumerate(data["captures"], 1):
        target = " ".join(filter(None, (row["target"], row["release"])))
        target = target or ("?" if row["ours"] else Text("another tool"))
        stage = " ".join(filter(None, (row["stage"], row["role"])))
        turns = (_turn_words(name, row[name]) for name in ("rollout", "step", "sync") if row[name] is not None)
        window = (stage, row["asked"], row["got"], next(turns, ""), row["ranks"])
        rows.append((str(number), target, *(value or "?" for value in window), row["state"], _bytes(row["size"])))
    heads = (
        "", Text("target"), Text("stage"), Text("window"), Text("steps"), Text("when"), Text("ranks"),
        Text("state"), Text("size"),
    )  # fmt: skip
    return draw(heads, rows, width)


def workers(progress: Iterable[Any], width: int | None = None) -> list[str]:
    """Return the table of `rlpatch watch`, a row for each worker."""
    rows = []
    for number, row in enumerate(progress, 1):
        rank = f"{row.replica}/{row.rank}" if row.replica else str(row.rank)
        turns = (
            "" if row.step is None else _turn_words("step", row.step),
            "" if row.rollout is None else str(row.rollout),
            "" if row.sync is None else _turn_words("sync", row.sync),
        )
        rows.append(
            (
                str(number), " ".join(filter(None, (row.target, row.release))),
                joined(" ", (row.stage, row.role, *turns)), row.host, rank, row.state,
                _progress_in_window(row), row.life, _traces(row.traces),
            )
        )  # fmt: skip
    heads = (
        "", Text("target"), Text("stage"), Text("host"), Text("rank"), Text("state"), Text("step"), Text("last seen"),
        Text("trace"),
    )  # fmt: skip
    return draw(heads, rows, width)


def _progress_in_window(row: Any) -> str:
    """Return a worker's progress in its window, such as "3 of 30 in 30:60", else its window or step, "" if unknown."""
    unit = row.number if row.live is None else row.live
    # With a new request on its way the window is that of the one before.
    window = row.window if row.outcome != "done" or row.state == "saved" else ""
    if unit is None or not window:
        return window if unit is None else str(unit)
    if row.state == "not recorded":  # its last unit may be that of another rollout
        return str(window)
    first, end = row.span or (math.inf, math.inf)
    span = f"{first}:{'' if end == math.inf else end}" if row.span else window
    if unit < first:
        return Text("{step}, before {window}", step=unit, window=span)
    if end == math.inf:
        return Text("{recorded} in {window}", recorded=unit - first, window=span)
    return Text("{recorded} of {total} in {window}", recorded=min(unit, end) - first, total=end - first, window=span)


def _traces(traces: Sequence[Any]) -> str:
    """Return the total size of a worker's traces that still exist, with their number if there are several."""
    sizes = [trace.size for trace in traces if trace.size is not None]
    if not sizes:
        return Text("moved") if traces else ""
    size = _bytes(sum(sizes))
    return Text("{count} traces: {size}", count=len(sizes), size=size) if len(sizes) > 1 else size


def nodes(data: dict[str, Any]) -> list[str]:
    """Return the table of `rlpatch status --ray` from the `data` of its report, a row for each node."""
    rows = []
    for row in data["nodes"]:
        targets = ", ".join(f"{name} {version}".rstrip() for name, version in row["targets"].items())
        patches = ", ".join(" ".join(filter(None, (p["target"], p["stage"], p["role"]))) for p in row["patches"])
        free = "" if row["free"] is None else _bytes(row["free"])
        engines = str(len(row["running"])) if row["running"] else ""
        rows.append((row["node"], row["state"], targets, patches, engines, free))
    heads = (
        Text("node"),
        Text("state"),
        Text("installed"),
        Text("patched"),
        Text("running engines"),
        Text("disk free"),
    )
    return draw(heads, rows, None)


def _bytes(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)


def draw(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> list[str]:
    """Return the lines of a table with translated cells; a row that is too wide becomes lines of "head value"."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as RichText

    padding = (0, 1, 0, 0) if width else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=not width, padding=padding)
    heads, *cells = ([*map(cell, row)] for row in (heads, *rows))
    widths = _widths([heads, *cells], (width or 1000) - 2 * len(heads) + 2)
    if width and None in widths:
        return [line for row in cells for line in _folded(heads, row, width)]
    for name, wide in zip(heads, widths, strict=True):
        table.add_column(str(name), overflow="fold", width=wide)
    for row in cells:
        table.add_row(*(RichText(str(value)) for value in row))  # a name is no markup
    output = io.StringIO()  # a console of its own choice flushes stdout, which may be full
    Console(file=output, width=width or 1000).print(table)  # 1000: every column as wide as its widest cell
    return [line.rstrip() for line in output.getvalue().splitlines() if line.strip()]  # the edge is blank


def _folded(heads: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    """Return a row as lines of "head value, head value", wrapped to `width`; empty values are left out."""
    number = next((f"{value}  " for head, value in zip(heads, row, strict=True) if not head), "")
    further = " " * max(len(number), 2)
    parts = [f"{head} {value}" for head, value in zip(heads, row, strict=True) if head and value]
    # Lines end between cells, where each of them fits on a line.
    whole = [part.replace(" ", "\0") if len(part) + len(further) < width else part for part in parts]
    return [line.replace("\0", " ") for line in wrapped(", ".join(whole), number, further, width)]


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Return the width of each column, from that of its longest word to that of its widest cell, as there is `room`.

    All are None if the longest words need more.
    """
    columns = [*zip(*rows, strict=True)]
    widths = [max(len(type(value)(word)) for value in column for word in [*value.split(), ""]) for column in columns]
    if sum(widths) > room:
        return [None] * len(columns)
    whole = [max(map(len, column)) for column in columns]
    for at in sorted(range(len(columns)), key=lambda at: whole[at] - widths[at]):
        widths[at] = min(whole[at], widths[at] + room - sum(widths))
    return [*widths]
