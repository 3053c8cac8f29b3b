"""The options that say what to record: those of the windows, and those that the types of a capture declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from patcher.cli.command import Group, Option
from patcher.config import UNITS, Window
from patcher.headings import WINDOW
from patcher.option import Flag, Notation, Words, flag
from patcher.option import Option as Declared
from patcher.request import OPTIONS, RecordOptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    WindowType = click.ParamType[Window]
    AnyType = click.ParamType[Any]
else:  # click's types have no parameter before 8.5
    WindowType = AnyType = click.ParamType


class _Window(WindowType):
    """A window of one unit."""

    name = "A:B"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Window:  # noqa: ARG002
        """The window; Problem (USAGE) for none, in which the word that follows may be its end."""
        if isinstance(value, Window):
            return value
        typed = ctx.meta.get("typed", ()) if ctx else ()
        words = zip(typed, typed[1:], typed[2:], strict=False)
        following = next((third for first, second, third in words if (first, second) == (f"--{self.unit}", value)), "")
        return Window.parse(self.unit, value, following)


class _Declared(AnyType):
    """A value as its notation reads it."""

    def __init__(self, option: str, notation: Notation[Any]) -> None:
        self.name, self.option, self.notation = notation.metavar, option, notation

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """What the notation makes of it; Problem (USAGE) for what it does not understand."""
        return self.notation.read(self.option, value) if isinstance(value, str) else value

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """The words to choose from, for the last one of a list."""
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in self.notation.words if word.startswith(last)]


def option(declared: Declared) -> Option:
    """The option of the command line that is declared; not typed, it has the declared value, or None for a text."""
    notation = declared.notation
    offered = f"{'Of' if isinstance(notation, Words) else 'One of'} {', '.join(notation.words)}."
    named = declared.name != "stage" and notation.words
    default = f"[default: {declared.shown}]" if declared.shown else ""
    about = " ".join(filter(None, (declared.about, offered if named else "", default)))
    if isinstance(notation, Flag):
        words = f"{declared.flag}/{flag(f'no_{declared.name}')}" if notation.negated else declared.flag
        return Option([words], heading=declared.heading, is_flag=True, default=False, help=about)
    kind = _Declared(declared.flag, notation)
    value = None if isinstance(declared.value, str) else declared.value
    heading, metavar = declared.heading, notation.metavar
    return Option([declared.flag], heading=heading, type=kind, default=value, metavar=metavar, help=about)


def _typed(values: Mapping[str, Any]) -> RecordOptions:
    """Those that stand on the command line; the others are not chosen, whatever their default is."""
    context = click.get_current_context()
    line = click.core.ParameterSource.COMMANDLINE
    typed = {name: value for name, value in values.items() if context.get_parameter_source(name) is line}
    windows = [typed[name] for unit in UNITS if (name := unit.replace("-", "_")) in typed]
    return RecordOptions(tuple(windows), {name: typed[name] for name in OPTIONS if name in typed})


_WINDOWS = [
    Option([f"--{unit.name}"], heading=WINDOW, type=_Window(unit.name), metavar="A:B", help=unit.about)
    for unit in UNITS.values()
]
RECORD = Group("record", _typed, *_WINDOWS, *map(option, OPTIONS.values()))
