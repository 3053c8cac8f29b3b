"""The one way in which a file falls into lines here."""

from __future__ import annotations

import re
from typing import AnyStr


def split(text: AnyStr) -> list[AnyStr]:
    """Return the lines of ``text`` with their line ends, [] for an empty text; only a line feed ends a line.

    Python's own ``splitlines`` also splits at a form feed or a lone carriage return; git and ``ast`` do not.
    """
    if isinstance(text, bytes):
        return re.findall(rb"[^\n]*\n|[^\n]+", text)
    return re.findall(r"[^\n]*\n|[^\n]+", text)
