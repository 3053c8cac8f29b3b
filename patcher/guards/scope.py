"""What a variable may be at a point of a script, and what an invocation inherits: values without any reading."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# Bounds that no written script comes near; without them a generated one could exhaust the memory.
MOST_NESTING = 12
MOST_ASSIGNMENTS = 12
MOST_WORDS = 2000
MOST_TEXT = 1 << 16

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
# `key=value` as Hydra takes it: with groups, packages, and signs for adding and removing.
OVERRIDE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=", re.ASCII)

Argument = str | None  # None: a word that is only known when the script runs
# What only the run tells, inside a word whose beginning is known; a script with this character is not read.
RUN_TIME = "\0"


class Placed(str):
    """A word of a command, with the place where it stands."""

    where: str

    def __new__(cls, text: str, where: str) -> Placed:
        """The word ``text`` that stands at ``where``."""
        word = super().__new__(cls, text)
        word.where = where
        return word


def known(text: str) -> Argument:
    """The text, None if a part of it is only known when the script runs."""
    return None if RUN_TIME in text else text


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

    ``where`` says in which line, ``sure`` is False inside a branch, a loop or a function. ``variables`` are those at
    that point; empty where the program behind the words was read itself. The words of an invocation that is
    ``perhaps`` are those that the one of the same line has on some way to it.
    """

    where: str
    argv: tuple[Argument, ...]
    variables: Variables
    sure: bool = True
    perhaps: bool = False


@dataclass
class Scope:
    """The variables, arrays and arguments of a running shell or Python program."""

    variables: dict[str, tuple[Assignment, ...]] = field(default_factory=dict)
    arrays: dict[str, tuple[Argument, ...]] = field(default_factory=dict)
    # Elements that an array has on some way through the branches, but not on all.
    perhaps: dict[str, tuple[Argument, ...]] = field(default_factory=dict)
    args: tuple[Argument, ...] | None = None
    export_all: bool = False

    def copy(self) -> Scope:
        """A scope whose later changes stay its own, as in a child process."""
        return Scope(dict(self.variables), dict(self.arrays), dict(self.perhaps), self.args, self.export_all)

    def put(self, name: str, texts: Iterable[Argument], where: str, found: str, *, export: bool, depth: int) -> None:
        """Set a variable to one of ``texts``."""
        exported = export or self.export_all or any(old.exported for old in self.variables.get(name, ()))
        kept = tuple(text if text is None or len(text) <= MOST_TEXT else None for text in texts)
        self.variables[name] = tuple(
            Assignment(text, where, found, exported=exported, depth=depth) for text in dict.fromkeys(kept)
        )

    def drop(self, name: str, where: str, found: str, depth: int) -> None:
        """Unset a variable."""
        self.variables[name] = (Assignment(None, where, found, present=False, exported=False, depth=depth),)
        self.arrays.pop(name, None)


def merged(scopes: Sequence[Scope], depth: int) -> Scope:
    """The scope after branches that end in ``scopes``: every variable may be what it is in any of them."""
    result = scopes[-1].copy()
    for name in {name for scope in scopes for name in scope.variables}:
        ways = [scope.variables.get(name) for scope in scopes]
        if ways[0] and all(way is ways[0] for way in ways) and all(one.depth <= depth for one in ways[0]):
            continue
        absent = (Assignment(None, "", "", present=False, exported=False),)
        choices = dict.fromkeys(
            assignment._replace(depth=min(assignment.depth, depth)) for way in ways for assignment in way or absent
        )
        kept = tuple(choices)
        if len(kept) > MOST_ASSIGNMENTS:
            last = kept[-1]
            kept = (last._replace(text=None, present=True, exported=any(one.exported for one in kept)),)
        result.variables[name] = kept
    for name in {name for scope in scopes for name in scope.arrays}:
        words = [scope.arrays.get(name, ()) for scope in scopes]
        common = 0
        while all(len(way) > common and way[common] == words[0][common] for way in words):
            common += 1
        result.arrays[name] = words[0][:common]
        rest = [word for way in words for word in way[common:]]
        for scope in scopes:
            rest += [word for word in scope.perhaps.get(name, ()) if word not in rest]
        result.perhaps[name] = tuple(rest)[:MOST_WORDS]
    return result


def quoted(argv: Sequence[Argument]) -> str:
    """The words as somebody would type them, with … for those that are not known."""
    return " ".join("…" if word is None else shlex.quote(word).replace(RUN_TIME, "…") for word in argv)
