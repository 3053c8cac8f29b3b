"""Putting the lines of a patch into a file, with LibCST and without changing a byte of what stands there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.editing import anchors, excerpt
from patcher.editing import source as sources
from patcher.editing.excerpt import Excerpt
from patcher.messages.errors import Kind, Problem
from patcher.recipe import Insertion, Recipe

Block = tuple[PatchId, Sequence[str]]
"""Whose lines they are, and the lines that go to the end of a class, at the left margin."""


def insert(
    source: bytes, recipe: Recipe, blocks: Sequence[Block], tool: str, *, units: Collection[str], where: str
) -> bytes:
    """``source`` with ``blocks`` at the end of the recipe's class and the last one's lines where the recipe says.

    ``units`` are those that are counted or marked, ``where`` names the file in messages. Raises :class:`Problem`:
    STRUCTURE where the file is not what the recipe describes, saying what was looked for and what is there, and where
    it can't be reproduced to the byte.
    """
    sources.readable(source, where)
    search, names = anchors.AnchorSearch(recipe, source, where), {name for _, text in blocks for name in _defined(text)}
    tree = sources.tree(source)  # None where the file is for a later Python than the one that runs rlpatch
    if tree and not any(name.encode() in source for name in names):
        part = excerpt.of(source, tree, recipe.class_name, [insertion.method for insertion in recipe.insertions])
        with contextlib.suppress(Problem):  # what does not fit is told of the whole file, which has all names
            return _inserted(part, search, blocks, tool, units)
    return _inserted(excerpt.whole(source), search, blocks, tool, units)


def _inserted(
    part: Excerpt, search: anchors.AnchorSearch, blocks: Sequence[Block], tool: str, units: Collection[str]
) -> bytes:
    """As :func:`insert`, where LibCST reads and writes ``part`` of the file."""
    recipe, source, where = search
    module, patch = sources.parse(part.text, where), blocks[-1][0]
    defined = [(name, at) for name, at in anchors.names(module.body) if isinstance(module.body[at], cst.ClassDef)]
    index = search.only_class(defined)
    target = cst.ensure_type(module.body[index], cst.ClassDef)
    body = _block(target, search, f"class {target.name.value}")
    taken = {name for name, _ in anchors.names(body.body)}
    names = {name for _, text in blocks for name in _defined(text)}
    if clash := sorted(taken & names):
        raise search.unlike(f"{', '.join(clash)} in the class already, without rlpatch's marks")
    changed_body = body.with_changes(
        body=_with_lines(body, search, patch, units), footer=_with_marks(body, [owner for owner, _ in blocks], tool)
    )
    changed = list(module.body)
    changed[index] = target.with_changes(body=changed_body)
    after = part.put_back(module.with_changes(body=changed).bytes)
    for owner, text in blocks:
        after = markers.seal(_filled(after, owner, text, module.default_indent), owner)
    _verify(source, after, [owner for owner, _ in blocks], where, recipe.class_name, names)
    return after


def _with_lines(
    body: cst.IndentedBlock, search: anchors.AnchorSearch, patch: PatchId, units: Collection[str]
) -> Sequence[cst.BaseStatement | cst.BaseSmallStatement]:
    """The statements of the class, with the lines of ``patch`` in its methods."""
    statements = list(body.body)
    for insertion in search.recipe.insertions:
        if insertion.windows and {*insertion.windows}.isdisjoint(units):
            continue
        functions = [
            (name, at) for name, at in anchors.names(statements) if isinstance(statements[at], cst.FunctionDef)
        ]
        if insertion.optional and insertion.method not in dict(functions):
            continue
        at = search.only_method(insertion.method, functions)
        lines = [f"{patch.rename(line)}  {markers.tag(patch)}" for line in insertion.lines]
        statements[at] = _insert_lines(cst.ensure_type(statements[at], cst.FunctionDef), insertion, lines, search)
    return statements


def _with_marks(body: cst.IndentedBlock, patches: Sequence[PatchId], tool: str) -> list[cst.EmptyLine]:
    """The lines behind the class's last statement, to which LibCST counts the marks of earlier patches."""
    closing = [i for i, line in enumerate(body.footer) if line.comment and markers.closes(line.comment.value)]
    earlier = closing[-1] + 1 if closing else 0
    texts = (text for one in patches for text in (markers.begin(one, tool), markers.note(one), markers.end(one)))
    marks = [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]
    return [*body.footer[:earlier], *marks, *body.footer[earlier:]]


def _defined(lines: Sequence[str]) -> Iterator[str]:
    """The names that ``lines`` give to a class. For ``ast`` to read them would take as long as the whole file does."""
    found = (re.match(r"(?:class|def) (\w+)|(\w+) = ", line) for line in lines)
    return (match[1] or match[2] for match in found if match)


def _filled(module: bytes, patch: PatchId, lines: Sequence[str], step: str) -> bytes:
    """``module`` with ``lines`` before the closing mark of ``patch``, as far to the right as that, in steps of its own.

    They are text already: for LibCST to read and write them again would cost as much as the whole file.
    """
    at = module.rindex(markers.end(patch).encode())
    start = module.rindex(b"\n", 0, at) + 1
    indent, above = module[start:at], module[: start - 1]
    newline = b"\r\n" if above.endswith(b"\r") else b"\n"
    text = b"".join(_stepped(line, indent, step) + newline for line in lines)
    return module[:start] + text + module[start:]


def _stepped(line: str, indent: bytes, step: str) -> bytes:
    bare = line.lstrip(" ")
    return indent + (step * ((len(line) - len(bare)) // 4) + bare).encode() if bare else b""


def _verify(
    source: bytes, after: bytes, patches: Sequence[PatchId], where: str, class_name: str, names: Collection[str]
) -> None:
    cause = "LibCST does not write this file back to the byte (white space behind the last line, for example)"
    sources.prove(
        source, after, patches, where, cause, "reinstall the package, or let an editor remove the white space"
    )
    scopes = sources.scopes(after)
    if scopes is None:
        # A target may be written for a later Python than the one that runs rlpatch: then nothing can be said.
        if sources.scopes(source) or (sources.tree(source) and not sources.tree(after)):
            raise Problem(Kind.STRUCTURE, "the patched file is not valid Python", where, _REPORT)
    elif left := sources.unbound(scopes, class_name, names):
        cause = f"the patch would not go into class {class_name}, which lacks {', '.join(sorted(left))}"
        raise Problem(Kind.STRUCTURE, cause, where, _REPORT)


_REPORT = "nothing was written; please report the file, it is one that rlpatch should take"


def _block(node: cst.ClassDef | cst.FunctionDef, search: anchors.AnchorSearch, what: str) -> cst.IndentedBlock:
    if not isinstance(node.body, cst.IndentedBlock):
        where = f"{search.where}:{search.line}"
        raise Problem(Kind.STRUCTURE, f"{what} stands on one line", where, "reinstall the package")
    return node.body


def _insert_lines(
    node: cst.FunctionDef, insertion: Insertion, lines: list[str], search: anchors.AnchorSearch
) -> cst.FunctionDef:
    parameters = {p.name.value for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)}
    if missing := [name for name in insertion.parameters if name not in parameters]:
        raise search.unlike(f"{insertion.method} takes no parameter {', '.join(missing)}")
    point = search.point(insertion, node, _block(node, search, f"{search.recipe.class_name}.{insertion.method}"))
    changed = _put(point.block, point.at, [line.replace("{units}", point.units) for line in lines])
    if point.block is node.body:  # most of them, and to look through the method takes as long as to write it
        return node.with_changes(body=changed)
    return cst.ensure_type(node.deep_replace(point.block, changed), cst.FunctionDef)


def _put(block: cst.IndentedBlock, at: int, lines: list[str]) -> cst.IndentedBlock:
    """``block`` with the first of ``lines`` in front of its statement ``at``, and the second one, if any, behind it."""
    ours, *behind = map(cst.parse_statement, lines)
    following = block.body[at] if at < len(block.body) else None
    statements = list(block.body)
    # Blank lines and comments above the statement stay above our line, which belongs to it.
    if isinstance(following, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        ours = ours.with_changes(leading_lines=following.leading_lines)
        statements[at] = following.with_changes(leading_lines=[])
    return block.with_changes(body=[*statements[:at], ours, *statements[at : at + 1], *behind, *statements[at + 1 :]])
