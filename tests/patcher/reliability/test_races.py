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
from patcher.targets import patched
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
    assert (said.exit_code, "the file was replaced after rlpatch had read it" in said.stderr) == (4, True)
    assert package.rlpatch(site, "revert").exit_code == 0
    assert Picture(site) == original


@pytest.mark.parametrize("again", [False, True])
def test_a_status_that_others_overtake_calls_no_patch_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """A revert (and an apply after it) ends between the look at the store and the look at the files."""
    site = package.install(tmp_path / "site")
    assert package.rlpatch(site, *APPLY).exit_code == 0
    real = patched.PatchedRoot.states

    def overtaken(root, record):
        monkeypatch.undo()
        assert package.rlpatch(site, "revert").exit_code == 0
        states = real(root, record)
        if again:
            assert package.rlpatch(site, *APPLY).exit_code == 0
        return states

    monkeypatch.setattr(patched.PatchedRoot, "states", overtaken)
    said = package.rlpatch(site, "status", "--json")
    states = [file["state"] for patch in json.loads(said.stdout)["result"]["patches"] for file in patch["files"]]
    assert (said.exit_code, states) == (0, ["intact"] * 2 * again)


def test_a_revert_that_looked_before_the_second_file_was_replaced_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began before there was a store, and read the files while the first apply had replaced one of the two."""
    site, store, v1 = package.install(tmp_path / "site"), tmp_path / "store", tmp_path / "v1"
    original, unpatched = Picture(site), (site / V1).read_bytes()
    assert package.rlpatch(site, *APPLY).exit_code == 0
    (site / ".rlpatch").rename(store)
    (site / V1).rename(v1)
    (site / V1).write_bytes(unpatched)
    real = edits.revert

    def overtaken(root, read, records, patches, backups):
        monkeypatch.undo()
        assert [record.files for record in records] == [(V0,)]
        store.rename(site / ".rlpatch")
        v1.replace(site / V1)
        return real(root, read, records, patches, backups)

    monkeypatch.setattr(edits, "revert", overtaken)
    said = package.rlpatch(site, "revert")
    assert (said.exit_code, V1 in said.stderr, "run the command again" in said.stderr) == (4, True, True)
    assert package.rlpatch(site, "revert").exit_code == 0
    assert Picture(site) == original
