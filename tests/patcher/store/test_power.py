"""The power goes at any call of a transaction: the disk has what was written to it by then, and nothing else.

The disk is a file that is mounted. What the kernel has not written to it yet is in memory, so a copy of the file, taken
before a call, is what a machine would find that lost its power there. Each copy is mounted where the disk was, and
recovered. Not seen are disks that write in another order than they are told to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patcher.store import STORE
from patcher.store import transaction as store
from patcher.store.folder import StoreFolder
from tests.matrix import CRASH, thinned
from tests.patcher.store.killer import CALLS
from tests.patcher.store.tree import PRISTINE, WORKER, applying, install, picture, reverting

TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"
MAKE = {
    "ext4": ("10M", "mkfs.ext4", "-q", "-F"),
    "xfs": ("300M", "mkfs.xfs", "-q"),
    "btrfs": ("120M", "mkfs.btrfs", "-q", "--mixed"),
}


def apply(root: Path) -> None:
    store.commit([applying(root)])


def revert(root: Path) -> None:
    store.commit([reverting(root)])


SCENES: dict[str, Callable[[Path], None]] = {"apply": apply, "revert": revert}
CASES = [f"{scene} on {kind}" for scene in SCENES for kind in MAKE]


def tool(*words: object) -> bool:
    """Whether a program of the system did it."""
    found = shutil.which(str(words[0]), path=TOOLS)
    command = [str(found), *map(str, words[1:])]
    return bool(found) and not subprocess.run(command, env={"PATH": TOOLS}, capture_output=True, check=False).returncode


@contextlib.contextmanager
def mounted(disk: Path, place: Path) -> Iterator[Path]:
    """The disk, mounted."""
    place.mkdir(exist_ok=True)
    if not tool("mount", "-o", "loop", disk, place):
        pytest.skip("no disk can be mounted here")
    try:
        yield place / "site"
    finally:
        assert tool("umount", place)


def written(disk: Path) -> bytes:
    """All that is on the disk, its holes left out."""
    held, end = bytearray(), 0
    with disk.open("rb") as stream, contextlib.suppress(OSError):  # behind the last data
        while True:
            start = os.lseek(stream.fileno(), end, os.SEEK_DATA)
            end = os.lseek(stream.fileno(), start, os.SEEK_HOLE)
            held += start.to_bytes(8, "big") + os.pread(stream.fileno(), end - start, start)
    return bytes(held)


@contextlib.contextmanager
def watched(disk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A copy of the disk for each state that it has before a call that changes something."""
    copies: list[Path] = []
    last, busy = None, False

    def look() -> None:
        nonlocal last, busy
        busy = True
        now = hash(written(disk))
        if now != last:
            last = now
            copies.append(folder / f"{len(copies)}.disk")
            assert tool("cp", "--sparse=always", disk, copies[-1])
        busy = False

    def looking(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if not busy:
                look()
            return real(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, looking(getattr(os, name)))
        yield copies
    look()


def state(root: Path) -> object:
    """What users see, without times."""
    tree = {path: (mode, held) for path, (mode, _time, held) in picture(root).items() if STORE not in path}
    return tree, [(one.patch, one.options) for one in StoreFolder(root).records()]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("case", thinned(CASES, ["apply on ext4"], CRASH))
def test_a_power_cut_leaves_before_or_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    scene, _, kind = case.partition(" on ")
    size, maker, *options = MAKE[kind]
    disk, place, copies = tmp_path / "disk", tmp_path / "place", tmp_path / "copies"
    copies.mkdir()
    if not (tool("truncate", "-s", size, disk) and tool(maker, *options, disk)):
        pytest.skip(f"there is no {maker}")
    with mounted(disk, place) as root:
        install(root)
        original = state(root)
        if scene == "revert":
            apply(root)
        os.sync()
        before = state(root)
        with watched(disk, copies, monkeypatch) as found:
            SCENES[scene](root)
        after = state(root)
    assert len(found) > 5  # else nothing was synced, or nothing was seen
    sides = []
    for copy in found:
        with mounted(copy, place) as root:
            store.recover([root])
            now = state(root)
            assert now in (before, after), copy.name
            sides.append(now == after)
            assert not StoreFolder(root).unfinished()
            if StoreFolder(root).records():
                revert(root)
            assert ((root / WORKER).read_bytes(), state(root)) == (PRISTINE, original)
        copy.unlink()
    assert sides == sorted(sides)  # what counts, counts for good
    assert set(sides) == {False, True}
    shutil.rmtree(copies)
