"""The limits of a page, and its tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from patcher.page.markup import Content, tag


class PageLimits(NamedTuple):
    """Numbers of rows, bars, spans and profiles that a page shows; the page says what it leaves out."""

    rows: int
    bars: int
    spans: int
    profiles: int


PAGE_LIMITS = (
    PageLimits(400, 400, 1000, 8), PageLimits(200, 200, 500, 6), PageLimits(80, 120, 200, 4),
    PageLimits(40, 60, 100, 2), PageLimits(15, 40, 40, 1),
)  # fmt: skip


def tiled(tiles: Iterable[tuple[str, str]]) -> Content:
    """Return (value, caption) pairs as tiles with the value in large type."""
    items = [
        tag("div", tag("dt", about), tag("dd", value), class_="wide" if len(value) > 14 else None)
        for value, about in tiles
    ]
    return tag("dl", items, class_="tiles")
