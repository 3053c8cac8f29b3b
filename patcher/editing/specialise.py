"""A probe's source for one profile configuration: values in the place of its constants, without what nothing calls.

Every change is an edit of the text at a position that ``ast`` gives, so that what stays keeps its form and its
comments. Annotations, blank lines, comments for linters and docstrings of methods are left out: what goes into other
people's files is as short as it can be. A docstring goes in where ``# docstring goes in`` ends the line of the ``def``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

_HEAD = re.compile(r" *def \w+(\(.*\)(?: -> .*?)?):(?:  #.*)?$", re.MULTILINE)
_WITH_DOCSTRING = "  # docstring goes in"
_NOT_FOR_READERS = re.compile(rf"  # (?:noqa|type:).*$|{_WITH_DOCSTRING}$", re.MULTILINE)


def literal(value: object) -> str:
    """Return `value` as ASCII Python code, with double quotes if possible."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    code = ascii(value)
    return f'"{code[1:-1]}"' if code.startswith("'") and '"' not in code else code


def _without_annotations(field: Any) -> Any:
    """Return a field of `ast.arguments` without annotations."""
    if isinstance(field, list):
        return [_without_annotations(item) for item in field]
    return ast.arg(field.arg) if isinstance(field, ast.arg) else field


class _Edit(NamedTuple):
    """Replacement of the characters from `start` to `end` by `new`."""

    start: int
    end: int
    new: str


class Specialiser(ast.NodeVisitor):
    """Rewriter of nodes of `text`, ASCII source from which they were parsed.

    `constants` are the values to put in for `self.NAME`. `keywords` maps (function name, keyword) to the argument's
    code in calls, "" to remove its line; those that occur are added to `used`. Calls of `hooks`, methods that do
    nothing, are removed, with an `if`, `else` or `with` that has nothing else.
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
        self.constants, self.keywords, self.hooks = constants, keywords or {}, hooks
        self.used = set() if used is None else used
        self.edits: list[_Edit] = []

    def rewritten(self, node: ast.stmt) -> list[str]:
        """Return a statement's lines, unindented, with constants and keyword arguments put in.

        Calls of hooks (methods that do nothing) are removed; [] if nothing is left.
        """
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return []
        self.edits = []
        self.visit(node)
        position = self.starts[self._first_line(node) - 1]
        parts: list[str] = []
        for edit in sorted(self.edits, key=lambda edit: (edit.start, -edit.end)):
            if edit.start >= position:  # else it lies in what an edit before it has removed
                parts += [self.text[position : edit.start], edit.new]
                position = edit.end
        parts.append(self.text[position : self.starts[node.end_lineno or 0] - 1])
        lines = _NOT_FOR_READERS.sub("", "".join(parts)).split("\n")
        return [line[node.col_offset :] for line in lines if line.strip()]

    # --- positions ---

    def _start(self, node: ast.stmt | ast.expr) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.stmt | ast.expr) -> int:
        return self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _first_line(self, node: ast.stmt) -> int:
        """Return the number of a statement's first line, decorators and comments above it included."""
        decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
        line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        while self.lines[line - 2].strip().startswith("#"):
            line -= 1
        return line

    def _remove(self, first_line: int, last_line: int) -> None:
        self.edits.append(_Edit(self.starts[first_line - 1], self.starts[last_line], ""))

    # --- nodes ---

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Remove the annotations of a function and, unless a mark keeps it, its docstring; then visit its body."""
        head = _HEAD.match(self.text, self.starts[node.lineno - 1])
        assert head, node.name  # noqa: S101
        fields = {name: _without_annotations(field) for name, field in ast.iter_fields(node.args)}
        arguments = ast.unparse(ast.arguments(**fields)).replace("'", '"')
        self.edits.append(_Edit(*head.span(1), f"({arguments})"))
        if ast.get_docstring(node) is not None and not head[0].endswith(_WITH_DOCSTRING):
            self._remove(node.body[0].lineno, node.body[0].end_lineno or 0)
        for part in (*node.decorator_list, *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Remove the annotation of an assignment; remove a declaration without a value."""
        if node.value is None:
            self._remove(node.lineno, node.end_lineno or 0)
            return
        self.edits.append(_Edit(self._end(node.target), self._end(node.annotation), ""))
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a statement that only calls a hook (a method that does nothing)."""
        if self._calls_hook(node):
            self._remove(self._first_line(node), node.end_lineno or 0)
        else:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Remove an `if`, or its `else`, with a body that only calls hooks (methods that do nothing)."""
        if node.orelse and all(map(self._calls_hook, node.orelse)):
            self._remove((node.body[-1].end_lineno or 0) + 1, node.end_lineno or 0)
            node = ast.copy_location(ast.If(node.test, node.body, []), node)
            node.end_lineno = node.body[-1].end_lineno
        if not node.orelse and all(map(self._calls_hook, node.body)):
            self._remove(self._first_line(node), node.end_lineno or 0)
        else:
            self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        """Remove a `with` with a body that only calls hooks (methods that do nothing)."""
        if all(map(self._calls_hook, node.body)):
            self._remove(self._first_line(node), node.end_lineno or 0)
        else:
            self.generic_visit(node)

    def _calls_hook(self, node: ast.stmt) -> bool:
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        return isinstance(called, ast.Attribute) and called.attr in self.hooks

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Replace `self.NAME` or `cls.NAME` by its value, if NAME is a constant."""
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if is_own and node.attr in self.constants:
            self.edits.append(_Edit(self._start(node), self._end(node), literal(self.constants[node.attr])))
        else:
            self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        """Leave a name as it is; there is nothing below it."""

    def visit_Call(self, node: ast.Call) -> None:
        """Replace a call's keyword arguments for which `self.keywords` has other code; remove those with "" there.

        Their keys are added to `self.used`.
        """
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
                self.edits.append(_Edit(self._start(keyword.value), self._end(keyword.value), self.keywords[key]))
            else:
                self._remove(keyword.lineno, keyword.value.end_lineno or 0)
