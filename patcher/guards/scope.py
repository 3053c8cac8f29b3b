"""What a variable may be at a point of a script, and what an invocation inherits: values without any reading."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

# Bounds that no written script comes near; without them a generated one could exhaust the time and the memory.
MOST_NESTING = 12
MOST_WAYS = 8
MOST_WORDS = 2000
MOST_TEXT = 1 << 16

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
# `key=value` as Hydra takes it: with groups, packages, and signs for adding and removing.
OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=", re.ASCII)

Argument = str | None  # None: any number of words that are only known when the script runs
# What only the run tells, inside a word whose beginning is known; a script with this character is not read.
RUN_TIME = "\0"
MANY = RUN_TIME * 2  # a word that may become any number of words
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


class Fed(NamedTuple):
    """What a command reads from a here-document or a pipe, and the line where that begins; 0 if nowhere."""

    text: str
    line: int


class Assignment(NamedTuple):
    """One thing that a variable may be: ``text`` None if only the run tells, ``present`` False if unset."""

    text: Argument
    where: str
    found: str
    present: bool = True
    exported: bool = True
    depth: int = 0


ABSENT = (Assignment(None, "", "", present=False, exported=False),)
Variables = Mapping[str, tuple[Assignment, ...]]
Words = tuple[Placed, ...]


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


@dataclass
class Scope:
    """The state of a running shell or Python program on one way through it.

    ``args`` is None for a script whose arguments nobody gave; ``folder`` is the working directory, ``out`` what a
    substitution has printed so far, ``functions`` are the shell's own: None for one that is not known. The shell is in
    ``frames`` functions and sourced files and in ``loops`` of the innermost; ``hidden`` is what the local variables of
    its function hide, None in no function. ``status`` says whether the last command succeeded, None if only the run
    tells, ``hoped`` that a person expects it; a way on which that failed is ``feared``. What is ``meant`` by success is
    a variable and its text. A way that ``leaves`` does so by that word, from so many loops.
    """

    variables: dict[str, tuple[Assignment, ...]] = field(default_factory=dict)
    arrays: dict[str, Words] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    args: Words | None = None
    folder: str | None = None
    out: str | None = None
    flags: frozenset[str] = frozenset()
    program: str = RUN_TIME
    frames: int = 0
    loops: int = 0
    hidden: dict[str, tuple[Any, Any]] | None = None
    status: bool | None = True
    hoped: bool = True
    feared: bool = False
    meant: tuple[str, str] | None = None
    leaves: tuple[str, int] | None = None

    def copy(self, **changes: Any) -> Scope:
        """A scope whose later changes stay its own, as in a child process, with changes to begin with."""
        own = {name: dict(getattr(self, name) or {}) for name in ("variables", "arrays", "functions", "hidden")}
        return replace(self, **own | ({} if self.hidden is not None else {"hidden": None}) | changes)

    def become(self, other: Scope) -> None:
        """Take the state of another scope over."""
        for one in fields(self):
            setattr(self, one.name, getattr(other, one.name))

    def child(self, args: Words | None, program: str = RUN_TIME) -> Scope:
        """What a script that is started from here gets: what is exported."""
        absent = ABSENT[0]
        given = {
            name: tuple(dict.fromkeys(one if one.exported and one.present else absent for one in ways))
            for name, ways in self.variables.items()
        }
        functions = {name: one for name, one in self.functions.items() if f"export {name}" in self.flags}
        kept = {name: ways for name, ways in given.items() if ways != ABSENT}
        return Scope(kept, {}, functions, args, self.folder, program=program)

    def look(self, name: str) -> tuple[Assignment, ...]:
        """Everything that a variable may be."""
        return self.variables.get(name) or self.variables.get(ANY, ABSENT)

    def elements(self, name: str) -> Words:
        """The words of an array."""
        return self.arrays.get(name, (Placed(MANY, ""),) if ANY in self.variables else ())

    def put(
        self, name: str, texts: Iterable[Argument], where: str, found: str, *, export: bool = False, depth: int = 0
    ) -> None:
        """Set a variable to one of ``texts``; one that is exported already stays so."""
        if f"odd {name}" in self.flags:
            self.anything(where, found)
            texts = [None]
        kept = dict.fromkeys(text if text is None or len(text) <= MOST_TEXT else None for text in texts)
        always = export or "allexport" in self.flags
        exports = dict.fromkeys((True,) if always else (one.exported for one in self.look(name)))
        self.variables[name] = tuple(
            Assignment(text, where, found, exported=exported, depth=depth) for text in kept for exported in exports
        )
        self.arrays.pop(name, None)

    def array(self, name: str, words: Words, where: str, found: str, depth: int) -> None:
        """Set an array; its first element is what the plain name stands for."""
        self.put(name, [words[0] if words else ""], where, found, depth=depth)
        present = bool(words) and words[0] != MANY
        ways = [one._replace(exported=False, present=present) for one in self.variables[name]]
        if words and not present:
            ways = [ways[0]._replace(text=None, present=True), ways[0]]
        self.variables[name] = tuple(dict.fromkeys(ways))
        self.arrays[name] = words if len(words) <= MOST_WORDS else (Placed(MANY, where),)

    def drop(self, name: str, where: str, found: str, depth: int) -> None:
        """Unset a variable."""
        self.variables[name] = (Assignment(None, where, found, present=False, exported=False, depth=depth),)
        self.arrays.pop(name, None)

    def forget(self, name: str, where: str, found: str) -> None:
        """Leave a variable to the run: it may be anything, or unset."""
        self.variables[name] = (Assignment(None, where, found), ABSENT[0]._replace(where=where, found=found))
        self.arrays[name] = (Placed(MANY, where),)

    def anything(self, where: str, found: str) -> None:
        """Leave all variables to the run, for something ran here that nobody can read."""
        self.variables.clear()
        self.arrays.clear()
        self.forget(ANY, where, found[:200])
        self.args, self.folder = (Placed(MANY, where),), None

    def prints(self, text: str) -> None:
        """Add to what a substitution has printed, if one is looked at."""
        self.out = None if self.out is None else self.out + text

    def settle(self, depth: int) -> None:
        """Take what was set in branches for set at ``depth``, for they end here."""
        for name, ways in self.variables.items():
            if any(one.depth > depth for one in ways):
                self.variables[name] = tuple(one._replace(depth=min(one.depth, depth)) for one in ways)


def known(text: Argument) -> Argument:
    """The text, None if a part of it is only known when the script runs."""
    return None if text is None or RUN_TIME in text else text


_OPTION = re.compile(r"(--[\w.-]+)=")


def arguments(words: Sequence[Placed]) -> list[Argument]:
    """Words as those who look at an invocation get them: one that is not known keeps no more than its key or option."""
    found: list[Argument] = []
    for word in words:
        option = _OPTION.match(word)
        if RUN_TIME not in word or (OVERRIDE.match(word) and RUN_TIME not in word.partition("=")[0]):
            found.append(word)
        elif option:
            found += [Placed(option.group(1), word.where), None]
        else:
            found.append(None)
    return found


def quoted(argv: Sequence[Argument]) -> str:
    """The words as somebody would type them, with … for those that are not known."""
    return " ".join("…" if word is None else shlex.quote(word).replace(RUN_TIME, "…") for word in argv)
