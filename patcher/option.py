"""An option of the command line, declared where its value is a field: how it is typed, read, and printed again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from patcher.errors import Kind, Problem

T = TypeVar("T")

MOST = 10**9 - 1
"""The highest number that an option takes: no run has as many units, steps or ranks."""


class Notation(Generic[T]):
    """How a value is typed behind its option; ``metavar`` stands for it in the help, ``words`` are those to choose."""

    metavar = ""
    words: tuple[str, ...] = ()

    def read(self, option: str, text: str) -> T:
        """The value that ``text`` means behind ``option``; :class:`Problem` (USAGE) for none."""
        raise NotImplementedError

    def typed(self, option: str, value: T) -> tuple[str, ...]:
        """The words of a command line that :meth:`read` gives ``value`` for."""
        text = self.text(value)
        return (f"{option}={text}",) if text.startswith("-") else (option, text)

    def text(self, value: T) -> str:
        """``value`` as it is typed."""
        return str(value)


class Flag(Notation[bool]):
    """An option without a value. One that is ``negated``, too, says what its default is as well."""

    def __init__(self, *, negated: bool = False) -> None:
        self.negated = negated

    def typed(self, option: str, value: bool) -> tuple[str, ...]:
        """The option, or its negation."""
        return (option if value else option.replace("--", "--no-", 1),)


class Number(Notation[int]):
    """A whole number, at least ``lowest``."""

    metavar = "N"

    def __init__(self, lowest: int) -> None:
        self.lowest = lowest

    def read(self, option: str, text: str) -> int:
        """The number."""
        number = whole_number(text)
        if number is None or number < self.lowest:
            cause = f"{option} {shortened(text)}: not a whole number from {self.lowest} to {MOST}"
            raise Problem(Kind.USAGE, cause, hint=f"{option} {self.lowest + 1}")
        return number


class Numbers(Notation[tuple[int, ...]]):
    """Whole numbers with commas between them, at least ``lowest``; ``said`` says what they are."""

    metavar = "LIST"

    def __init__(self, lowest: int, said: str, example: str) -> None:
        self.lowest, self.said, self.example = lowest, said, example

    def read(self, option: str, text: str) -> tuple[int, ...]:
        """The numbers, each once and in order."""
        numbers = {whole_number(item) for item in text.split(",")}
        found = tuple(sorted(number for number in numbers if number is not None and number >= self.lowest))
        if len(found) < len(numbers):
            raise Problem(Kind.USAGE, f"{option} {shortened(text)}: not {self.said}", hint=self.example)
        return found

    def text(self, value: tuple[int, ...]) -> str:
        """The numbers with commas between them."""
        return ",".join(map(str, value))


class NumbersOrAll(Notation["tuple[int, ...] | None"]):
    """As :class:`Numbers`, or ``all``, which is None."""

    metavar = "LIST"

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def read(self, option: str, text: str) -> tuple[int, ...] | None:
        """The numbers, or None for ``all``."""
        return None if text.strip().lower() == "all" else self.numbers.read(option, text)

    def text(self, value: tuple[int, ...] | None) -> str:
        """The numbers, or ``all``."""
        return "all" if value is None else self.numbers.text(value)


class Word(Notation[str]):
    """One of ``words``, in any case and with ``_`` for ``-``; ``same`` has other words that mean one of them.

    With ``others`` a word that is not known is taken as well, because somebody else decides. ``unset`` is the word for
    "", and ``missing`` says why a word is not offered.
    """

    metavar = "NAME"

    def __init__(
        self,
        words: tuple[str, ...],
        *,
        same: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
        others: bool = False,
        unset: str = "",
    ) -> None:
        self.words = (*words, unset) if unset else words
        self.others, self.unset, self.missing = others, unset, missing or {}
        self.meant = {plain(word): word for word in self.words} | {plain(k): v for k, v in (same or {}).items()}

    def read(self, option: str, text: str) -> str:
        """The word as we write it."""
        word = self.meant.get(plain(text))
        if word is None and not (self.others and text.strip()):
            why = next((f", which {why}," for name, why in self.missing.items() if plain(name) == plain(text)), "")
            cause = f"{option} {shortened(text)}{why} is not offered"
            hint = f"one of {', '.join(self.words)}" if self.words else f"{option} {self.metavar}"
            raise Problem(Kind.USAGE, cause, hint=hint)
        return text.strip().lower().replace("_", "-") if word is None else "" if word == self.unset else word

    def text(self, value: str) -> str:
        """The word."""
        return value or self.unset


class Words(Notation[tuple[str, ...]]):
    """Some of ``words`` with commas between them, understood as in :class:`Word`."""

    metavar = "LIST"

    def __init__(self, words: tuple[str, ...], *, same: Mapping[str, str] | None = None) -> None:
        self.words = words
        self.meant = {plain(word): word for word in words} | {plain(k): v for k, v in (same or {}).items()}

    def read(self, option: str, text: str) -> tuple[str, ...]:
        """The words, each once, in our order."""
        items = [item.strip() for item in text.split(",") if item.strip()]
        if unknown := [item for item in items if plain(item) not in self.meant]:
            cause = f"{option} {shortened(text)}: {shortened(', '.join(unknown))} is not known"
            raise Problem(Kind.USAGE, cause, hint=f"of {', '.join(self.words)}")
        found = {self.meant[plain(item)] for item in items}
        return tuple(word for word in self.words if word in found)

    def text(self, value: tuple[str, ...]) -> str:
        """The words with commas between them."""
        return ",".join(value)


class Text(Notation[str]):
    """Any text."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def read(self, option: str, text: str) -> str:  # noqa: ARG002
        """The text itself."""
        return text


class Folder(Text):
    """The path of a folder that need not exist."""

    def __init__(self) -> None:
        super().__init__("DIR")

    def read(self, option: str, text: str) -> str:
        """The absolute path without links, because torch_npu refuses those; :class:`Problem` (USAGE) for no name."""
        if not text.strip():
            raise Problem(Kind.USAGE, f"{option} '': no folder is named", hint=f"{option} DIR, or leave {option} out")
        return os.path.realpath(text)


class Option(NamedTuple):
    """An option: ``name`` is that of its field, ``heading`` the one in the help, ``shown`` what it says of the default.

    Of ``value``, which the field has without the option, nothing is printed.
    """

    name: str
    notation: Notation[Any]
    heading: str
    about: str
    value: object = None
    shown: str = ""

    @property
    def flag(self) -> str:
        """How it is typed: ``--export-type``."""
        return flag(self.name)


def flag(name: str) -> str:
    """How the option for the field ``name`` is typed."""
    return f"--{name.replace('_', '-')}"


def option(notation: Notation[T], heading: str, about: str, *, default: T, shown: str | None = None) -> T:
    """A field of a dataclass that is an option of the command line, too.

    ``heading`` and ``about`` are for the help, in which ``shown`` stands for the default, if that needs other words.
    """
    text = shown if shown is not None else "" if isinstance(notation, Flag) else notation.text(default)
    return field(default=default, metadata={"option": Option("", notation, heading, about, default, text)})


def options_of(*types: type) -> dict[str, Option]:
    """Every option that the fields of these dataclasses declare, by the name of its field."""
    declared = [(item.name, item.metadata["option"]) for one in types for item in fields(one) if item.metadata]
    return {name: found._replace(name=name) for name, found in declared}


def changed(value: object) -> tuple[str, ...]:
    """The fields of a dataclass whose options have another value than by default."""
    return tuple(name for name, one in options_of(type(value)).items() if getattr(value, name) != one.value)


def words_of(value: object, always: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The options of a dataclass as they would be typed: those at their default left out, but for ``always``."""
    said = {*changed(value), *always}
    options = [(getattr(value, name), one) for name, one in options_of(type(value)).items() if name in said]
    return tuple(word for current, one in options for word in one.notation.typed(one.flag, current))


def plain(text: str) -> str:
    """``text`` without what people write differently: case, hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]", "", text).lower()


def whole_number(text: str) -> int | None:
    """The number in ``text``, None if it holds none or one above :data:`MOST`."""
    digits = text.strip()
    if not re.fullmatch(r"[0-9]+", digits) or len(digits.lstrip("0")) > len(str(MOST)):  # Python reads no 5,000 digits
        return None
    return int(digits)


def shortened(text: str) -> str:
    """``text`` as a message quotes it, whatever was typed."""
    return text if len(text) <= 60 else f"{text[:40]}…({len(text)} characters)"
