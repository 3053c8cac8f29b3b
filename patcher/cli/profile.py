"""The options that say what to record: those of the windows, and those that the types of a configuration declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from patcher.cli.command import Group, Option
from patcher.cli.options import click_option, typed_values
from patcher.config import UNITS, Window
from patcher.options.headings import WINDOW
from patcher.request import OPTIONS, ProfileRequest

if TYPE_CHECKING:
    WindowType = click.ParamType[Window]
else:  # click's types have no parameter before 8.5
    WindowType = click.ParamType


class _WindowType(WindowType):
    """A window of one unit."""

    name = "A:B"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Window:  # noqa: ARG002
        """The window. Raises Problem (USAGE), whose hint takes in the word that follows: it may be the end."""
        if isinstance(value, Window):
            return value
        typed = ctx.meta.get("typed", ()) if ctx else ()
        words = zip(typed, typed[1:], typed[2:], strict=False)
        following = next((third for first, second, third in words if (first, second) == (f"--{self.unit}", value)), "")
        return Window.parse(self.unit, value, following)


def _request(values: Mapping[str, Any]) -> ProfileRequest:
    windows = typed_values(values, (unit.replace("-", "_") for unit in UNITS))
    return ProfileRequest(tuple(windows.values()), typed_values(values, OPTIONS))


_WINDOWS = [
    Option([f"--{unit.name}"], heading=WINDOW, type=_WindowType(unit.name), metavar="A:B", help=unit.about)
    for unit in UNITS.values()
]
PROFILE = Group("request", _request, *_WINDOWS, *map(click_option, OPTIONS.values()))
