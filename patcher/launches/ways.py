"""The ways through a shell script: each is a scope; several are bounded, merged, divided, and start things together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Assignment, Invocation, Placed, Variables
from patcher.launches.scope import ABSENT, MANY, MOST_WAYS, SETTING, Scope

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
