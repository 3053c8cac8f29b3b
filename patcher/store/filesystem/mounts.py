"""The mounts, as the kernel tells this process; where it does not tell, nothing is known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = "/proc/self/mountinfo"


def kind(descriptor: int) -> str:
    """The kind of file system that an open file lies on, such as ``ext4``; "" where nothing tells."""
    match = re.search(r"^mnt_id:\s*(\d+)$", kernel_text(f"/proc/self/fdinfo/{descriptor}"), re.MULTILINE)
    return next((kind for number, _source, _point, kind in _mounts() if match and number == match[1]), "")


def over(path: Path) -> str:
    """Return what is mounted at exactly the resolved ``path``, as its own file system names it; "" for nothing."""
    return next((source for _number, source, point, _kind in _mounts() if point == str(path)), "")


def kernel_text(path: str) -> str:
    """Return what the kernel says in a file of ``/proc``; "" where it does not say."""
    try:
        return os.fsdecode(Path(path).read_bytes())
    except OSError:
        return ""


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """The number of each mount, what of its file system is mounted, where, and the kind of that."""
    for line in filter(None, kernel_text(_MOUNTS).split("\n")):
        # Blanks and backslashes within a field are escaped.
        fields = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in line.split(" ")]
        yield fields[0], fields[3], fields[4], fields[fields.index("-") + 1]
