"""What is told of a launch: programs with their words, and what each variable may be there. Values without reading."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# None: any number of words that are only known when the script runs; a text with RUN_TIME is one word.
Argument = str | None
# What only the run tells, inside a word whose beginning is known; a script with this character is not read.
RUN_TIME = "\0"
# The name that stands for every variable that is not named.
ANY = "*"


class Placed(str):
    """A word of a command, with the place where its value is set."""

    where: str

    def __new__(cls, text: str, where: str) -> Placed:
        """The word ``text`` that is set at ``where``."""
        word = super().__new__(cls, text)
        word.where = where
        return word


class Assignment(NamedTuple):
    """One thing that a variable may be: ``text`` None if only the run tells, ``present`` False if unset."""

    text: Argument
    where: str
    found: str
    present: bool = True
    exported: bool = True
    depth: int = 0


Variables = Mapping[str, tuple[Assignment, ...]]


class Invocation(NamedTuple):
    """A program start, or a call in a Python script, with what it inherits.

    ``where`` says in which line, ``sure`` is False inside a branch, a loop or a function that nothing calls.
    ``variables`` are those at that point; empty where the program behind the words was read itself; the one named
    ``*`` stands for all that are not named. The words of an invocation that is ``perhaps`` are those that the one of
    the same line has on some way to it. ``folder`` is the working directory, None if it is not known; ``reason`` says
    why nothing is known of the invocation.
    """

    where: str
    argv: tuple[Argument, ...]
    variables: Variables
    sure: bool = True
    perhaps: bool = False
    folder: Path | None = None
    reason: str = ""


def inherited(environ: Mapping[str, str]) -> dict[str, tuple[Assignment, ...]]:
    """The variables of a process that has this environment."""
    return {name: (Assignment(text, "environment", f"{name}={text}"),) for name, text in environ.items()}


def known(text: Argument) -> Argument:
    """The text, None if a part of it is only known when the script runs."""
    return None if text is None or RUN_TIME in text else text


def quoted(argv: Sequence[Argument]) -> str:
    """The words as somebody would type them, with … for those that are not known."""
    return " ".join("…" if word is None else shlex.quote(word).replace(RUN_TIME, "…") for word in argv)
