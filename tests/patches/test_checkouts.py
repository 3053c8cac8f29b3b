"""Real checkouts of what is on no package index: every release patched and put back, with ``--checkouts DIR``.

DIR has a clone of each project under its name, such as DIR/slime; they are cloned again, and left as they are.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from patches.projects import upstreams
from tests.matrix import MATRIX
from tests.patches.command_line import there_and_back

PROJECTS = ("miles", "nemo-rl", "slime", "verl-omni")
UPSTREAMS = [upstream for upstream in upstreams() if upstream.project.name in PROJECTS]
CASES = [(upstream, release) for upstream in UPSTREAMS for release in upstream.releases]


@MATRIX
@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(("upstream", "release"), CASES, ids=lambda value: getattr(value, "project", [value])[0])
def test_every_release_is_patched_and_put_back(upstream, release: str, request, tmp_path: Path) -> None:
    folder = request.config.getoption("--checkouts")
    if folder is None:
        pytest.skip("no --checkouts")
    clone, tag = folder / upstream.project.name, f"v{release}"
    root = tmp_path / "checkout"
    git("clone", "--quiet", "--shared", "--branch", tag, clone, root)
    stages = {(recipe.stage, unit): None for recipe in upstream.recipes for unit in recipe.windows}
    for stage, unit in stages:
        of_unit = (recipe for recipe in upstream.recipes if recipe.stage == stage and unit in recipe.windows)
        if any(recipe.structure(release) for recipe in of_unit):
            there_and_back(upstream, release, stage, unit, root, tmp_path)


def git(*words: object) -> None:
    subprocess.run(["git", "-c", "advice.detachedHead=false", *map(str, words)], check=True)
