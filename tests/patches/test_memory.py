"""Memory windows from the command line: what goes in on each release, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from patcher.recipe import Upstream
from patches.projects import upstreams
from patches.vllm import recipes as vllm
from tests.matrix import thinned
from tests.patcher.store.tree import picture
from tests.patches.command_line import ends_of_structures, install, run, there_and_back, windows_of

NEWEST = vllm.UPSTREAM.releases[-1]
SKIPPED = ("slime", "mindspeed-rl")  # their releases need sources that tests build for them alone
UPSTREAMS = [upstream for upstream in upstreams() if upstream.project.name not in SKIPPED]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(
    "case",
    thinned(ends_of_structures(UPSTREAMS), [(vllm.UPSTREAM, NEWEST)]),
    ids=lambda case: f"{case[0].project.name}-{case[1]}",
)
def test_what_goes_in_loads_and_comes_out_again(case: tuple[Upstream, str], tmp_path: Path) -> None:
    upstream, release = case
    root = install(upstream, release, tmp_path / "site")
    for stage, unit in windows_of(upstream, release):
        there_and_back(upstream, release, stage, unit, root, tmp_path, options=("--tool", "memory"))


@pytest.mark.parametrize("words", ["--markers", "--module-ranges", "--contents cpu", "--level level0", "--l2-cache"])
def test_options_that_it_cannot_have_are_refused_before_anything_is_written(words: str, tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, NEWEST, tmp_path / "site")
    before = picture(root)
    done = run("apply", "vllm", "--decode", "30:60", "--tool", "memory", *words.split(), "--path", root, code=2)
    assert words.split()[0] in done.stderr
    assert "next: " in done.stderr
    assert picture(root) == before
