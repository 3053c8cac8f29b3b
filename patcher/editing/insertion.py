"""Putting the lines of a patch into a file, with LibCST and without changing a byte of what stands there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import libcst as cst

from patcher.changes import lines as lines_of
from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.editing import source as sources
from patcher.editing.anchors import AnchorSearch, Statement, iterable
from patcher.editing.source import Function, Piece
from patcher.messages import Kind, Problem, Text
from patcher.recipe import Insertion, Recipe

Block = tuple[PatchId, Sequence[str]]
"""Whose lines they are, and the lines that go to the end of a class, at the left margin."""


def insert(
    source: bytes, recipe: Recipe, blocks: Sequence[Block], tool: str, *, units: Collection[str], where: str
) -> bytes:
    """Return `source` with `blocks` at the end of the recipe's class or module, and with the lines that it inserts.

    A block is a patch and its lines. The inserted lines are marked as lines of the last block's patch. `tool` is the
    version of rlpatch for the marks, `units` are the kinds of step that are counted or marked, `where` names the file
    in messages. Raises Problem (STRUCTURE) if the file does not fit the recipe, cannot be parsed, already has a name
    that a block defines, or could not be restored byte for byte.
    """
    search = AnchorSearch(recipe, sources.read(source, where))
    target, patch = search.only_owner(), blocks[-1][0]
    new_names = {name for _, text in blocks for name in _defined_names(text)}
    if clash := sorted(new_names.intersection(sources.defined_names(target))):
        present = ", ".join(clash)
        if recipe.class_name:
            raise search.mismatch(
                Text("names that the class already defines outside of the lines marked by rlpatch: {names}", present)
            )
        raise search.mismatch(
            Text("names that the file already defines outside of the lines marked by rlpatch: {names}", present)
        )
    methods = _insertions_by_method(search, units)
    if recipe.insertions and not methods:
        raise search.mismatch(
            Text("no method {method}", ", ".join(dict.fromkeys(insertion.method for insertion in recipe.insertions)))
        )
    block = [
        line
        for owner, text in blocks
        for line in (markers.begin(owner, tool), markers.note(owner), *text, markers.end(owner))
    ]
    *inner, outermost = _passes(methods) or [[]]
    changing = search
    for names in inner:
        pieces = [_method_with(name, methods[name], patch, changing) for name in names]
        text = changing.file.with_edits(pieces, changing.only_owner(), ())
        changing = changing._replace(file=sources.read(text, where))
    pieces = [_method_with(name, methods[name], patch, changing) for name in outermost]
    after = changing.file.with_edits(pieces, changing.only_owner(), block)
    for owner, _ in blocks:
        after = markers.seal(after, owner)
    _verify(search, after, [owner for owner, _ in blocks], new_names)
    return after


def _insertions_by_method(search: AnchorSearch, units: Collection[str]) -> dict[str, list[Insertion]]:
    """Return the recipe's insertions by the method that they go into.

    Insertions for kinds of step that are not in `units` are left out. So are optional ones, unless the class has their
    method with the parameters that they need.
    """
    by_method: dict[str, list[Insertion]] = {}
    for insertion in search.recipe.insertions:
        counted = not insertion.windows or not {*insertion.windows}.isdisjoint(units)
        there = not insertion.optional or any(
            _parameters(node).issuperset(insertion.parameters) for node in search.methods(insertion.method)
        )
        if counted and there:
            by_method.setdefault(insertion.method, []).append(insertion)
    return by_method


def _passes(methods: Collection[str]) -> list[list[str]]:
    """Return the dotted method names in groups to change one after the other, the most deeply nested first."""
    depths = {name: sum(name.startswith(f"{other}.") for other in methods) for name in methods}
    return [[name for name in methods if depths[name] == depth] for depth in sorted({*depths.values()}, reverse=True)]


def _parameters(node: Function) -> set[str]:
    return {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def _defined_names(lines: Sequence[str]) -> Iterator[str]:
    """Yield the names that unindented `lines` define in a class."""
    matches = (re.match(r"(?:class|def) (\w+)|(\w+) = ", line) for line in lines)
    return (match[1] or match[2] for match in matches if match)


def _method_with(name: str, insertions: Sequence[Insertion], patch: PatchId, search: AnchorSearch) -> Piece:
    """Return the piece that puts `insertions`, with the marks of `patch`, into the method `name`: all its lines anew.

    Raises Problem (STRUCTURE) if there is not exactly one such method, if LibCST cannot parse it, or if a parameter or
    the place of an insertion is missing.
    """
    file, node = search.file, search.only_method(name)
    first, end = sources.first_line(node) - 1, node.end_lineno or 0
    parameters = _parameters(node)
    within = file.lines[first][:1].isspace()
    head = b"class _:" + file.line_end(first) if within else b""
    try:
        module = cst.parse_module(b"".join([head, *file.lines[first:end]]).decode())
    except cst.ParserSyntaxError as error:
        cause = Text("LibCST cannot parse {method}: {error}", method=name, error=error.message)
        place = f"{file.where}:{first + error.raw_line - 1}"
        raise Problem(Kind.STRUCTURE, cause, place, Text("repair the file, or reinstall the package")) from None
    for insertion in insertions:
        if missing := [parameter for parameter in insertion.parameters if parameter not in parameters]:
            raise search.mismatch(
                Text("{method} has no parameter {parameter}", method=name, parameter=", ".join(missing))
            )
        body = cst.ensure_type(module.body[0], cst.ClassDef).body if within else module
        at = search.only_statement(insertion, cst.ensure_type(body.body[0], cst.FunctionDef))
        texts = (patch.rename(line).replace("{units}", iterable(at)) for line in insertion.lines)
        module = module.visit(_Lines(at, [f"{text}  {markers.tag(patch)}" for text in texts]))
    return Piece(first, end, lines_of.split(module.code.encode())[within:])


class _Lines(cst.CSTTransformer):
    """LibCST transformer that puts the first of `lines` before the statement `at`, and a second one after it."""

    def __init__(self, at: Statement, lines: Sequence[str]) -> None:
        super().__init__()
        self.at = at
        self.line_before, *self.lines_after = map(cst.parse_statement, lines)

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Tell whether `node` may contain statements that begin a line; skipping all others saves most of the time."""
        # By its fields: to tell whether a node is an expression costs LibCST more than to visit it.
        has_statements = hasattr(node, "body") or isinstance(node, cst.Match)
        return has_statements and not isinstance(node, cst.SimpleStatementLine)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        """Return `updated_node`, with the new lines around it if it is the statement `at`.

        Blank lines and comments above the statement stay above the new lines.
        """
        if original_node is not self.at:
            return updated_node
        line_before = self.line_before.with_changes(leading_lines=self.at.leading_lines)
        return cst.FlattenSentinel([line_before, updated_node.with_changes(leading_lines=[]), *self.lines_after])


def _verify(search: AnchorSearch, after: bytes, patches: Sequence[PatchId], names: Collection[str]) -> None:
    """Raise Problem (STRUCTURE) unless the patched bytes `after` compile, and give the original without marked lines.

    The recipe's class, or the module, must also define all `names` in them.
    """
    file, name = search.file, search.recipe.class_name
    hint = Text("nothing was written; please report this file: rlpatch should be able to patch it")
    cause = Text("if rlpatch removed the marked lines, the file would not be byte for byte as before")
    sources.prove(file.source, after, patches, file.where, cause, hint)
    assigned = sources.assigned_names(after, name)
    if (unbound := sorted({*names} - (assigned or set()))) or assigned is None:
        lines, place = ", ".join(unbound) or Text("the inserted lines"), name or Text("the module")
        cause = Text("with {names} added to {place}, the file would not be valid Python", names=lines, place=place)
        raise Problem(Kind.STRUCTURE, cause, file.where, hint)
