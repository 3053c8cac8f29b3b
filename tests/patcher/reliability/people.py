"""Other users, their groups and their lists: commands as they would type them, and what each of them may do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.patcher.reliability.faulty import command, forked

ACL, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NO_CONTAINER = 98
"""How a command ends where no namespace can be made."""
_CLONE_NEWUSER, _CAPABILITY_VERSION_3 = 0x10000000, 0x20080522
_TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"
_KINDS = {"u": 1, "u:": 2, "g": 4, "g:": 8, "m": 16, "o": 32}


class Person(NamedTuple):
    """A user with a first group and others."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def become(self) -> None:
        """Be this user from here on, in a process that is forked for it."""
        os.setgroups(self.groups)
        os.setgid(self.gid)
        os.setuid(self.uid)


class Contained(Person):
    """A user as root of a rootless container, which knows that user and the first group alone."""

    more = ""

    def become(self) -> None:
        """Be this user in a namespace of his own, in which all others are there without a number."""
        (asked, ask), (told, tell), child = os.pipe(), os.pipe(), os.getpid()
        if os.fork() == 0:  # only who is root outside may write such a map
            os.read(asked, 1)
            for kind, number in (("uid", self.uid), ("gid", self.gid)):
                Path(f"/proc/{child}/{kind}_map").write_text(f"0 {number} 1\n{self.more}")
            os.write(tell, b"x")
            os._exit(0)
        super().become()
        if ctypes.CDLL(None).unshare(_CLONE_NEWUSER):
            os._exit(NO_CONTAINER)
        os.write(ask, b"x")
        os.read(told, 1)


class WithSubordinates(Contained):
    """The same with numbers for 65,536 others, as Podman does: that of nobody is among them."""

    more = "1 100000 65536\n"


class Bare(Person):
    """A user without the rights that are root's: in a container that drops capabilities, root, too."""

    def become(self) -> None:
        """Be this user with the rights of an owner alone."""
        super().become()
        header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
        assert ctypes.CDLL(None).capset(header, none) == 0


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    text: str


ROOT = Person(0, 0)


def types(person: Person, site: Path, *words: str, said: Path) -> Said:
    """A command line, typed by ``person``."""
    return does(person, command(*words), site, said=said)


def does(person: Person, work: Callable[[Path], object], site: Path, *, said: Path) -> Said:
    """``work`` on the site, done by ``person``."""

    def ready() -> None:
        sys.stdout, sys.stderr = (open(one, "w", closefd=False) for one in (1, 2))  # noqa: SIM115
        person.become()

    code = forked(work, site, said, ready)
    text = said.read_text(errors="replace")
    assert "Traceback" not in text, text
    return Said(code, text)


def may(people: tuple[Person, ...], path: Path) -> dict[tuple[Person, str], bool]:
    """Who can read and who can write what is at ``path``, asked of the kernel."""
    found = {}
    for person in people:
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            person.become()
            os.write(writes, bytes([os.access(path, os.R_OK), os.access(path, os.W_OK)]))
            os._exit(0)
        os.waitpid(child, 0)
        readable, writable = os.read(reads, 2)
        found.update({(person, "read"): bool(readable), (person, "write"): bool(writable)})
        os.close(reads)
        os.close(writes)
    return found


@contextlib.contextmanager
def yard_on(kind: str) -> Iterator[Path]:
    """A folder that everybody can get to: in memory where that is possible, or on a disk of its own of that kind."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if kind == "memory" and os.access(memory, os.W_OK) else None))
    try:
        path.chmod(0o755)
        if kind == "memory":
            yield path
            return
        maker = shutil.which(f"mkfs.{kind}", path=_TOOLS)
        if maker is None:
            pytest.skip(f"there is no mkfs.{kind}")
        disk, place = path / "disk", path / "place"
        with disk.open("wb") as stream:
            stream.truncate(400 << 20)
        subprocess.run([maker, "-q", *(["-F"] if kind == "ext4" else []), disk], env={"PATH": _TOOLS}, check=True)
        place.mkdir()
        if subprocess.run(["mount", "-o", "loop", disk, place], env={"PATH": _TOOLS}, check=False).returncode:
            pytest.skip(f"no {kind} can be mounted here")
        try:
            place.chmod(0o755)
            yield place
        finally:
            subprocess.run(["umount", place], env={"PATH": _TOOLS}, check=True)
    finally:
        shutil.rmtree(path)


def acl(*entries: str) -> bytes:
    """An access control list as the kernel takes it, of entries like ``u::6``, ``u:4005:4`` and ``m::4``, in order."""
    packed = struct.pack("<I", 2)
    for entry in entries:
        kind, who, bits = entry.split(":")
        packed += struct.pack("<HHI", _KINDS[kind + ":" * bool(who)], int(bits), int(who) if who else 0xFFFFFFFF)
    return packed


def give(path: Path, person: Person, mode: int | None = None) -> Path:
    """Give what is at ``path``, and for a folder all below, to ``person``."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.chown(one, person.uid, person.gid, follow_symlinks=False)
    if mode is not None:
        path.chmod(mode)
    return path
