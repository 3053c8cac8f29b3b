"""The notations of options: how a value is typed, read, and printed again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

from patcher.messages import Text, usage

T = TypeVar("T")

MOST = 10**9 - 1
"""The highest number that an option takes: no run has as many units, steps or ranks."""


class Notation(Generic[T]):
    """Syntax of an option's value; `metavar` names it in the help, which lists `offer`; shells complete `words`."""

    metavar = ""
    words: tuple[str, ...] = ()
    offer = ""

    def read(self, option: str, text: str) -> T:
        """Parse `text`, the value of `option`. Raises Problem (USAGE)."""
        raise NotImplementedError

    def typed(self, option: str, value: T) -> tuple[str, ...]:
        """Return the words of a command line that `read` parses as `value`."""
        text = self.text(value)
        return (f"{option}={text}",) if text.startswith("-") else (option, text)

    def text(self, value: T) -> str:
        """Return `value` as typed."""
        return str(value)


class Flag(Notation[bool]):
    """Option without a value; with `negated` also in a `--no-` form."""

    def __init__(self, *, negated: bool = False) -> None:
        self.negated = negated

    def typed(self, option: str, value: bool) -> tuple[str, ...]:
        return (option if value else option.replace("--", "--no-", 1),)


class Number(Notation[int]):
    """Whole number, at least `lowest`."""

    metavar = "N"

    def __init__(self, lowest: int) -> None:
        self.lowest = lowest

    def read(self, option: str, text: str) -> int:
        """Parse a whole number from `lowest` to `MOST`. Raises Problem (USAGE) for any other text."""
        number = whole_number(text)
        if number is None or number < self.lowest:
            cause = Text(
                "{option} {value} is not a whole number from {lowest} to {highest}",
                option=option,
                value=shortened(text),
                lowest=self.lowest,
                highest=MOST,
            )
            raise usage(cause, f"{option} {self.lowest + 1}")
        return number


class Amount(Notation[float]):
    """Number above 0, with decimals if necessary, such as `0.5`."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def read(self, option: str, text: str) -> float:
        """Parse a number above 0 with at most 9 digits before and after the point. Raises Problem (USAGE) otherwise."""
        match = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text.strip())
        amount = float(match[0]) if match else 0.0
        if not amount:
            raise usage(
                Text("{option} {value} is not a number above 0", option=option, value=shortened(text)), f"{option} 0.5"
            )
        return amount

    def text(self, value: float) -> str:
        return amount_text(value)


class NumberList(Notation[tuple[int, ...]]):
    """Whole numbers, at least `lowest`, separated by commas; read sorted and without duplicates."""

    metavar = "LIST"

    def __init__(self, lowest: int) -> None:
        self.number = Number(lowest)

    def read(self, option: str, text: str) -> tuple[int, ...]:
        """Return the numbers, sorted and without duplicates. Raises Problem (USAGE) for an item that is not valid."""
        return tuple(sorted({self.number.read(option, item) for item in text.split(",")}))

    def text(self, value: tuple[int, ...]) -> str:
        return ",".join(map(str, value))


class NumberListOrAll(Notation["tuple[int, ...] | None"]):
    """Whole numbers from 0, separated by commas, or `all`, which is read as None."""

    metavar, numbers = "LIST", NumberList(0)

    def read(self, option: str, text: str) -> tuple[int, ...] | None:
        """Return the numbers in a list, sorted and without duplicates; None for `all` alone.

        Raises Problem (USAGE) for `all` among other items, and for an item that is no whole number from 0.
        """
        items = [item.strip().lower() for item in text.split(",")]
        if "all" not in items:
            return self.numbers.read(option, text)
        if len(items) > 1:
            cause = Text(
                "{option} {value}: `all` includes all other values and must stand alone",
                option=option,
                value=shortened(text),
            )
            raise usage(cause, f"{option} all")
        return None

    def text(self, value: tuple[int, ...] | None) -> str:
        return "all" if value is None else self.numbers.text(value)


class ReplicaList(Notation["tuple[int | str, ...] | None"]):
    """Numbers as in `NumberListOrAll`, mixed with `words` that name kinds of servers."""

    metavar, numbers = "LIST", NumberListOrAll()

    def __init__(self, *words: str) -> None:
        self.words = words

    def read(self, option: str, text: str) -> tuple[int | str, ...] | None:
        """Return the replicas: numbers sorted, then words in the order of `words`, each once; None for `all`.

        Raises Problem (USAGE) for anything that is neither a number nor one of `words`, and for `all` beside others.
        """
        items = [item.strip().lower() for item in text.split(",")]
        if "all" in items:
            return self.numbers.read(option, text)
        numbers = [item for item in items if item not in self.words]
        read = self.numbers.numbers.read(option, ",".join(numbers)) if numbers else ()
        return (*read, *(word for word in self.words if word in items))

    def text(self, value: tuple[int | str, ...] | None) -> str:
        return "all" if value is None else ",".join(map(str, value))


class Choice(Notation[str]):
    """One of `words`, in any case and with `_` for `-`; `same` maps other spellings to them.

    `unset` is the word for "". `missing` says why a word is not available. With `accepts_unknown`, any other word is
    accepted, too.
    """

    metavar = "NAME"

    def __init__(
        self,
        words: tuple[str, ...],
        *,
        same: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
        accepts_unknown: bool = False,
        unset: str = "",
    ) -> None:
        self.words = (*words, unset) if unset else words
        self.offer = "" if accepts_unknown else f"One of {', '.join(self.words)}."
        self.accepts_unknown, self.unset = accepts_unknown, unset
        self.missing = {_plain(word): why for word, why in (missing or {}).items()}
        self.spellings = _spellings(self.words, same)

    def read(self, option: str, text: str) -> str:
        """Return `text` as it is spelled in `words`, or "" for the word `unset`.

        Case, hyphens, underscores and spaces don't count. Raises Problem (USAGE), which names `option`, for an unknown
        word. But with `accepts_unknown`, such a word is returned in lower case with hyphens.
        """
        word = self.spellings.get(_plain(text))
        if word is not None:
            return "" if word == self.unset else word
        if self.accepts_unknown and text.strip():
            return text.strip().lower().replace("_", "-")
        cause = Text("{option} does not accept {value}", option=option, value=shortened(text))
        if reason := self.missing.get(_plain(text)):
            cause = Text(
                "{option} {value} is not available: {reason}", option=option, value=shortened(text), reason=reason
            )
        raise usage(
            cause, Text("choose one of {values}", ", ".join(self.words)) if self.words else f"{option} {self.metavar}"
        )

    def text(self, value: str) -> str:
        return value or self.unset


class ChoiceList(Notation[tuple[str, ...]]):
    """Some of `words`, separated by commas, spelled as in `Choice`."""

    metavar = "LIST"

    def __init__(self, words: tuple[str, ...], *, same: Mapping[str, str] | None = None) -> None:
        self.words, self.offer = words, f"Any of {', '.join(words)}."
        self.spellings = _spellings(words, same)

    def read(self, option: str, text: str) -> tuple[str, ...]:
        """Return the words that the comma-separated `text` has, in the order of `words` and without duplicates.

        Case, hyphens, underscores and spaces don't count; an empty text gives (). Raises Problem (USAGE), which names
        `option`, for an unknown word.
        """
        items = [item.strip() for item in text.split(",") if item.strip()]
        if unknown := [item for item in items if _plain(item) not in self.spellings]:
            cause = Text(
                "{option} {value}: {unknown} is not a valid value",
                option=option,
                value=shortened(text),
                unknown=shortened(", ".join(unknown)),
            )
            raise usage(cause, Text("choose one or more of {values}", ", ".join(self.words)))
        selected = {self.spellings[_plain(item)] for item in items}
        return tuple(word for word in self.words if word in selected)

    def text(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


class AnyText(Notation[str]):
    """Any text; `alone` is the value of the option typed without a value (None: a value is required)."""

    def __init__(self, metavar: str, *, alone: str | None = None) -> None:
        self.metavar, self.alone = metavar, alone

    def read(self, option: str, text: str) -> str:  # noqa: ARG002
        return text


class NewFolder(Notation[str]):
    """Path of a folder that need not exist."""

    metavar = "DIR"

    def read(self, option: str, text: str) -> str:
        """Return the absolute path, with links resolved because torch_npu refuses them.

        Raises Problem (USAGE), which names `option`, for an empty path.
        """
        if not text.strip():
            raise usage(
                Text("{option} needs the path of a folder, not ''", option),
                Text("use {option} DIR, or leave {option} out", option),
            )
        return os.path.realpath(text)


class FilePath(Notation[Path]):
    """Path of a file or folder; parsed by click, so that shells complete it."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar


class FolderPaths(Notation["tuple[Path, ...]"]):
    """Folders, one each time that the option is typed; parsed by click, so that shells complete them."""

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def typed(self, option: str, value: tuple[Path, ...]) -> tuple[str, ...]:
        return tuple(word for path in value for word in (option, str(path)))


def amount_text(value: float) -> str:
    """Return an `Amount` as typed, without trailing zeros."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def whole_number(text: str) -> int | None:
    """Return `text` as a whole number; None if it is not digits only, apart from blanks around, or above 10**9 - 1."""
    digits = text.strip()
    if not re.fullmatch(r"[0-9]+", digits) or len(digits.lstrip("0")) > len(str(MOST)):  # Python reads no 5,000 digits
        return None
    return int(digits)


def shortened(text: str) -> str:
    """Return `text` as a message quotes it: above 60 characters its start and its length."""
    return text if len(text) <= 60 else f"{text[:40]}…({len(text)} characters)"


def _plain(text: str) -> str:
    """Return `text` in lower case without hyphens, underscores and spaces."""
    return re.sub(r"[-_\s]", "", text).lower()


def _spellings(words: tuple[str, ...], same: Mapping[str, str] | None) -> dict[str, str]:
    return {_plain(word): word for word in words} | {_plain(other): word for other, word in (same or {}).items()}
