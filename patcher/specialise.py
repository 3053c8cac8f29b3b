"""From the classes of a probe to the statements that go into a target class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst

from patcher.capture import Capture, Stage
from patcher.change import PatchId
from patcher.engine import Members
from patcher.recipe import Probe

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def specialise(probe: Probe, capture: Capture[Stage], patch: PatchId) -> Members:
    """The members that ``probe`` appends to its target class, with the user's choice and the patch's names filled in.

    What the user chose ends up as literals, whatever it holds. Raises ``KeyError`` for a class, a constant or a
    keyword that the probe does not have: a mistake in a recipe.
    """
    layers = probe.layers(capture)
    names = [*probe.parts, *probe.members, *(name for layer in layers for name in layer)]
    backend = probe.backends[capture.profiler.BACKEND] if probe.parts else None
    classes = _classes([*names, *([backend] if backend else [])], patch)
    first, *others = _flatten([classes[name] for name in probe.members], {})
    if backend is None:
        return [first, *others]
    fill = _Arguments(probe.arguments(capture))
    classes[backend] = [_statement(statement.visit(fill)) for statement in classes[backend]]
    constants = {**probe.constants, **probe.chosen(capture)}
    nested, *above = (
        list(_flatten([classes[name] for name in part], constants)) for part in ((*probe.parts, backend), *layers)
    )
    assigned = {name for layer in (nested, *above) for statement in layer for name in _assigned(statement)}
    if missing := {*constants} - assigned | fill.unused:
        raise KeyError(f"the probe has no {sorted(map(str, missing))}")
    name = cst.Name(patch.rename("_RlpatchStage"))
    inner = _class(name, probe.summary(capture), nested)
    derived = [
        # It takes the name of the one from which it derives, so that nothing else knows of it.
        _class(name, _about(classes[layer[-1]]), body).with_changes(bases=[cst.Arg(name)], leading_lines=[_BLANK])
        for layer, body in zip(layers, above, strict=True)
    ]
    return [inner, *derived, first.with_changes(leading_lines=[_BLANK]), *others]


def _class(name: cst.Name, about: str, body: Iterable[Statement]) -> cst.ClassDef:
    docstring = cst.SimpleStatementLine([cst.Expr(cst.SimpleString(f'"""{about}"""'))])
    # What the user chose comes first.
    ordered = sorted(body, key=lambda statement: isinstance(statement, cst.FunctionDef | cst.ClassDef))
    return cst.ClassDef(name, cst.IndentedBlock([docstring, *ordered]))


def _about(body: Sequence[Statement]) -> str:
    """The first line of the docstring of a part."""
    line = cst.ensure_type(body[0], cst.SimpleStatementLine)
    docstring = cst.ensure_type(cst.ensure_type(line.body[0], cst.Expr).value, cst.SimpleString)
    return str(docstring.evaluated_value).partition("\n")[0]


def _classes(names: Sequence[str], patch: PatchId) -> dict[str, Sequence[Statement]]:
    """``module.Class`` → statements of that class at the top level of ``patches/probes/<module>.py``.

    Blank lines inside methods and the comments for our linters are left out: what goes into other people's files
    is as short as it can be.
    """
    import patches.probes

    found: dict[str, Sequence[Statement]] = {}
    for module in dict.fromkeys(name.partition(".")[0] for name in names):
        text = (Path(patches.probes.__path__[0]) / f"{module}.py").read_text("utf-8")
        # Only the classes that are wanted: LibCST takes 50 µs a line.
        chunks = re.split(r"^(?=class )", text, flags=re.MULTILINE)
        wanted = "".join(chunk for chunk in chunks if f"{module}.{_class_name(chunk)}" in names)
        lean = re.sub(r"  # (noqa|type:).*", "", wanted)
        lean = re.sub(r"\n+(?=\n)", "", lean)
        for node in cst.parse_module(patch.rename(lean)).body:
            body = cst.ensure_type(node, cst.ClassDef)
            found[f"{module}.{body.name.value}"] = [_statement(inner) for inner in body.body.body]
    return found


def _class_name(chunk: str) -> str:
    match = re.match(r"class (\w+)", chunk)
    return match[1] if match else ""


def _statement(node: object) -> Statement:
    assert isinstance(node, Statement)  # noqa: S101  (a class of a probe has an indented body)
    return node


def _flatten(bodies: Iterable[Sequence[Statement]], constants: Mapping[str, object]) -> Iterator[Statement]:
    """The statements of ``bodies`` without docstrings, bare declarations and annotations, and with ``constants``."""
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, cst.FunctionDef):
            yield _plain(statement)
        elif isinstance(statement, cst.ClassDef):
            body = [_statement(inner) for inner in statement.body.body]
            first, *others = _flatten([body], {})
            inside = statement.body.with_changes(body=[first.with_changes(leading_lines=()), *others])
            yield statement.with_changes(body=inside, leading_lines=[_BLANK])
        elif isinstance(statement, cst.SimpleStatementLine) and (assign := _assignment(statement.body[0])):
            name = cst.ensure_type(assign.targets[0].target, cst.Name).value
            literal = cst.parse_expression(ascii(constants[name])) if name in constants else assign.value
            yield statement.with_changes(body=[assign.with_changes(value=literal)], leading_lines=())


def _assignment(small: object) -> cst.Assign | None:
    if isinstance(small, cst.AnnAssign) and small.value is not None:
        return cst.Assign([cst.AssignTarget(small.target)], small.value)
    return small if isinstance(small, cst.Assign) else None


def _assigned(statement: Statement) -> Iterator[str]:
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            yield cst.ensure_type(cst.ensure_type(small, cst.Assign).targets[0].target, cst.Name).value


_BLANK = cst.EmptyLine(indent=False)


def _plain(function: cst.FunctionDef) -> cst.FunctionDef:
    """``function`` without annotations, which would need imports, and with one blank line above it."""
    bare = cst.ensure_type(function.visit(_Bare()), cst.FunctionDef)
    return bare.with_changes(leading_lines=[_BLANK])


class _Bare(cst.CSTTransformer):
    """Takes annotations off a function and those within it."""

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        return updated_node.with_changes(annotation=None, equal=cst.MaybeSentinel.DEFAULT)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.Assign | cst.AnnAssign:
        return _assignment(updated_node) or updated_node

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        return updated_node.with_changes(returns=None)


class _Arguments(cst.CSTTransformer):
    """Puts the user's choice into keyword arguments."""

    def __init__(self, arguments: Mapping[tuple[str, str], str]) -> None:
        super().__init__()
        self.arguments = arguments
        self.unused = set(arguments)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        function = getattr(updated_node.func, "attr", updated_node.func)
        args = list(updated_node.args)
        for position, arg in enumerate(args):
            key = (getattr(function, "value", ""), arg.keyword.value if arg.keyword else "")
            if key in self.arguments:
                args[position] = arg.with_changes(value=cst.parse_expression(self.arguments[key]))
                self.unused.discard(key)
        return updated_node.with_changes(args=args)
