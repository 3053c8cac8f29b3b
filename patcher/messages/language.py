"""The language of the reader, in which all is said that is printed as text.

Texts are made in English, and JSON, logs and what is written to files stay so. Only what prints them asks for another
language, and only then is its catalogue read.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patcher.messages.catalogue import Catalogue

VARIABLE = "RLPATCH_LANG"
_OF_THE_SHELL = ("LC_ALL", "LC_MESSAGES", "LANG")


def catalogue() -> Catalogue | None:
    """The texts of the reader's language; None for English, and where there is no other: in a bundle, on a node."""
    names = (VARIABLE,) if os.environ.get(VARIABLE) else _OF_THE_SHELL
    wanted = next(filter(None, map(os.environ.get, names)), "")
    if not wanted.lower().startswith("zh") or not _can_be_written():
        return None
    try:
        module = importlib.import_module("patcher.messages.catalogue")  # English needs nothing of it
        found: Catalogue = module.chinese()
    except (ImportError, OSError):
        return None
    return found


def _can_be_written() -> bool:
    """Whether the terminal has Chinese letters; without them a message would be a row of escapes."""
    try:
        "中".encode(getattr(sys.stderr, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def translate(text: str) -> str:
    """``text`` in the language of the reader; what its catalogue does not have stays as it is."""
    found = catalogue()
    return text if found is None else found.translate(text)


def cell(text: str) -> str:
    """The same for a cell of a table: its length, and what `format` fills it up to, are columns of a terminal."""
    found = catalogue()
    return text if found is None else found.cell(text)
