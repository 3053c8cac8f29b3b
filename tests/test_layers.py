"""Data flows one way: no import runs from a layer to one above it. docs/architecture.md shows the same layers."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.imports import MODULES, Import, imports_in, imports_of, our_modules

LAYERS: tuple[tuple[str, ...], ...] = (
    ("patcher.__main__", "patches.survey.__main__"),
    ("patcher.cli",),
    ("patcher.cluster",),
    ("patcher.commands",),
    ("patches.survey", "patcher.hook", "patcher.bundle"),
    ("patcher.commands.applied",),
    ("patches", "patcher.plan"),
    ("patcher.request", "patcher.editing"),
    ("patcher.diagnosis",),
    ("patcher.recipe", "patcher.timeline"),
    ("patcher.guards", "patcher.targets", "patcher.traces", "patcher.workers"),
    ("patcher.store", "patches.shared_switches"),
    ("patcher", "patches.probes"),
)
"""From the top; a module belongs to the room with the longest name. Rooms of a layer do not know each other."""

# Neither is a room that others are built on: a list of names that are declared, and the number of the version.
OPEN = {"patches.projects", "patcher"}


@functools.cache
def place(module: str) -> tuple[int, str]:
    rooms = [(level, room) for level, layer in enumerate(LAYERS) for room in layer]
    fitting = [(level, room) for level, room in rooms if f"{module}.".startswith(f"{room}.")]
    return max(fitting, key=lambda fit: len(fit[1]))


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, at its head, within a function or for types."""
    return our_modules(imports_of(path))


def circles(modules: Mapping[str, Iterable[Import]]) -> set[tuple[str, str]]:
    """Imports in functions whose module leads back to the one that imports it: at the head they would be a circle."""
    direct = {
        module: set(our_modules(import_ for import_ in imported if not import_.types))
        for module, imported in modules.items()
    }

    def leads_to(module: str, other: str) -> bool:
        reached, ahead = set[str](), [module]
        while ahead and other not in reached:
            reached.add(next_module := ahead.pop())
            ahead += direct.get(next_module, set()) - reached
        return other in reached

    late = {
        (module, name)
        for module, imported in modules.items()
        for name in our_modules(import_ for import_ in imported if import_.late)
    }
    return {(module, name) for module, name in late if leads_to(name, module)}


def upward(module: str) -> list[str]:
    """The imports of a module that run from its layer to one above it, or to another room of the same."""
    level, room = place(module)
    return [
        name
        for name in imports(MODULES[module])
        if name not in OPEN and place(name)[1] != room and place(name)[0] <= level
    ]


def test_no_import_runs_back_up() -> None:
    assert {module: names for module in MODULES if (names := upward(module))} == {}


def test_an_import_that_runs_back_up_is_found(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def f():\n    from patcher.commands.patching import applying\n")
    (name,) = imports(tmp_path / "module.py")
    assert name == "patcher.commands.patching.applying"
    assert place(name)[0] < place("patcher.store.folder")[0] < place("patcher.changes.lines")[0]


def test_no_function_imports_a_module_because_its_head_would_be_a_circle() -> None:
    assert circles({module: imports_of(path) for module, path in MODULES.items()}) == set()


@pytest.mark.parametrize(
    ("back", "expected"),
    [
        ("from patcher.changes import lines", {("patcher.changes.lines", "patcher.store.folder")}),
        ("def g():\n    from patcher.changes import lines", {("patcher.changes.lines", "patcher.store.folder"), ("patcher.store.folder", "patcher.changes.lines")}),
        ("if TYPE_CHECKING:\n    from patcher.changes import lines", set()),
        ("import patcher.changes.change", set()),
    ],
)  # fmt: skip
def test_a_circle_is_found_that_a_function_hides(back: str, expected: set[tuple[str, str]]) -> None:
    texts = {"patcher.changes.lines": "def f():\n    from patcher.store import folder\n", "patcher.store.folder": back}
    assert circles({module: tuple(imports_in(ast.parse(text))) for module, text in texts.items()}) == expected


KNOWS_NOTHING_OF = {
    "patcher.guards": ("ast", "symtable", "tokenize"),
    "patcher": ("hydra._internal",),
    "patcher.hook.startup": ("patcher", "patches"),
    "patcher.traces.tools.offline": ("patcher", "patches"),
}
"""Rooms, and what none of their modules imports: guards interpret no code, other interpreters run two by their text."""


@pytest.mark.parametrize("room", KNOWS_NOTHING_OF)
def test_what_a_room_knows_nothing_of(room: str) -> None:
    forbidden = [
        (module, name)
        for module, path in MODULES.items()
        for name, _, _ in imports_of(path)
        if f"{module}.".startswith(f"{room}.")
        and f"{name}.".startswith(tuple(f"{unknown}." for unknown in KNOWS_NOTHING_OF[room]))
    ]
    assert forbidden == []
