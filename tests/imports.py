"""Imports of the project's modules, read from their sources."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fixtures.cache import REPOSITORY

MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("patcher", "patches")
    for path in (REPOSITORY / package).rglob("*.py")
}


class Import(NamedTuple):
    """What is imported, ours or not; ``late`` where a function does it when it is called, ``types`` for types alone."""

    name: str
    late: bool
    types: bool


def imports_in(node: ast.AST, late: bool = False, types: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, late, types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(f"{child.module}.{alias.name}", late, types) for alias in child.names)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from imports_in(child, late or inside, types or only)


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """All imports of a file."""
    return tuple(imports_in(ast.parse(path.read_bytes())))


def our_modules(imports: Iterable[Import]) -> Iterator[str]:
    """The modules of ours that are imported, or of which something is."""
    for name, _, _ in imports:
        module = name if name in MODULES else name.rpartition(".")[0]
        if module in MODULES:
            yield module
