"""The values of a check: how a run is started, what is checked, and what is known of each profiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.switches import Application, Release, State, Switch

COMMAND = Text("command after --")
ENVIRONMENT = Text("environment")
AGAIN = Text("the patch checks for other profilers again before it records")
NOT_PLAIN = Text("the launch may not pass this word, or passes it in a form that rlpatch cannot read")


@dataclass(frozen=True)
class Launch:
    """Start of a run as the user describes it; ``config`` is the Hydra configuration file, if named."""

    environ: Mapping[str, str]
    script: Path | None = None
    command: tuple[str, ...] = ()
    config: Path | None = None


class Checked(NamedTuple):
    """Switches of a target, its release and its root; ``application`` is set if the target uses Hydra."""

    switches: tuple[Switch, ...]
    release: Release
    root: Path | None = None
    application: Application | None = None


class LaunchText(NamedTuple):
    """A word of a command, or a line of a file, without quotes.

    ``plain`` tells that the launch surely passes there, and exports the text or starts Python with it.
    """

    where: str
    text: str
    plain: bool = False


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


def within_sentence(where: str) -> str:
    """Return a place in the form for the middle of a sentence."""
    return Text("the command after --") if where == COMMAND else where
