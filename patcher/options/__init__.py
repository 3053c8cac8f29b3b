"""An option of the command line, declared once: as a field of the dataclass that its value belongs to.

From the field follow click's option and its place in the help (``patcher.cli.options``), the words that print a value
again (:func:`words_of`), and the reference in the docs, which is the help.
"""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any, NamedTuple, TypeVar

from patcher.options.notations import Flag, Notation

T = TypeVar("T")
D = TypeVar("D")


class OptionSpec(NamedTuple):
    """Option of the command line: `name` is its field, `shown` the default in the help.

    `aliases` are older names that still work but are not shown.
    """

    name: str
    notation: Notation[Any]
    heading: str
    about: str
    default: object = None
    shown: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """Option as typed, such as `--export-type`."""
        return flag(self.name)

    @property
    def help(self) -> str:
        """Help text in English: what the option does, the words that it takes, and the default."""
        default = f"[default: {self.shown}]" if self.shown else ""
        return " ".join(filter(None, (self.about, self.notation.offer, default)))


def flag(name: str) -> str:
    """Return the option for the field `name`: `--export-type` for export_type."""
    return f"--{name.replace('_', '-')}"


def option(notation: Notation[T], heading: str, about: str, *, default: D, shown: str | None = None) -> T | D:
    """Declare an option as a dataclass field with this `default`, and return the field.

    `heading` is one of `patcher.options.headings`, `about` the help, and `shown` replaces the default in the help.
    """
    if shown is None:
        shown = "" if default is None or isinstance(notation, Flag) else notation.text(default)  # type: ignore[arg-type]
    spec = OptionSpec("", notation, heading, about, default, shown)
    declared: D = field(default=default, metadata={"option": spec})
    return declared


def options_of(*types: type) -> dict[str, OptionSpec]:
    """Return the options that the fields of these dataclasses declare, by field name."""
    declared = [(item.name, item.metadata["option"]) for kind in types for item in fields(kind) if item.metadata]
    return {name: spec._replace(name=name) for name, spec in declared}


def changed(value: object) -> tuple[str, ...]:
    """Return the names of a dataclass's options whose values are not the default."""
    return tuple(name for name, spec in options_of(type(value)).items() if getattr(value, name) != spec.default)


def words_of(value: object, always: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the words that type a dataclass's options again: those not at their default, and the names in `always`."""
    printed = {*changed(value), *always}
    options = [(getattr(value, name), spec) for name, spec in options_of(type(value)).items() if name in printed]
    return tuple(word for current, spec in options for word in spec.notation.typed(spec.flag, current))
