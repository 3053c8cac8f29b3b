"""Whether a worker lives: on this host its process tells, of another host only how long it has been silent."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from patcher import processes
from patcher.messages import Text
from patcher.workers.worker import Worker

SILENT_S = 3600.0
"""After so long without a word a worker elsewhere may be gone: longer than nearly every rollout."""

_NUMBER = struct.Struct("=Q")
_SHARED = re.compile(r"/dev/shm/[#\w.-]{1,200}( \(deleted\))?")  # noqa: S108


class Life(NamedTuple):
    """``alive`` is None of a worker elsewhere; ``age`` is how many seconds ago it wrote, ``number`` its next unit now.

    ``number`` is None where the worker does not keep it in the memory of this host.
    """

    here: bool
    alive: bool | None
    age: float
    number: int | None = None

    @property
    def gone(self) -> bool:
        """Whether it is sure that the process has ended."""
        return self.alive is False

    @property
    def silent(self) -> bool:
        """Whether it may be gone, by the age of its state: nothing else is known of another host."""
        return self.alive is None and self.age > SILENT_S

    @property
    def words(self) -> str:
        """Return how it is shown."""
        if self.alive is not None:
            return Text("alive") if self.alive else Text("gone")
        return Text("silent {age}", duration(self.age)) if self.silent else Text("{age} ago", duration(self.age))


def host() -> str:
    """The name of this host, as probes write it."""
    return "".join(letter if letter.isalnum() else "_" for letter in os.uname().nodename)


def observe(worker: Worker, now: float, *, proc: Path = Path("/proc")) -> Life:
    """Return what is known of a worker at the time ``now``."""
    age = max(now - worker.at, 0.0)
    if worker.host != host() or not (proc / "self" / "stat").exists():
        return Life(worker.host == host(), None, age)
    alive = processes.alive(worker.pid, worker.at, proc)
    live = proc / str(worker.pid) / "fd" / str(worker.live)
    return Life(True, alive, age, _number(live) if alive else None)


def _number(file: Path) -> int | None:
    """The number that a worker keeps in a file of 8 bytes in memory; nothing of another file is read."""
    try:
        if not _SHARED.fullmatch(str(file.readlink())) or file.stat().st_size != _NUMBER.size:
            return None
        return int(_NUMBER.unpack(file.read_bytes())[0])
    except (OSError, struct.error):
        return None


def duration(seconds: float) -> str:
    """A time as people say it: 12 s, 5 min, 3 h, 2 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
