"""The options that say what to record: those of the windows, and those that the types of a configuration declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from patcher.cli.options import Group, Option, click_option, typed_values, typed_words
from patcher.config import UNITS, Window
from patcher.messages import CommandLine, Text, usage
from patcher.options.headings import WINDOW
from patcher.request import OPTIONS, ProfileRequest


def _window_option(unit: str) -> Option:
    """Return click's option for a window that counts `unit`, `--UNIT A:B`."""

    def read(text: str) -> Window:
        typed = typed_words()
        behind = typed[typed.index(text) + 1 :] if text in typed else ()
        return Window.parse(unit, text, *behind[:1])

    return Option([f"--{unit}"], heading=WINDOW, type=read, metavar="A:B", help=UNITS[unit].about)


def _preset(name: str) -> str:
    """Return the value of `--preset`. Raises Problem (USAGE) if no configuration applies in this folder."""
    context = click.get_current_context()
    if not context.resilient_parsing and not context.meta.get("presets"):
        cause = Text("--preset {name}: no rlpatch configuration in this folder or above it", name)
        raise usage(cause, CommandLine("config", "--help"))
    return name


def typed_windows(values: Mapping[str, Any]) -> tuple[Window, ...]:
    """Return the windows typed on the command line."""
    return tuple(typed_values(values, (unit.replace("-", "_") for unit in UNITS)).values())


def selecting_option(name: str, about: str) -> Option:
    """Return the option `name` with the help `about`, for a command that selects among existing patches."""
    return click_option(OPTIONS[name]._replace(about=about, default_text=""))


STAGE = selecting_option("stage", "Choose only this stage, such as rollout or update-policy.")
ROLE = selecting_option("role", "Choose only the patches for this role.")
PRESET = Option(
    ["--preset"],
    heading=WINDOW,
    type=_preset,
    metavar="NAME",
    help="Use the options that the configuration lists under this preset.",
)
WINDOWS = tuple(map(_window_option, UNITS))
PROFILE = Group(
    "request",
    lambda values: ProfileRequest(typed_windows(values), typed_values(values, OPTIONS)),
    *(*WINDOWS, PRESET, *map(click_option, OPTIONS.values())),
)
