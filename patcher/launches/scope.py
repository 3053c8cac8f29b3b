"""What a variable may be at a point of a script, and what a program that is started there inherits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Assignment, Placed

# Bounds that no written script comes near; without them a generated one could exhaust the time and the memory.
MOST_NESTING = 12
MOST_WAYS = 8
MOST_WORDS = 2000
MOST_TEXT = 1 << 16

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
# `key=value`, as programs take their settings: with dots and slashes, and signs for adding and removing.
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=", re.ASCII)

MANY = RUN_TIME * 2  # a word that may become any number of words


class Fed(NamedTuple):
    """What a command reads from a here-document or a pipe, and the line where that begins; 0 if nowhere."""

    text: str
    line: int


ABSENT = (Assignment(None, "", "", present=False, exported=False),)
Words = tuple[Placed, ...]


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

    def put(self, name: str, text: Argument, where: str, found: str, *, export: bool = False, depth: int = 0) -> None:
        """Set a variable; one that is exported already stays so."""
        if f"odd {name}" in self.flags:
            self.anything(where, found)
            text = None
        text = text if text is None or len(text) <= MOST_TEXT else None
        exports = (True,) if export or "allexport" in self.flags else (one.exported for one in self.look(name))
        ways = [Assignment(text, where, found, exported=one, depth=depth) for one in dict.fromkeys(exports)]
        self.variables[name] = tuple(ways)
        self.arrays.pop(name, None)

    def array(self, name: str, words: Words, where: str, found: str, depth: int) -> None:
        """Set an array; its first element is what the plain name stands for."""
        self.put(name, words[0] if words else "", where, found, depth=depth)
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

    def drop_any(self, where: str, found: str) -> None:
        """Unset a variable of which only the run tells the name: any of them may be gone from here on."""
        gone = ABSENT[0]._replace(where=where, found=found)
        self.variables.update({name: (*ways, gone) for name, ways in self.variables.items()})
        self.arrays.update(dict.fromkeys(self.arrays, (Placed(MANY, where),)))

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


_OPTION = re.compile(r"(--[\w.-]+)=")


def arguments(words: Sequence[Placed]) -> list[Argument]:
    """Words as those who look at an invocation get them: one that is not known keeps no more than its key or option."""
    found: list[Argument] = []
    for word in words:
        option = _OPTION.match(word)
        if RUN_TIME not in word or (SETTING.match(word) and RUN_TIME not in word.partition("=")[0]):
            found.append(word)
        elif option:
            found += [Placed(option.group(1), word.where), None]
        else:
            found.append(None)
    return found
