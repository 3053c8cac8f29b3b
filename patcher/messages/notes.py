"""Notes and warnings beside the result of a report."""

from __future__ import annotations

import importlib
from typing import Mapping, NamedTuple

from patcher.messages.language import cell, of_terminal, translate
from patcher.messages.text import Text, lines

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
        return (self.text, *lines(self.detail))


LEVELS: Mapping[str, Text] = {level: level for level in (Text("note"), Text("warning"))}


class Message(NamedTuple):
    """A note with its ``level``, one of `LEVELS`."""

    level: str
    text: str
    detail: str = ""

    @property
    def line(self) -> str:
        """The note on one line, as long as it is."""
        return Text("{level}: {text}", LEVELS[self.level], self.text)

    @property
    def fitted(self) -> tuple[str, str]:
        """The line in the reader's language, not longer than ``WIDEST``, and the detail with what had to be left out.

        The texts of rlpatch are short, but names of files, versions and values that they carry need not be.
        """
        line, details = cell(self.line), translate(self.detail).splitlines()
        if len(line) > WIDEST:
            details.insert(0, translate(self.text))
            room = WIDEST - 2
            first, *_ = wrapped(self.line, width=room)
            whole = first if len(first) > len(self.level) + 1 else line[:room]
            line = f"{whole.rstrip(' ,;:')} …"
        return str(line), "\n".join(details)


class Warned(Message):
    """A warning that is shown with ``-q``, too, and with its detail, line by line: another run may need it."""

    __slots__ = ()


def wrapped(text: str, indent: str = "", further: str = "  ", width: int | None = WIDTH) -> list[str]:
    """``text`` in lines of ``width`` columns, those after the first behind ``further``; a longer word stays whole.

    Without a ``width`` the terminal decides, and at most `WIDEST`.

    The lines are in the language of the reader, because what is cut into lines can no longer be said in another.
    """
    import shutil  # noqa: PLC0415  (3 ms, and most lines are short)
    import textwrap  # noqa: PLC0415

    width = width or min(WIDEST, shutil.get_terminal_size().columns)
    if of_terminal() is not None:
        columns = importlib.import_module("patcher.messages.columns")  # English needs nothing of it
        chinese: list[str] = columns.wrapped(translate(text), indent, further, width)
        return chinese
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
