"""Tables that can be filtered and sorted, tiles, and how much of each thing a page has limits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from patcher.traces.page.markup import Content, Markup, tag
from patcher.traces.page.svg import icon, swatch
from patcher.traces.words import duration


class PageLimits(NamedTuple):
    """How much of each thing is shown; the page names what is left out, and ``--json`` has it."""

    rows: int
    bars: int
    spans: int
    profiles: int


PAGE_LIMITS = (
    PageLimits(400, 400, 1500, 8), PageLimits(200, 200, 500, 6), PageLimits(80, 120, 200, 4),
    PageLimits(40, 60, 100, 2), PageLimits(15, 40, 40, 1),
)  # fmt: skip


class Cell(NamedTuple):
    """The content of a cell, and the number by which it is sorted if that is another one; before it a ``bar``.

    A bar is a share of the column and the kind that colours it.
    """

    shown: object
    value: float | int | None = None
    bar: tuple[float, str] | None = None

    def made(self, name: bool) -> Markup:
        """The element; one that is a ``name`` may be long."""
        bar = None
        if self.bar:
            share, kind = self.bar
            bar = icon(swatch(kind, f"{100 * min(share, 1):.1f}"), 100, preserveAspectRatio="none")
        return tag("td", bar, self.shown, class_="name" if name else None, data_value=self.value)


def timed(ns: float) -> Cell:
    """A cell with a time."""
    return Cell(duration(ns), round(ns))


def table(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[object]],
    limits: PageLimits,
    about: str = "",
    *,
    names: int = 1,
) -> Content:
    """A table that can be filtered and sorted; the first ``names`` columns hold names."""
    if not rows:
        return None
    shown = rows[: limits.rows]
    left = len(rows) - len(shown)
    search = tag(
        "p", tag("input", type="search", placeholder="filter", aria_label=f"Filter {title}"), " ",
        tag("output", class_="faint"),
    )  # fmt: skip
    head = tag(
        "tr",
        [
            tag(
                "th", tag("button", word, type="button"), scope="col", class_="name" if at < names else None,
                data_first="ascending" if at < names else None,
            )
            for at, word in enumerate(heads)
        ],
    )  # fmt: skip
    cells = [[cell if isinstance(cell, Cell) else Cell(cell, cell) for cell in row] for row in shown]  # type: ignore[arg-type]
    body = [tag("tr", [cell.made(at < names) for at, cell in enumerate(row)]) for row in cells]
    return tag(
        "section",
        tag("h2", title),
        about and tag("p", about, class_="faint"),
        len(rows) > 8 and search,
        tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="table"),
        left > 0 and tag("p", f"{left:,} more rows are left out here: `--json` has them.", class_="faint"),
    )


_LONG = 14  # characters that one tile has no limits for


def tiled(tiles: Iterable[tuple[str, str]]) -> Content:
    """Values in large type, each with what it is about."""
    made = [
        tag("div", tag("dt", about), tag("dd", value), class_="wide" if len(value) > _LONG else None)
        for value, about in tiles
    ]
    return tag("dl", made, class_="tiles")
