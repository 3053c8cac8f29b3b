"""The one way in which a file falls into lines here."""

from __future__ import annotations

import re
from typing import AnyStr


def split(text: AnyStr) -> list[AnyStr]:
    """Lines with their ends; only a line feed ends one.

    To Python's own ``splitlines`` a form feed or a lone carriage return ends one, too: to git and ``ast`` it does not.
    """
    if isinstance(text, bytes):
        return re.findall(rb"[^\n]*\n|[^\n]+", text)
    return re.findall(r"[^\n]*\n|[^\n]+", text)
