"""Memory windows from the command line: what goes in on each release, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from patches.vllm import recipes as vllm
from tests.patcher.store.tree import picture
from tests.patches.command_line import install, run

NEWEST = vllm.UPSTREAM.releases[-1]


@pytest.mark.parametrize("words", ["--markers", "--module-ranges", "--contents cpu", "--level level0", "--l2-cache"])
def test_options_that_it_cannot_have_are_refused_before_anything_is_written(words: str, tmp_path: Path) -> None:
    root = install(vllm.UPSTREAM, NEWEST, tmp_path / "site")
    before = picture(root)
    done = run("apply", "vllm", "--decode", "30:60", "--tool", "memory", *words.split(), "--path", root, code=2)
    assert words.split()[0] in done.stderr
    assert "next: " in done.stderr
    assert picture(root) == before
