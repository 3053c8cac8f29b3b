"""What is known of one profiler, and how it is not known whether it is on."""

from __future__ import annotations

from typing import NamedTuple

from patcher.guards.launch import Hidden
from patcher.switches import State

AGAIN = "the patch checks again before it records"
NOT_PLAIN = "it is not a plain word that the launch certainly passes"


class GuardResult(NamedTuple):
    """What is known of one profiler.

    ``where`` is ``environment``, ``run.sh:12`` or ``command after --``; ``found`` the text seen there, empty
    if nothing was; ``off`` what to type or change, ``reason`` why nothing certain is known.
    """

    profiler: str
    state: State
    where: str
    found: str
    off: str
    why: str
    reason: str = ""


def unknown(profiler: str, hidden: Hidden, why: str, off: str) -> GuardResult:
    """What is known of a profiler where a text cannot be read, or is not plain; ``off`` switches it off."""
    found = hidden.found.partition("\n")[0].strip()[:200]
    off = "" if hidden.where == hidden.reason else f"{off} there, if it is there"  # where nothing was looked at
    return GuardResult(profiler, State.UNKNOWN, hidden.where, found, off, why, hidden.reason)
