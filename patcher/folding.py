"""A function of a probe as text, with what is settled in place of its names and without what that rules out.

The text is edited where ``ast`` finds it, so that it keeps its form and its comments. Annotations, blank lines and
comments for linters are left out: what goes into other people's files is as short as it can be.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

Constants = Mapping[str, object]


class Body(NamedTuple):
    """What a call of a method stands for: its ``lines``, and the code of its value ("" if it has none).

    ``parameters`` are its own names for what it is called with.
    """

    lines: tuple[str, ...]
    value: str
    parameters: tuple[str, ...] = ()


Bodies = Mapping[str, Body]

_OPERATORS: Mapping[type, Callable[..., object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.Sub: operator.sub,
}  # fmt: skip
_UNKNOWN = object()
_LEFT_OUT = "\0"
_WORDS = re.compile(r"\w+")
_WEAK = (ast.IfExp, ast.BoolOp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Lambda)


def literal(value: object) -> str:
    """``value`` as code, in ASCII and in double quotes where that can be had."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    code = ascii(value)
    return f'"{code[1:-1]}"' if code.startswith("'") and '"' not in code else code


class Folder:
    """Writes statements of ``source``: ``self.NAME`` becomes the literal in ``constants``, tests of them are decided.

    ``bodies`` are methods whose calls are written as what they stand for. ``keywords`` maps (last name of a function,
    keyword) to the code of that argument, "" to leave it out; those that are met go into ``met``.
    """

    def __init__(
        self,
        source: str,
        constants: Constants,
        bodies: Bodies | None = None,
        keywords: Mapping[tuple[str, str], str] | None = None,
        met: set[tuple[str, str]] | None = None,
    ) -> None:
        self.lines = _lines(source)
        self.constants, self.bodies, self.keywords = constants, bodies or {}, keywords or {}
        self.met = set() if met is None else met
        self.meant = {*self.constants, *self.bodies, *(keyword for _, keyword in self.keywords)}

    def block(self, statements: Sequence[ast.stmt]) -> list[str]:
        """The lines of ``statements``, the first one at the left margin; ``pass`` if nothing is left."""
        return [line for statement in self._left_of(statements) for line in self._commented(statement)] or ["pass"]

    def _left_of(self, statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that are reached, of a decided ``if`` those of the branch that is taken."""
        for statement in statements:
            decided = self._value(statement.test) if isinstance(statement, ast.If) else _UNKNOWN
            if decided is _UNKNOWN or not isinstance(statement, ast.If):
                yield statement
                last: ast.stmt | None = statement
            else:
                inner = [*self._left_of(statement.body if decided else statement.orelse)]
                yield from inner
                last = inner[-1] if inner else None
            if isinstance(last, ast.Return):
                return

    def writes(self, node: ast.stmt) -> bool:
        """Whether anything of a statement is left."""
        return bool(self._statement(node))

    def function(self, node: ast.FunctionDef) -> list[str]:
        """The lines of a definition, without its annotations."""
        arguments = ast.unparse(_bare(node.args))
        if '"' not in arguments:
            arguments = arguments.replace("'", '"')
        decorators = [f"@{self.expression(decorator)}" for decorator in node.decorator_list]
        head = f"def {node.name}({arguments}):{self._trailing(self._end_of_head(node))}"
        return [*decorators, head, *_indented(_imports_first(self.block(node.body)))]

    def body(self, node: ast.FunctionDef, most: int) -> Body | None:
        """What a call of ``node`` stands for; None where it returns in its middle, or takes more than names, or has
        more than ``most`` statements.
        """
        arguments, statements = node.args, [*self._left_of(node.body)]
        if arguments.vararg or arguments.kwarg or arguments.defaults or node.decorator_list:
            return None
        if isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
            del statements[0]  # the docstring
        if len(statements) > most:
            return None
        last = statements.pop() if isinstance(statements[-1], ast.Return) else None
        if any(isinstance(inner, ast.Return) for inner in within(statements)):
            return None
        return Body(
            tuple(self.block(statements)) if statements else (),
            self.expression(last.value) if isinstance(last, ast.Return) and last.value else "",
            tuple(argument.arg for argument in arguments.args[1:]),
        )

    def expression(self, node: ast.expr) -> str:
        """The code of an expression."""
        if (value := self._value(node)) is not _UNKNOWN:
            return literal(value)
        if isinstance(node, ast.IfExp) and (chosen := self._value(node.test)) is not _UNKNOWN:
            return self.expression(node.body if chosen else node.orelse)
        if isinstance(node, ast.BoolOp):
            left = self._left(node)
            if len(left) == 1:
                return self.expression(left[0])
            if len(left) < len(node.values):
                word = " and " if isinstance(node.op, ast.And) else " or "
                return word.join(map(self._enclosed, left))
        if isinstance(node, ast.BinOp) and (filled := self._filled(node)):
            return filled
        body = self._body(node)
        return body.value if body and not body.lines else self._spliced(node)

    def _body(self, node: ast.AST) -> Body | None:
        """What stands for ``node``, if it is a call of a method that has the same names for its arguments."""
        method, names = called(node)
        body = self.bodies.get(method)
        return body if body and body.parameters == names else None

    # --- what is known ---

    def _value(self, node: ast.AST) -> object:
        """The value of an expression that depends on constants, ``_UNKNOWN`` for any other."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return self.constants.get(node.attr, _UNKNOWN)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.IfExp) and (chosen := self._value(node.test)) is not _UNKNOWN:
            return self._value(node.body if chosen else node.orelse)
        if isinstance(node, ast.BoolOp):
            left = self._left(node)
            return self._value(left[0]) if len(left) == 1 else _UNKNOWN
        if isinstance(node, ast.Compare | ast.BinOp):
            return self._computed(node)
        return _UNKNOWN

    def _computed(self, node: ast.Compare | ast.BinOp) -> object:
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
        values = [node.value if isinstance(node, ast.Constant) else self._value(node) for node in operands]
        kind = type(node.op if isinstance(node, ast.BinOp) else node.ops[0])
        if _UNKNOWN in values or len(values) != 2 or kind not in _OPERATORS:
            return _UNKNOWN
        return _OPERATORS[kind](*values)

    def _left(self, node: ast.BoolOp) -> list[ast.expr]:
        """The operands that still decide."""
        stops = isinstance(node.op, ast.Or)
        left = []
        for operand in node.values:
            value = self._value(operand)
            if value is _UNKNOWN:
                left.append(operand)
            elif bool(value) is stops:
                return [*left, operand]
        return left or node.values[-1:]

    # --- what is written ---

    def _enclosed(self, node: ast.expr) -> str:
        """The code of an operand whose own parentheses stand outside of its text."""
        code = self._operand(node)
        return f"({code})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda) else code

    def _operand(self, node: ast.expr) -> str:
        """The code of an expression within a stronger one."""
        code, body = self.expression(node), self._body(node)
        stands_for = ast.parse(body.value, mode="eval").body if body and not body.lines else node
        return f"({code})" if isinstance(stands_for, _WEAK) and stands_for is not node else code

    def _spliced(self, node: ast.AST) -> str:
        """The text of ``node`` with the text of what is in it."""
        end = (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        plain = self._text((node.lineno, node.col_offset), end)  # type: ignore[attr-defined]
        if self.meant.isdisjoint(_WORDS.findall(plain)):  # most of the text, and it takes most of the time otherwise
            return plain
        text, at = self._until_last(node)
        text += self._text(at, end)
        return re.sub(rf"\s*\w+={_LEFT_OUT},", "", text) if _LEFT_OUT in text else text

    def _tidied(self, node: ast.stmt | ast.expr, code: str) -> str:
        """The ``code`` of a node without parentheses that it needed only as it stood in its module."""
        end = (node.end_lineno or 0, node.end_col_offset or 0)
        return code if code == self._text((node.lineno, node.col_offset), end) else _unwrapped(code)

    def _until_last(self, node: ast.AST) -> tuple[str, tuple[int, int]]:
        """The text of ``node`` up to the end of the last expression directly in it, and where that is."""
        text, at = "", (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        for child, code in sorted(self._children(node), key=lambda pair: (pair[0].lineno, pair[0].col_offset)):
            text += self._text(at, (child.lineno, child.col_offset)) + code
            at = (child.end_lineno or 0, child.end_col_offset or 0)
        return text, at

    def _children(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """The expressions directly below ``node`` and their code."""
        function = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        strong = isinstance(node, ast.Attribute | ast.Subscript | ast.BoolOp | ast.Compare | ast.BinOp | ast.UnaryOp)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword) and (key := (function, child.arg or "")) in self.keywords:
                self.met.add(key)
                yield child.value, self.keywords[key] or _LEFT_OUT
            elif isinstance(child, ast.expr):
                yield child, self._operand(child) if strong else self.expression(child)
            elif not isinstance(child, ast.stmt):
                yield from self._children(child)

    def _filled(self, node: ast.BinOp) -> str:
        """A format with those of its values in it that are literals; "" for anything else."""
        text, values = node.left, node.right
        if not (isinstance(node.op, ast.Mod) and isinstance(text, ast.Constant) and isinstance(values, ast.Tuple)):
            return ""
        parts, codes = str(text.value).split("%s"), [self.expression(value) for value in values.elts]
        known = [_text_of(code) for code in codes]
        texts = [value for value in known if value is not None]
        other_formats = "%" in "".join([*parts, *texts])
        if not texts or other_formats or len(parts) != len(codes) + 1:
            return ""
        filled, left = parts[0], []
        for part, code, value in zip(parts[1:], codes, known, strict=True):
            left += [code] if value is None else []
            filled += ("%s" if value is None else value) + part
        return f"{literal(filled)} % ({', '.join(left)}{',' * (len(left) == 1)})" if left else literal(filled)

    def _text(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        (first, left), (last, right) = start, end
        if first == last:
            return self.lines[first - 1][left:right]
        between = self.lines[first : last - 1]
        return "\n".join([self.lines[first - 1][left:], *between, self.lines[last - 1][:right]])

    def _commented(self, node: ast.stmt) -> list[str]:
        """The statement with the comments above it, none of them if nothing is left of it."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        above: list[str] = []
        while (line := self.lines[first - 2 - len(above)].strip()).startswith("#"):
            above.insert(0, line)
        lines = self._statement(node)
        return [*above, *lines] if lines else []

    def _statement(self, node: ast.stmt) -> list[str]:
        if isinstance(node, ast.FunctionDef):
            return self.function(node)
        if isinstance(node, ast.ClassDef):
            about, *members = node.body
            lines = [line for inner in members for line in ["", *self._commented(inner)]]
            return [f"class {node.name}:", *_indented([self._spliced(about), *lines])]
        if isinstance(node, ast.If):
            return self._if(node)
        if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            return self._compound(node)
        if isinstance(node, ast.AnnAssign):
            if node.value is None:
                return []
            plain = f"{self.expression(node.target)} = {self.expression(node.value)}"
            return [plain + self._trailing(node.end_lineno or 0)]
        if isinstance(node, ast.Pass):
            return []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return []  # a docstring speaks to those who change the probe
        if isinstance(node, ast.Expr | ast.Assign) and (body := self._body(node.value)) and body.lines:
            target = " = ".join(map(self.expression, node.targets)) if isinstance(node, ast.Assign) else ""
            assigned = [f"{target} = {body.value}"] if target and target != body.value else []
            return [*(line for line in body.lines if line != "pass"), *assigned]
        lines = self._tidied(node, self._spliced(node)).split("\n")
        # Lines of a statement after its first keep their distance to it.
        dedented = [lines[0], *(line[node.col_offset :] for line in lines[1:])]
        dedented[-1] += self._trailing(node.end_lineno or 0)
        return dedented

    def _if(self, node: ast.If) -> list[str]:
        if self._value(node.test) is not _UNKNOWN:
            left = [line for one in self._left_of([node]) for line in self._commented(one)]
            return left or ["pass"]
        head = f"if {self._tidied(node.test, self.expression(node.test))}:{self._trailing(self._end_of_head(node))}"
        lines = [head, *_indented(self.block(node.body))]
        if not node.orelse:
            return lines
        other = self.block(node.orelse)
        rest = [*self._left_of(node.orelse)]
        if len(rest) == 1 and isinstance(rest[0], ast.If) and other[0].startswith("if "):  # else a comment is above it
            return [*lines, f"el{other[0]}", *other[1:]]
        return lines if other == ["pass"] else [*lines, f"else:{self._above(node.orelse)}", *_indented(other)]

    def _compound(self, node: ast.For | ast.While | ast.With | ast.Try) -> list[str]:
        if isinstance(node, ast.Try):
            lines = ["try:"]
        else:
            lines = [f"{self._until_last(node)[0]}:{self._trailing(self._end_of_head(node))}"]
        lines += _indented(self.block(node.body))
        for handler in getattr(node, "handlers", ()):
            caught = "except" if handler.type is None else f"except {self.expression(handler.type)}"
            named = f"{caught} as {handler.name}" if handler.name else caught
            lines += [f"{named}:{self._trailing(handler.lineno)}", *_indented(self.block(handler.body))]
        if other := getattr(node, "orelse", ()):
            lines += [f"else:{self._above(other)}", *_indented(self.block(other))]
        if final := getattr(node, "finalbody", ()):
            lines += [f"finally:{self._above(final)}", *_indented(self.block(final))]
        return lines

    def _end_of_head(self, node: ast.stmt) -> int:
        """The line on which the colon before the body stands."""
        return self._line_above(node.body)  # type: ignore[attr-defined]

    def _above(self, statements: Sequence[ast.stmt]) -> str:
        """The comment behind the `else` or `finally` before ``statements``."""
        return self._trailing(self._line_above(statements))

    def _line_above(self, statements: Sequence[ast.stmt]) -> int:
        """The last line with code before ``statements``."""
        line = statements[0].lineno - 1
        while not (text := self.lines[line - 1].strip()) or text.startswith("#"):
            line -= 1
        return line

    def _trailing(self, line: int) -> str:
        """The comment at the end of a line, those for linters left out."""
        code, mark, comment = self.lines[line - 1].rpartition("  # ")
        if not mark or code.count('"') % 2 or comment.startswith(("noqa", "type:")):
            return ""
        return f"{mark}{comment}"


@cache
def _lines(source: str) -> list[str]:
    return source.splitlines()


def called(node: ast.AST | None) -> tuple[str, tuple[str, ...]]:
    """The method that is called on ``self``, and its arguments, if all of them are names; "" for anything else."""
    if isinstance(node, ast.Call) and not node.keywords and isinstance(node.func, ast.Attribute):
        owner, names = node.func.value, [arg.id for arg in node.args if isinstance(arg, ast.Name)]
        if isinstance(owner, ast.Name) and owner.id == "self" and len(names) == len(node.args):
            return node.func.attr, tuple(names)
    return "", ()


def within(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """``statements`` and those in them. That expressions are left out makes it ten times as fast as ``ast.walk``."""
    for statement in statements:
        yield statement
        if hasattr(statement, "body"):
            for field in ("body", "orelse", "finalbody"):
                yield from within(getattr(statement, field, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from within(handler.body)


def stored(node: ast.AST) -> set[str]:
    """The names that ``node`` assigns."""
    names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _text_of(code: str) -> str | None:
    """The text that ``code`` is a literal of."""
    tree = ast.parse(code, mode="eval").body
    return tree.value if isinstance(tree, ast.Constant) and isinstance(tree.value, str) else None


_WRAPPED = re.compile(r"(?<![\w\])])\(")
"""A parenthesis behind nothing that could be called."""


def _unwrapped(code: str) -> str:
    """``code`` without the parentheses around an expression that mean nothing."""
    if not _WRAPPED.search(code):  # most of the code, and to parse it takes most of the time otherwise
        return code
    meaning = ast.parse(code)
    lines = code.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for node in ast.walk(meaning):
        if not isinstance(node, ast.expr) or isinstance(node, ast.Tuple):
            continue
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before, behind = code[:first].rstrip(), code[last:].lstrip()
        if before.endswith("(") and behind.startswith(")"):
            plain = before[:-1] + code[first:last] + behind[1:]
            if _means(plain) == ast.dump(meaning):
                return _unwrapped(plain)
    return code


def _means(code: str) -> str:
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return ""


def _imports_first(lines: Sequence[str]) -> list[str]:
    """The lines of a body with what it imports at its head, each of them once."""
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    return [*dict.fromkeys(imports), *(line for line in lines if line not in imports)]


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Arguments without their annotations."""

    def named(one: ast.arg | None) -> ast.arg | None:
        return ast.arg(one.arg) if one else None

    return ast.arguments(
        posonlyargs=[ast.arg(one.arg) for one in arguments.posonlyargs],
        args=[ast.arg(one.arg) for one in arguments.args],
        vararg=named(arguments.vararg),
        kwonlyargs=[ast.arg(one.arg) for one in arguments.kwonlyargs],
        kw_defaults=arguments.kw_defaults,
        kwarg=named(arguments.kwarg),
        defaults=arguments.defaults,
    )


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
