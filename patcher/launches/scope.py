"""The ways through a launch: each is a scope, which says what a variable may be there, and what a program inherits.

Several are bounded, merged, divided, and start things together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Assignment, Invocation, Placed, Variables

# Bounds that no written script comes near; without them a generated one could exhaust the time and the memory.
MOST_NESTING = 12
DEEP = "it is nested too deeply"
MOST_WAYS = 8
MOST_WORDS = 2000
MOST_TEXT = 1 << 16

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
# `key=value`, as programs take their settings: with dots and slashes, and signs for adding and removing.
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@:-]*=", re.ASCII)

MANY = RUN_TIME * 2  # a word that may become any number of words


class Fed(NamedTuple):
    """What a command reads from a here-document or a pipe, and the line where that begins; 0 if nowhere."""

    text: str
    line: int


class Place(NamedTuple):
    """Where a command stands, the folder of its script, and what it is fed; what is ``named`` has to be there."""

    where: str
    folder: Path | None = None
    fed: Fed | None = None
    named: bool = False


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
    a variable and its text. A way that ``leaves`` does so by that word, from so many loops; at its end ``traps`` may be
    run.
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
    traps: tuple[Any, ...] = ()

    def copy(self, **changes: Any) -> Scope:
        """A scope whose later changes stay its own, as in a child process, with changes to begin with."""
        own = {name: dict(one) for name, one in vars(self).items() if isinstance(one, dict)}
        return replace(self, **own | changes)

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

    def splits_oddly(self) -> bool:
        """Whether words are split and joined elsewhere than at blanks."""
        return any(one.present for one in self.variables.get("IFS", ()))

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

    def perhaps(self, before: Variables) -> None:
        """Take what was set since the variables were these for set in a branch."""
        for name, ways in self.variables.items():
            if before.get(name) is not ways:
                self.variables[name] = tuple(one._replace(depth=max(one.depth, 1)) for one in ways)

    def prints(self, text: str) -> None:
        """Add to what a substitution has printed, if one is looked at."""
        self.out = None if self.out is None else self.out + text

    def settle(self, depth: int) -> None:
        """Take what was set in branches for set at ``depth``, for they end here."""
        for name, ways in self.variables.items():
            if any(one.depth > depth for one in ways):
                self.variables[name] = tuple(one._replace(depth=min(one.depth, depth)) for one in ways)


_ADDRESS = re.compile(f"[a-z]+://|{RUN_TIME}/[^{RUN_TIME}]*$|[^{RUN_TIME}]*{RUN_TIME}:[^{RUN_TIME}]*/[^{RUN_TIME}]*$")
_OPTION = re.compile(r"(--[\w.-]+)=")


def arguments(words: Sequence[Placed]) -> list[Argument]:
    """Words as those who look at an invocation get them.

    One that is not known keeps no more than its key or option, unless it is an address; what surely is one word is
    RUN_TIME.
    """
    found: list[Argument] = []
    for word in words:
        option = _OPTION.match(word)
        if RUN_TIME not in word or (SETTING.match(word) and RUN_TIME not in word.partition("=")[0]):
            found.append(word)
        elif option:
            found += [Placed(option.group(1), word.where), None]
        else:
            found.append(word if word == RUN_TIME or _ADDRESS.match(word) else None)
    return found


# --- several ways ---

Ways = list[Scope]


def together(listed: Sequence[Variables], depth: int) -> dict[str, tuple[Assignment, ...]]:
    """Variables that may be what they are in any of those that are listed."""
    result = dict(listed[-1])
    for name in {name: None for variables in listed for name in variables}:
        ways = [variables.get(name) or variables.get(ANY, ABSENT) for variables in listed]
        if any(way is not ways[0] for way in ways) or any(one.depth > depth for one in ways[0]):
            kept = tuple(dict.fromkeys(one._replace(depth=min(one.depth, depth)) for way in ways for one in way))
            last = kept[-1]._replace(text=None, present=True, exported=True)
            many = len(kept) > 2 * MOST_WAYS
            result[name] = (last, ABSENT[0]._replace(where=last.where)) if many else kept
    return result


def merged(scopes: Sequence[Scope], depth: int) -> Scope:
    """One scope for several ways: every variable may be what it is on any of them."""
    first, result = scopes[0], scopes[-1].copy()
    if all(scope is first for scope in scopes):
        return first
    result.variables = together([scope.variables for scope in scopes], depth)
    for name in {name: None for scope in scopes for name in scope.arrays}:
        ways = [scope.elements(name) for scope in scopes]
        result.arrays[name] = ways[0] if all(way == ways[0] for way in ways) else (Placed(MANY, ""),)
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
    if result.hidden is not None:
        result.hidden = {name: one for scope in scopes for name, one in (scope.hidden or {}).items()}
    result.status = first.status if all(scope.status is first.status for scope in scopes) else None
    return result


def bounded(scopes: Sequence[Scope]) -> list[Scope]:
    """The ways that are not alike; where they are too many, one for those of the same arrays, or for all.

    For arrays hold the words of a start, of which those that are not known may be anything.
    """
    if len(scopes) < 2:
        return list(scopes)
    first = scopes[0].variables
    names = [name for name in {name: None for scope in scopes for name in scope.variables}
             if any(scope.variables.get(name) is not first.get(name) for scope in scopes)]  # fmt: skip
    kept = {_state(scope, names): scope for scope in scopes}
    if len(kept) <= MOST_WAYS:
        return list(kept.values())
    groups: dict[object, list[Scope]] = {}
    for rough in (False, True):
        groups = {}
        for scope in kept.values():
            arrays = () if rough else frozenset(scope.arrays.items())
            groups.setdefault((arrays, scope.leaves, scope.status, scope.hoped, scope.feared), []).append(scope)
        if len(groups) <= MOST_WAYS:
            break
    return [merged(group, 1 << 30) for group in groups.values()]


def _state(scope: Scope, names: Sequence[str]) -> tuple[object, ...]:
    """What counts of a scope, as far as others of which it was made may differ in it."""
    ways = [scope.variables.get(name, ()) for name in names]
    values = [tuple((one.text, one.present, one.exported, one.depth, bool(one.where)) for one in way) for way in ways]
    arrays, functions = frozenset(scope.arrays.items()), frozenset(scope.functions.items())
    where = (scope.folder, scope.out, scope.args, scope.flags, frozenset(scope.hidden or ()), scope.loops, scope.frames)
    ended = (scope.leaves, scope.status, scope.hoped, scope.feared, scope.meant)
    return (*values, arrays, functions, where, ended)


def divided(scopes: Ways) -> tuple[Ways, Ways, Ways]:
    """The ways that leave, those on which the last command succeeded, and those on which it failed."""
    away, yes, no = Ways(), Ways(), Ways()
    for scope in scopes:
        if scope.leaves:
            away.append(scope)
        elif scope.status is None:
            no.append(scope.copy(status=False, feared=scope.hoped))
            scope.status = True
            if scope.meant:
                name, text = scope.meant
                scope.variables[name] = (scope.look(name)[0]._replace(text=text),)
            yes.append(scope)
        else:
            (yes if scope.status else no).append(scope)
    return away, yes, no


def left(scope: Scope) -> Scope:
    """A way behind the loop that it has left."""
    scope.loops -= 1
    word, loops = scope.leaves or ("", 0)
    if word in {"break", "continue"}:
        scope.leaves = (word, loops - 1) if loops > 1 else None
    scope.status, scope.hoped, scope.meant = None, True, None
    return scope


def started(listed: Sequence[Sequence[Invocation]]) -> Iterator[Invocation]:
    """The starts of one command on several ways as those of one."""
    groups: dict[object, list[Invocation]] = {}
    for found in listed:
        seen: dict[object, int] = {}
        for one in found:
            key = (one.where, one.reason, one.perhaps, one.argv[:1])
            seen[key] = seen.get(key, 0) + 1
            groups.setdefault((key, seen[key]), []).append(one)
    for group in groups.values():
        argv, perhaps = collapsed([one.argv for one in group])
        everywhere = len(group) == len(listed)
        variables = together([one.variables for one in group], 1 << 30)
        if not everywhere:
            # What it inherits is that of the ways on which it is started.
            variables = {name: tuple(one._replace(depth=1) for one in ways) for name, ways in variables.items()}
        folder = group[0].folder if all(one.folder == group[0].folder for one in group) else None
        sure = everywhere and all(one.sure for one in group)
        yield group[0]._replace(argv=tuple(argv), variables=variables, sure=sure, folder=folder)
        if perhaps:
            yield Invocation(group[0].where, (argv[0], *perhaps), {}, sure=False, perhaps=True)


def collapsed(ways: Sequence[Sequence[Argument]]) -> tuple[list[Argument], list[Argument]]:
    """One sequence of words for several, and the words that only some of them have.

    What they do not share is ``key=…`` where that is all that differs, and else left out: words that may be there.
    """
    shared, perhaps = list(ways[0]), dict[Argument, None]()
    for way in ways[1:]:
        kept: list[Argument] = []
        for tag, start, end, first, last in SequenceMatcher(None, shared, way, autojunk=False).get_opcodes():
            one, other = shared[start:end], way[first:last]
            keys = [_key(word) for word in one]
            if tag == "equal":
                kept += one
            elif all(keys) and keys == [_key(word) for word in other]:
                places = [getattr(word, "where", "") for word in other]
                kept += [Placed(key + RUN_TIME, where) for key, where in zip(keys, places, strict=True)]
            else:
                perhaps |= dict.fromkeys(word for word in (*one, *other) if word is not None)
                # Also at places where something else may be expected, such as the value of the option before.
                odd = len(one) == len(other) and not all(map(_key, (*one, *other)))
                kept += [None] if odd or None in one or None in other else []
        shared = kept
    return shared, list(perhaps)


def _key(word: Argument) -> str:
    match = SETTING.match(word or "")
    return match.group() if match else ""
