"""What the reader of a report should know beside the result."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

WIDEST = 100
"""Columns: no line of a report is read that is longer."""

WIDTH = 80
"""Columns of what is printed on as many lines as it needs."""


class Note(NamedTuple):
    """``text`` fits on one line of a terminal; ``detail`` is shown with ``-v`` and by ``explain``."""

    text: str
    detail: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The text, and the lines of the detail if there is one: for messages that say everything."""
        return (self.text, *self.detail.splitlines())


class Message(NamedTuple):
    """A note with its ``level``: note or warning."""

    level: str
    text: str
    detail: str = ""

    @property
    def line(self) -> str:
        """The note on one line, as long as it is."""
        return f"{self.level}: {self.text}"

    @property
    def fitted(self) -> Message:
        """A note whose line is not longer than ``WIDEST``; what had to be left out stands in its detail.

        The texts of rlpatch are short, but names of files, versions and values that they carry need not be.
        """
        room = WIDEST - len(f"{self.level}: ")
        if len(self.text) <= room:
            return self
        head = self.text[: room - 2].rpartition(" ")[0] or self.text[: room - 2]
        return self._replace(text=f"{head.rstrip(' ,;:')} …", detail="\n".join(filter(None, (self.text, self.detail))))


def wrapped(text: str, indent: str = "", further: str = "  ", width: int = WIDTH) -> list[str]:
    """``text`` in lines of ``width`` columns, those after the first behind ``further``; a longer word stays whole."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
