"""Putting the lines of a patch into a file, with LibCST and without changing a byte of what stands there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from patcher import markers
from patcher.change import PatchId
from patcher.errors import Kind, Problem
from patcher.recipe import Recipe, Site

Members = Sequence[cst.SimpleStatementLine | cst.BaseCompoundStatement]


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
    source: bytes, recipe: Recipe, members: Members, patch: PatchId, tool: str, *, units: Collection[str], where: str
) -> bytes:
    """``source`` with the lines of ``patch``: ``members`` at the end of the recipe's class, a line at each site.

    ``units`` are those that are counted or marked, ``where`` names the file in messages. Raises :class:`Problem`:
    STRUCTURE where the file is not what the recipe describes, saying what was looked for and what is there, and where
    it can't be reproduced to the byte.
    """
    try:
        return _insert(source, recipe, members, patch, tool, units, where)
    except Problem as problem:
        if problem.where == where:
            problem.where = f"{where}:{_line(source, recipe)}"
        raise


def _insert(
    source: bytes, recipe: Recipe, members: Members, patch: PatchId, tool: str, units: Collection[str], where: str
) -> bytes:
    module = parse(source, where)
    index, target = _only_class(module, recipe, where)
    body = _block(target, where, f"class {target.name.value}")
    taken = {name for statement in body.body for name in _names(statement)}
    if clash := sorted(taken & {name for member in members for name in _names(member)}):
        raise _unlike(recipe, where, f"{', '.join(clash)} in the class already, without rlpatch's marks")
    statements = list(body.body)
    for site in recipe.sites:
        wanted = not site.windows or not {*site.windows}.isdisjoint(units)
        place = _method(statements, recipe, site, where) if wanted else None
        if place is not None:
            line = f"{patch.rename(site.line)}  {markers.tag(patch)}"
            statements[place] = _insert_line(statements[place], recipe, site, line, where)
    note = f"# Inserted by rlpatch; `rlpatch revert {patch.target}` takes it out again."
    opening = [cst.EmptyLine(comment=cst.Comment(text)) for text in (markers.begin(patch, tool), note)]
    closing = cst.EmptyLine(comment=cst.Comment(markers.end(patch)))
    # To LibCST the closing mark of an earlier patch is a comment behind the class's last statement.
    earlier = 1 + max(
        (i for i, line in enumerate(body.footer) if line.comment and markers.closes(line.comment.value)),
        default=-1,
    )
    opening[:0] = body.footer[:earlier]
    footer = [closing, *body.footer[earlier:]]
    statements += [members[0].with_changes(leading_lines=opening), *members[1:]]
    changed = list(module.body)
    changed[index] = target.with_changes(body=body.with_changes(body=statements, footer=footer))
    after = markers.seal(module.with_changes(body=changed).bytes, patch)
    _verify(source, after, patch, where)
    return after


def _verify(source: bytes, after: bytes, patch: PatchId, where: str) -> None:
    if markers.strip(after, [patch], where=where) != source:
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


def _insert_line(node: cst.CSTNode, recipe: Recipe, site: Site, line: str, where: str) -> cst.FunctionDef:
    assert isinstance(node, cst.FunctionDef)  # noqa: S101  (_method looked)
    parameters = {p.name.value for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)}
    if missing := [name for name in site.parameters if name not in parameters]:
        raise _unlike(recipe, where, f"{site.method} takes no parameter {', '.join(missing)}")
    block = _block(node, where, f"{recipe.class_name}.{site.method}")
    if site.loops_over:
        found = list(_loops(block, site.loops_over))
        if len(found) != 1:
            raise _unlike(recipe, where, f"{len(found)} loops over {' or '.join(site.loops_over)} in {site.method}")
        inner, at, units = found[0]
        changed = _put(inner, at, line.replace("{units}", units))
        return cst.ensure_type(node.deep_replace(inner, changed), cst.FunctionDef)
    if site.before:
        pattern = cst.parse_statement(site.before)
        places = [i for i, statement in enumerate(block.body) if _matches(statement, pattern)]
        if len(places) != 1:
            raise _unlike(
                recipe, where, f"{len(places)} statements like “{site.before}” at the top level of {site.method}"
            )
        at = places[0]
    else:
        at = int(node.get_docstring() is not None)
    return node.with_changes(body=_put(block, at, line))


def _put(block: cst.IndentedBlock, at: int, line: str) -> cst.IndentedBlock:
    """``block`` with ``line`` in front of its statement ``at``."""
    ours = cst.parse_statement(line)
    following = block.body[at] if at < len(block.body) else None
    statements = list(block.body)
    # Blank lines and comments above the statement stay above our line, which belongs to it.
    if isinstance(following, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        ours = ours.with_changes(leading_lines=following.leading_lines)
        statements[at] = following.with_changes(leading_lines=[])
    return block.with_changes(body=[*statements[:at], ours, *statements[at:]])


def _loops(node: cst.CSTNode, names: Sequence[str]) -> Iterator[tuple[cst.IndentedBlock, int, str]]:
    """Every loop over one of ``names`` below ``node``, nested functions left out: its block, place and name."""
    for child in node.children:
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            continue
        if isinstance(child, cst.For) and isinstance(node, cst.IndentedBlock) and (name := _iterable(child)) in names:
            yield node, node.body.index(child), name
        yield from _loops(child, names)


def _iterable(loop: cst.For) -> str:
    """The name that ``loop`` runs over, by itself or in an ``enumerate``; "" for anything else."""
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
