"""Notes and warnings beside the result of a report."""

from __future__ import annotations

import importlib
import re
from typing import Mapping, NamedTuple, TextIO

from patcher.messages.language import cell, terminal_translations, translate
from patcher.messages.text import Text, lines

WIDEST = 100
"""Columns: no line of a report is read that is longer."""

WIDTH = 80
"""Columns of what is printed on as many lines as it needs."""


class Note(NamedTuple):
    """Note of a single line; `detail` is shown with `-v` and by `explain`."""

    text: str
    detail: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The text and the lines of the detail, for messages that tell everything."""
        return (self.text, *lines(self.detail))


LEVELS: Mapping[str, Text] = {level: level for level in (Text("note"), Text("warning"))}


class Message(NamedTuple):
    """Note with its `level`, one of `LEVELS`."""

    level: str
    text: str
    detail: str = ""

    @property
    def line(self) -> str:
        """Note on a single line of any length."""
        return Text("{level}: {text}", level=LEVELS[self.level], text=self.text)

    @property
    def fits(self) -> bool:
        """Whether the translated line has at most `WIDEST` columns."""
        return len(cell(self.line)) <= WIDEST

    @property
    def short_line(self) -> str:
        """Translated line, cut to `WIDEST` columns."""
        line = cell(self.line)
        if self.fits:
            return str(line)
        room = WIDEST - 2
        first, *_ = wrapped(self.line, width=room)
        whole = first if len(first) > len(self.level) + 1 else line[:room]
        return f"{whole.rstrip(' ,;:')} …"


class Warned(Message):
    """Warning that is shown with `-q`, too, and always with its detail."""

    __slots__ = ()


def terminal_width(stream: TextIO | None) -> int | None:
    """Return the columns of the terminal that `stream` writes to; None if it writes to no terminal."""
    if stream is None or not stream.isatty():
        return None
    import shutil  # noqa: PLC0415  (3 ms)

    return shutil.get_terminal_size().columns


def wrapped(text: str, indent: str = "", further: str = "  ", width: int | None = WIDTH) -> list[str]:
    """Return `text`, translated, in lines of at most `width` columns; None takes the terminal's width, up to `WIDEST`.

    `indent` is put before the first line, `further` before all others. Neither a long word nor a number and its unit is
    broken.
    """
    import shutil  # noqa: PLC0415  (3 ms, and most lines are short)
    import textwrap  # noqa: PLC0415

    width = width or min(WIDEST, shutil.get_terminal_size().columns)
    if terminal_translations() is not None:
        columns = importlib.import_module("patcher.messages.columns")  # English needs nothing of it
        chinese: list[str] = columns.wrapped(translate(text), indent, further, width)
        return chinese
    text = re.sub(r"(?<=\d) (?=%|[mµ]?s\b)", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
