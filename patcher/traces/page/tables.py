"""Tables that can be filtered and sorted, tiles, and how much of each thing a page has limits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from patcher.messages.text import Text
from patcher.page.markup import Content, Markup, faint, section, tag
from patcher.traces.page.svg import icon, swatch
from patcher.traces.words import duration


class PageLimits(NamedTuple):
    """How much of each thing is shown; the page names what is left out, and ``--json`` has it."""

    rows: int
    bars: int
    spans: int
    profiles: int


PAGE_LIMITS = (
    PageLimits(400, 400, 1000, 8), PageLimits(200, 200, 500, 6), PageLimits(80, 120, 200, 4),
    PageLimits(40, 60, 100, 2), PageLimits(15, 40, 40, 1),
)  # fmt: skip


class Cell(NamedTuple):
    """The content of a cell, and the number by which it is sorted if that is another one; before it a ``bar``.

    A bar is a share of the column and the kind that colours it.
    """

    shown: object
    value: float | int | None = None
    bar: tuple[float, str] | None = None


def timed(ns: float) -> Cell:
    """A cell with a time."""
    return Cell(duration(ns), round(ns))


def table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], limits: PageLimits, about: str = "",
    *, names: int = 1,
) -> Content:  # fmt: skip
    """A table of cells, texts and numbers that can be filtered and sorted; the first ``names`` columns hold names."""
    if not rows:
        return None
    left = len(rows) - limits.rows
    search = (tag("input", type="search", placeholder=Text("filter"), aria_label=Text("Filter {title}", title)), " ")
    name = {"class_": "name", "data_first": "ascending"}
    head = [
        tag("th", tag("button", word, type="button"), scope="col", **(name if at < names else {}))
        for at, word in enumerate(heads)
    ]
    body = [tag("tr", [_cell(one, name=at < names) for at, one in enumerate(row)]) for row in rows[: limits.rows]]
    return section(
        title,
        about and faint(about),
        len(rows) > 8
        and tag(
            "p",
            search,
            tag("output", class_="faint", data_shown=Text("{count} of {total}", "{0}", len(rows[: limits.rows]))),
        ),
        tag("div", tag("table", tag("thead", tag("tr", head)), tag("tbody", body)), class_="table"),
        left > 0 and faint(Text("{count:,} more rows are left out here: `--json` has them.", left)),
    )


def _cell(content: object, *, name: bool) -> Markup:
    if not isinstance(content, Cell):
        content = Cell(content, content if isinstance(content, int) else None)
    bar = None
    if content.bar:
        share, kind = content.bar
        bar = icon(swatch(kind, f"{100 * min(share, 1):.1f}"), 100, preserveAspectRatio="none")
    return tag("td", bar, content.shown, class_="name" if name else None, data_value=content.value)


def tiled(tiles: Iterable[tuple[str, str]]) -> Content:
    """Values in large type, each with what it is about; a long one takes the room of two."""
    made = [
        tag("div", tag("dt", about), tag("dd", value), class_="wide" if len(value) > 14 else None)
        for value, about in tiles
    ]
    return tag("dl", made, class_="tiles")
