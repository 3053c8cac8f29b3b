"""Tests are where the name of what they test says, and no test module needs another one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from tests.imports import MODULES, imports_of

HERE = REPOSITORY / "tests"
TESTS = [path.relative_to(HERE) for path in sorted(HERE.rglob("test_*.py"))]
ROOMS = sorted({path.parent.relative_to(REPOSITORY) for path in MODULES.values()})
NAMED = re.compile(rb"^\s*(?:import|from) .*(?:\([^)]*)?\btest_", re.MULTILINE)


def other_tests(path: Path) -> set[str]:
    """The test modules that a file imports, or of which it imports something."""
    if not NAMED.search(path.read_bytes()):
        return set()  # to parse hundreds of files takes a second
    parts = {part for import_ in imports_of(path) for part in (import_.name, import_.name.rpartition(".")[0])}
    return {part for part in parts if part.startswith("tests.") and part.rpartition(".")[2].startswith("test_")}


def test_no_test_module_imports_another() -> None:
    assert {str(path): others for path in TESTS if (others := other_tests(HERE / path))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import tests.patches.test_it",
        "from tests.patches import test_it",
        "from tests.patches.test_it import one",
        "from tests.patches import (\n        test_it,\n    )",
    ],
)
def test_an_import_of_a_test_module_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"def f():\n    {line}\n")
    assert other_tests(tmp_path / "module.py") == {"tests.patches.test_it"}


def test_every_room_has_its_tests() -> None:
    """`patcher/store/` has `tests/patcher/store/test_*.py`, or all of them in `tests/patcher/test_store.py`.

    Commands are tested as they are typed: those of `patcher/commands/workers/` in `tests/patcher/cli/workers/`.
    """
    tested = {path.parent for path in TESTS} | {path.with_name(path.stem.removeprefix("test_")) for path in TESTS}
    tested |= {Path("patcher/commands") / room.name for room in tested if room.parent == Path("patcher/cli")}
    assert [str(room) for room in ROOMS if room not in tested] == []


def test_what_mirrors_nothing_says_what_it_tests() -> None:
    """A test module has the name of a file or a room beside it, or a docstring; a folder of tests likewise."""

    def documented(path: Path) -> bool:
        return bool(ast.get_docstring(ast.parse((HERE / path).read_bytes())))

    def mirrors(path: Path) -> bool:
        beside = REPOSITORY / path.with_name(path.name.removeprefix("test_"))
        return beside.is_file() or beside.with_suffix("").is_dir()

    folders = {path.parent for path in TESTS if not (REPOSITORY / path.parent).is_dir()}
    assert [str(path) for path in TESTS if not mirrors(path) and not documented(path)] == []
    assert [str(folder) for folder in folders if not documented(folder / "__init__.py")] == []
