"""What is known of one profiler, and how it is not known whether it is on."""

from __future__ import annotations

from typing import NamedTuple

from patcher.guards.launch import Launch
from patcher.switches import State

AGAIN = "the patch looks again before it records"
NOT_PLAIN = "it is no plain word that the launch surely passes"


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


def hidden(profiler: str, launch: Launch, why: str, off: str) -> GuardResult:
    """What is known of a profiler where a text of the launch cannot be read."""
    first = launch.hidden[0]
    return GuardResult(profiler, State.UNKNOWN, first.where, first.found, off, why, first.reason)
