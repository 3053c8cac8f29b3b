"""Data flows one way: no import runs from a layer to one above it. docs/architecture.md shows the same layers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures.cache import REPOSITORY

LAYERS: tuple[tuple[str, ...], ...] = (
    ("patcher.__main__", "patches.survey.__main__"),
    ("patcher.cli",),
    ("patcher.cluster",),
    ("patcher.commands",),
    ("patches.survey", "patcher.hook", "patcher.bundle"),
    ("patches", "patcher.plan"),
    ("patcher.request", "patcher.editing"),
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


class Import(NamedTuple):
    """What is imported, ours or not; ``late`` where a function does it when it is called, ``types`` for types alone."""

    name: str
    late: bool
    types: bool


def statements(node: ast.AST, late: bool = False, types: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, late, types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(f"{child.module}.{alias.name}", late, types) for alias in child.names)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from statements(child, late or inside, types or only)


@cache
def everything(path: Path) -> tuple[Import, ...]:
    """All imports of a file."""
    return tuple(statements(ast.parse(path.read_bytes())))


def ours(names: Iterable[Import]) -> Iterator[str]:
    """The modules of ours that are imported, or of which something is."""
    for name, _, _ in names:
        found = name if name in MODULES else name.rpartition(".")[0]
        if found in MODULES:
            yield found


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, at its head, within a function or for types."""
    return ours(everything(path))


def circles(modules: Mapping[str, Iterable[Import]]) -> set[tuple[str, str]]:
    """Imports in functions whose module leads back to the one that imports it: at the head they would be a circle."""
    direct = {module: set(ours(one for one in found if not one.types)) for module, found in modules.items()}

    def leads_to(module: str, other: str) -> bool:
        seen, ahead = set[str](), [module]
        while ahead and other not in seen:
            seen.add(one := ahead.pop())
            ahead += direct.get(one, set()) - seen
        return other in seen

    late = {(module, name) for module, found in modules.items() for name in ours(one for one in found if one.late)}
    return {(module, name) for module, name in late if leads_to(name, module)}


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
    assert circles({module: everything(path) for module, path in MODULES.items()}) == set()


@pytest.mark.parametrize(
    ("back", "found"),
    [
        ("from patcher import lines", {("patcher.lines", "patcher.store.lock")}),
        ("def g():\n    from patcher import lines", {("patcher.lines", "patcher.store.lock"), ("patcher.store.lock", "patcher.lines")}),
        ("if TYPE_CHECKING:\n    from patcher import lines", set()),
        ("import patcher.change", set()),
    ],
)  # fmt: skip
def test_a_circle_is_found_that_a_function_hides(back: str, found: set[tuple[str, str]]) -> None:
    texts = {"patcher.lines": "def f():\n    from patcher.store import lock\n", "patcher.store.lock": back}
    assert circles({module: tuple(statements(ast.parse(text))) for module, text in texts.items()}) == found


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
        for name, _, _ in everything(path)
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
