"""Eight processes at once on one target, with and without working locks, some of them killed (see ``races.py``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import faults
from patcher.changes import edits
from tests.matrix import CRASH, thinned
from tests.patcher.reliability import package
from tests.patcher.reliability.package import V0, V1, Picture

RACES = Path(__file__).with_name("races.py")
OPTIONS = (("kills",), ("lockless", "kills"), (), ("lockless",))


@pytest.mark.parametrize("options", thinned(OPTIONS, (), CRASH), ids=" ".join)
def test_every_interleaving_ends_in_a_state_that_status_describes(
    tmp_path: Path, thorough: bool, options: tuple[str, ...]
) -> None:
    rounds = 40 if thorough else 1 + ("kills" in options)
    run = subprocess.run(
        [sys.executable, str(RACES), str(tmp_path), "rlpatch", str(rounds), *options],
        env={**os.environ, "LD_PRELOAD": str(faults.library())},
        capture_output=True,
        text=True,
    )
    *losses, last = run.stdout.splitlines() or [run.stderr]
    assert losses == [], run.stdout[:2000] + run.stderr[-2000:]
    seen = json.loads(last)
    assert seen["commands"] == rounds * 32
    assert seen["waits"] + seen["conflicts"] > 0  # else nothing has met, and nothing is proven
    assert bool(seen["killed"]) is ("kills" in options)


APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--save-path", "/tmp/traces")


@pytest.mark.parametrize("file", [V0, V1])
def test_a_file_that_was_pristine_for_a_moment_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Others revert and apply again while a revert reads: it must not take out one file and forget what the other was."""
    site = package.install(tmp_path / "site")
    original = Picture(site)
    assert package.rlpatch(site, *APPLY).exit_code == 0
    real = edits.revert

    def overtaken(root, read, records, patches, kept):
        monkeypatch.undo()

        def between(path):
            if str(path) != file:
                return read(path)
            assert package.rlpatch(site, "revert").exit_code == 0
            data = read(path)
            assert package.rlpatch(site, *APPLY).exit_code == 0
            return data

        return real(root, between, records, patches, kept)

    monkeypatch.setattr(edits, "revert", overtaken)
    said = package.rlpatch(site, "revert")
    assert (said.exit_code, "a moment ago" in said.stderr) == (4, True)
    assert package.rlpatch(site, "revert").exit_code == 0
    assert Picture(site) == original
