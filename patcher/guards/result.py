"""The values of a check: how a run is started, what is checked, and what is known of each profiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from patcher.messages import Text
from patcher.options import Options
from patcher.switches import Application, Release, State, Switch

COMMAND = Text("command after --")
ENVIRONMENT = Text("environment")
NOT_PLAIN = Text("the launch command may leave this unset, or set it in a form that rlpatch cannot read")


class Launch(Options):
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


class GuardResult(NamedTuple):
    """Result for one profiler: its state, the place that decides it, such as ``run.sh:12``, and the text found there.

    ``off`` says what to type or change, ``reason`` why the state is unknown, or why it is off nevertheless.
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
