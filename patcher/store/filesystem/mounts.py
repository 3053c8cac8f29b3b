"""What is mounted where, as the kernel tells this process; where it does not tell, nothing is known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")
_OPEN = Path("/proc/self/fdinfo")


class _Mount(NamedTuple):
    """One line of the kernel's table: the number, what of its file system is mounted, where, and the kind of that."""

    number: bytes
    source: bytes
    point: bytes
    kind: bytes


def kind(descriptor: int) -> str:
    """The kind of file system that an open file lies on, such as ``ext4``; "" where nothing tells."""
    number = re.search(rb"^mnt_id:\s*(\d+)$", _read(_OPEN / str(descriptor)), re.MULTILINE)
    return next((os.fsdecode(mount.kind) for mount in _mounts() if number and mount.number == number[1]), "")


def over(path: Path) -> str:
    """What is mounted at exactly the resolved ``path``, as its own file system names it; "" for nothing."""
    return next((os.fsdecode(mount.source) for mount in _mounts() if mount.point == os.fsencode(path)), "")


def _mounts() -> Iterator[_Mount]:
    for line in _read(_MOUNTS).splitlines():
        number, _parent, _device, source, point, *rest = map(_plain, line.split(b" "))
        yield _Mount(number, source, point, rest[rest.index(b"-") + 1])


def _plain(field: bytes) -> bytes:
    """A field of the table without the escapes for blanks and backslashes."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), field)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
