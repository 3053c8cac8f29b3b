"""What the reader of a report should know beside the result."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """``text`` fits on one line of a terminal; ``detail`` is shown with ``-v`` and by ``explain``."""

    text: str
    detail: str = ""
