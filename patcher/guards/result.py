"""The values of a check: how a run is started, what is checked, and what is known of each profiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.switches import Application, Release, State, Switch

AGAIN = Text("the patch checks again before it records")
NOT_PLAIN = Text("it is not a plain word that the launch certainly passes")


@dataclass(frozen=True)
class Launch:
    """The start of a run, as far as the user says; ``config`` is the Hydra configuration that it takes."""

    environ: Mapping[str, str]
    script: Path | None = None
    command: tuple[str, ...] = ()
    config: Path | None = None


@dataclass(frozen=True)
class Checked:
    """The declared switches of a target, its release, and where it is installed; an ``application`` uses Hydra."""

    switches: tuple[Switch, ...]
    release: Release
    root: Path | None = None
    application: Application | None = None


class Hidden(NamedTuple):
    """A place where a text may be that cannot be read."""

    where: str
    found: str
    reason: str


class GuardResult(NamedTuple):
    """The answer on one profiler.

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
    """Return the result for a profiler whose text cannot be read, or is not plain; ``off`` switches it off."""
    text = hidden.found.partition("\n")[0].strip()[:200]
    off = (
        "" if hidden.where == hidden.reason else Text("{off} there, if it is there", off)
    )  # where nothing was looked at
    return GuardResult(profiler, State.UNKNOWN, hidden.where, text, off, why, hidden.reason)
