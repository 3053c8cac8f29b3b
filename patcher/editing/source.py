"""What a file is to those who edit it: its syntax tree, the names in it, and whether it can be read at all."""

from __future__ import annotations

import ast
import functools
import symtable
import warnings
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import TypeVar

import libcst as cst

from patcher.changes import markers
from patcher.changes.change import PatchId
from patcher.messages.errors import Kind, Problem

T = TypeVar("T")
Named = Sequence[tuple[str, T]]
"""Definitions with their names, in the order of the file."""


def readable(source: bytes, where: str) -> None:
    """Raise :class:`Problem` (STRUCTURE) where ``source`` has odd line ends, or is nested too deeply for a parser."""
    if b"\0" in source:
        raise Problem(Kind.STRUCTURE, "the file holds a NUL byte", where, "reinstall the package")
    if b"\r" in source.replace(b"\r\n", b""):
        cause = "a carriage return without a line feed, which Python and diff take for different things"
        raise Problem(Kind.STRUCTURE, cause, where, "convert the file's line ends, or reinstall the package")
    if too_deep(source):  # LibCST would take the whole process down, or not come back
        raise nested_too_deeply(where)


def parse(source: bytes, where: str) -> cst.Module:
    """The module of ``source``, which is :func:`readable`; :class:`Problem` (STRUCTURE) where it is not Python."""
    try:
        module = _module(source)
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
def _module(source: bytes) -> cst.Module:
    # Half of what a plan costs: stages and roles that stand in one file read the same bytes. Nothing changes a tree.
    return cst.parse_module(source)


def nested_too_deeply(where: str) -> Problem:
    """A file that is nested deeper than Python or LibCST can follow."""
    return Problem(Kind.STRUCTURE, "its code is nested too deeply to be read", where, "write the expression in steps")


def defined(module: ast.Module | None, class_name: str, method: str) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """The class of that name in ``module``, then its method, as far as they are there."""
    found = next((node for name, node in classes(module) if name == class_name), None)
    if found:
        yield found
        yield from (node for name, node in methods(found) if name == method)


def classes(module: ast.Module | None) -> Named[ast.ClassDef]:
    """The classes at the top level of ``module``."""
    return [(node.name, node) for node in (module.body if module else ()) if isinstance(node, ast.ClassDef)]


def methods(node: ast.ClassDef) -> Named[ast.FunctionDef]:
    """The methods of a class."""
    return [(inner.name, inner) for inner in node.body if isinstance(inner, ast.FunctionDef)]


def tree(source: bytes) -> ast.Module | None:
    """The tree of ``source``, which nobody changes; None where the Python that runs rlpatch cannot read it."""
    found = _parsed(source)
    return found if isinstance(found, ast.Module) else None


def scopes(source: bytes) -> symtable.SymbolTable | None:
    """The names of ``source``, scope by scope; most of what :func:`tree` takes is to make a tree.

    None where the Python that runs rlpatch cannot compile it. That is more than :func:`tree` asks: what has a
    ``global`` behind the first use of its name, say, has a tree.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return symtable.symtable(source, "", "exec")  # type: ignore[arg-type]  # bytes may declare their encoding
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def unbound(module: symtable.SymbolTable, class_name: str, names: Iterable[str]) -> set[str]:
    """Those of ``names`` that no class of that name outside of functions and classes binds."""
    left = {*names}
    for scope in module.get_children():
        if scope.get_name() == class_name and scope.get_type() == "class":
            left -= {name for name in left.intersection(scope.get_identifiers()) if scope.lookup(name).is_assigned()}
    return left


def too_deep(source: bytes) -> bool:
    """Whether Python itself gives up on the depth of ``source``: a parser without such a limit runs out of stack."""
    found = _parsed(source)
    if isinstance(found, SyntaxError):
        return "too many" in str(found.msg)  # nested parentheses, levels of indentation, statically nested blocks
    return isinstance(found, RecursionError | MemoryError)


@functools.lru_cache(maxsize=2)
def _parsed(source: bytes) -> ast.Module | Exception:
    """The tree of ``source``, or why there is none; a file is asked for before it is patched, and for its hash."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Python finds odd in somebody else's code is not our news
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return error.with_traceback(None)


def fingerprint(source: bytes, class_name: str, method: str) -> str:
    """A hash of ``class_name.method`` in ``source`` that ignores comments and layout.

    "" if it is not there, or if this Python cannot read the file.

    It is the same under every Python that runs rlpatch: fields that are empty are left out, because each release
    of ``ast`` adds new ones.
    """
    function = [*defined(tree(source), class_name, method)][1:]
    return sha256(_canonical(function[0]).encode()).hexdigest()[:12] if function else ""


def _canonical(value: object) -> str:
    if isinstance(value, ast.AST):
        fields = (f"{key}={_canonical(field)}" for key, field in ast.iter_fields(value) if field not in (None, []))
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return repr(value)


def prove(source: bytes, after: bytes, patches: Sequence[PatchId], where: str, cause: str, hint: str) -> None:
    """Raise :class:`Problem` (STRUCTURE, of ``cause``) where the marks do not give ``source`` back to the byte."""
    if markers.strip(after, patches, where=where) != source:
        raise Problem(Kind.STRUCTURE, cause, where, hint)
