"""Data flows one way: no import runs from a layer to one above it. docs/architecture.md shows the same layers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY

LAYERS: tuple[tuple[str, ...], ...] = (
    ("patcher.__main__", "patches.survey.__main__"),
    ("patcher.cli",),
    ("patcher.cluster",),
    ("patcher.commands",),
    ("patches.survey", "patcher.hook", "patcher.bundle"),
    ("patches", "patcher.plan"),
    ("patcher.request", "patcher.replacing", "patcher.rendering"),
    ("patcher.engine",),
    ("patcher.anchors",),
    ("patcher.recipe",),
    ("patcher.guards", "patcher.targets", "patcher.traces", "patcher.workers"),
    ("patcher.launches", "patcher.store", "patches.switches"),
    ("patcher", "patches.probes"),
)
"""From the top; a module belongs to the room with the longest name. Rooms of a layer do not know each other."""

# Neither is a room that others are built on: a list of names that are declared, and the number of the version.
OPEN = {"patches.projects", "patcher"}
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("patcher", "patches")
    for path in (REPOSITORY / package).rglob("*.py")
}


def place(module: str) -> tuple[int, str]:
    rooms = [(level, room) for level, layer in enumerate(LAYERS) for room in layer]
    fitting = [(level, room) for level, room in rooms if f"{module}.".startswith(f"{room}.")]
    return max(fitting, key=lambda found: len(found[1]))


def named(tree: ast.AST) -> Iterator[str]:
    """Everything that is imported in a tree, at its head, within a function or for types, ours or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(names: Iterable[str]) -> Iterator[str]:
    """The modules of ours that names are, or are in."""
    for name in names:
        found = name if name in MODULES else name.rpartition(".")[0]
        if found in MODULES:
            yield found


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports."""
    return ours(named(ast.parse(path.read_bytes())))


class Runs(ast.NodeTransformer):
    """What is run of a file: without what stands there for types alone."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def late(tree: ast.AST) -> set[str]:
    """The modules of ours that functions import when they are called."""
    functions = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for function in functions for name in ours(named(function))}


def circles(trees: Mapping[str, ast.AST]) -> list[tuple[str, str]]:
    """Imports in functions whose module leads back to the one that imports it: at the head they would be a circle."""
    direct = {module: set(ours(named(tree))) for module, tree in trees.items()}

    def leads_to(module: str, other: str) -> bool:
        seen, ahead = set[str](), [module]
        while ahead and other not in seen:
            seen.add(one := ahead.pop())
            ahead += direct.get(one, set()) - seen
        return other in seen

    return [(module, name) for module, tree in trees.items() for name in late(tree) if leads_to(name, module)]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_runs_back_up(module: str) -> None:
    level, room = place(module)
    up = [
        name
        for name in imports(MODULES[module])
        if name not in OPEN and place(name)[1] != room and place(name)[0] <= level
    ]
    assert up == []


def test_an_import_that_runs_back_up_is_found(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def f():\n    from patcher.commands import applying\n")
    (name,) = imports(tmp_path / "module.py")
    assert name == "patcher.commands.applying"
    assert place(name)[0] < place("patcher.store.lock")[0] < place("patcher.lines")[0]


def test_no_function_imports_a_module_because_its_head_would_be_a_circle() -> None:
    trees = {module: Runs().visit(ast.parse(path.read_bytes())) for module, path in MODULES.items()}
    # A `Where` carries out commands of which some are given one.
    assert {pair for pair in circles(trees) if not all(place(one)[1] == "patcher.commands" for one in pair)} == set()


def test_a_circle_is_found_that_a_function_hides() -> None:
    first = "def f():\n    from patcher.store import lock\n"
    back = "from patcher import lines\n"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from patcher import lines\n"
    for second, found in ((back, [("patcher.lines", "patcher.store.lock")]), (types, [])):
        trees = {"patcher.lines": ast.parse(first), "patcher.store.lock": Runs().visit(ast.parse(second))}
        assert circles(trees) == found


OUTSIDE = {module: path for module, path in MODULES.items() if not module.startswith("patcher.launches")}
KNOWS_NOTHING_OF = {
    "patcher.launches": ("patcher.switches", "hydra", "omegaconf"),
    "patcher.guards": ("ast", "tree_sitter", "tree_sitter_bash", "symtable", "tokenize"),
    "patcher": ("hydra._internal",),
}
"""Rooms, and what none of their modules imports: launches are not read for switches, and guards read no code."""


@pytest.mark.parametrize("room", KNOWS_NOTHING_OF)
def test_what_a_room_knows_nothing_of(room: str) -> None:
    found = [
        (module, name)
        for module, path in MODULES.items()
        for name in named(ast.parse(path.read_bytes()))
        if f"{module}.".startswith(f"{room}.")
        and f"{name}.".startswith(tuple(f"{one}." for one in KNOWS_NOTHING_OF[room]))
    ]
    assert found == []


def test_launches_have_one_door() -> None:
    past = [
        (module, name)
        for module, path in OUTSIDE.items()
        for name in imports(path)
        if name.startswith("patcher.launches.")
    ]
    assert past == []
