"""From the classes of a probe to the statements that go into a target class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst

from patcher.engine import Members
from patcher.recipe import Probe

Arguments = Mapping[tuple[str, str], str]
"""(name of the function called, keyword) → the expression that the keyword gets, as code."""


def specialise(
    probe: Probe, backend: str, constants: Mapping[str, object], arguments: Arguments, summary: str
) -> Members:
    """The members that ``probe`` appends to its target class, with the user's choice filled in.

    ``constants`` replace the values of the class attributes of that name, as literals whatever they hold;
    ``arguments`` those of keywords in calls. ``summary`` becomes the docstring of the nested class. Raises
    ``KeyError`` for a constant or a keyword that the probe does not have: a mistake in a recipe, not of a user.
    """
    classes = {}
    backend_module, backend_part = probe.backends[backend]
    for module in dict.fromkeys((probe.module, backend_module)):
        classes.update(_classes(module))
    bodies = [classes[name] for name in (*probe.parts, backend_part)]
    unused = {*constants}, {*arguments}
    finish = _Finish(arguments, unused[1])
    nested = [_docstring(summary), *_flatten(bodies, {**probe.constants, **constants}, unused[0])]
    members = [_class(probe.nested, nested), *_flatten([classes[name] for name in probe.members], {}, set())]
    result = [_statement(member.visit(finish)) for member in members]
    if left := unused[0] | unused[1]:
        raise KeyError(f"the probe has no {sorted(map(str, left))}")
    return result


def _classes(module: str) -> dict[str, Sequence[cst.BaseStatement]]:
    """Name → statements of the classes at the top level of ``patches/probes/<module>.py``."""
    import patches.probes

    text = (Path(patches.probes.__path__[0]) / f"{module}.py").read_bytes()
    nodes = [node for node in cst.parse_module(text).body if isinstance(node, cst.ClassDef)]
    return {node.name.value: node.body.body for node in nodes}  # type: ignore[misc]


def _flatten(
    bodies: Sequence[Sequence[cst.BaseStatement]], constants: Mapping[str, object], unused: set[str]
) -> Iterator[cst.BaseStatement]:
    """The statements of all ``bodies`` without docstrings and bare declarations, constants replaced, each kept once."""
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, cst.FunctionDef):
            yield statement
            continue
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        if isinstance(small, cst.AnnAssign) and small.value is not None:
            small = cst.Assign([cst.AssignTarget(small.target)], small.value)
        if isinstance(small, cst.Assign):
            name = cst.ensure_type(small.targets[0].target, cst.Name).value
            if name in constants:
                small = small.with_changes(value=cst.parse_expression(ascii(constants[name])))
                unused.discard(name)
            yield cst.SimpleStatementLine([small])


def _statement(node: object) -> cst.SimpleStatementLine | cst.BaseCompoundStatement:
    assert isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)  # noqa: S101  (_Finish keeps them)
    return node


def _docstring(text: str) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Expr(cst.SimpleString(f'"""{text}"""'))])


def _class(name: str, body: Sequence[cst.BaseStatement]) -> cst.ClassDef:
    return cst.ClassDef(cst.Name(name), cst.IndentedBlock(body))


_BLANK = cst.EmptyLine(indent=False)


class _Finish(cst.CSTTransformer):
    """Puts the user's arguments in; takes out annotations, our linters' comments, and blank lines inside methods."""

    def __init__(self, arguments: Arguments, unused: set[tuple[str, str]]) -> None:
        super().__init__()
        self.arguments = arguments
        self.unused = unused

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        return updated_node.with_changes(annotation=None)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        return updated_node.with_changes(returns=None, leading_lines=[_BLANK])

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.BaseSmallStatement:
        assert updated_node.value is not None  # noqa: S101  (a bare declaration inside a method would say nothing)
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)

    def leave_EmptyLine(
        self,
        original_node: cst.EmptyLine,
        updated_node: cst.EmptyLine,
    ) -> cst.EmptyLine | cst.RemovalSentinel:
        return updated_node if updated_node.comment else cst.RemoveFromParent()

    def leave_TrailingWhitespace(
        self,
        original_node: cst.TrailingWhitespace,
        updated_node: cst.TrailingWhitespace,
    ) -> cst.TrailingWhitespace:
        comment = updated_node.comment
        if comment and comment.value.startswith(("# noqa", "# type:")):
            return cst.TrailingWhitespace(newline=updated_node.newline)
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        name = getattr(updated_node.func, "attr", updated_node.func)
        args = list(updated_node.args)
        for position, arg in enumerate(args):
            key = (getattr(name, "value", ""), arg.keyword.value if arg.keyword else "")
            if key in self.arguments:
                args[position] = arg.with_changes(value=cst.parse_expression(self.arguments[key]))
                self.unused.discard(key)
        return updated_node.with_changes(args=args)
