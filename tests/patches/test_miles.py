"""miles, the fork of slime: what slime has, in its own package. How it runs is in ``test_on_slime``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.slime import trees
from patches.miles.recipes import UPSTREAM
from patches.slime.recipes import UPSTREAM as SLIME
from tests.patches.command_line import run

MODULE = trees.model("miles")


def test_it_has_each_stage_and_window_of_slime() -> None:
    windows, of_slime = (
        {(recipe.stage, recipe.windows) for recipe in project.recipes} for project in (UPSTREAM, SLIME)
    )
    assert windows == of_slime
    files = {structure.file for recipe in UPSTREAM.recipes for structure in recipe.structures}
    assert all(file.startswith("miles/") for file in files)


@pytest.mark.parametrize("stage", ["update-policy", "compute-log-prob", "update-critic", "compute-values"])
def test_each_stage_of_training_goes_into_its_own_module(stage: str, tmp_path: Path) -> None:
    root = trees.checkout(tmp_path / "checkout", "miles")
    before = (root / MODULE).read_bytes()
    done = run("apply", "miles", "--stage", stage, "--micro-batch", "0:1", "--json", "--path", root)
    (target,) = json.loads(done.stdout)["result"]["targets"]
    assert [file["path"] for file in target["files"]] == [MODULE]
    assert b"# rlpatch: miles" in (root / MODULE).read_bytes()
    run("revert", "--path", root)
    assert (root / MODULE).read_bytes() == before
