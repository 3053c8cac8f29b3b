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
    """Start of a run as the user describes it; ``config`` is the Hydra configuration file, if named."""

    environ: Mapping[str, str]
    script: Path | None = None
    command: tuple[str, ...] = ()
    config: Path | None = None


@dataclass(frozen=True)
class Checked:
    """Switches of a target, its release and its root; ``application`` is set if the target uses Hydra."""

    switches: tuple[Switch, ...]
    release: Release
    root: Path | None = None
    application: Application | None = None


class Hidden(NamedTuple):
    """A place with a text that cannot be read, and the reason."""

    where: str
    found: str
    reason: str


class GuardResult(NamedTuple):
    """Result for one profiler.

    ``where`` is ``environment``, ``run.sh:12`` or ``command after --``. ``found`` is the text at this place, "" for
    none. ``off`` says what to type or change, ``reason`` why the state is unknown, or why it is off nevertheless.
    """

    profiler: str
    state: State
    where: str
    found: str
    off: str
    why: str
    reason: str = ""


def unknown(profiler: str, hidden: Hidden, why: str, off: str) -> GuardResult:
    """Return an UNKNOWN result for a profiler because of a ``hidden`` text.

    ``why`` is the explanation of the profiler's switch, ``off`` says how to switch the profiler off.
    """
    text = hidden.found.partition("\n")[0].strip()[:200]
    off = (
        "" if hidden.where == hidden.reason else Text("{off} there, if it is there", off)
    )  # where nothing was looked at
    return GuardResult(profiler, State.UNKNOWN, hidden.where, text, off, why, hidden.reason)
