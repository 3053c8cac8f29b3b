"""slime and its fork miles: a checkout patched and put back, and what else bears its name.

They are installed from checkouts, and the package index has other projects of their names. So the tests run on
checkouts of the same shape (``fixtures/slime``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.slime import trees
from patcher.config import WHOLE
from patches.projects import upstream
from tests.matrix import thinned
from tests.patcher.store.tree import picture
from tests.patches.command_line import run, there_and_back

UPSTREAM = upstream("slime")
WINDOWS = [(recipe.stage, unit) for recipe in UPSTREAM.recipes for unit in recipe.windows if unit != WHOLE]
RELEASE = trees.PACKAGES["slime"]
MODEL = trees.model("slime")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("package", thinned([*trees.PACKAGES], ["slime"]))
@pytest.mark.parametrize("tag", thinned([None, ""], [""]), ids=["release", "main"])
@pytest.mark.parametrize("part", thinned(range(3), [0]))
def test_apply_and_revert_restore_every_byte(package: str, tag: str | None, part: int, tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", package, tag)
    warned = "rlpatch was not tested with" if tag == "" else "differs from the code that was released as"
    shape = trees.PACKAGES[package]
    assert len(WINDOWS) == 10
    for stage, unit in [*WINDOWS][part::3]:
        version = "" if tag == "" else shape
        there_and_back(upstream(package), version, stage, unit, root, tmp_path, shape=shape, warned=warned)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("stage", thinned(["timeline", "weight-sync"], ["weight-sync"]))
@pytest.mark.parametrize("package", thinned([*trees.PACKAGES], ["miles"]))
def test_apply_and_revert_of_a_whole_stage_restore_every_byte(package: str, stage: str, tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", package)
    there_and_back(upstream(package), trees.PACKAGES[package], stage, WHOLE, root, tmp_path)


def test_the_timer_is_found_where_the_newest_code_has_it(tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", "slime", "")
    (root / "slime/observability").mkdir()
    (root / "slime/utils/timer.py").rename(root / "slime/observability/timer.py")
    done = run("apply", "slime", "--timeline", "--json", "--path", root)
    (target,) = json.loads(done.stdout)["result"]["targets"]
    assert "slime/observability/timer.py" in [file["path"] for file in target["files"]]


def test_all_stages_stand_in_one_file_and_go_in_any_order(tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", "slime")
    pristine, common = picture(root), ("--path", root)
    stages = [("--stage", recipe.stage, "--micro-batch", "0:1") for recipe in UPSTREAM.recipes[:4]]
    order = random.Random(0)
    for words in order.sample(stages, len(stages)):
        run("apply", "slime", *words, *common)
    patches = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert len(patches) == len(stages)
    assert {file["state"] for patch in patches for file in patch["files"]} == {"intact"}
    compile((root / MODEL).read_bytes(), MODEL, "exec")
    for words in order.sample(stages, len(stages)):
        run("revert", "slime", *words[:2], *common)
    assert picture(root) == pristine


def _another_project(root: Path) -> tuple[int, str]:
    (root / MODEL).unlink()
    return 3, "no place to record --micro-batch windows of update-policy was found in slime"


def _another_schedule(root: Path) -> tuple[int, str]:
    model = root / MODEL
    model.write_text(model.read_text().replace("losses_reduced = forward_backward_func(", "losses_reduced = run("))
    return 4, "0 top-level statements"


@pytest.mark.parametrize("change", [_another_project, _another_schedule])
def test_what_has_another_structure_is_refused(change: Callable[[Path], tuple[int, str]], tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", "slime", "")
    code, said_of_it = change(root)
    pristine = picture(root)
    said = run("apply", "slime", "--micro-batch", "0:1", "--path", root, code=code)
    assert said_of_it in said.stderr
    assert picture(root) == pristine


@pytest.mark.parametrize(
    ("version", "code", "said_of_it"),
    [
        ("0.1.0", 3, "no place to record --mini-batch windows of update-policy was found in slime 0.1.0"),
        (RELEASE, 4, "model.py does not exist"),
    ],
)
def test_a_distribution_of_the_same_name_is_refused_whatever_its_version(
    version: str, code: int, said_of_it: str, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    for folder in ("slime", f"slime-{version}.dist-info"):
        (site / folder).mkdir(parents=True)
    (site / "slime/__init__.py").write_text("def squeeze(): ...\n")
    info = site / f"slime-{version}.dist-info"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: slime\nVersion: {version}\n")
    (info / "RECORD").write_text("slime/__init__.py,,\n")
    pristine = picture(site)
    said = run("apply", "slime", "--mini-batch", "0:1", "--path", site, code=code)
    assert said_of_it in said.stderr
    assert picture(site) == pristine


def test_explain_names_the_line_of_each_window(tmp_path: Path) -> None:
    said = run("explain", "slime", "--path", trees.checkout(tmp_path / "checkout", "slime")).stdout
    for stage, unit in WINDOWS:
        assert f"{stage}: " in said
        assert f"--{unit} A:B" in said
    assert "train_one_step.forward_step" in said
