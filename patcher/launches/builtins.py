"""The builtins of the shell: what each does to the way on which it is run."""

from __future__ import annotations

import posixpath
import re
from functools import partial
from pathlib import Path
from typing import ClassVar

from patcher.launches.commands import Commands
from patcher.launches.grammar import Node
from patcher.launches.invocation import RUN_TIME, Placed
from patcher.launches.scope import MANY, NAME, Scope, Words
from patcher.launches.statements import tested

Answer = list[Scope] | bool | None

# What sets up an environment of the system, of CANN, of conda or of Python: read where it is here, else of no matter.
_SYSTEM = re.compile(
    r"/(usr|etc|opt)/|(.*/)?activate$|.*/(conda\.sh|set_?env\.(sh|bash)|setvars\.sh|\.bashrc|\.profile)$"
)
_SHOPTS = frozenset({
    "-s", "-u", "-q", "-p", "checkwinsize", "cmdhist", "expand_aliases_off", "histappend", "inherit_errexit",
    "huponexit",
})  # fmt: skip
_SETTINGS = frozenset({
    "allexport", "pipefail", "errexit", "nounset", "xtrace", "verbose", "errtrace", "noglob", "noclobber", "monitor",
    "history",
})  # fmt: skip


class Shell(Commands):
    """Follows one shell text: its statements, in them the commands, and of these the builtins."""

    def _unknown(self, _argv: Words, node: Node, scope: Scope) -> None:
        """What may set anything."""
        scope.anything(self.where(node), self.text(node))

    def _echo(self, argv: Words, _node: Node, scope: Scope) -> bool:
        words, end = (argv[2:], "") if argv[1:2] == ("-n",) else (argv[1:], "\n")
        lost = any(word == MANY or "\\" in word for word in words) or (words and words[0][:1] == "-")
        scope.prints(RUN_TIME if lost else " ".join(words) + end)
        return True

    def _printf(self, argv: Words, node: Node, scope: Scope) -> bool | None:
        words, where, found = argv[1:], self.where(node), self.text(node)[:200]
        if any(MANY in word for word in argv):
            scope.anything(where, self.text(node))
            return None
        if words[:1] == ("-v",) and len(words) > 1:
            plain = len(words) == 3 and NAME.fullmatch(words[1]) and not re.search(r"[%\\]|^-", words[2])
            if plain:
                scope.put(words[1], words[2], where, found, depth=self.reading.depth)
            else:
                scope.forget(words[1].partition("[")[0], where, found)
        elif len(words) == 2 and words[0] in {"%s", "%s\\n"}:
            scope.prints(words[1] + words[0][2:].replace("\\n", "\n"))
        else:
            lost = len(words) != 1 or re.search(r"%|\\[^n]", words[0])
            scope.prints(RUN_TIME if lost else words[0].replace("\\n", "\n"))
        return True

    def _pwd(self, argv: Words, _node: Node, scope: Scope) -> bool:
        scope.prints(f"{scope.folder or RUN_TIME}\n" if len(argv) == 1 else RUN_TIME)
        return True

    def _cd(self, argv: Words, node: Node, scope: Scope) -> list[Scope]:
        """A folder that is not here may not be there."""
        words = [word for word in argv[1:] if word not in {"--", "-L"}]
        target = str(words[0]) if len(words) == 1 else self.value("HOME", scope) if not words else RUN_TIME
        stays, base = scope.copy(status=False, feared=True), "" if target[:1] == "/" else scope.folder
        odd = RUN_TIME in target or target[:1] in {"-", ""} or any(one.present for one in scope.look("CDPATH"))
        if base is None or odd:
            self._moves(argv, node, scope)
            return [scope, stays]
        # From `..` the shell goes back by the name, not by the link.
        scope.folder, scope.status = "/" + posixpath.normpath(f"{base}/{target}").lstrip("/"), True
        scope.variables.pop("PWD", None)
        return [scope] if Path(scope.folder).is_dir() else [scope, stays]

    def _moves(self, _argv: Words, _node: Node, scope: Scope) -> None:
        """``pushd`` and ``popd``."""
        scope.folder, scope.status = None, True
        scope.variables.pop("PWD", None)
        scope.prints(RUN_TIME)

    def _leave(self, argv: Words, node: Node, scope: Scope) -> Answer:
        """``exit``, ``return`` from a function or a file that is sourced, ``break`` and ``continue``."""
        word, number = str(argv[0]), int(argv[1][:6]) if len(argv) == 2 and argv[1].isdecimal() else -1
        if word == "return" and not scope.frames:
            return False
        if word in {"exit", "return"}:
            scope.leaves = (word, 0)
            return number == 0 if word == "return" and number >= 0 else None
        loops = 1 if len(argv) == 1 else number
        if scope.loops and not 0 < loops < 100:
            return self.lost(node, [scope], "it may leave several loops")
        scope.leaves = (word, min(loops, scope.loops)) if scope.loops else None
        return True

    def _harmless(self, _argv: Words, _node: Node, scope: Scope) -> None:
        """Builtins that change nothing that is looked at."""
        scope.prints(RUN_TIME)

    def _trap(self, argv: Words, node: Node, scope: Scope) -> None:
        """Nobody knows when it is run; at the latest at the end."""
        if {"DEBUG", "RETURN"} & set(argv[2:]):
            self._unknown(argv, node, scope)
        elif len(argv) > 2 and argv[1] not in {"-", ""}:
            body = partial(self._trapped, str(argv[1]), node)
            self.within((body, [scope.copy()]), (list, [scope]))
            scope.traps = (*scope.traps, body)

    def _trapped(self, text: str, node: Node, scopes: list[Scope]) -> list[Scope]:
        return self.evaluate(text, node, scopes[0])

    def _reads(self, argv: Words, node: Node, scope: Scope) -> None:
        """``read`` and others that set the variables that are named among their words."""
        where, found = self.where(node), self.text(node)[:200]
        if any(RUN_TIME in word for word in argv[1:]):
            scope.anything(where, found)
        own = {"read": ["REPLY"], "mapfile": ["MAPFILE"], "readarray": ["MAPFILE"], "getopts": ["OPTARG", "OPTIND"]}
        # With the option and its value in one word, or in an expression of `let`.
        for name in [*own.get(argv[0], []), *(name for word in argv[1:] for name in NAME.findall(word))]:
            scope.forget(name, where, found)

    def _set(self, argv: Words, node: Node, scope: Scope) -> bool:
        """``set``: the arguments of the script, and what every assignment exports."""
        at = 1
        while at < len(argv):
            word = argv[at]
            if word in {"--", "-"} or word[:1] not in {"-", "+"} or word == MANY:
                words = argv[at + (word in {"--", "-"}) :]
                scope.args = (Placed(MANY, word.where),) if MANY in words else words
                break
            letters = word[1:].replace("o", "")
            named = str(argv[at + 1]) if word[-1] == "o" and at + 1 < len(argv) else ""
            at += 1 + bool(named)
            if "a" in letters or named == "allexport":
                scope.flags = scope.flags | {"allexport"} if word[0] == "-" else scope.flags - {"allexport"}
            if (named and named not in _SETTINGS) or not set(letters) <= set("aeuxvEThbmBHfC"):
                self._unknown(argv, node, scope)
        return True

    def _shift(self, argv: Words, _node: Node, scope: Scope) -> bool | None:
        number = argv[1] if len(argv) == 2 else "1" if len(argv) == 1 else ""
        if scope.args is None:
            return None
        if not number.isdecimal() or len(number) > 3 or MANY in scope.args:
            scope.args = (Placed(MANY, ""),)
            return None
        fits = int(number) <= len(scope.args)
        scope.args = scope.args[int(number) :] if fits else scope.args
        return fits

    def _shopt(self, argv: Words, node: Node, scope: Scope) -> None:
        """Of those that change how words or pipelines are read, everything behind is left to the run."""
        for word in argv[1:]:
            if "glob" in word:
                scope.flags |= {"glob"}
            elif word not in _SHOPTS:
                self._unknown(argv, node, scope)

    def _source(self, argv: Words, node: Node, scope: Scope) -> Answer:
        """Of a file that is not known nobody knows what it sets."""
        word = self.here(argv[1]) if len(argv) > 1 else Placed(MANY, "")
        if RUN_TIME in word:
            inside = [child for child in node.children if child.type == "process_substitution"]
            text = self.captured(inside[0], scope) if inside and len(argv) == 2 else RUN_TIME
            return self.evaluate(text, node, scope)
        given, scope.args = scope.args, argv[2:] or scope.args
        ends = self.reading.sourced(str(word), scope, self.folder)
        for end in ends or [scope]:
            end.args = given if len(argv) > 2 else end.args
        if ends is None and not _SYSTEM.match(word):
            return self.lost(node, [scope], "the file that it sources is not here")
        return ends

    def _eval(self, argv: Words, node: Node, scope: Scope) -> Answer:
        if re.search(r"\b(conda|mamba|micromamba) .*shell\.\w+ hook", self.text(node)):
            # Defines functions of that name, and sets variables for itself alone.
            return None
        return self.evaluate(RUN_TIME if MANY in argv else " ".join(argv[1:]), node, scope)

    def _exec(self, argv: Words, node: Node, scope: Scope) -> Answer:
        """``exec``: with nothing but redirections the script goes on."""
        if len(argv) == 1:
            return True
        if argv[1][:1] in {"-", "{"}:
            return self.lost(node, [scope], "exec with an option")
        self.launch(argv[1:], [], node, scope)
        scope.leaves = ("exit", 0)
        return None

    def _prefix(self, argv: Words, node: Node, scope: Scope) -> Answer:
        """``command``, ``builtin`` and ``time`` before another command, a function only behind the last."""
        rest = argv[2:] if argv[:2] == ("time", "-p") else argv[1:]
        if argv[0] == "command" and rest and rest[0] in {"-v", "-V"}:
            scope.hoped = False
            plain = rest[0] == "-v" and len(rest) == 2 and RUN_TIME not in rest[1]
            scope.prints(f"{RUN_TIME}/{rest[1]}\n" if plain else RUN_TIME)
            return None
        if not rest or rest[0][:1] == "-" or (rest[0] in scope.functions and argv[0] != "time"):
            return self.lost(node, [scope], "which command this is, is only known when it runs") if rest else None
        if argv[0] == "time" and "=" in rest[0]:
            rest = (Placed("env", rest[0].where), *rest)
        return self.simple(rest, [], node, scope)

    def _test(self, argv: Words, _node: Node, _scope: Scope) -> bool | None:
        words = argv[1:-1] if argv[0] == "[" and argv[-1] == "]" else argv[1:]
        return tested(words) if words else None

    builtins: ClassVar = {
        ":": lambda *_: True, "true": lambda *_: True, "false": lambda *_: False, "echo": _echo, "printf": _printf,
        "pwd": _pwd, "cd": _cd, "pushd": _moves, "popd": _moves, "set": _set, "shift": _shift, "shopt": _shopt,
        "source": _source, ".": _source, "eval": _eval, "exec": _exec, "trap": _trap, "test": _test, "[": _test,
        **dict.fromkeys(("exit", "return", "break", "continue"), _leave),
        **dict.fromkeys(("read", "mapfile", "readarray", "getopts", "let"), _reads),
        **dict.fromkeys(("command", "builtin", "time"), _prefix),
        # `export` and its kin where they stand behind another word, so that other rules hold for their words.
        **dict.fromkeys(
            ("export", "declare", "typeset", "readonly", "local", "unset", "coproc", "enable", "fc"), _unknown
        ),
        **dict.fromkeys((
            "alias", "unalias", "umask", "ulimit", "type", "jobs", "kill", "bg", "fg", "times", "hash", "help",
            "caller", "compgen", "disown", "complete", "compopt", "history", "bind", "suspend", "logout", "dirs",
        ), _harmless),
    }  # fmt: skip
