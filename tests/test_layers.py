"""Data flows one way: no import runs from a layer to one above it. docs/architecture.md shows the same layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
    ("patcher.store", "patches.switches"),
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


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its head, within a function or for types."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            found = name if name in MODULES else name.rpartition(".")[0]
            if found in MODULES:
                yield found


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
