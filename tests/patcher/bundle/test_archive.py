"""The file itself: always the same, complete, with the modules as they are here, and readable for old Pythons."""

from __future__ import annotations

import ast
import os
import sys
import zipfile
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from patcher.bundle import archive
from patcher.bundle.plans import Bundle
from patcher.messages.errors import Kind, Problem
from tests.alarms import at_most

ELSEWHERE = {"git", "packaging"}
"""What is imported where it can be had, and only then."""


@pytest.fixture(scope="module")
def modules(pyz: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(pyz) as content:
        assert content.testzip() is None
        return {name: content.read(name) for name in content.namelist() if name.endswith(".py")}


def test_two_builds_of_a_bundle_are_the_same_bytes(bundle: Bundle, pyz: Path) -> None:
    assert archive.build(bundle) == archive.build(bundle) == pyz.read_bytes()
    assert pyz.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert pyz.stat().st_mode & 0o777 == 0o755
    assert len(pyz.read_bytes()) < 120_000


def test_modules_in_a_bundle_are_the_same_bytes_as_in_rlpatch(modules: dict[str, bytes]) -> None:
    for name, content in modules.items():
        path = "patcher/bundle/start.py" if name == "__main__.py" else name
        assert content == (REPOSITORY / path).read_bytes()


def test_a_bundle_leaves_out_modules_that_only_rlpatch_needs(modules: dict[str, bytes]) -> None:
    assert not {f"patcher/bundle/{name}.py" for name in ("start", "archive")} & modules.keys()
    assert "patcher/targets/originals.py" not in modules


def test_modules_in_a_bundle_import_only_each_other(modules: dict[str, bytes]) -> None:
    names = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in modules}
    for name, content in modules.items():
        tree = ast.parse(content, name, feature_version=(3, 8))
        typing = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ]
        unused = {id(node) for block in typing for node in ast.walk(block)}
        for node in (node for node in ast.walk(tree) if id(node) not in unused):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found = [inside if inside in names else node.module for inside in inner]
            strange = {one for one in found if one.partition(".")[0] not in sys.stdlib_module_names} - names
            assert {one.partition(".")[0] for one in strange} <= ELSEWHERE, name


@pytest.mark.parametrize(
    ("there", "kind", "why"),
    [
        ("folder", Kind.USAGE, "is a folder"),
        ("script", Kind.USAGE, "is not a bundle"),
        ("pipe", Kind.USAGE, "is not a bundle"),
        ("missing/patch.pyz", Kind.ENVIRONMENT, "No such file"),
    ],
)
def test_a_bundle_overwrites_no_file_that_is_not_a_bundle(tmp_path: Path, there: str, kind: Kind, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "script").write_text("#!/bin/bash\n")
    os.mkfifo(tmp_path / "pipe")
    with at_most(30), pytest.raises(Problem) as caught:
        archive.write(tmp_path / there, b"x")
    assert (caught.value.kind, "-o" in caught.value.hint) == (kind, True)
    assert why in caught.value.cause
    assert (tmp_path / "script").read_text() == "#!/bin/bash\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe", "script"]
