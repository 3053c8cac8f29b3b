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
    """An option: ``name`` is that of its field, ``shown`` what the help says of the default.

    ``aliases`` are older names, which stay valid and are not shown.
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
        """Return how it is typed: ``--export-type``."""
        return flag(self.name)

    @property
    def help(self) -> str:
        """Return what it does, the words to choose from, and the default."""
        default = f"[default: {self.shown}]" if self.shown else ""
        return " ".join(filter(None, (self.about, self.notation.offer, default)))


def flag(name: str) -> str:
    """Return how the option for the field ``name`` is typed."""
    return f"--{name.replace('_', '-')}"


def option(notation: Notation[T], heading: str, about: str, *, default: D, shown: str | None = None) -> T | D:
    """A field of a dataclass that is an option of the command line, below ``heading`` (``patcher.options.headings``).

    ``shown`` stands for the default in the help, if that needs other words.
    """
    if shown is None:
        shown = "" if default is None or isinstance(notation, Flag) else notation.text(default)  # type: ignore[arg-type]
    spec = OptionSpec("", notation, heading, about, default, shown)
    declared: D = field(default=default, metadata={"option": spec})
    return declared


def options_of(*types: type) -> dict[str, OptionSpec]:
    """Every option that the fields of these dataclasses declare, by the name of its field."""
    declared = [(item.name, item.metadata["option"]) for kind in types for item in fields(kind) if item.metadata]
    return {name: spec._replace(name=name) for name, spec in declared}


def changed(value: object) -> tuple[str, ...]:
    """The fields of a dataclass whose options have another value than by default."""
    return tuple(name for name, spec in options_of(type(value)).items() if getattr(value, name) != spec.default)


def words_of(value: object, always: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The options of a dataclass as they would be typed: those at their default left out, but for ``always``."""
    printed = {*changed(value), *always}
    options = [(getattr(value, name), spec) for name, spec in options_of(type(value)).items() if name in printed]
    return tuple(word for current, spec in options for word in spec.notation.typed(spec.flag, current))
