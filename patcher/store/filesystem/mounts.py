"""The mounts, as the kernel tells this process; where it does not tell, nothing is known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNTS = "/proc/self/mountinfo"


def kind(descriptor: int) -> str:
    """Return the type of the file system of an open file, such as ``ext4``; "" if the kernel does not tell."""
    match = re.search(r"^mnt_id:\s*(\d+)$", kernel_text(f"/proc/self/fdinfo/{descriptor}"), re.MULTILINE)
    return next((kind for number, _source, _point, kind in _mounts() if match and number == match[1]), "")


def mounted_source(path: Path) -> str:
    """Return the path within its own file system that is mounted at exactly ``path`` (resolved); "" for none."""
    return next((source for _number, source, point, _kind in _mounts() if point == str(path)), "")


def kernel_text(path: str) -> str:
    """Return the text of a file of ``/proc``; "" if it cannot be read."""
    try:
        return os.fsdecode(Path(path).read_bytes())
    except OSError:
        return ""


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Yield id, mounted path within its file system, mount point and type of each mount, with escapes decoded.

    Yields nothing if the kernel's list cannot be read.
    """
    for line in filter(None, kernel_text(_MOUNTS).split("\n")):
        # Blanks and backslashes within a field are escaped.
        fields = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field) for field in line.split(" ")]
        yield fields[0], fields[3], fields[4], fields[fields.index("-") + 1]
