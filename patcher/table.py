"""Tables of a report: declared once, and rendered by the terminal, the pages and CSV files.

Rows hold plain values in base units: nanoseconds or seconds, bytes, shares of 0 to 1. A renderer makes text of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """Unit of the plain numbers of a column: ``text`` makes of one what people read, ``page`` for a page, if given.

    ``missing`` stands for None, ``whole`` is the number whose bar fills a cell: None is the largest of the column.
    """

    text: Callable[[Any], str]
    page: Callable[[Any], str] | None = None
    missing: str = ""
    whole: float | None = None


class TextUnit(Unit):
    """Unit of a column of texts, which stands to the left."""

    __slots__ = ()


class NameUnit(TextUnit):
    """Unit of names from a trace: the terminal puts them last, and cuts them to the room that there is."""

    __slots__ = ()


LABEL = TextUnit(lambda text: text)
COUNT = Unit("{:,}".format)
NUMBER = Unit("#{}".format)
"""The number of a unit."""


class Shown(enum.IntEnum):
    """Places where a column is seen: CSV alone, a page, too, or all three."""

    CSV = 1
    PAGE = 2
    TERMINAL = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``key`` is its stable name in CSV, which has only columns with one; ``title`` is for people.

    An ``optional`` column is left out, but of CSV, where no row has more than 0 in it. A ``bar`` goes before numbers.
    """

    key: str
    title: str = ""
    unit: Unit = LABEL
    shown: Shown = Shown.PAGE
    optional: bool = False
    bar: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below the same columns: ``name`` is that of the CSV file, ``title`` and ``about`` are for people.

    ``hues`` are classes of the style, one a row, for bars of different colours.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Any]]
    about: str = ""
    hues: Sequence[str] = ()

    def columns_in(self, place: Shown) -> Iterator[tuple[Column, list[Any]]]:
        """Return each column that is seen there, with its values."""
        for at, column in enumerate(self.columns):
            values = [row[at] for row in self.rows]
            if column.shown >= place and (any(values) or not column.optional):
                yield column, values
