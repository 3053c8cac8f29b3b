"""What a shell script assigns: variables and arrays, by ``NAME=value``, ``export`` and their kin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from patcher.launches.grammar import Node
from patcher.launches.invocation import RUN_TIME, Placed
from patcher.launches.scope import MANY, Scope, Words
from patcher.launches.words import Expander

if TYPE_CHECKING:
    from patcher.launches.reading import Reading

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Store = Callable[[Scope, bool], None]


class Assigner(Expander):
    """Evaluates the assignments of one text in a scope."""

    def __init__(self, reading: Reading, text: str, name: str, line: int) -> None:
        super().__init__(text, name, line)
        self.reading = reading

    def evaluated(self, node: Node, scope: Scope, *, declared: bool = False) -> Store:
        """What ``NAME=value``, ``NAME+=value`` and ``NAME=(…)`` do to a scope, with the value taken now."""
        where, value, found = self.where(node), node.child_by_field_name("value"), self.text(node)
        found = found if len(found) <= 200 else found[:200] + "…"
        name, _, index = self.text(node.children[0]).partition("[")
        plus = node.children[1].type == "+="
        if value is not None and value.type == "array" and not index:
            added = tuple(word for child in value.children for word in self._listed(child, scope))

            def store_array(own: Scope, _: bool) -> None:
                own.array(
                    name, (*self.elements(name, own), *added) if plus else added, where, found, self.reading.depth
                )

            return store_array
        text = self.scalar(value, scope, assigned=True) if value is not None else ""
        if declared and value is not None and _braces(value):
            # There, and not in a plain assignment, braces may make several words of one.
            text = RUN_TIME

        def store(own: Scope, export: bool) -> None:
            array = own.arrays.get(name, ())
            if index or (array and MANY not in array) or (node.has_error and value is None):
                own.forget(name, where, found)  # an element of an array
                return
            put = self.value(name, own) + text if plus else text
            seen = f"{found} ({put[:200]})" if RUN_TIME not in put and re.search(r"[$`]", found) else found
            own.put(name, put, where, seen, export=export, depth=self.reading.depth)
            own.arrays |= {name: array} if array else {}  # it may be an array, of which this is the first element

        return store

    def _listed(self, child: Node, scope: Scope) -> Words:
        """What one of the words between ``NAME=(`` and ``)`` becomes."""
        text = self.text(child)
        if not child.is_named or child.type == "comment":
            return ()
        odd = child.type == "ERROR" or (text.startswith("[") and "]" in text and "=" in text)
        return (Placed(MANY, self.where(child)),) if odd else self.fields(child, scope)

    def declare(self, node: Node, scope: Scope) -> None:
        """``export``, ``declare``, ``local`` and their kin."""
        kind, where, text = node.children[0].type, self.where(node), self.text(node)
        options, names = "", list[tuple[str, Store | None]]()
        for child in node.children[1:]:
            if child.type == "word" and re.match(r"[-+][a-zA-Z]", self.text(child)):
                options += self.text(child)
            elif child.type == "variable_assignment":
                name = self.text(child.children[0]).partition("[")[0]
                names.append((name, self.evaluated(child, scope, declared=True)))
            elif child.is_named and not child.type.endswith("_redirect"):
                names += [(word, None) for word in self.fields(child, scope)]
        if "f" in options.lower():
            scope.flags |= {f"export {name}" for name, _ in names} if kind == "export" else set()
            return
        remove = "+x" in options or (kind == "export" and "n" in options)
        export = (kind == "export" or re.search(r"-[a-zA-Z]*x", options) is not None) and not remove
        odd = kind == "readonly" or re.search("[iulcrAt]" if kind == "export" else "[iulcnrAt]", options)
        for name, value in names:
            if not NAME.fullmatch(name) or (odd and "n" in options):
                scope.anything(where, text)
            if scope.hidden is not None and kind not in {"export", "readonly"} and "g" not in options:
                self._hide(name, scope, scope.hidden, where, text if value is None else "")
            if value is not None:
                value(scope, export)
            if remove or (value is None and (export or "allexport" in scope.flags)):
                scope.variables[name] = tuple(one._replace(exported=not remove) for one in scope.look(name))
            if odd:
                scope.flags |= {f"odd {name}"}
            if odd and value is not None and re.search(r"[iulcA]", options):
                scope.forget(name, where, text)

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

    def unset(self, node: Node, scope: Scope) -> None:
        """``unset``, of variables and of functions."""
        where, text = self.where(node), self.text(node)
        words = [word for child in node.children[1:] for word in self.fields(child, scope)]
        if words[:1] == ["-f"]:
            scope.functions = {name: one for name, one in scope.functions.items() if name not in words}
            return
        for word in words:
            if RUN_TIME in word or word == "-n":
                scope.drop_any(where, text)
            elif f"odd {word}" in scope.flags or "[" in word:
                scope.forget(word.partition("[")[0], where, text)
            elif not word.startswith("-"):
                scope.drop(word, word.where, f"unset {word}", self.reading.depth)


def _braces(node: Node) -> bool:
    """Whether a word has an opening brace outside of quotes and of expansions."""
    if node.type in {"string", "raw_string", "ansi_c_string"}:
        return False
    if node.type == "concatenation":
        return any(map(_braces, node.children))
    return b"{" in (node.text or b"").replace(b"${", b"")


def restore(scope: Scope, hidden: dict[str, Any]) -> None:
    """Give variables and arrays the values back that others have hidden."""
    for name, saved in hidden.items():
        held: tuple[dict[str, Any], dict[str, Any]] = (scope.variables, scope.arrays)
        for there, one in zip(held, saved, strict=True):
            there.pop(name, None)
            if one is not None:
                there[name] = one
