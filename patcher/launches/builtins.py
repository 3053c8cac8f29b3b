"""The builtins of the shell: what each does to the way on which it is run.

Each takes the shell, its words, its node and the scope. It answers with the ways behind it, or where that is just the
given one, whether it succeeds there, None if only the run tells.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from patcher.launches.assignments import NAME
from patcher.launches.grammar import Node
from patcher.launches.invocation import RUN_TIME, Placed
from patcher.launches.scope import MANY, Scope, Words

if TYPE_CHECKING:
    from patcher.launches.commands import Shell

Answer = list[Scope] | bool | None
Builtin = Callable[["Shell", Words, "Node", Scope], Answer]

_SHOPTS = frozenset({
    "-s", "-u", "-q", "-p", "checkwinsize", "cmdhist", "expand_aliases_off", "histappend", "inherit_errexit",
    "huponexit",
})  # fmt: skip
_SETTINGS = frozenset({"allexport", "pipefail", "errexit", "nounset", "xtrace", "verbose", "errtrace"})
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,14})")


def _unknown(shell: Shell, _argv: Words, node: Node, scope: Scope) -> None:
    """What may set anything."""
    scope.anything(shell.where(node), shell.text(node))


def _echo(_shell: Shell, argv: Words, _node: Node, scope: Scope) -> bool:
    words, end = (argv[2:], "") if argv[1:2] == ("-n",) else (argv[1:], "\n")
    lost = any(word == MANY or "\\" in word for word in words) or (words and words[0][:1] == "-")
    scope.prints(RUN_TIME if lost else " ".join(words) + end)
    return True


def _printf(shell: Shell, argv: Words, node: Node, scope: Scope) -> bool | None:
    words, where = argv[1:], shell.where(node)
    if any(MANY in word for word in argv):
        _unknown(shell, argv, node, scope)
        return None
    if words[:1] == ("-v",) and len(words) == 3 and NAME.fullmatch(words[1]) and not re.search(r"[%\\]|^-", words[2]):
        scope.put(words[1], words[2], where, shell.text(node)[:200], depth=shell.reading.depth)
    elif words[:1] == ("-v",) and len(words) > 1:
        scope.forget(words[1].partition("[")[0], where, shell.text(node)[:200])
    elif len(words) == 2 and words[0] in {"%s", "%s\\n"}:
        scope.prints(words[1] + words[0][2:].replace("\\n", "\n"))
    else:
        plain = len(words) == 1 and not re.search(r"%|\\[^n]", words[0])
        scope.prints(words[0].replace("\\n", "\n") if plain else RUN_TIME)
    return True


def _pwd(_shell: Shell, argv: Words, _node: Node, scope: Scope) -> bool:
    scope.prints(f"{scope.folder or RUN_TIME}\n" if len(argv) == 1 else RUN_TIME)
    return True


def _cd(shell: Shell, argv: Words, _node: Node, scope: Scope) -> list[Scope]:
    """A folder that is not here may not be there."""
    words = [word for word in argv[1:] if word not in {"--", "-L"}]
    target = str(words[0]) if len(words) == 1 else shell.value("HOME", scope) if not words else RUN_TIME
    stays = scope.copy(status=False, feared=True)
    base = "" if target[:1] == "/" else scope.folder
    if (
        base is None
        or RUN_TIME in target
        or target[:1] in {"-", ""}
        or any(one.present for one in scope.look("CDPATH"))
    ):
        _moves(shell, argv, _node, scope)
        return [scope, stays]
    # From `..` the shell goes back by the name, not by the link.
    scope.folder, scope.status = "/" + posixpath.normpath(f"{base}/{target}").lstrip("/"), True
    scope.variables.pop("PWD", None)
    return [scope] if Path(scope.folder).is_dir() else [scope, stays]


def _moves(_shell: Shell, _argv: Words, _node: Node, scope: Scope) -> None:
    """``pushd`` and ``popd``."""
    scope.folder, scope.status = None, True
    scope.variables.pop("PWD", None)
    scope.prints(RUN_TIME)


def _leave(shell: Shell, argv: Words, node: Node, scope: Scope) -> Answer:
    """``exit``, ``return`` from a function or a file that is sourced, ``break`` and ``continue``."""
    word, number = str(argv[0]), int(argv[1][:6]) if len(argv) == 2 and argv[1].isdecimal() else -1
    if word == "exit":
        scope.leaves = (word, 0)
        return None
    if word == "return":
        scope.leaves = (word, 0) if scope.frames else None
        return number == 0 if scope.frames and number >= 0 else None
    loops = 1 if len(argv) == 1 else number
    if scope.loops and not 0 < loops < 100:
        return shell.lost(node, [scope], "it may leave several loops")
    scope.leaves = (word, min(loops, scope.loops)) if scope.loops else None
    return True


def _harmless(_shell: Shell, _argv: Words, _node: Node, scope: Scope) -> None:
    """Builtins that change nothing that is looked at."""
    scope.prints(RUN_TIME)


def _trap(shell: Shell, argv: Words, node: Node, scope: Scope) -> None:
    """Nobody knows when it is run."""
    if {"DEBUG", "ERR", "RETURN"} & set(argv[2:]):
        scope.anything(shell.where(node), shell.text(node))
    elif len(argv) > 2 and argv[1] != "-":
        shell.within((lambda own: shell.evaluate(str(argv[1]), node, own[0]), [scope.copy()]), (list, [scope]))


def _reads(shell: Shell, argv: Words, node: Node, scope: Scope) -> None:
    """``read`` and others that set the variables that are named among their words."""
    where, found = shell.where(node), shell.text(node)[:200]
    if any(RUN_TIME in word for word in argv[1:]):
        scope.anything(where, found)
    own = {"read": ["REPLY"], "mapfile": ["MAPFILE"], "readarray": ["MAPFILE"], "getopts": ["OPTARG", "OPTIND"]}
    # With the option and its value in one word, or in an expression of `let`.
    for name in [*own.get(argv[0], []), *(name for word in argv[1:] for name in NAME.findall(word))]:
        scope.forget(name, where, found)


def _set(shell: Shell, argv: Words, node: Node, scope: Scope) -> bool:
    """``set``: the arguments of the script, and what every assignment exports."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in {"--", "-"} or word[:1] not in {"-", "+"} or word == MANY:
            words = argv[at + (word in {"--", "-"}) :]
            scope.args = (Placed(MANY, word.where),) if MANY in words else words
            break
        options = word[1:].replace("o", "")
        named = str(argv[at + 1]) if word[-1] == "o" and at + 1 < len(argv) else ""
        at += 1 + bool(named)
        if "a" in options or named == "allexport":
            scope.flags = scope.flags | {"allexport"} if word[0] == "-" else scope.flags - {"allexport"}
        if (named and named not in _SETTINGS) or not set(options) <= set("aeuxvEThbmBH"):
            scope.anything(shell.where(node), shell.text(node))
    return True


def _shift(_shell: Shell, argv: Words, _node: Node, scope: Scope) -> bool | None:
    size = int(argv[1]) if len(argv) == 2 and argv[1].isdecimal() and len(argv[1]) < 4 else 1 if len(argv) == 1 else -1
    if scope.args is None:
        return None
    if size < 0 or MANY in scope.args:
        scope.args = (Placed(MANY, ""),)
        return None
    fits = size <= len(scope.args)
    scope.args = scope.args[size:] if fits else scope.args
    return fits


def _shopt(shell: Shell, argv: Words, node: Node, scope: Scope) -> None:
    """Of those that change how words or pipelines are read, everything behind is left to the run."""
    for word in argv[1:]:
        if "glob" in word:
            scope.flags |= {"glob"}
        elif word not in _SHOPTS:
            scope.anything(shell.where(node), shell.text(node))


def _source(shell: Shell, argv: Words, node: Node, scope: Scope) -> Answer:
    """Of a file that is not known nobody knows what it sets."""
    word = shell.here(argv[1]) if len(argv) > 1 else Placed(MANY, "")
    if RUN_TIME in word:
        inside = [child for child in node.children if child.type == "process_substitution"]
        text = shell.captured(inside[0], scope) if inside and len(argv) == 2 else RUN_TIME
        return shell.evaluate(text, node, scope)
    given, scope.args = scope.args, argv[2:] or scope.args
    ends = shell.reading.sourced(str(word), scope, shell.folder)
    for end in ends or [scope]:
        end.args = given if len(argv) > 2 else end.args
    if ends is None and not word.startswith("/") and scope.folder in {shell.reading.folder, None}:
        return shell.lost(node, [scope], "the file that it sources is not here")
    return ends


def _eval(shell: Shell, argv: Words, node: Node, scope: Scope) -> Answer:
    if re.search(r"\b(conda|mamba|micromamba) .*shell\.\w+ hook", shell.text(node)):
        # Defines functions of that name, and sets variables for itself alone.
        return None
    return shell.evaluate(RUN_TIME if MANY in argv else " ".join(argv[1:]), node, scope)


def _exec(shell: Shell, argv: Words, node: Node, scope: Scope) -> Answer:
    """``exec``: with nothing but redirections the script goes on."""
    if len(argv) == 1:
        return True
    if argv[1][:1] in {"-", "{"}:
        return shell.lost(node, [scope], "exec with an option")
    shell.launch(argv[1:], [], node, scope)
    scope.leaves = ("exit", 0)
    return None


def _prefix(shell: Shell, argv: Words, node: Node, scope: Scope) -> Answer:
    """``command``, ``builtin`` and ``time`` before another command, which is not a function behind the first two."""
    rest = argv[1:]
    if argv[0] == "command" and rest and rest[0] in {"-v", "-V"}:
        scope.hoped = False
        scope.prints(RUN_TIME)
        return None
    if not rest or rest[0][:1] == "-" or (rest[0] in scope.functions and argv[0] != "time"):
        return shell.lost(node, [scope], "which command this is, is only known when it runs") if rest else None
    if argv[0] == "time" and "=" in rest[0]:
        rest = (Placed("env", rest[0].where), *rest)
    return shell.simple(rest, [], node, scope)


def _test(_shell: Shell, argv: Words, _node: Node, _scope: Scope) -> bool | None:
    return tested(argv[1:]) if len(argv) > 2 else None


def tested(words: Sequence[str]) -> bool | None:
    """What ``test`` says of one, two or three words; None if only the run tells."""
    if MANY in words or any(RUN_TIME in word for word in words):
        return None
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in {"-z", "-n"}:
        return bool(words[1]) == (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in {"=", "==", "!="}:
        return (left == right) == (sign != "!=")
    if not _WHOLE.fullmatch(left) or not _WHOLE.fullmatch(right):
        return None
    a, b = int(left), int(right)
    return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(sign)


def path_of(head: str, words: Sequence[str], scope: Scope) -> str:
    """What ``dirname`` and its kin print."""
    given = [word for word in words if word not in {"--", "-f", "-e", "-m", "-s"}]
    most = 2 if head == "basename" else 1
    if any(RUN_TIME in word for word in words) or not 0 < len(given) <= most or given[0][:1] in {"-", ""}:
        return RUN_TIME
    path = given[0].rstrip("/") or "/"
    if head == "basename":
        name, suffix = posixpath.basename(path) or "/", "".join(given[1:])
        return f"{name if name == suffix else name.removesuffix(suffix)}\n"
    if head == "dirname":
        folder, slash, _ = path.rpartition("/")
        return f"{folder.rstrip('/') or slash or '.'}\n"
    real = Path(scope.folder or "", given[0])
    known = scope.folder is not None and real.exists() and (head == "realpath" or "-f" in words)
    return f"{real.resolve()}\n" if known else RUN_TIME


BUILTINS: dict[str, Builtin] = {
    ":": lambda *_: True, "true": lambda *_: True, "false": lambda *_: False, "echo": _echo, "printf": _printf,
    "pwd": _pwd, "cd": _cd, "pushd": _moves, "popd": _moves, "exit": _leave, "return": _leave, "break": _leave,
    "continue": _leave, "set": _set, "shift": _shift, "shopt": _shopt, "source": _source, ".": _source, "eval": _eval,
    "exec": _exec, "trap": _trap, "test": _test, "[": _test,
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts", "let"), _reads),
    **dict.fromkeys(("command", "builtin", "time"), _prefix),
    # `export` and its kin where they stand behind another word, so that other rules hold for their words.
    **dict.fromkeys(("export", "declare", "typeset", "readonly", "local", "unset", "coproc", "enable", "fc"), _unknown),
    **dict.fromkeys((
        "alias", "unalias", "umask", "ulimit", "type", "jobs", "kill", "bg", "fg", "times", "hash", "help", "caller",
        "compgen", "disown", "complete", "compopt", "history", "bind", "suspend", "logout", "dirs",
    ), _harmless),
}  # fmt: skip
