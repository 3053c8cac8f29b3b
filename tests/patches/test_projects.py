"""Frameworks are found by their packages: a new one is one folder, and `status` does not pay for any recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from patches.projects import names, projects, upstreams
from patches.releases import Releases
from tests.matrix import MATRIX
from tests.patches.surveys import run

DECLARED = '''
"""A framework that nobody has heard of."""

from patcher.targets.target import Project
from patches.releases import Releases

RELEASES = Releases(("1.0", "1.1"))
PROJECT = Project("toy-engine", package="toy_engine", distributions=("toy-engine",), files=("toy_engine/loop.py",),
                  releases=RELEASES)
'''
RECIPES = """
from patcher.recipe import Loop, Recipe, Insertion, Structure, Upstream
from patches import training
from patches.shared_switches import MSPROF, TORCH_NPU
from patches.toy_engine import PROJECT, RELEASES
from patches.training import MICRO

LINE = '{units} = self._rlpatch_stage_units("micro-batch", {units})'
LOOP = Recipe(
    "loop",
    stage="update-policy",
    class_name="Trainer",
    method="train",
    windows=(MICRO,),
    probe=training.FOREIGN_LOOPS,
    insertions=(Insertion("train", where=Loop(("batches",)), line=LINE, why="each turn"),),
    structures=(Structure("A", RELEASES.since("1.0"), "toy_engine/loop.py", (), "one loop"),),
    why="w", how="h", upstream="u", needed_until="r",
)
UPSTREAM = Upstream(PROJECT, recipes=(LOOP,), switches=TORCH_NPU, tool="npu")
"""
LOOP = "class Trainer:\n    def train(self, batches):\n        for batch in batches:\n            step(batch)\n"


@MATRIX
def test_a_new_framework_is_one_package_and_nothing_else(copied: Path, tmp_path: Path) -> None:
    before = set(copied.rglob("*.py"))
    (copied / "patches/toy_engine").mkdir()
    (copied / "patches/toy_engine/__init__.py").write_text(DECLARED)
    (copied / "patches/toy_engine/recipes.py").write_text(RECIPES)
    assert len({*copied.rglob("*.py")} - before) == 2

    site = tmp_path / "site"
    (site / "toy_engine-1.1.dist-info").mkdir(parents=True)
    (site / "toy_engine-1.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.1\n")
    (site / "toy_engine").mkdir()
    (site / "toy_engine/__init__.py").touch()
    (site / "toy_engine/loop.py").write_text(LOOP)

    rows = json.loads(run(copied, "patcher", "list", "--json"))["result"]["targets"]
    assert [row["releases"] for row in rows if row["target"] == "toy-engine"] == [["1.0", "1.1"]]
    window = ("--micro-batch", "2:4", "--path", site)
    assert "patched toy_engine/loop.py" in run(copied, "patcher", "apply", "toy-engine==1.1", *window)
    assert "# rlpatch: toy-engine update-policy" in (site / "toy_engine/loop.py").read_text()
    assert "toy-engine update-policy on 1.1" in run(copied, "patcher", "status", "--path", site)
    assert "off CANN's msprof" in run(copied, "patcher", "check", "toy-engine", "--path", site)
    assert "one loop" in run(copied, "patcher", "explain", "toy-engine", "--path", site)
    run(copied, "patcher", "revert", "--path", site)
    assert (site / "toy_engine/loop.py").read_text() == LOOP
    assert "| toy-engine | update-policy |" in readme(copied)


def readme(folder: Path) -> str:
    run(folder, "patches.survey", "--readme")
    return (folder / "README.md").read_text()


def test_every_framework_is_found_with_its_recipes() -> None:
    names = " ".join(project.name for project in projects())
    assert names == "areal miles mindspeed-rl nemo-rl openrlhf sglang slime trl verl verl-omni vllm vllm-ascend"
    assert [upstream.project for upstream in upstreams()] == list(projects())


@pytest.mark.parametrize("project", projects(), ids=lambda project: project.name)
def test_the_releases_stand_in_their_order_and_each_has_a_recipe(project) -> None:
    versions = [Version(release) for release in project.releases]
    assert versions == sorted(set(versions))
    (upstream,) = [upstream for upstream in upstreams() if upstream.project == project]
    assert upstream.releases == project.releases


def test_who_asks_for_names_and_files_alone_loads_no_recipe() -> None:
    code = "import sys; from patches.projects import projects; projects(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [
        name for name in loaded if name.endswith((".recipes", ".switches", "patcher.recipe", "patcher.config"))
    ] == []


def test_the_names_of_the_projects_are_those_of_their_packages() -> None:
    assert names() == [project.name for project in projects()]


def test_releases_are_named_by_their_ends() -> None:
    every = Releases(("1.0", "1.1rc1", "1.1", "2.0"))
    assert every.between("1.1rc1", "1.1") == ("1.1rc1", "1.1")
    assert every.since("1.1") == ("1.1", "2.0")
    assert every.until("1.1rc1") == ("1.0", "1.1rc1")
    for lookup in (every.since, every.until, lambda release: every.between(release, "2.0")):
        with pytest.raises(ValueError, match="not in tuple"):
            lookup("1.2")


def test_who_asks_for_one_project_does_not_load_the_recipes_of_others() -> None:
    code = "import sys; from patcher.commands.finding import parse_target as parse; parse('vllm'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.endswith(".recipes")] == ["patches.vllm.recipes"]
