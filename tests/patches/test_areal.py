"""AReaL: each release patched and put back, and what is refused because no release has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patches.areal import recipes as areal
from tests.matrix import ends, in_releases
from tests.patcher.store.tree import picture
from tests.patches.command_line import install, run, there_and_back

pytestmark = pytest.mark.usefixtures("unwatched")

UPSTREAM = areal.UPSTREAM
NEWEST = UPSTREAM.releases[-1]
RECIPES = [recipe for recipe in UPSTREAM.recipes if recipe.stage not in ("timeline", "weight-sync")]
WINDOWS = dict.fromkeys((recipe.stage, unit) for recipe in RECIPES for unit in recipe.windows)


def short(version: str, stage: str, _unit: str) -> bool:
    """Whether the short run sees it."""
    return version in ends(UPSTREAM.releases) and stage in ("update-policy", "compute-values")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "unit" in metafunc.fixturenames:
        in_releases(metafunc, UPSTREAM, WINDOWS, short)


def test_apply_and_revert_restore_every_byte(version: str, stage: str, unit: str, tmp_path: Path) -> None:
    root = install(UPSTREAM, version, tmp_path / "site")
    there_and_back(UPSTREAM, version, stage, unit, root, tmp_path)


def test_all_stages_stand_beside_each_other(tmp_path: Path) -> None:
    root = install(UPSTREAM, NEWEST, tmp_path / "site")
    pristine, common = picture(root), ("--path", root)
    for stage in dict.fromkeys(stage for stage, _ in WINDOWS):
        run("apply", "areal", "--stage", stage, "--micro-batch", "0:2", *common)
    patches = json.loads(run("status", "--json", *common).stdout)["result"]["patches"]
    assert {file["state"] for patch in patches for file in patch["files"]} == {"intact"}
    for file in UPSTREAM.project.files:
        compile((root / file).read_bytes(), file, "exec")
    run("revert", "areal", "--stage", "compute-log-prob", *common)
    run("revert", *common)
    assert picture(root) == pristine


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("--stage", "compute-log-prob", "--mini-batch", "0:1"),
            2,
            "stage compute-log-prob of areal does not support --mini-batch",
        ),
        (("--decode", "30:60"), 2, "--decode is not available for areal: the rollout runs in"),
        (("--micro-batch", "0:1", "--strategy", "archon"), 2, "in update stages, use --mini-batch"),
    ],
)
def test_a_window_that_no_release_has_is_refused(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    root = install(UPSTREAM, NEWEST, tmp_path / "site")
    pristine = picture(root)
    assert said in run("apply", "areal", *words, "--path", root, code=code).stderr
    assert picture(root) == pristine


def test_an_engine_whose_loop_is_another_is_not_written(tmp_path: Path) -> None:
    root = install(UPSTREAM, NEWEST, tmp_path / "site")
    engine = root / "areal/engine/fsdp_engine.py"
    engine.write_text(engine.read_text().replace("in mb_list:", "in mb_list.mbs:"))
    pristine = picture(root)
    assert "0 loops over mb_list" in run("apply", "areal", "--micro-batch", "0:1", "--path", root, code=4).stderr
    assert picture(root) == pristine


def test_explain_names_the_line_of_each_window(tmp_path: Path) -> None:
    root = install(UPSTREAM, NEWEST, tmp_path / "site")
    shown = run("explain", "areal", "--path", root)
    assert "warning" not in shown.stderr
    assert "without rlpatch, areal" in shown.stdout
    assert "before the loop over mb_inputs.mbs" in shown.stdout
