"""Tables of a report: declared once, and rendered by the terminal, the pages and CSV files.

Rows hold plain values in base units: nanoseconds or seconds, bytes, shares of 0 to 1. A renderer makes text of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """Unit of the numbers in a column: ``text`` formats a number for people, ``page`` for a page if it differs.

    ``missing`` is shown for None. ``whole`` is the number whose bar fills a cell; None takes the largest number of the
    column.
    """

    text: Callable[[Any], str]
    page: Callable[[Any], str] | None = None
    missing: str = ""
    whole: float | None = None


class TextUnit(Unit):
    """Unit of a column of texts, aligned to the left."""

    __slots__ = ()


class NameUnit(TextUnit):
    """Unit of names from a trace: the terminal puts the column last, and cuts names to the available room."""

    __slots__ = ()


LABEL = TextUnit(lambda text: text)
COUNT = Unit("{:,}".format)
NUMBER = Unit("#{}".format)
"""The number of a unit."""


class Shown(enum.IntEnum):
    """Places that show a column: CSV alone, pages and CSV, or the terminal, too."""

    CSV = 1
    PAGE = 2
    TERMINAL = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``key`` is its stable name in CSV, where a column without a key is left out; ``title`` is for people.

    An ``optional`` column without any value but 0 is left out everywhere but in CSV. ``bar`` draws a bar before each
    number.
    """

    key: str
    title: str = ""
    unit: Unit = LABEL
    shown_in: Shown = Shown.PAGE
    optional: bool = False
    bar: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same columns: ``name`` is the name of the CSV file, ``title`` and ``about`` are for people.

    ``hues`` has the CSS class of the bars of each row.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Any]]
    about: str = ""
    hues: Sequence[str] = ()

    def columns_in(self, place: Shown) -> Iterator[tuple[Column, list[Any]]]:
        """Yield each column that is shown in a place, with its values of all rows, in the order of the columns."""
        for at, column in enumerate(self.columns):
            values = [row[at] for row in self.rows]
            if column.shown_in >= place and (any(values) or not column.optional):
                yield column, values
