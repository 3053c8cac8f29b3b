"""Shell commands: what they are fed, what they print, and what they start, from assignments and tests to programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from patcher.launches.grammar import Node
from patcher.launches.invocation import RUN_TIME, Placed
from patcher.launches.pieces import joined, path_of
from patcher.launches.scope import DEEP, MANY, MOST_NESTING, NAME, Fed, Place, Scope, Ways, Words
from patcher.launches.statements import Run, Statements
from patcher.launches.words import braced

# Commands whose failure is an answer; of all others a person expects that they succeed.
_ANSWERS = frozenset({
    "grep", "egrep", "fgrep", "which", "type", "command", "test", "[", "diff", "cmp", "pgrep", "hash", "read",
    "mapfile", "readarray", "getopts", "let",
})  # fmt: skip
_SILENT = frozenset({"mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "chown", "sleep", "kill", "wait", "ulimit"})
_REDIRECTS = ("file_redirect", "herestring_redirect", "heredoc_redirect")
_HEREDOC = frozenset({"<<", "<<-", "heredoc_start", "heredoc_body", "heredoc_end", "comment", "file_descriptor"})


class Commands(Statements):
    """Follows the commands in the statements of one text."""

    # Each takes its words, its node and the scope. It answers with the ways behind it, or where that is just the given
    # one, whether it succeeds there, None if only the run tells.
    builtins: ClassVar[Mapping[str, Callable[..., Ways | bool | None]]] = {}

    # --- redirections and pipelines ---

    def _one_redirected_statement(self, node: Node, scope: Scope) -> Ways:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.children if child != body]
        run = list if body is None else partial(self.statement, body)
        return self._redirected(redirects, run, scope, copies=body is not None and self.text(body) == "cat")

    def _redirected(self, redirects: Sequence[Node], run: Run, scope: Scope, *, copies: bool = False) -> Ways:
        """Run a statement with its redirections; behind a here-document stands the rest of the line."""
        before, out, silent, missing = self.reading.fed, scope.out, False, False
        targets: dict[str, str] = {}
        tail: list[Node] = []
        for redirect in redirects:
            if redirect.type == "herestring_redirect":
                self.reading.fed = Fed(self.scalar(redirect.children[-1], scope) + "\n", self.row(redirect))
            elif redirect.type == "heredoc_redirect":
                self.reading.fed = self._heredoc(redirect, scope)
                tail = [one for one in redirect.children if one.type not in _HEREDOC]
                behind = [one for one in tail if one.type == "file_redirect"]
                targets |= {self.scalar(one.children[-1], scope): self.text(one) for one in behind}
                silent = silent or bool(behind)
            elif redirect.type == "file_redirect":
                target, number = redirect.children[-1], redirect.child_by_field_name("descriptor")
                file = self.scalar(target, scope) if target.is_named else RUN_TIME
                sign = next((one.type for one in redirect.children if not one.is_named), "")
                if sign == "<":
                    self.reading.fed = Fed(RUN_TIME, 0)
                    wrong = redirect.prev_sibling is not None and redirect.prev_sibling.type == "ERROR"
                    there = RUN_TIME not in file and scope.folder is not None and Path(scope.folder, file).exists()
                    missing = missing or not (wrong or there)
                targets |= {file: sign} if ">" in sign and sign[-1] != "&" else {}
                silent = silent or (sign[:1] in {">", "&"} and (number is None or self.text(number) == "1"))
            elif redirect.type != "ERROR":
                return self.lost(redirect, [scope])
        for file, sign in targets.items():
            fed = self.reading.fed if copies and ">>" not in sign and len(targets) == 1 else None
            self.reading.writes([file], scope, self.folder, fed and fed.text)
        scope.out = None if silent else out
        piped = [child for one in tail if one.type == "pipeline" for child in one.children if child.is_named]
        if piped:
            line = self.reading.fed.line if self.reading.fed else 0
            ends = self._piped([run, *(partial(self.statement, one) for one in piped)], scope, line)
        else:
            # Where a file is not there that it reads, nothing is run.
            ends = self.within((run, [scope]), (list, [scope.copy(status=False)] if missing else []))
        self.reading.fed = before
        for end in ends if silent else ():
            end.out = out
        sign = next((one.type for one in tail if one.type in {"&&", "||"}), "")
        return self.chain(ends, sign, tail[-1]) if sign else ends

    def _heredoc(self, redirect: Node, scope: Scope) -> Fed:
        parts = {one.type: one for one in redirect.children}
        start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
        if start is None or body is None:
            return Fed("" if start is not None else RUN_TIME, 0)
        text = self.text(body)
        if not re.search(r"['\"\\]", self.text(start)):
            text = joined(self.region(body.children, body.start_byte, body.end_byte, scope, quoted=True))
        return Fed(re.sub(r"(?m)^\t+", "", text) if "<<-" in parts else text, self.row(body))

    def _one_subshell(self, node: Node, scope: Scope) -> Ways:
        status, text = self.apart(partial(self.block, node.children), scope, scope.out)
        scope.out, scope.status = text if scope.out is not None else None, status
        return [scope]

    def _one_pipeline(self, node: Node, scope: Scope) -> Ways:
        return self._piped([partial(self.statement, child) for child in node.children if child.is_named], scope)

    def _piped(self, runs: Sequence[Run], scope: Scope, line: int = 0) -> Ways:
        """Commands of a pipeline, each in a shell of its own; ``line`` is that of what the first one hands on."""
        before, text = self.reading.fed, ""
        for run in runs:
            _, text = self.apart(run, scope, scope.out if run is runs[-1] else "")
            self.reading.fed = Fed(text, line)
        scope.out = text if scope.out is not None else None
        self.reading.fed, scope.status, scope.hoped = before, None, False
        return [scope]

    # --- assignments ---

    def evaluated(self, node: Node, scope: Scope, *, declared: bool = False) -> Words | str:
        """What stands behind ``NAME=`` and ``NAME+=``: words for an array."""
        value = node.child_by_field_name("value")
        if value is None:
            return ""
        if value.type == "array" and "[" not in self.text(node.children[0]):
            return tuple(word for child in value.children for word in self._listed(child, scope))
        pieces = self.pieces(value, scope)
        # There, and not in a plain assignment, braces may make several words of one.
        lost = declared and braced(pieces)
        return RUN_TIME if lost else joined(self.tilde(pieces, scope, assigned=True))

    def store(self, node: Node, value: Words | str, scope: Scope, *, export: bool = False) -> None:
        """Do what an assignment does, whose value is taken already."""
        where, found = self.where(node), self.text(node)
        found = found if len(found) <= 200 else found[:200] + "…"
        name, _, index = self.text(node.children[0]).partition("[")
        plus, array = node.children[1].type == "+=", scope.arrays.get(name, ())
        if isinstance(value, tuple):
            scope.array(
                name, (*self.elements(name, scope), *value) if plus else value, where, found, self.reading.depth
            )
        elif index or (array and MANY not in array) or (node.has_error and node.child_by_field_name("value") is None):
            scope.forget(name, where, found)  # an element of an array
        else:
            put = self.value(name, scope) + value if plus else value
            seen = f"{found} ({put[:200]})" if RUN_TIME not in put and re.search(r"[$`]", found) else found
            scope.put(name, put, where, seen, export=export, depth=self.reading.depth)
            scope.arrays |= {name: array} if array else {}  # it may be an array, of which this is the first element

    def _listed(self, child: Node, scope: Scope) -> Words:
        """What one of the words between ``NAME=(`` and ``)`` becomes."""
        text = self.text(child)
        if not child.is_named or child.type == "comment":
            return ()
        odd = child.type == "ERROR" or (text.startswith("[") and "]" in text and "=" in text)
        return (Placed(MANY, self.where(child)),) if odd else self.fields(child, scope)

    def _declared(self, node: Node, scope: Scope) -> Ways:
        """``export``, ``declare``, ``local`` and their kin."""
        kind, where, text = node.children[0].type, self.where(node), self.text(node)
        options, names = "", list[tuple[str, Node | None, Words | str]]()
        for child in node.children[1:]:
            if child.type == "word" and re.match(r"[-+][a-zA-Z]", self.text(child)):
                options += self.text(child)
            elif child.type == "variable_assignment":
                name = self.text(child.children[0]).partition("[")[0]
                names.append((name, child, self.evaluated(child, scope, declared=True)))
            elif child.is_named and not child.type.endswith("_redirect"):
                names += [_quoted(word) for word in self.fields(child, scope)]
        if "f" in options.lower():
            scope.flags |= {f"export {name}" for name, *_ in names} if kind == "export" else set()
            return [scope]
        remove = "+x" in options or (kind == "export" and "n" in options)
        export = (kind == "export" or re.search(r"-[a-zA-Z]*x", options) is not None) and not remove
        odd = kind == "readonly" or re.search("[iulcrAt]" if kind == "export" else "[iulcnrAt]", options)
        for name, assigned, value in names:
            if assigned is None and value and export and not odd:  # `export "NAME=value"`
                scope.put(name, str(value)[1:], where, text[:200], export=True, depth=self.reading.depth)
                continue
            if not NAME.fullmatch(name) or (odd and "n" in options):
                scope.anything(where, text)
            if scope.hidden is not None and kind not in {"export", "readonly"} and "g" not in options:
                self._hide(name, scope, scope.hidden, where, text if assigned is None else "")
            if assigned is not None:
                self.store(assigned, value, scope, export=export)
            if remove or (assigned is None and (export or "allexport" in scope.flags)):
                scope.variables[name] = tuple(one._replace(exported=not remove) for one in scope.look(name))
            if odd:
                scope.flags |= {f"odd {name}"}
            if odd and assigned is not None and re.search(r"[iulcA]", options):
                scope.forget(name, where, text)
        return [scope]

    def _hide(self, name: str, scope: Scope, hidden: dict[str, Any], where: str, unset: str) -> None:
        """Make a variable local to the function that runs; ``unset`` is the text that gives it no value."""
        if name in hidden:
            return
        hidden[name] = (scope.variables.get(name), scope.arrays.get(name))
        if unset and any(one.exported and one.present for one in scope.look(name)):
            # Unset here, but passed on as it was.
            scope.forget(name, where, unset)
        elif unset and name in scope.variables:
            scope.drop(name, where, unset, self.reading.depth)

    def _one_unset_command(self, node: Node, scope: Scope) -> Ways:
        where, text = self.where(node), self.text(node)
        words = [word for child in node.children[1:] for word in self.fields(child, scope)]
        if words[:1] == ["-f"]:
            scope.functions = {name: one for name, one in scope.functions.items() if name not in words}
            words = []
        for word in words:
            if RUN_TIME in word or word == "-n":
                scope.drop_any(where, text)
            elif f"odd {word}" in scope.flags or "[" in word:
                scope.forget(word.partition("[")[0], where, text)
            elif not word.startswith("-"):
                scope.drop(word, word.where, f"unset {word}", self.reading.depth)
        scope.status, scope.hoped = True, True
        return [scope]

    def _one_variable_assignment(self, node: Node, scope: Scope) -> Ways:
        self.store(node, self.evaluated(node, scope), scope)
        scope.status, scope.hoped = None if re.search(r"\$\(|`", self.text(node)) else True, True
        return [scope]

    def _on_variable_assignments(self, node: Node, scopes: Ways) -> Ways:
        return self.block(node.children, scopes)

    def _one_declaration_command(self, node: Node, scope: Scope) -> Ways:
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        scope.status, scope.hoped = True, True
        return self._redirected(redirects, lambda scopes: self._declared(node, scopes[0]), scope)

    # --- commands ---

    def _one_command(self, node: Node, scope: Scope) -> Ways:
        assignments = [child for child in node.children if child.type == "variable_assignment"]
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        words = [child for child in node.children if child not in assignments and child not in redirects]

        def run(scopes: Ways) -> Ways:
            argv: list[Placed] = []
            for at, word in enumerate(words):
                if at and words[at - 1].end_byte == word.start_byte:
                    # The parser makes two of one word here.
                    argv = [*argv[:-1], Placed(MANY, self.where(word))]
                elif not word.is_named:
                    argv.append(Placed(self.text(word), self.where(word)))
                else:
                    argv += self.fields(word.children[0] if word.type == "command_name" else word, scopes[0])
            return self.simple(argv, assignments, node, scopes[0])

        return self._redirected(redirects, run, scope)

    def simple(self, argv: Sequence[Placed], assignments: Sequence[Node], node: Node, scope: Scope) -> Ways:
        """A command whose words are known, as far as they can be."""
        if not argv:
            for assignment in assignments:
                self._one_variable_assignment(assignment, scope)
            return [scope]
        head = str(argv[0])
        scope.hoped = head not in _ANSWERS
        if head not in scope.functions and head not in self.builtins:
            return self.launch(argv, assignments, node, scope)
        if head in scope.functions and scope.functions[head] is None:
            return self.lost(node, [scope], "which function this is, is only known when it runs")
        hidden: dict[str, object] = {}
        for assignment in assignments:
            name = self.text(assignment.children[0]).partition("[")[0]
            hidden.setdefault(name, (scope.variables.get(name), scope.arrays.get(name)))
            self.store(assignment, self.evaluated(assignment, scope), scope, export=True)
        if head in scope.functions:
            ends = self._call(head, tuple(argv[1:]), scope)
        else:
            answer = self.builtins[head](self, tuple(argv), node, scope)
            ends = answer if isinstance(answer, list) else [scope]
            scope.status = scope.status if isinstance(answer, list) else answer
        for end in ends:
            restore(end, hidden)
        return ends

    def _call(self, name: str, args: Words, scope: Scope) -> Ways:
        """Run a function."""
        if self.reading.nesting >= MOST_NESTING:
            scope.anything(self.name, name)
            self.reading.invocation(self.name, (None,), scope, False, DEEP)
            scope.status = None
            return [scope]
        owner, body = scope.functions[name]
        given, loops, hidden = scope.args, scope.loops, scope.hidden
        scope.args, scope.loops, scope.hidden, scope.frames = args, 0, {}, scope.frames + 1
        self.reading.nesting += 1
        ends: Ways = owner.statement(body, [scope])
        self.reading.nesting -= 1
        for end in ends:
            restore(end, end.hidden or {})
            end.args, end.loops, end.frames, end.hoped, end.meant = given, loops, end.frames - 1, False, None
            end.hidden = None if hidden is None else dict(hidden)
            end.leaves = None if end.leaves == ("return", 0) else end.leaves
            end.settle(self.reading.depth)
        return ends

    def launch(self, argv: Sequence[Placed], assignments: Sequence[Node], node: Node, scope: Scope) -> Ways:
        """A program: what it inherits, and what it prints, which nobody knows."""
        own, head, reading = scope.copy(out=None), argv[0].rpartition("/")[2], self.reading
        for assignment in assignments:
            self.store(assignment, self.evaluated(assignment, own), own, export=True)
        words = [self.here(word) for word in argv]
        reading.command(words, own, Place(self.where(node), self.folder, reading.fed))
        if scope.out is not None:
            if head == "cat" and len(argv) == 1 and reading.fed:
                scope.out += reading.fed.text
            elif head == "which" and len(argv) == 2 and RUN_TIME not in argv[1]:
                scope.out += f"{RUN_TIME}/{argv[1]}\n"
            elif head in {"dirname", "basename", "realpath", "readlink"}:
                scope.out += path_of(head, argv[1:], scope)
            elif head not in _SILENT:
                scope.out += RUN_TIME
        scope.status, scope.hoped = None, head not in _ANSWERS
        return [scope]

    def here(self, word: Placed) -> Placed:
        """``$HERE/other.sh``: what is not known is this script's folder, or nothing that is here."""
        tail = word.lstrip(RUN_TIME)
        there = self.folder / tail.lstrip("/")
        named = word[:1] == RUN_TIME and tail[:1] == "/" and RUN_TIME not in tail
        return Placed(str(there), word.where) if named and there.is_file() else word

    def evaluate(self, text: str, node: Node, scope: Scope) -> Ways:
        """Run a text as a part of this script."""
        if RUN_TIME in text or self.reading.nesting >= MOST_NESTING:
            return self.lost(node, [scope], "what it runs is only known when it runs")
        self.reading.nesting += 1
        ends = type(self)(self.reading, text, self.where(node), 0, self.folder).run(scope)
        self.reading.nesting -= 1
        return ends


def _quoted(word: Placed) -> tuple[str, Node | None, str]:
    """A word of `export`, which may be a whole assignment; its value has the sign before it."""
    name, sign, value = word.partition("=")
    lost = RUN_TIME in name or not NAME.fullmatch(name) or not sign or word == MANY
    return (word, None, "") if lost else (name, None, f"={value}")


def restore(scope: Scope, hidden: dict[str, Any]) -> None:
    """Give variables and arrays the values back that others have hidden."""
    for name, (ways, words) in hidden.items():
        scope.variables.pop(name, None)
        scope.arrays.pop(name, None)
        scope.variables |= {name: ways} if ways is not None else {}
        scope.arrays |= {name: words} if words is not None else {}
