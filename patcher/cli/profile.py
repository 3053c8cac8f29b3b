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
    def read(text: str) -> Window:
        typed = typed_words()
        behind = typed[typed.index(text) + 1 :] if text in typed else ()
        return Window.parse(unit, text, *behind[:1])

    return Option([f"--{unit}"], heading=WINDOW, type=read, metavar="A:B", help=UNITS[unit].about)


def _preset(name: str) -> str:
    """A name that the configuration has: `Command` has taken the options behind it."""
    context = click.get_current_context()
    if not context.resilient_parsing and not context.meta.get("presets"):
        cause = Text("--preset {name}: there is no configuration in this folder or above it", name)
        raise usage(cause, CommandLine("config", "--help"))
    return name


def typed_windows(values: Mapping[str, Any]) -> tuple[Window, ...]:
    """The windows that stand on the command line."""
    return tuple(typed_values(values, (unit.replace("-", "_") for unit in UNITS)).values())


def only(name: str, about: str) -> Option:
    """The option ``name`` for a command that names what is recorded already: it chooses among what is there."""
    return click_option(OPTIONS[name]._replace(about=about, shown=""))


STAGE = only("stage", "Only this stage.")
ROLE = only("role", "Only the patches for this role.")
PRESET = Option(
    ["--preset"],
    heading=WINDOW,
    type=_preset,
    metavar="NAME",
    help="Take the options that the configuration lists under this name.",
)
WINDOWS = tuple(map(_window_option, UNITS))
PROFILE = Group(
    "request",
    lambda values: ProfileRequest(typed_windows(values), typed_values(values, OPTIONS)),
    *(*WINDOWS, PRESET, *map(click_option, OPTIONS.values())),
)
