"""A probe's source for one profile configuration: its compile-time constants as values, and of the branches that they
decide only those that are taken.

Every change is an edit of the text at a position that ``ast`` gives, so that what stays keeps its form and its
comments. Annotations, blank lines and comments for linters are left out: what goes into other people's files is as
short as it can be.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, NamedTuple

_UNKNOWN = object()
_HEAD = re.compile(r" *def \w+(\(.*\)(?: -> .*?)?):(?:  #.*)?$", re.MULTILINE)
_FOR_LINTERS = re.compile(r"  # (?:noqa|type:).*$", re.MULTILINE)
_OPERATOR = re.compile(r"\s+(?:and|or)\s+")
_OPERATOR_BEFORE = re.compile(r"\s+(?:and|or)\s+$")


def literal(value: object) -> str:
    """``value`` as code, in ASCII and in double quotes where that can be had."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    code = ascii(value)
    return f'"{code[1:-1]}"' if code.startswith("'") and '"' not in code else code


def _bare(field: Any) -> Any:
    """A field of the arguments of a function without their annotations."""
    if isinstance(field, list):
        return [_bare(one) for one in field]
    return ast.arg(field.arg) if isinstance(field, ast.arg) else field


class _Edit(NamedTuple):
    """``new`` for the characters from ``start`` to ``end``."""

    start: int
    end: int
    new: str


class _Outcome(NamedTuple):
    """Whether anything of a statement is left, and whether what follows it in its block is still reached."""

    left: bool
    goes_on: bool = True


class Specialiser(ast.NodeVisitor):
    """Rewrites nodes of ``text``, whose tree was parsed from it; ``text`` is ASCII.

    ``constants`` are the values of ``self.NAME``. ``keywords`` maps (last name of a function, keyword) to the code of
    that argument in calls, "" to leave it out: then it stands on a line of its own. Those found go into ``used``.
    ``hooks`` are methods that do nothing: a statement that calls one of them is left out.
    """

    def __init__(
        self,
        text: str,
        constants: Mapping[str, object],
        keywords: Mapping[tuple[str, str], str] | None = None,
        used: set[tuple[str, str]] | None = None,
        hooks: Collection[str] = (),
    ) -> None:
        self.text, self.lines = text, text.split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.lines)]
        self.constants, self.keywords = constants, keywords or {}
        self.used = set() if used is None else used
        self.hooks = hooks
        names = "|".join(map(re.escape, {*self.constants, *(keyword for _, keyword in self.keywords)}))
        self.mentions = re.compile(rf"\b(?:{names})\b" if names else r"(?!)").search
        self.edits: list[_Edit] = []
        self.dedent: dict[int, int] = {}

    def rewritten(self, node: ast.stmt) -> list[str]:
        """The lines of a statement of a class, the first at the left margin; none if nothing of it is left."""
        self.edits, self.dedent = [], {}
        if not self._statement(node).left:
            return []
        at, parts = self.starts[self._above(node) - 1], list[str]()
        moved = (_Edit(start, start + columns, "") for start, columns in self.dedent.items())
        for edit in sorted([*self.edits, *moved], key=lambda edit: (edit.start, -edit.end)):
            if edit.start >= at:  # else it lies in what an edit before it has removed
                parts += [self.text[at : edit.start], edit.new]
                at = edit.end
        text = "".join([*parts, self.text[at : self._end(node) + self._to_line_end(node)]])
        return [line[node.col_offset :] for line in _FOR_LINTERS.sub("", text).split("\n") if line.strip()]

    # --- positions ---

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _to_line_end(self, node: ast.stmt) -> int:
        """The length of the comment behind a statement."""
        return self.starts[node.end_lineno or 0] - 1 - self._end(node)

    def _above(self, node: ast.stmt) -> int:
        """The first line of a statement, or of the decorators and comments above it."""
        line: int = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        while self.lines[line - 2].strip().startswith("#"):
            line -= 1
        return line

    def _edit(self, start: int, end: int, new: str = "") -> None:
        self.edits.append(_Edit(start, end, new))

    def _remove(self, first: int, last: int) -> None:
        """Remove the lines ``first`` to ``last``."""
        self._edit(self.starts[first - 1], self.starts[last])

    # --- statements ---

    def _block(self, statements: Sequence[ast.stmt]) -> _Outcome:
        """Rewrite a block; where nothing of it is left, whoever has it removes it as a whole."""
        before, outcome, left = len(self.edits), _Outcome(left=False), False
        for node in statements:
            if outcome.goes_on:
                outcome = self._statement(node)
                left = left or outcome.left
            else:
                self._remove(self._above(node), node.end_lineno or 0)
        if not left:
            del self.edits[before:]
        return _Outcome(left, outcome.goes_on)

    def _statement(self, node: ast.stmt) -> _Outcome:
        if isinstance(node, ast.If) and (test := self._value(node.test)) is not _UNKNOWN:
            return self._decided(node, node.body if test else node.orelse)
        if (isinstance(node, ast.AnnAssign) and node.value is None) or self._calls_hook(node):
            self._remove(self._above(node), node.end_lineno or 0)
            return _Outcome(left=False)
        if isinstance(node, ast.If) and not node.orelse and self._is_emptied(node):
            self._remove(self._above(node), node.end_lineno or 0)
            return _Outcome(left=False)
        self.visit(node)
        return _Outcome(left=True, goes_on=not isinstance(node, ast.Return | ast.Raise))

    def _calls_hook(self, node: ast.stmt) -> bool:
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        return isinstance(called, ast.Attribute) and called.attr in self.hooks

    def _is_emptied(self, node: ast.If) -> bool:
        """Whether nothing but calls of hooks stands below an ``if``."""
        return all(map(self._calls_hook, node.body))

    def _decided(self, node: ast.If, branch: Sequence[ast.stmt]) -> _Outcome:
        """Leave only ``branch``, moved to where ``node`` begins."""
        outcome = self._block(branch)
        if not outcome.left:
            self._remove(self._above(node), node.end_lineno or 0)
            return outcome
        first, last = self._above(branch[0]), branch[-1].end_lineno or 0
        self._remove(node.lineno, first - 1)
        self._remove(last + 1, node.end_lineno or 0)
        for start in self.starts[first - 1 : last]:
            self.dedent[start] = self.dedent.get(start, 0) + branch[0].col_offset - node.col_offset
        if self._is_elif(branch):
            self._edit(self._start(branch[0]), self._start(branch[0]) + 2)
        return outcome

    def _body(self, statements: Sequence[ast.stmt]) -> None:
        """Rewrite a block that needs at least one statement."""
        if not self._block(statements).left:
            start = self.starts[self._above(statements[0]) - 1] + statements[0].col_offset
            self._edit(start, self._end(statements[-1]), "pass")

    def _is_elif(self, statements: Sequence[ast.stmt]) -> bool:
        return bool(statements) and self.text.startswith("elif", self._start(statements[0]))

    def visit_If(self, node: ast.If) -> None:
        """An ``if`` that is not decided; its ``elif`` may be."""
        self.visit(node.test)
        self._body(node.body)
        self._or_else(node.orelse, (node.body[-1].end_lineno or 0) + 1)

    def _or_else(self, statements: Sequence[ast.stmt], head: int) -> None:
        """Rewrite what stands behind a body that is not decided; ``head`` is the line of its ``else``."""
        if not self._is_elif(statements):
            if statements and not self._block(statements).left:
                self._remove(head, statements[-1].end_lineno or 0)
            return
        node = statements[0]
        assert isinstance(node, ast.If)  # noqa: S101  (it begins with "elif")
        test, last = self._value(node.test), node.body[-1].end_lineno or 0
        if test is _UNKNOWN:
            self.visit(node)
        elif test:
            self._edit(self._start(node), self._end(node.test), "else")
            self._remove(last + 1, node.end_lineno or 0)
            self._body(node.body)
        else:
            self._remove(node.lineno, last)
            self._or_else(node.orelse, last + 1)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function, without the annotations of its head, which is one line."""
        head = _HEAD.match(self.text, self.starts[node.lineno - 1])
        assert head, node.name  # noqa: S101
        arguments = ast.arguments(**{name: _bare(field) for name, field in ast.iter_fields(node.args)})
        self._edit(*head.span(1), "(" + ast.unparse(arguments).replace("'", '"') + ")")
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._body(node.body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """An assignment, without its annotation."""
        self._edit(self._end(node.target), self._end(node.annotation))
        if node.value:
            self.visit(node.value)

    def generic_visit(self, node: ast.AST) -> None:
        """The parts of any other node: expressions, and blocks of statements."""
        for _, field in ast.iter_fields(node):
            if isinstance(field, list) and field and isinstance(field[0], ast.stmt):
                self._body(field)
            else:
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        self.visit(child)

    # --- expressions ---

    def visit(self, node: ast.AST) -> None:
        """Replace an expression by its value, if that is known; else rewrite its parts."""
        if not isinstance(node, ast.expr):
            super().visit(node)
        elif self.mentions(self.text, self._start(node), self._end(node)):
            value = _UNKNOWN if isinstance(node, ast.IfExp) else self._value(node)
            if value is _UNKNOWN:
                super().visit(node)
            else:
                self._edit(*self._span(node), literal(value))

    def _value(self, node: ast.expr) -> object:
        """What Python makes of an expression of compile-time constants alone, ``_UNKNOWN`` for any other.

        ``self.NO and …`` is one, too: Python never comes to what is behind ``and``.
        """
        if not self.mentions(self.text, self._start(node), self._end(node)):
            return _UNKNOWN
        known = SimpleNamespace(**self.constants)
        try:
            code = compile(ast.Expression(node), "<probe>", "eval")
            return eval(code, {"__builtins__": {}, "self": known, "cls": known})  # noqa: S307  (our own sources)
        except (NameError, AttributeError, TypeError):
            return _UNKNOWN

    def _span(self, node: ast.expr) -> tuple[int, int]:
        """Where an expression stands, with the parentheses around it that are not those of a call."""
        start, end = self._start(node), self._end(node)
        while self.text[start - 1] == "(" and self.text[end] == ")" and not re.match(r"[\w)\]]", self.text[start - 2]):
            start, end = start - 1, end + 1
        return start, end

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Of ``a if self.NAME else b`` one of both."""
        test = self._value(node.test)
        if test is _UNKNOWN:
            return self.generic_visit(node)
        taken = node.body if test else node.orelse
        atom = isinstance(taken, ast.Attribute | ast.Call | ast.Constant | ast.List | ast.Name | ast.Tuple)
        start, end = self._span(node) if atom else (self._start(node), self._end(node))
        self._edit(start, self._start(taken))
        self._edit(self._end(taken), end)
        return self.visit(taken)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Leave out the operands that are known and decide nothing."""
        neutral = isinstance(node.op, ast.And)
        follows = False
        kept = [operand for operand in node.values if self._value(operand) is _UNKNOWN]
        if len(kept) == 1 and not isinstance(kept[0], ast.BoolOp | ast.IfExp):
            (start, end), (first, last) = (self._start(node), self._end(node)), self._span(node)
            self._edit(first, start)
            self._edit(end, last)
        for operand in node.values:
            value, (start, end) = self._value(operand), self._span(operand)
            if value is _UNKNOWN or bool(value) is not neutral:
                self.visit(operand)
                follows = True
            elif follows and (before := _OPERATOR_BEFORE.search(self.text[:start])):
                self._edit(before.start(), end)
            elif behind := _OPERATOR.match(self.text, end):
                self._edit(start, behind.end())

    def visit_Call(self, node: ast.Call) -> None:
        """Give a call the arguments of ``keywords``."""
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        for part in (node.func, *node.args):
            self.visit(part)
        for keyword in node.keywords:
            key = (function, keyword.arg or "")
            if key not in self.keywords:
                self.visit(keyword.value)
                continue
            self.used.add(key)
            if self.keywords[key]:
                self._edit(self._start(keyword.value), self._end(keyword.value), self.keywords[key])
            else:
                self._remove(keyword.lineno, keyword.value.end_lineno or 0)
