"""The environments of a Python file: the one of its process, and the copies that it makes for others."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patcher.launches.invocation import ANY, RUN_TIME, Argument, Variables, known
from patcher.launches.pynames import Names, dotted
from patcher.launches.scope import Scope, together

if TYPE_CHECKING:
    from patcher.launches.reading import Reading

_ENVIRON = frozenset({"os.environ", "environ", "os.environb"})
_COPIES = frozenset({"dict", "copy", "copy.copy", "copy.deepcopy", "deepcopy"})

# The variables of each environment by its name: those of the process by PROCESS, those of a copy by the copy's.
State = Mapping[str, Variables]
PROCESS = ""


class Environments:
    """What is put into an environment, and what an expression makes of those that there are.

    ``scope`` is the process, ``copies`` has the variables of the copies that there are by now, and ``copied`` the names
    of all that were made anywhere.
    """

    def __init__(self, reading: Reading, scope: Scope, names: Names, file: str, line: int) -> None:
        self.reading, self.scope, self.names, self.file = reading, scope, names, file
        self.first = max(line, 1) if line else 0
        self.copies: dict[str, Variables] = {}
        self.copied = set[str]()
        # The dictionaries, and copies, that are looked at where they are used.
        self.used = set[ast.AST | str | None]()

    def where(self, node: ast.expr | ast.stmt) -> str:
        """``file:line`` of a node."""
        return self.line(node.lineno)

    def line(self, number: int) -> str:
        """``file:line`` of a line that is counted from the first one of the text."""
        return f"{self.file}:{number + self.first - 1}" if self.first else self.file

    def now(self) -> State:
        """What all environments are here."""
        return {PROCESS: dict(self.scope.variables), **self.copies}

    def become(self, state: State) -> None:
        """Take all environments for what they are in a state."""
        self.scope.variables = dict(state[PROCESS])
        self.copies = {name: one for name, one in state.items() if name != PROCESS}

    def become_any(self, states: Sequence[State]) -> None:
        """Take each environment for what it may be in any of the states in which there is one."""
        depth, names = self.reading.depth, {name: None for state in states for name in state}
        self.become({name: together([one[name] for one in states if name in one], depth) for name in names})

    def lose(self, node: ast.stmt) -> None:
        """Leave all environments to the run."""
        self.scope.anything(self.where(node), "")
        self.copies = {name: dict(self.scope.variables) for name in self.copied}

    def environment(self, node: ast.expr) -> str | None:
        """The name of the environment that an expression is, None where it is none."""
        node = self.names.resolved(node, self.copied)
        if isinstance(node, ast.Name) and node.id in self.copied:
            return node.id
        return PROCESS if self.names.full(node) in _ENVIRON else None

    def made(self, node: ast.expr) -> Scope | None:
        """A scope with the environment that an expression is or makes, None for what is none that is known."""
        name, node = self.environment(node), self.names.resolved(node)
        if name is not None:
            scope = self.scope.copy()
            if name in self.copies:
                scope.variables = dict(self.copies[name])
            elif name != PROCESS:
                scope.anything(self.where(node), name)
            return scope
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            first = self.made(node.left)
            if first is not None:
                self.merge(first, node.right, node)
            return first
        if isinstance(node, ast.Dict):
            scope = self.scope.copy(variables={})
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    self.merge(scope, value, node)
                else:
                    self.put(scope, self.text(key), value, value)
            return scope
        if not isinstance(node, ast.Call):
            return None
        owner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "copy" else None
        copy = self.made(owner) if owner is not None and not node.args else None
        if copy is None and dotted(node.func) in _COPIES and len(node.args) <= 1:
            copy = self.scope.copy(variables={})
            self._merge_given(copy, node)
        return copy

    @contextmanager
    def changed(self, node: ast.expr | None) -> Iterator[Scope]:
        """A scope in which an environment can be changed; of None that is the one of the process."""
        name = PROCESS if node is None else self.environment(node)
        if name == PROCESS:
            yield self.scope
            return
        scope = (None if node is None or name is None else self.made(node)) or self.scope.copy()
        yield scope
        if name is not None:
            self.copies[name] = scope.variables

    def named(self, name: str, whole: ast.expr | None, node: ast.stmt) -> None:
        """Know what a name stands for; of one that is set to something else later nothing is known."""
        made = self.made(whole) if whole is not None and self.environment(whole) is None else None
        if name in self.copied or (made and name not in self.names.values and name in self.names.passed):
            if made is None:
                made = self.scope.copy()
                made.anything(self.where(node), ast.unparse(node)[:200])
            self.copied.add(name)
            self.copies[name] = made.variables
        itself = whole is not None and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(whole))
        self.names.values[name] = whole if self.names.values.get(name, whole) is whole and not itself else None

    def method(self, scope: Scope, name: str, node: ast.Call) -> None:
        """A method of an environment; one that is given what only the run tells may set anything."""
        match name, node.args:
            case "clear", _:
                scope.variables.clear()
            case "pop" | "unsetenv" | "__delitem__", [key, *_]:
                self.put(scope, self.text(key), None, node, drop=True)
            case "putenv" | "__setitem__", [key, value]:
                self.put(scope, self.text(key), value, node)
            case "setdefault", [key, value]:
                variable = self.text(key)
                ways = scope.look(variable or "")
                kept = tuple(one for one in ways if one.present)
                if kept != ways:
                    self.put(scope, variable, value, node)
                    if variable:
                        scope.variables[variable] = (*kept, *scope.look(variable))
            case "update" | "__ior__", _:
                self._merge_given(scope, node)

    def _merge_given(self, scope: Scope, node: ast.Call) -> None:
        """Put what a call is given: mappings, and variables by their names."""
        for one in node.args:
            self.merge(scope, one, node)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.merge(scope, keyword.value, node)
            else:
                self.put(scope, keyword.arg, keyword.value, node)

    def merge(self, scope: Scope, given: ast.expr, node: ast.stmt | ast.expr) -> None:
        """Put all that a mapping has."""
        self.used.add(self.names.resolved(given))
        other = self.made(given)
        if other is None or ANY in other.variables:
            scope.anything(self.where(node), ast.unparse(node)[:200])
        for name, ways in (other.variables if other else {}).items():
            present = tuple(one for one in ways if one.present)
            if name != ANY and present:
                scope.variables[name] = present if present == ways else (*scope.look(name), *present)

    def put(
        self, scope: Scope, name: Argument, value: ast.expr | None, node: ast.stmt | ast.expr, *, drop: bool = False
    ) -> None:
        """Set a variable, or remove it; without a name that may be any."""
        where, found = self.where(node), ast.unparse(node)[:200]
        if name is None:
            (scope.drop_any if drop else scope.anything)(where, found)
        elif drop:
            scope.drop(name, where, found, self.reading.depth)
        else:
            found = f"{name}: {found}" if node is value else found
            scope.put(name, self.text(value) if value else None, where, found, export=True, depth=self.reading.depth)

    def text(self, node: ast.expr, steps: int = 8) -> Argument:
        """The text of an expression, as far as it can be told without running it."""
        node = self.names.resolved(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            return node.value.decode("utf-8", "replace")
        if isinstance(node, ast.Constant):
            return json.dumps(node.value) if node.value is None or isinstance(node.value, bool) else str(node.value)
        if not steps:
            return None
        if isinstance(node, ast.JoinedStr):
            parts = [self.text(part, steps - 1) for part in node.values]
            return None if None in parts else "".join(map(str, parts))
        if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
            return self.text(node.value, steps - 1)
        if isinstance(node, ast.Subscript) and self.environment(node.value) == PROCESS:
            return self._variable(self.text(node.slice, steps - 1))
        return self._call_text(node, steps) if isinstance(node, ast.Call) else None

    def _call_text(self, node: ast.Call, steps: int) -> Argument:
        called = self.names.full(node.func)
        texts = [self.text(argument, steps - 1) for argument in node.args]
        if called == "str" and len(texts) == 1:
            return texts[0]
        if called in {"json.dumps", "dumps"} and len(node.args) == 1:
            try:
                return json.dumps(ast.literal_eval(self.names.resolved(node.args[0])))
            except (ValueError, TypeError):
                return None
        if called.endswith(("environ.get", "getenv")) and texts and texts[0] is not None:
            if any(one.present for one in self.scope.look(texts[0])):
                return self._variable(texts[0])
            return texts[1] if len(texts) > 1 else None
        return None

    def _variable(self, name: Argument) -> Argument:
        ways = self.scope.look(name or "")
        return known(ways[0].text) if len(ways) == 1 else None

    def part(self, node: ast.expr) -> str:
        """The text of an expression, in which RUN_TIME stands for what only the run tells."""
        text, node = self.text(node), self.names.resolved(node)
        if text is not None:
            return text
        parts = map(self.text, node.values) if isinstance(node, ast.JoinedStr) else [None]
        return "".join(RUN_TIME if part is None else part for part in parts)
