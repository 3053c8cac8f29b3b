"""Finding the one place in a file that a recipe means, and saying what is there where it is not exactly one.

The engine puts lines into a tree of LibCST, which keeps the layout; arguments are replaced at the positions that
``ast`` has. Both look here: for the class and the method of a recipe, for the anchor of an insertion, for a call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from patcher.editing.source import Named, T, defined, tree
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Before, Call, Head, Insertion, Loop, Recipe


class InsertionPoint(NamedTuple):
    """A place among the statements of a method: in front of statement ``at`` of ``block``.

    ``units`` is the name that a loop there runs over.
    """

    block: cst.IndentedBlock
    at: int
    units: str = ""


class AnchorSearch(NamedTuple):
    """The look for the structure of ``recipe`` in ``source``; ``where`` names the file in messages."""

    recipe: Recipe
    source: bytes
    where: str

    def only_class(self, classes: Named[T]) -> T:
        """The recipe's class; :class:`Problem` (STRUCTURE) where there are none or several."""
        found = [node for name, node in classes if name == self.recipe.class_name]
        there = ", ".join(name for name, _ in classes) or "no class at the top level"
        return self.one(found, "classes of that name", f"; the file has: {there}")

    def only_method(self, method: str, members: Named[T]) -> T:
        """The method of that name; :class:`Problem` (STRUCTURE) where there are none or several."""
        found = [node for name, node in members if name == method]
        there = ", ".join(name for name, _ in members) or "nothing"
        return self.one(found, f"methods {method}", f"; the class has: {there}")

    def point(self, insertion: Insertion, method: cst.FunctionDef, block: cst.IndentedBlock) -> InsertionPoint:
        """Where ``insertion`` goes in; :class:`Problem` (STRUCTURE) where its anchor is not there exactly once."""
        where = insertion.where
        if isinstance(where, Head):
            return InsertionPoint(block, int(method.get_docstring() is not None))
        if isinstance(where, Loop):
            loops = [InsertionPoint(inner, at, _iterable(loop)) for inner, at, loop in _statements(block)]
            found = [point for point in loops if point.units in where.names]
            return self.one(found, f"loops over {' or '.join(where.names)} in {insertion.method}")
        top = ((block, at, statement) for at, statement in enumerate(block.body))
        if isinstance(where, Before):
            pattern: cst.CSTNode = cst.parse_statement(where.statement)
            found = [InsertionPoint(inner, at) for inner, at, statement in top if _matches(statement, pattern)]
            return self.one(found, f"statements like “{where.statement}” at the top level of {insertion.method}")
        pattern = cst.parse_expression(where.call)
        among = _statements(block) if where.nested else top
        found = [InsertionPoint(inner, at) for inner, at, statement in among if _matches(_value(statement), pattern)]
        level = "" if where.nested else " at the top level"
        return self.one(found, f"statements of “{where.call}” alone{level} in {insertion.method}")

    def only_call(self, call: Call, method: ast.FunctionDef) -> ast.Call:
        """The one call of that function in ``method``; :class:`Problem` (STRUCTURE) where it is not exactly one."""
        nodes = (node for node in ast.walk(method) if isinstance(node, ast.Call))
        found = [node for node in nodes if ast.unparse(node.func) == call.function]
        return self.one(found, f"calls of {call.function} in {method.name}")

    def one(self, found: Sequence[T], looked_for: str, there: str = "") -> T:
        """What was found, if it is one thing; else :class:`Problem` (STRUCTURE), with ``there`` behind the count."""
        if len(found) != 1:
            raise self.unlike(f"{len(found)} {looked_for}{there}")
        return found[0]

    def unlike(self, found: str, line: int = 0) -> Problem:
        """What was looked for and what was ``found``, by default at the recipe's method, else at its class."""
        recipe = self.recipe
        looked_for = f"{recipe.class_name}.{recipe.method}"
        return Problem(
            Kind.STRUCTURE,
            f"looked for {looked_for} as in {recipe.upstream}; found {found}",
            f"{self.where}:{line or self.line}",
            "nothing was written; `rlpatch explain TARGET` shows the place that is looked for",
            looked_for=looked_for,
            found=found,
        )

    @property
    def line(self) -> int:
        """Where a reader should look: the line of the recipe's method, else of its class, else the first."""
        found = [*defined(tree(self.source), self.recipe.class_name, self.recipe.method)][:2]
        return found[-1].lineno if found else 1


def names(nodes: Iterable[cst.CSTNode]) -> Iterator[tuple[str, int]]:
    """What the statements of a module or of a class define, each name with the number of its statement."""
    for at, node in enumerate(nodes):
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            yield node.name.value, at
        elif isinstance(node, cst.SimpleStatementLine):
            assigns = (small for small in node.body if isinstance(small, cst.Assign))
            targets = (target.target for assign in assigns for target in assign.targets)
            yield from ((target.value, at) for target in targets if isinstance(target, cst.Name))


def _statements(block: cst.CSTNode) -> Iterator[tuple[cst.IndentedBlock, int, cst.CSTNode]]:
    """Every statement below ``block``, those of nested functions left out: its block, its number there, and itself."""
    for child in block.children:
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            continue
        if isinstance(block, cst.IndentedBlock) and isinstance(child, cst.BaseStatement):
            yield block, block.body.index(child), child
        if not isinstance(child, cst.SimpleStatementLine):
            yield from _statements(child)


def _value(statement: cst.CSTNode) -> cst.CSTNode:
    """What a statement computes, if it only computes it or assigns it; else the statement itself."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        if isinstance(small, cst.Expr | cst.Assign | cst.AnnAssign) and small.value is not None:
            return small.value
    return statement


def _iterable(loop: cst.CSTNode) -> str:
    """The name that a loop runs over, by itself or in an ``enumerate``; "" for anything else."""
    if not isinstance(loop, cst.For):
        return ""
    over = loop.iter
    if isinstance(over, cst.Call) and isinstance(over.func, cst.Name) and over.func.value == "enumerate":
        over = over.args[0].value if over.args else over
    return over.value if isinstance(over, cst.Name) else ""


def _matches(node: cst.CSTNode, pattern: cst.CSTNode) -> bool:
    """Whether ``node`` is ``pattern``; ``...`` as only argument or body stands for any, layout does not count."""
    if isinstance(pattern, cst.Call) and [_is_ellipsis(a.value) for a in pattern.args] == [True]:
        return isinstance(node, cst.Call) and _matches(node.func, pattern.func)
    if isinstance(pattern, cst.If):
        return isinstance(node, cst.If) and _matches(node.test, pattern.test)
    if isinstance(pattern, cst.Return) and pattern.value is not None and _is_ellipsis(pattern.value):
        return isinstance(node, cst.Return)
    if type(node) is not type(pattern):
        return False
    if isinstance(node, cst.SimpleStatementLine) and isinstance(pattern, cst.SimpleStatementLine):
        # Without the search for children, which takes most of the time: each statement of a method comes by here.
        return len(node.body) == len(pattern.body) and all(map(_matches, node.body, pattern.body))
    theirs, ours = _significant(node), _significant(pattern)
    if isinstance(node, cst.Name | cst.SimpleString):
        return node.value == getattr(pattern, "value", None)
    return len(theirs) == len(ours) and all(map(_matches, theirs, ours))


def _significant(node: cst.CSTNode) -> list[cst.CSTNode]:
    layout = (
        cst.BaseParenthesizableWhitespace,
        cst.TrailingWhitespace,
        cst.EmptyLine,
        cst.LeftParen,
        cst.RightParen,
        cst.Dot,
    )
    return [child for child in node.children if not isinstance(child, layout)]


def _is_ellipsis(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Ellipsis)
