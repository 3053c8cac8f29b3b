"""The options that say how the run is started: apart from those of a search, for they load the guards."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from patcher.cli.options import Group, build, click_options
from patcher.guards.result import Launch
from patcher.messages import Text, usage
from patcher.options import option
from patcher.options.headings import PROFILERS
from patcher.options.notations import FilePath
from patcher.targets import versions
from patches.projects import projects

STARTERS = ("bash", "sh", "python", "python3", "torchrun", "ray")
"""Programs that start a run, whether they are on this machine or not."""


class LaunchOptions(Launch):
    """Options that describe how the run is started."""

    script: Path | None = option(
        FilePath("FILE"), PROFILERS, "Launch script in which to look for other profilers.", default=None
    )
    config: Path | None = option(
        FilePath("FILE"),
        PROFILERS,
        "YAML file that configures the run (verl). Default: the installed file that the launch command names.",
        default=None,
    )


def _launch(values: Mapping[str, Any]) -> Launch:
    command = click.get_current_context().meta.get("launch", ())
    return build(LaunchOptions, values, environ=os.environ, command=command)


def _check_separator(command: click.Command, typed: Sequence[str]) -> None:
    """Raise Problem (USAGE) if the command of the run is typed without `--` in front of it."""
    if "--" in typed:
        return
    options = (param for param in command.params if isinstance(param, click.Option) and not param.is_flag)
    valued = {*chain.from_iterable(option.opts for option in options)}
    words = (at for at in range(1, len(typed)) if typed[at - 1] not in valued and not typed[at].startswith("-"))
    at = next((at for at in words if _starts_a_run(typed[at])), None)
    if at is None:
        return
    cause = Text("{word} is not a target. Type `--` before the command that starts the run.", typed[at])
    while re.match(r"\w+=(?!=)", typed[at - 1]):  # variables of the run
        at -= 1
    raise usage(cause, shlex.join(["rlpatch", *typed[:at], "--", *typed[at:]]))


def _starts_a_run(word: str) -> bool:
    """Tell whether a word is a program (on PATH, or one of `STARTERS`) or a `.sh` or `.py` file, and no target."""
    names = {versions.normalise(name) for project in projects() for name in (project.name, *project.distributions)}
    if versions.normalise(word.partition("==")[0]) in names:
        return False
    from shutil import which  # noqa: PLC0415  (2 ms, and mostly all words are targets)

    return word in STARTERS or word.endswith((".sh", ".py")) or ("=" not in word and bool(which(word)))


LAUNCH = Group("launch", _launch, *click_options(LaunchOptions), check=_check_separator)
