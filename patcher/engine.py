"""Putting the lines of a patch into a file, with LibCST and without changing a byte of what stands there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from patcher import markers
from patcher.change import PatchId
from patcher.errors import Kind, Problem
from patcher.recipe import Recipe, Site

Block = tuple[PatchId, Sequence[str]]
"""Whose lines they are, and the lines that go to the end of a class, at the left margin."""


def fingerprint(source: bytes, class_name: str, method: str) -> str:
    """A hash of ``class_name.method`` in ``source`` that ignores comments and layout.

    "" if it is not there, or if this Python cannot read the file.

    It is the same under every Python that runs rlpatch: fields that are empty are left out, because each release
    of ``ast`` adds new ones.
    """
    from hashlib import sha256

    tree = _tree(source)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for function in node.body:
                if isinstance(function, ast.FunctionDef) and function.name == method:
                    return sha256(_canonical(function).encode()).hexdigest()[:12]
    return ""


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
    try:
        return _insert(source, recipe, blocks, tool, units, where)
    except Problem as problem:
        if problem.where == where:
            problem.where = f"{where}:{_line(source, recipe)}"
        raise


def _insert(
    source: bytes, recipe: Recipe, blocks: Sequence[Block], tool: str, units: Collection[str], where: str
) -> bytes:
    module, patch = parse(source, where), blocks[-1][0]
    index, target = _only_class(module, recipe, where)
    body = _block(target, where, f"class {target.name.value}")
    taken = {name for statement in body.body for name in _names(statement)}
    if clash := sorted(taken & {name for _, lines in blocks for name in _defined(lines)}):
        raise _unlike(recipe, where, f"{', '.join(clash)} in the class already, without rlpatch's marks")
    statements = list(body.body)
    for site in recipe.sites:
        wanted = not site.windows or not {*site.windows}.isdisjoint(units)
        place = _method(statements, recipe, site, where) if wanted else None
        if place is not None:
            lines = [f"{patch.rename(line)}  {markers.tag(patch)}" for line in (site.line, site.after) if line]
            statements[place] = _insert_lines(statements[place], recipe, site, lines, where)
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
    after = module.with_changes(body=changed).bytes
    for owner, lines in blocks:
        after = markers.seal(_filled(after, owner, lines, module.default_indent), owner)
    _verify(source, after, [owner for owner, _ in blocks], where)
    return after


def _defined(lines: Sequence[str]) -> Iterator[str]:
    """The names that ``lines`` give to a class."""
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


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


def _verify(source: bytes, after: bytes, patches: Sequence[PatchId], where: str) -> None:
    if markers.strip(after, patches, where=where) != source:
        raise Problem(
            Kind.STRUCTURE,
            "LibCST does not write this file back to the byte (white space behind the last line, for example)",
            where,
            "reinstall the package, or let an editor remove the white space",
        )
    # A target may be written for a later Python than the one that runs rlpatch: then nothing can be said.
    if _tree(after) is None and _tree(source) is not None:
        raise Problem(Kind.STRUCTURE, "the patched file is not valid Python", where, _REPORT)


def _tree(source: bytes) -> ast.Module | None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python finds odd in somebody else's code is not our news
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return None


_REPORT = "nothing was written; please report the file, it is one that rlpatch should take"


def parse(source: bytes, where: str) -> cst.Module:
    """The module of ``source``; :class:`Problem` (STRUCTURE) where it is not Python, or has odd line ends."""
    if b"\0" in source:
        raise Problem(Kind.STRUCTURE, "the file holds a NUL byte", where, "reinstall the package")
    if b"\r" in source.replace(b"\r\n", b""):
        cause = "a carriage return without a line feed, which Python and diff take for different things"
        raise Problem(Kind.STRUCTURE, cause, where, "convert the file's line ends, or reinstall the package")
    try:
        module = cst.parse_module(source)
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


def _line(source: bytes, recipe: Recipe) -> int:
    """Where a reader should look: the line of the recipe's method, else of its class, else the first."""
    tree = _tree(source)
    classes = (node for node in (tree.body if tree else ()) if isinstance(node, ast.ClassDef))
    found = next((node for node in classes if node.name == recipe.class_name), None)
    methods = (node for node in (found.body if found else ()) if isinstance(node, ast.FunctionDef))
    method = next((node for node in methods if node.name == recipe.method), None)
    return method.lineno if method else found.lineno if found else 1


def _only_class(module: cst.Module, recipe: Recipe, where: str) -> tuple[int, cst.ClassDef]:
    classes = [(i, node) for i, node in enumerate(module.body) if isinstance(node, cst.ClassDef)]
    found = [(i, node) for i, node in classes if node.name.value == recipe.class_name]
    if len(found) != 1:
        there = ", ".join(node.name.value for _, node in classes) or "no class at the top level"
        raise _unlike(recipe, where, f"{len(found)} classes of that name; the file has: {there}")
    return found[0]


def _block(node: cst.ClassDef | cst.FunctionDef, where: str, what: str) -> cst.IndentedBlock:
    if not isinstance(node.body, cst.IndentedBlock):
        raise Problem(Kind.STRUCTURE, f"{what} stands on one line", where, "reinstall the package")
    return node.body


def _method(statements: Sequence[cst.CSTNode], recipe: Recipe, site: Site, where: str) -> int | None:
    found = [
        i for i, node in enumerate(statements) if isinstance(node, cst.FunctionDef) and node.name.value == site.method
    ]
    if not found and site.optional:
        return None
    if len(found) != 1:
        there = ", ".join(name for node in statements for name in _names(node)) or "nothing"
        raise _unlike(recipe, where, f"{len(found)} methods {site.method}; the class has: {there}")
    return found[0]


def _insert_lines(node: cst.CSTNode, recipe: Recipe, site: Site, lines: list[str], where: str) -> cst.FunctionDef:
    assert isinstance(node, cst.FunctionDef)  # noqa: S101  (_method looked)
    parameters = {p.name.value for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)}
    if missing := [name for name in site.parameters if name not in parameters]:
        raise _unlike(recipe, where, f"{site.method} takes no parameter {', '.join(missing)}")
    block = _block(node, where, f"{recipe.class_name}.{site.method}")
    inner, at, units = _place(node, block, recipe, site, where)
    changed = _put(inner, at, [line.replace("{units}", units) for line in lines])
    return cst.ensure_type(node.deep_replace(inner, changed), cst.FunctionDef)


def _place(
    node: cst.FunctionDef, block: cst.IndentedBlock, recipe: Recipe, site: Site, where: str
) -> tuple[cst.IndentedBlock, int, str]:
    """The block and the number of the statement that ``site`` means, and the name that its loop runs over."""
    if site.loops_over:
        every = [(inner, at, _iterable(loop)) for inner, at, loop in _statements(block)]
        found = [place for place in every if place[2] in site.loops_over]
        looked = f"loops over {' or '.join(site.loops_over)} in {site.method}"
    elif site.call:
        call = cst.parse_expression(site.call)
        found = [(inner, at, "") for inner, at, statement in _statements(block) if _matches(_value(statement), call)]
        looked = f"statements of “{site.call}” alone in {site.method}"
    elif site.before:
        pattern = cst.parse_statement(site.before)
        found = [(block, at, "") for at, statement in enumerate(block.body) if _matches(statement, pattern)]
        looked = f"statements like “{site.before}” at the top level of {site.method}"
    else:
        return block, int(node.get_docstring() is not None), ""
    if len(found) != 1:
        raise _unlike(recipe, where, f"{len(found)} {looked}")
    return found[0]


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


def _statements(block: cst.CSTNode) -> Iterator[tuple[cst.IndentedBlock, int, cst.CSTNode]]:
    """Every statement below ``block``, those of nested functions left out: its block, its place there, and itself."""
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


def _unlike(recipe: Recipe, where: str, found: str) -> Problem:
    return Problem(
        Kind.STRUCTURE,
        f"looked for {recipe.class_name}.{recipe.method} as in {recipe.upstream}; found {found}",
        where,
        "nothing was written; `rlpatch explain TARGET` shows the place that is looked for",
    )


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


def _names(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        yield node.name.value
    elif isinstance(node, cst.SimpleStatementLine):
        for small in node.body:
            if isinstance(small, cst.Assign):
                yield from (t.target.value for t in small.targets if isinstance(t.target, cst.Name))
