"""Finding the one place in a file that a recipe means, and saying what is there where it is not exactly one.

Classes, methods and calls are found in the tree of ``ast``; the statements of a method in that of LibCST, which keeps
the layout and takes the lines that go in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import libcst as cst
from libcst.helpers import get_full_name_for_node

from patcher.editing import source as sources
from patcher.editing.source import Function, Owner, SourceFile
from patcher.messages import OR, Kind, Problem, Text, joined
from patcher.recipe import Before, Call, Head, Insertion, Loop, Recipe

T = TypeVar("T")
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
"""A statement on lines of its own."""


class AnchorSearch(NamedTuple):
    """Search for the structure of `recipe` in `file`.

    Each `only_` method raises Problem (STRUCTURE) unless exactly one place matches.
    """

    recipe: Recipe
    file: SourceFile

    def only_owner(self) -> Owner:
        """Return the recipe's class, or the module if the recipe has no class.

        Raises Problem (STRUCTURE) unless the file has exactly one class of that name.
        """
        if not self.recipe.class_name:
            return self.file.tree
        classes = sources.classes(self.file.tree)
        name, names = self.recipe.class_name, _names(classes)
        matches = [node for node in classes if node.name == name]
        return self._only_match(
            matches,
            Text(
                "{count} classes named {name} (classes in the file: {names})",
                count=len(matches),
                name=name,
                names=names,
            ),
        )

    def methods(self, path: str) -> list[Function]:
        """Return the methods named `path` in the recipe's class; a dotted path is looked up in the module."""
        return sources.methods(self.file.tree if "." in path else self.only_owner(), path)

    def only_method(self, path: str) -> Function:
        """Return the method named `path` in the recipe's class, or the function at a dotted path in the module.

        Raises Problem (STRUCTURE) unless there is exactly one.
        """
        owner, matches = self.only_owner(), self.methods(path)
        actual = Text("{count} functions named {name}", count=len(matches), name=path)
        if isinstance(owner, ast.ClassDef) and "." not in path:
            names = _names(sources.methods(owner))
            actual = Text(
                "{count} methods named {name} (methods of the class: {names})",
                count=len(matches),
                name=path,
                names=names,
            )
        return self._only_match(matches, actual)

    def only_call(self, call: Call, method: Function) -> ast.Call:
        """Return the only call in `method`, at any depth, of the function that `call` names.

        Raises Problem (STRUCTURE) unless there is exactly one.
        """
        nodes = (node for node in ast.walk(method) if isinstance(node, ast.Call))
        calls = [node for node in nodes if ast.unparse(node.func) == call.function]
        actual = Text(
            "{count} calls of {function} in {method}", count=len(calls), function=call.function, method=method.name
        )
        return self._only_match(calls, actual)

    def only_statement(self, insertion: Insertion, method: cst.FunctionDef) -> Statement:
        """Return the statement of `method` that `insertion` goes in front of, or around.

        It is the first one after a docstring (`Head`; the docstring if nothing follows), or the loop over given names
        at any depth (`Loop`). Or it is a given top-level statement (`Before`), or the statement that is a given call or
        assigns its result (`Around`; at any depth if `nested`). Raises Problem (STRUCTURE) unless there is exactly one.
        """
        where = insertion.where
        top = [node for node in method.body.body if isinstance(node, Statement)]
        statements: Sequence[Statement]
        if isinstance(where, Head):
            documented = method.get_docstring() is not None
            # Before the docstring of a function that has nothing else, which then has none while it is patched.
            statements = top[documented : documented + 1] or top[:1]
            actual = Text("a function {method} whose body is on the same line as its `def`", insertion.method)
        elif isinstance(where, Loop):
            statements = [node for node in _statements(method.body) if iterable(node) in where.names]
            variables = joined(OR, where.names)
            actual = Text(
                "{count} loops over {variables} in {method}",
                count=len(statements),
                variables=variables,
                method=insertion.method,
            )
        elif isinstance(where, Before):
            pattern = cst.parse_statement(where.statement)
            statements = [node for node in top if _matches(node, pattern)]
            actual = Text(
                "{count} top-level statements “{statement}” in {method}",
                count=len(statements),
                statement=where.statement,
                method=insertion.method,
            )
        else:
            call = _value(cst.parse_statement(where.call))
            among = _statements(method.body) if where.nested else top
            statements = [node for node in among if _matches(_value(node), call)]
            count = len(statements)
            actual = Text(
                "{count} statements of the form “{call}” or “x = {call}” in {method}",
                count=count,
                call=where.call,
                method=insertion.method,
            )
            if not where.nested:
                actual = Text(
                    "{count} top-level statements of the form “{call}” or “x = {call}” in {method}",
                    count=count,
                    call=where.call,
                    method=insertion.method,
                )
        return self._only_match(statements, actual)

    def _only_match(self, matches: Sequence[T], actual: str) -> T:
        """Return the only one of ``matches``. Raises Problem (STRUCTURE) with ``actual``, a text that counts them."""
        if len(matches) != 1:
            raise self.mismatch(actual)
        return matches[0]

    def mismatch(self, actual: str, line: int = 0) -> Problem:
        """Return the Problem (STRUCTURE) that the file has `actual`, a text, instead of what the recipe expects.

        It points at `line`, or for 0 at the recipe's method, else its class, else line 1.
        """
        recipe = self.recipe
        expected = ".".join(filter(None, (recipe.class_name, recipe.method)))
        nodes = [*sources.defined(self.file.tree, recipe.class_name, recipe.method)][:2]
        return Problem(
            Kind.STRUCTURE,
            Text(
                "expected {expected}, as in {release}, but found {actual}",
                expected=expected,
                release=recipe.upstream,
                actual=actual,
            ),
            f"{self.file.where}:{line or (nodes[-1].lineno if nodes else 1)}",
            Text("nothing was written; `rlpatch explain TARGET` shows what the code should look like"),
            expected=expected,
            actual=actual,
        )


def _names(nodes: Iterable[ast.ClassDef | Function]) -> str:
    """Return the names of classes or functions for a message."""
    return ", ".join(node.name for node in nodes) or Text("none")


def iterable(loop: cst.CSTNode) -> str:
    """Return the dotted name that a `for` loop iterates over, also within `enumerate`.

    Return "" if it iterates over something else, or if the node is no `for` loop.
    """
    if not isinstance(loop, cst.For):
        return ""
    over = loop.iter
    if isinstance(over, cst.Call) and isinstance(over.func, cst.Name) and over.func.value == "enumerate":
        over = over.args[0].value if over.args else over
    return get_full_name_for_node(over) or "" if isinstance(over, cst.Name | cst.Attribute) else ""


def _statements(block: cst.CSTNode) -> Iterator[Statement]:
    """Yield each statement at any depth below `block` that begins a line; skip nested functions and classes."""
    for child in block.children:
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            continue
        if isinstance(block, cst.IndentedBlock) and isinstance(child, Statement):  # else it is an ``elif``
            yield child
        if not isinstance(child, cst.SimpleStatementLine):
            yield from _statements(child)


def _value(statement: cst.CSTNode) -> cst.CSTNode:
    """Return the expression that a statement computes or assigns, else the statement itself."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        if isinstance(small, cst.Expr | cst.Assign | cst.AnnAssign) and small.value is not None:
            return small.value
    return statement


def _matches(node: cst.CSTNode, pattern: cst.CSTNode) -> bool:
    """Tell whether `node` equals `pattern` except for layout; a final `...` in a part of `pattern` matches any rest."""
    if type(node) is not type(pattern):
        return False
    children = [child for child in node.children if not isinstance(child, _LAYOUT)]
    expected = [child for child in pattern.children if not isinstance(child, _LAYOUT)]
    if not expected:
        return not children and getattr(node, "value", None) == getattr(pattern, "value", None)
    if _is_any(expected[-1]):
        expected.pop()
        children = children[: len(expected)]
    return len(children) == len(expected) and all(map(_matches, children, expected))


def _is_any(node: cst.CSTNode) -> bool:
    """Tell whether a value, an argument or a body is `...`."""
    while isinstance(node, cst.Arg | cst.Expr | cst.SimpleStatementSuite):
        node = node.body[0] if isinstance(node, cst.SimpleStatementSuite) else node.value
    return isinstance(node, cst.Ellipsis)


_LAYOUT = (
    cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine, cst.LeftParen, cst.RightParen, cst.Dot,
)  # fmt: skip
