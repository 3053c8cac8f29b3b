"""Columns of a terminal: a Chinese character takes two, and a line may end behind any of them."""

from __future__ import annotations

import re
import textwrap
import unicodedata

_WIDE, _OPENING, _CLOSING = r"\u2e80-\u9fff\uff00-\uffef", r"[（“《\[(]*", r"[，。、；：）”》！？…\]),.;:]*"
_NUMBER = r"[\d.,]+ (?:%|[mµ]?s\b)"
_WORDS = re.compile(rf"\s+|{_OPENING}(?:{_NUMBER}|[{_WIDE}]|[^\s{_WIDE}]+){_CLOSING}")
"""Pieces behind which a line may break: a blank, a number with its unit, a word, or a Chinese character.

Punctuation goes with what it is at.
"""


def width(text: str) -> int:
    """Return how many columns of a terminal ``text`` takes."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


class Columns(str):
    """Text whose `len` and `format` width count terminal columns."""

    __slots__ = ()

    def __len__(self) -> int:
        return width(self)

    def __format__(self, spec: str) -> str:
        blanks = " " * (int(re.sub(r"\D", "", spec) or 0) - len(self))
        return f"{blanks}{self!s}" if spec.startswith(">") else f"{self!s}{blanks}"


class _Wrapper(textwrap.TextWrapper):
    """Text wrapper that counts terminal columns and may break lines between Chinese characters."""

    def _split(self, text: str) -> list[str]:
        return [Columns(word) for word in _WORDS.findall(text)]


def wrapped(text: str, indent: str, further: str, columns: int) -> list[str]:
    """Return `text` in lines of at most `columns` columns; `indent` goes before the first, `further` before others."""
    wrapper = _Wrapper(columns, initial_indent=indent, subsequent_indent=further, break_long_words=False)
    return wrapper.wrap(text)
