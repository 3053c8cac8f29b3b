"""Values in the files of probes: anything may lie there, and a value of another form is a ValueError that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from patcher.messages import Text

FORMAT = 1
"""Version of states and requests; a file of another version is not read."""
LONGEST = 200
"""Characters of a text, but for a path and the words of a state."""
MOST = 2**63 - 1

WINDOW = r"\d{1,12}:\d{0,12}"


class Fields:
    """Checked fields of a state or request file; raises ValueError, with the reason, for an invalid value.

    A missing field has the default. Without a default it raises ValueError, too.
    """

    def __init__(self, text: bytes) -> None:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(Text("the file is not JSON, or incomplete")) from None
        if not isinstance(content, dict):
            raise ValueError(Text("the file is not a JSON object"))  # noqa: TRY004  (as for any file that no worker wrote)
        if content.get("format") != FORMAT:
            why = Text("the file has format {format}, but this rlpatch reads only format {supported_format}")
            raise ValueError(why.filled(format=quoted(content.get("format")), supported_format=FORMAT))
        self.content: Mapping[str, Any] = content

    def text(self, name: str, default: str | None = None, pattern: str = ".*", longest: int = LONGEST) -> str:
        """Return the text of field ``name``: at most ``longest`` printable characters that ``pattern`` matches."""
        value = self._field(name, default)
        if not isinstance(value, str) or len(value) > longest or not (value == default or _fits(value, pattern)):
            raise self._wrong(name)
        return value

    def number(self, name: str, default: int | None = None, lowest: int = 0) -> int:
        """Return the whole number in field ``name``, from ``lowest`` to `MOST`."""
        value = self._field(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= MOST:
            raise self._wrong(name)
        return value

    def maybe(self, name: str) -> int | None:
        """Return a whole number of at least 0, or None if the field is missing or null."""
        return None if self.content.get(name) is None else self.number(name)

    def time(self, name: str) -> float:
        """Return the field ``name``, in seconds since 1970. Raises ValueError if it is missing or out of range."""
        value = self._field(name, None)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e11:
            raise self._wrong(name)
        return float(value)

    def texts(self, name: str, pattern: str = ".*") -> tuple[str, ...]:
        """Return the list of printable texts in field ``name``, each of which ``pattern`` matches; () if missing."""
        value = self.content.get(name, [])
        if not isinstance(value, list) or not all(_fits(text, pattern) for text in value):
            raise self._wrong(name)
        return tuple(value)

    def _field(self, name: str, default: object) -> object:
        """Return the field ``name``, or ``default``. Raises ValueError if it is missing and has no default."""
        if name not in self.content and default is None:
            raise ValueError(Text("the file lacks the field {field}", name))
        return self.content.get(name, default)

    def _wrong(self, name: str) -> ValueError:
        value = quoted(self.content.get(name))
        return ValueError(Text("the field {field} is not valid: {value}", field=name, value=value))


def _fits(value: object, pattern: str) -> bool:
    """Tell whether ``value`` is a printable text that matches ``pattern`` as a whole."""
    return isinstance(value, str) and value.isprintable() and bool(re.fullmatch(pattern, value, re.ASCII))


def quoted(value: object) -> str:
    """Return a value from JSON as text to quote in a message: one line, with the first 40 characters of over 60."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # json reads more nested lists than it writes, and longer numbers
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:40]}…"


def printable(text: str, longest: int) -> str:
    """Return at most ``longest`` characters of ``text``, with a space for each unprintable character."""
    words = "".join(letter if letter.isprintable() else " " for letter in text[:longest])
    return words if len(text) <= longest else f"{words[: longest - 1]}…"
