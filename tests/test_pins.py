"""rlpatch beside what it patches: `pip install rlpatch` moves no package that is there, be it pinned or not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from fixtures.cache import REPOSITORY
from fixtures.environments import uv
from tests.matrix import MATRIX

TARGETS = (
    *("verl==0.6.1", "verl==0.7.1", "verl==0.9.1", "vllm==0.11.0", "vllm==0.33.0", "sglang==0.5.23"),
    "vllm-ascend==0.11.0rc1",
)
# What an index may lack and rlpatch has no word in: a certifi of last week, and torch's own builds for a CPU.
ANYWAY = ("certifi", "torch==2.7.1")


@MATRIX
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_is_installed_moves(target: str, tmp_path: Path) -> None:
    anyway = ANYWAY if target.startswith("vllm-ascend") else ANYWAY[:1]
    there = resolved(tmp_path, [target], anyway=anyway)
    assert target in there
    assert len(there) > 50
    extras = ("verl",) if target.startswith("verl") else ()
    words = [str(REPOSITORY / "pyproject.toml"), *(f"--extra={extra}" for extra in extras)]
    beside = resolved(tmp_path, there, *words, anyway=anyway)
    assert there < beside
    assert "libcst" in {line.partition("==")[0] for line in beside}


def resolved(folder: Path, requirements: Iterable[str], *words: str, anyway: Iterable[str]) -> set[str]:
    """The packages and versions for ``wanted`` and ``words``, of which the index's metadata is read and nothing more."""
    (folder / "anyway").write_text("\n".join(anyway))
    platform = ("--python-version=3.11", "--python-platform=x86_64-manylinux_2_34")
    bare = ("--quiet", "--no-header", "--no-annotate", "--overrides", str(folder / "anyway"))
    done = subprocess.run(
        [str(uv()), "pip", "compile", "-", *words, *platform, *bare],
        input="\n".join(requirements),
        env={**os.environ, "UV_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
