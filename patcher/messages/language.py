"""The language of the reader, in which every `Text` is rendered once, where it is printed.

JSON, logs and what is written to files stay English. Only what prints a text for people asks for another language, and
only then is its catalogue read.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Mapping

from patcher.messages.text import Text, rendered

VARIABLE = "RLPATCH_LANG"
_OF_THE_SHELL = ("LC_ALL", "LC_MESSAGES", "LANG")


def is_chinese() -> bool:
    """Tell whether the user's language is Chinese; for any other language, messages are English."""
    names = (VARIABLE,) if os.environ.get(VARIABLE) else _OF_THE_SHELL
    return next(filter(None, map(os.environ.get, names)), "").lower().startswith("zh")


def translations() -> Mapping[str, str] | None:
    """Return the Chinese template of each English one; None for another language or, as in a bundle, no catalogue."""
    if not is_chinese():
        return None
    try:
        catalogue = importlib.import_module("patcher.messages.catalogue")  # English needs nothing of it
        entries: Mapping[str, str] = catalogue.chinese()
    except (ImportError, OSError):
        return None
    return entries


def terminal_translations() -> Mapping[str, str] | None:
    """Return what `translations` does; None, too, if stderr cannot encode Chinese characters."""
    try:
        "中".encode(getattr(sys.stderr, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return None
    return translations()


def translate(text: str) -> str:
    """Return `text` in the user's language; a plain string, or a Text without a translation, stays as it is."""
    catalogue = terminal_translations()
    return str(text) if catalogue is None else str(rendered(text, catalogue))


def translate_for_page(value: Any) -> Any:
    """Return a Text in the user's language, for an HTML page; any other value stays as it is."""
    catalogue = translations() if isinstance(value, Text) else None
    return value if catalogue is None else rendered(value, catalogue)


def cell(text: str) -> str:
    """Return `text`, translated for a terminal, as a string whose `len` and `format` width count terminal columns."""
    catalogue = terminal_translations()
    if catalogue is None:
        return str(text)
    columns: str = importlib.import_module("patcher.messages.columns").Columns(rendered(text, catalogue))
    return columns
