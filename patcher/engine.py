"""Putting the lines of a patch into a file, with LibCST and without changing a byte of what stands there."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256

import libcst as cst

from patcher import anchors, excerpt, markers
from patcher.change import PatchId
from patcher.errors import Kind, Problem
from patcher.excerpt import Excerpt
from patcher.recipe import Recipe, Site

Block = tuple[PatchId, Sequence[str]]
"""Whose lines they are, and the lines that go to the end of a class, at the left margin."""


def fingerprint(source: bytes, class_name: str, method: str) -> str:
    """A hash of ``class_name.method`` in ``source`` that ignores comments and layout.

    "" if it is not there, or if this Python cannot read the file.

    It is the same under every Python that runs rlpatch: fields that are empty are left out, because each release
    of ``ast`` adds new ones.
    """
    function = [*anchors.defined(anchors.tree(source), class_name, method)][1:]
    return sha256(_canonical(function[0]).encode()).hexdigest()[:12] if function else ""


def _canonical(value: object) -> str:
    if isinstance(value, ast.AST):
        fields = (f"{key}={_canonical(field)}" for key, field in ast.iter_fields(value) if field not in (None, []))
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return repr(value)


def insert(
    source: bytes, recipe: Recipe, blocks: Sequence[Block], tool: str, *, units: Collection[str], where: str
) -> bytes:
    """``source`` with ``blocks`` at the end of the recipe's class and a line of the last one's patch at each site.

    ``units`` are those that are counted or marked, ``where`` names the file in messages. Raises :class:`Problem`:
    STRUCTURE where the file is not what the recipe describes, saying what was looked for and what is there, and where
    it can't be reproduced to the byte.
    """
    readable(source, where)
    search, names = anchors.Search(recipe, source, where), {name for _, text in blocks for name in _defined(text)}
    tree = anchors.tree(source)  # None where the file is for a later Python than the one that runs rlpatch
    if tree and not any(name.encode() in source for name in names):
        part = excerpt.of(source, tree, recipe.class_name, [site.method for site in recipe.sites])
        with contextlib.suppress(Problem):  # what does not fit is told of the whole file, which has all names
            return _inserted(part, search, blocks, tool, units)
    return _inserted(excerpt.whole(source), search, blocks, tool, units)


def _inserted(
    part: Excerpt, search: anchors.Search, blocks: Sequence[Block], tool: str, units: Collection[str]
) -> bytes:
    """As :func:`insert`, where LibCST reads and writes ``part`` of the file."""
    recipe, source, where = search
    module, patch = parse(part.text, where), blocks[-1][0]
    defined = [(name, at) for name, at in anchors.names(module.body) if isinstance(module.body[at], cst.ClassDef)]
    index = search.only_class(defined)
    target = cst.ensure_type(module.body[index], cst.ClassDef)
    body = _block(target, search, f"class {target.name.value}")
    taken = {name for name, _ in anchors.names(body.body)}
    names = {name for _, text in blocks for name in _defined(text)}
    if clash := sorted(taken & names):
        raise search.unlike(f"{', '.join(clash)} in the class already, without rlpatch's marks")
    statements = list(body.body)
    for site in recipe.sites:
        if site.windows and {*site.windows}.isdisjoint(units):
            continue
        functions = [
            (name, at) for name, at in anchors.names(statements) if isinstance(statements[at], cst.FunctionDef)
        ]
        if site.optional and site.method not in dict(functions):
            continue
        at = search.only_method(site.method, functions)
        lines = [f"{patch.rename(line)}  {markers.tag(patch)}" for line in site.lines]
        statements[at] = _insert_lines(cst.ensure_type(statements[at], cst.FunctionDef), site, lines, search)
    # To LibCST the closing mark of an earlier patch is a comment behind the class's last statement.
    earlier = 1 + max(
        (i for i, line in enumerate(body.footer) if line.comment and markers.closes(line.comment.value)),
        default=-1,
    )
    marks = [
        cst.EmptyLine(comment=cst.Comment(text))
        for owner, _ in blocks
        for text in (markers.begin(owner, tool), markers.note(owner), markers.end(owner))
    ]
    footer = [*body.footer[:earlier], *marks, *body.footer[earlier:]]
    changed = list(module.body)
    changed[index] = target.with_changes(body=body.with_changes(body=statements, footer=footer))
    after = part.put_back(module.with_changes(body=changed).bytes)
    for owner, text in blocks:
        after = markers.seal(_filled(after, owner, text, module.default_indent), owner)
    _verify(source, after, [owner for owner, _ in blocks], where, recipe.class_name, names)
    return after


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
    if markers.strip(after, patches, where=where) != source:
        raise Problem(
            Kind.STRUCTURE,
            "LibCST does not write this file back to the byte (white space behind the last line, for example)",
            where,
            "reinstall the package, or let an editor remove the white space",
        )
    scopes = anchors.scopes(after)
    if scopes is None:
        # A target may be written for a later Python than the one that runs rlpatch: then nothing can be said.
        if anchors.scopes(source) or (anchors.tree(source) and not anchors.tree(after)):
            raise Problem(Kind.STRUCTURE, "the patched file is not valid Python", where, _REPORT)
    elif left := anchors.unbound(scopes, class_name, names):
        cause = f"the patch would not go into class {class_name}, which lacks {', '.join(sorted(left))}"
        raise Problem(Kind.STRUCTURE, cause, where, _REPORT)


_REPORT = "nothing was written; please report the file, it is one that rlpatch should take"


def readable(source: bytes, where: str) -> None:
    """Raise :class:`Problem` (STRUCTURE) where ``source`` has odd line ends, or is nested too deeply for a parser."""
    if b"\0" in source:
        raise Problem(Kind.STRUCTURE, "the file holds a NUL byte", where, "reinstall the package")
    if b"\r" in source.replace(b"\r\n", b""):
        cause = "a carriage return without a line feed, which Python and diff take for different things"
        raise Problem(Kind.STRUCTURE, cause, where, "convert the file's line ends, or reinstall the package")
    if anchors.too_deep(source):  # LibCST would take the whole process down, or not come back
        raise deep(where)


def parse(source: bytes, where: str) -> cst.Module:
    """The module of ``source``, which is :func:`readable`; :class:`Problem` (STRUCTURE) where it is not Python."""
    try:
        module = _read(source)
    except cst.ParserSyntaxError as error:
        raise Problem(
            Kind.STRUCTURE,
            f"not valid Python: {error.message}",
            f"{where}:{error.raw_line}",
            "repair or reinstall the file",
        ) from None
    except (SyntaxError, UnicodeError, LookupError, ValueError) as error:
        raise Problem(
            Kind.STRUCTURE, f"cannot be read as Python: {error}", where, "repair or reinstall the file"
        ) from None
    return module


@functools.lru_cache(maxsize=8)
def _read(source: bytes) -> cst.Module:
    # Half of what a plan costs: stages and roles that stand in one file read the same bytes. Nothing changes a tree.
    return cst.parse_module(source)


def deep(where: str) -> Problem:
    """What is said of a file that is nested deeper than Python or LibCST can follow."""
    return Problem(Kind.STRUCTURE, "its code is nested too deeply to be read", where, "write the expression in steps")


def _block(node: cst.ClassDef | cst.FunctionDef, search: anchors.Search, what: str) -> cst.IndentedBlock:
    if not isinstance(node.body, cst.IndentedBlock):
        where = f"{search.where}:{search.line}"
        raise Problem(Kind.STRUCTURE, f"{what} stands on one line", where, "reinstall the package")
    return node.body


def _insert_lines(node: cst.FunctionDef, site: Site, lines: list[str], search: anchors.Search) -> cst.FunctionDef:
    parameters = {p.name.value for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)}
    if missing := [name for name in site.parameters if name not in parameters]:
        raise search.unlike(f"{site.method} takes no parameter {', '.join(missing)}")
    spot = search.spot(site, node, _block(node, search, f"{search.recipe.class_name}.{site.method}"))
    changed = _put(spot.block, spot.at, [line.replace("{units}", spot.units) for line in lines])
    if spot.block is node.body:  # most of them, and to look through the method takes as long as to write it
        return node.with_changes(body=changed)
    return cst.ensure_type(node.deep_replace(spot.block, changed), cst.FunctionDef)


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
