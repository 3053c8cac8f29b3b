"""The page of a comparison of two runs: how much a step changed, where that comes from, which causes came or went."""

from __future__ import annotations

from patcher.messages import Text
from patcher.page import document
from patcher.page.markup import alert, faint, tag
from patcher.page.table import table_section
from patcher.timeline import comparison_tables as tables
from patcher.timeline.run_comparison import RunComparison

MOST_LISTED = 200
"""Causes on one page, the costliest first."""


def comparison_page(comparison: RunComparison, sentences: list[str]) -> str:
    """Return the HTML page of a comparison in the reader's language.

    ``sentences`` are its verdict, at least one: the first is shown large, the next two as the head of the page.
    """
    first, *more = sentences
    body = (
        tag("header", tag("h1", "rlpatch compare"), [faint(text) for text in more[:2]]),
        alert(
            Text("The two sides were compared only because of --force. They are not comparable, for these reasons:"),
            comparison.refused,
        ),
        tag("p", first, class_="verdict"),
        [tag("p", text) for text in more[2:]],
        [
            tag("p", Text("Difference between the two sides: {difference}.", difference))
            for difference in comparison.differs
        ],
        [tag("p", note) for note in comparison.notes],
        [table_section(table, MOST_LISTED) for _, table in tables.of_comparison(comparison)],
    )
    return document("rlpatch compare", body)
