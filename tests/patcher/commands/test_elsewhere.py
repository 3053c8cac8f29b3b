"""Patches where no search looks: remembered, mentioned, and nothing that anything depends on."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patcher.commands import elsewhere, where
from tests.alarms import at_most
from tests.patcher.cli.conftest import _quiet_environment, release, run, site  # noqa: F401  (fixtures)

APPLY = ("apply", "vllm-ascend", "--decode", "30:60", "--path", "site")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlpatch" / "roots"


def test_what_is_patched_elsewhere_is_not_called_clean(run, site: Path, state: Path) -> None:  # noqa: F811
    run(*APPLY)
    said = run("status").stdout
    assert said.startswith("no patch was found here; looked in: ")
    assert said.endswith(f"also patched: vllm-ascend rollout in {site}\nnext: rlpatch status --everywhere\n")
    assert json.loads(run("status", "--json").stdout)["result"] == {"patches": [], "elsewhere": [str(site)]}
    listed = run("status", "--everywhere").stdout
    assert listed.startswith(f"vllm-ascend rollout on 0.11.0rc1 in {site}, since ")
    assert "also patched" not in listed
    assert f"next: rlpatch revert vllm-ascend --path {site}\n" in run("revert", "vllm-ascend", code=3).stderr
    assert "no patch was found here" in run("revert", code=3).stderr
    assert f" in {site}, since " in run("status", "--everywhere", "--path", ".").stdout
    assert f" in {site}, since " in run("status", "--everywhere", "--python", sys.executable).stdout
    assert "next: rlpatch status --everywhere" in run("status", "--everywhere", "--ray", code=2).stderr
    assert "elsewhere" not in run("status", "--path", ".").stdout + run("status", "verl").stdout
    assert run("revert", "verl").stdout.startswith("no patch of verl was found; looked in")

    run("revert", "--path", "site")
    assert "elsewhere" not in run("status").stdout + run("revert").stdout
    assert list(state.iterdir()) == []


def test_it_is_a_note_where_something_was_reverted(
    run,  # noqa: F811
    site: Path,  # noqa: F811
    tmp_path: Path,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release(tmp_path / "second")
    run(*APPLY)
    run(*APPLY[:-1], "second")
    monkeypatch.syspath_prepend(str(site))
    done = run("revert", "-v")
    assert "reverted" in done.stdout
    assert "note: other places still have patches; list them with rlpatch status --everywhere\n" in done.stderr
    assert f"{tmp_path / 'second'}\n" in done.stderr


@pytest.mark.parametrize("home", ["/dev/null", "relative", ""])
def test_a_folder_that_cannot_be_is_no_error(run, site: Path, home: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setenv("HOME", "/dev/null")
    run(*APPLY)
    assert "elsewhere" not in run("status").stdout
    assert not Path("relative").exists()
    run("revert", "--path", "site")


def test_entries_that_lead_nowhere_are_dropped(tmp_path: Path, state: Path) -> None:
    patched, reverted, gone = (tmp_path / name for name in ("patched", "reverted", "gone"))
    (patched / ".rlpatch").mkdir(parents=True)
    reverted.mkdir()
    where.remember([patched, reverted, gone, patched])
    (state / "damaged").write_bytes(b"")
    assert elsewhere.remembered_roots().roots == (patched,)
    assert {entry.read_text() for entry in state.iterdir()} == {str(patched), str(gone)}, "its disk may come back"
    for entry in state.iterdir():
        os.utime(entry, (0, time.time() - elsewhere.GONE_S - 1))
    assert elsewhere.remembered_roots().roots == (patched,)
    assert len(list(state.iterdir())) == 1


def link(entry: Path) -> None:
    entry.symlink_to(entry.parent.parent.parent / "outside")


def link_to_zeros(entry: Path) -> None:
    entry.symlink_to("/dev/zero")


def pipe(entry: Path) -> None:
    os.mkfifo(entry)


def folder(entry: Path) -> None:
    entry.mkdir()
    (entry / "x").touch()


def huge(entry: Path) -> None:
    with entry.open("wb") as file:
        file.truncate(1 << 40)


def no_path(entry: Path) -> None:
    entry.write_bytes(b"/a\0b")


def relative(entry: Path) -> None:
    entry.write_bytes(b"a/b")


ODD = [link, link_to_zeros, pipe, folder, huge, no_path, relative]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_an_odd_entry_fails_alone_and_is_named(
    odd: Callable[[Path], None],
    run,  # noqa: F811
    site: Path,  # noqa: F811
    state: Path,
) -> None:
    state.mkdir(parents=True)
    outside = state.parent.parent / "outside"
    outside.write_bytes(b"mine")
    entry = state / hashlib.sha256(os.fsencode(site)).hexdigest()[:16]
    odd(entry)
    odd(state / "0\x1b[2J\n")
    with at_most(20):
        run(*APPLY)
        listed = run("status", "--everywhere", "-v")
    assert outside.read_bytes() == b"mine"
    assert f" in {site}, since " in listed.stdout or odd is folder
    assert f"skipped {1 + (odd is folder)} unreadable entries" in listed.stderr
    assert "/rlpatch/roots/0 [2J" in " ".join(listed.stderr.split())
    assert "\x1b" not in listed.stderr


@pytest.mark.parametrize("level", [0, 1])
def test_a_folder_that_is_a_link_is_neither_written_nor_read(run, site: Path, state: Path, level: int) -> None:  # noqa: F811
    outside = site.parent / "outside"
    outside.mkdir()
    place = (state, state.parent)[level]
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    run(*APPLY)
    assert list(outside.iterdir()) == []
    listed = run("status", "--everywhere")
    assert "unreadable entries" in listed.stderr or level
    assert "since" not in listed.stdout


def test_of_many_entries_the_first_are_read(state: Path) -> None:
    state.mkdir(parents=True)
    for number in range(elsewhere.MOST + 5):
        (state / f"{number:05}").write_bytes(b"/nowhere")
    assert len(elsewhere.remembered_roots().unreadable) == 5
