"""What a variable may be at a point of a script, and what an invocation inherits: values without any reading."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

# Bounds that no written script comes near; without them a generated one could exhaust the time and the memory.
MOST_NESTING = 12
MOST_WAYS = 12
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
    """A word of a command, with the place where its value is set; ``maybe`` if only some ways through give it."""

    where: str
    maybe: bool

    def __new__(cls, text: str, where: str, maybe: bool = False) -> Placed:
        """The word ``text`` that is set at ``where``."""
        word = super().__new__(cls, text)
        word.where, word.maybe = where, maybe
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
    """The state of a running shell or Python program.

    An array has a few sequences of words that it may be. ``args`` is None for a script whose arguments nobody gave;
    ``folder`` is the working directory, ``out`` what a substitution has printed so far, ``functions`` are the shell's
    own: None for one that is not known.
    """

    variables: dict[str, tuple[Assignment, ...]] = field(default_factory=dict)
    arrays: dict[str, tuple[Words, ...]] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    args: Words | None = None
    folder: str | None = None
    out: str | None = None
    flags: frozenset[str] = frozenset()
    program: str = RUN_TIME

    def copy(self) -> Scope:
        """A scope whose later changes stay its own, as in a child process."""
        return replace(self, variables=dict(self.variables), arrays=dict(self.arrays), functions=dict(self.functions))

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

    def elements(self, name: str) -> tuple[Words, ...]:
        """Every sequence of words that an array may be."""
        if name in self.arrays:
            return self.arrays[name]
        return ((Placed(MANY, ""),),) if ANY in self.variables else ((),)

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
        )[: 2 * MOST_WAYS]
        self.arrays.pop(name, None)

    def array(self, name: str, ways: tuple[Words, ...], where: str, found: str, depth: int) -> None:
        """Set an array to one of ``ways``; its first element is what the plain name stands for."""
        firsts = [way[0] if way and not way[0].maybe else RUN_TIME if way else None for way in ways]
        self.put(name, [first or "" for first in firsts], where, found, depth=depth)
        self.variables[name] = tuple(
            dict.fromkeys(one._replace(exported=False, present=any(ways)) for one in self.variables[name])
        )
        self.arrays[name] = bounded(ways)

    def drop(self, name: str, where: str, found: str, depth: int) -> None:
        """Unset a variable."""
        self.variables[name] = (Assignment(None, where, found, present=False, exported=False, depth=depth),)
        self.arrays.pop(name, None)

    def forget(self, name: str, where: str, found: str) -> None:
        """Leave a variable to the run: it may be anything, or unset."""
        self.variables[name] = (Assignment(None, where, found), ABSENT[0]._replace(where=where, found=found))
        self.arrays[name] = ((Placed(MANY, where),),)

    def anything(self, where: str, found: str) -> None:
        """Leave all variables to the run, for something ran here that nobody can read."""
        self.variables.clear()
        self.arrays.clear()
        self.forget(ANY, where, found[:200])
        self.args, self.folder = (Placed(MANY, where),), None


def merged(scopes: Sequence[Scope], depth: int) -> Scope:
    """The scope after branches that end in ``scopes``: every variable may be what it is in any of them."""
    first, result = scopes[0], scopes[-1].copy()
    for name in {name: None for scope in scopes for name in scope.variables}:
        ways = [scope.look(name) for scope in scopes]
        if all(way is ways[0] for way in ways) and all(one.depth <= depth for one in ways[0]):
            continue
        kept = tuple(dict.fromkeys(one._replace(depth=min(one.depth, depth)) for way in ways for one in way))
        if len(kept) > 2 * MOST_WAYS:
            last = kept[-1]
            kept = (last._replace(text=None, present=True, exported=True), ABSENT[0]._replace(where=last.where))
        result.variables[name] = kept
    for name in {name: None for scope in scopes for name in scope.arrays}:
        sequences = [scope.elements(name) for scope in scopes]
        result.arrays[name] = bounded([way for ways in sequences for way in ways])
    for name in {name: None for scope in scopes for name in scope.functions}:
        bodies = [scope.functions.get(name) for scope in scopes]
        result.functions[name] = bodies[0] if all(body == bodies[0] for body in bodies) else None
    result.flags = frozenset().union(*(scope.flags for scope in scopes))
    if any("allexport" in scope.flags for scope in scopes) and not all("allexport" in one.flags for one in scopes):
        result.anything("", "set -a on some ways only")
    if any(scope.args != first.args for scope in scopes):
        result.args = (Placed(MANY, ""),)
    result.folder = first.folder if all(scope.folder == first.folder for scope in scopes) else None
    result.out = first.out if all(scope.out == first.out for scope in scopes) else RUN_TIME
    return result


def bounded(ways: Sequence[Words]) -> tuple[Words, ...]:
    """The ways without repetition; as one sequence if they are too many."""
    if any(len(way) > MOST_WORDS for way in ways):
        return ((Placed(MANY, ""),),)
    kept = tuple({tuple((word, word.maybe) for word in way): way for way in ways}.values())
    return kept if len(kept) <= 4 else (collapsed(kept),)


def collapsed(ways: Sequence[Words]) -> Words:
    """One sequence for several: what they share, and ``maybe`` between that for what only some of them have."""
    if len(ways) == 1:
        return ways[0]
    shortest, start, end = min(map(len, ways)), 0, 0
    pairs = [[(word, word.maybe) for word in way] for way in ways]
    while start < shortest and all(way[start] == pairs[0][start] for way in pairs):
        start += 1
    while end < shortest - start and all(way[-1 - end] == pairs[0][-1 - end] for way in pairs):
        end += 1
    middles = [way[start : len(way) - end] for way in ways]
    return (*ways[0][:start], *_between(middles), *ways[0][len(ways[0]) - end :])


def _between(middles: Sequence[Words]) -> list[Placed]:
    maybe = [Placed(word, word.where, True) for middle in middles for word in middle]
    same = len({len(middle) for middle in middles}) == 1
    columns = list(zip(*middles, strict=True)) if same else []
    keys = [{match.group() if (match := OVERRIDE.match(word)) else "" for word in column} for column in columns]
    plain = not any(word.maybe for middle in middles for word in middle)
    if same and plain and all(len(key) == 1 and key != {""} for key in keys):
        return [
            column[0] if len(set(column)) == 1 else Placed(next(iter(key)) + RUN_TIME, column[-1].where)
            for key, column in zip(keys, columns, strict=True)
        ]
    unknown = [word for word in maybe if word.startswith(RUN_TIME)]
    # Words at places where something else may be expected, such as the value of the option before.
    unknown += [] if not same or all(OVERRIDE.match(word) for word in maybe) else maybe[:1]
    seen = list({(str(word), word.where): word for word in maybe if not word.startswith(RUN_TIME)}.values())
    return [*(Placed(MANY, word.where) for word in unknown[:1]), *seen]


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
