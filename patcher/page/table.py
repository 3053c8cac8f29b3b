"""A table on a page, which can be filtered and sorted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from patcher.messages import Text
from patcher.page.markup import Content, Markup, faint, section, tag
from patcher.table import Column, Shown, Table, TextUnit

FILTERED = 8
"""Rows up to which nobody has to filter a table."""


def table_section(table: Table, max_rows: int | None = None, contents: Mapping[str, Sequence[Content]] = {}) -> Content:
    """Return a table as a section of a page, with a filter if it is long; None if it has no rows.

    Only the first ``max_rows`` rows are shown, with a line that counts the others; None shows all. ``contents`` maps
    the key of a column to what each row shows instead of its value. The column is still sorted by its values.
    """
    if not table.rows:
        return None
    rows = min(len(table.rows), len(table.rows) if max_rows is None else max_rows)
    columns = [
        (column, [*_cells(column, values[:rows], contents.get(column.key, ()), table.hues)])
        for column, values in table.columns_in(Shown.PAGE)
    ]
    body = [tag("tr", cells) for cells in zip(*(cells for _, cells in columns), strict=True)]
    search = tag("input", type="search", placeholder=Text("filter"), aria_label=Text("Filter {title}", table.title))
    count = tag("output", class_="faint", data_shown=Text("{count} of {total} rows", count="{0}", total=rows))
    hidden = len(table.rows) - rows
    return section(
        table.title,
        table.about and faint(table.about),
        len(table.rows) > FILTERED and tag("p", search, " ", count),
        tag(
            "div",
            tag("table", tag("thead", tag("tr", [_head(column) for column, _ in columns])), tag("tbody", body)),
            class_="table",
        ),
        hidden > 0 and faint(Text("{count:,} more rows are not shown here; `--json` prints all rows.", hidden)),
    )


def _head(column: Column) -> Markup:
    name = {"class_": "name", "data_first": "ascending"} if isinstance(column.unit, TextUnit) else {}
    return tag("th", tag("button", column.title, type="button"), scope="col", **name)


def _cells(column: Column, values: Sequence[Any], contents: Sequence[Content], hues: Sequence[str]) -> Iterator[Markup]:
    """Yield the HTML cells of a column: its values as its unit writes them, or instead ``contents`` if there are any.

    A missing value (None) is shown as the unit says, and sorted as 0. Bars are relative to the largest value, or to the
    unit's whole; ``hues`` has the CSS class of each, if there are any.
    """
    unit = column.unit
    if isinstance(unit, TextUnit):
        yield from (tag("td", content, class_="name") for content in contents or map(unit.text, values))
        return
    text = unit.page or unit.text
    whole = unit.whole or max((abs(value or 0) for value in values), default=0) or 1
    for at, value in enumerate(values):
        bar = None
        if column.bar:
            width = f"{100 * min(abs(value or 0) / whole, 1):.1f}"
            rectangle = tag("rect", width=width, height=10, class_=hues[at] if hues else "compute")
            bar = tag("svg", rectangle, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
        content = contents[at] if contents else unit.missing if value is None else text(value)
        yield tag("td", bar, content, data_value=round(value or 0, 6))
