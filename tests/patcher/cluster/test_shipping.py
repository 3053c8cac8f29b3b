"""Archive that a node runs, in an environment that has neither rlpatch nor what it depends on."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from patcher.cluster import actor
from patcher.cluster.shipping import archive
from patches.projects import projects
from tests.imports import MODULES, imports_of, our_modules
from tests.patcher.cli.conftest import WORKER, release

NODE = """
import json, pickle, sys
for name in ("click", "git", "importlib.metadata", "libcst", "rich"):
    sys.modules[name] = None
sys.path[:] = [entry for entry in sys.path if entry not in ("", {repository!r})]
names = {{"__name__": "actor"}}
exec(open({actor!r}).read(), names)
node = names["NodeActor"](open({archive!r}, "rb").read(), {{"path": ({site!r},), "python": None, "origin": ("--ray",)}}, ["rlpatch", "status"])
def call(method, *arguments):
    value, problem = pickle.loads(node.answer(pickle.dumps((method, arguments))))
    if problem:
        raise problem
    return value
survey = call("survey", ["vllm-ascend"], "apply", {{"vllm-ascend": ["torch", "vllm_ascend"]}})
found = survey.requested["vllm-ascend"]
first = {{name: module.__file__ for name, module in sys.modules.items() if name.startswith(("patcher", "patches"))}}
from patcher.processes import Processes
status = call("status", [], {{"vllm-ascend": Processes()}})
print(json.dumps([first, found.target.version, found.packages, sorted(survey.files), status.lines,
                  call("check", ["vllm-ascend"]).lines[0]]))
"""


@pytest.fixture(scope="module")
def packed() -> bytes:
    return archive()


def of_another_python(packed: bytes) -> bytes:
    """The archive of a driver whose bytecode no other Python knows."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"\0\0\r\n" + old.read(name)[4:] if name.endswith(".pyc") else old.read(name))
    return changed.getvalue()


@pytest.mark.parametrize("suffix", [".pyc", ".py"])
def test_a_node_needs_nothing_but_the_archive(tmp_path: Path, packed: bytes, suffix: str) -> None:
    site = release(tmp_path / "site")
    (tmp_path / "archive").write_bytes(packed if suffix == ".pyc" else of_another_python(packed))
    code = NODE.format(
        repository=str(REPOSITORY), actor=actor.__file__, archive=str(tmp_path / "archive"), site=str(site)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    modules, version, packages, files, status, check = json.loads(done.stdout)
    assert version == "0.11.0rc1"
    assert packages == ["vllm_ascend"]
    assert str(site / WORKER) in files
    assert "no patch was found" in status[0]
    assert check == "vllm-ascend 0.11.0rc1"
    assert {Path(file).suffix for file in modules.values()} == {suffix}
    assert all(file.startswith("/proc/self/fd/") for file in modules.values())
    # All nodes may share one machine's cores: for the first answer none imports a recipe, or what planning needs.
    assert len(modules) <= 46 + len(projects()), " ".join(modules)
    assert [name for name in modules if name.endswith((".recipes", ".engine", ".plan")) or ".guards" in name] == []


def test_bytecode_lies_beside_each_source_and_is_held_against_none(packed: bytes) -> None:
    assert len(packed) < 2_200_000
    with zipfile.ZipFile(io.BytesIO(packed)) as there:
        names = there.namelist()
        sources = [name for name in names if name.endswith(".py")]
        assert sorted(names) == sorted([*sources, *(f"{name}c" for name in sources)])
        for name in sources:
            head = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + importlib.util.source_hash(there.read(name))
            assert there.read(f"{name}c")[:16] == head, name


def test_all_that_a_node_may_import_is_in_the_archive(packed: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(packed)) as there:
        sent = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in there.namelist()}
    ahead = ["patcher.cluster.node_worker", *(name for name in MODULES if name.startswith("patches."))]
    seen = set[str]()
    while ahead:
        seen.add(module := ahead.pop())
        ahead += {*our_modules(one for one in imports_of(MODULES[module]) if not one.types)} - seen
    assert seen - sent == set()
