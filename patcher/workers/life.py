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
    """Liveness of a worker: whether it is on this host, ``alive`` (None: unknown), and silent for ``age`` seconds.

    ``number`` is its next unit (such as a decode step), None if the worker does not keep it in this host's memory.
    """

    here: bool
    alive: bool | None
    age: float
    number: int | None = None

    @property
    def has_ended(self) -> bool:
        """Tell whether the process has surely ended."""
        return self.alive is False

    @property
    def silent(self) -> bool:
        """Tell whether a worker on another host may have ended, because it has not written for over an hour."""
        return self.alive is None and self.age > SILENT_S

    @property
    def words(self) -> str:
        """Return a worker's life as text: alive, gone, or if that is unknown, how long ago the worker wrote."""
        if self.alive is not None:
            return Text("alive") if self.alive else Text("gone")
        text = Text("silent for {duration}") if self.silent else Text("{duration} ago")
        return text.filled(duration(self.age))


def host() -> str:
    """Return this host's name as probes write it."""
    return plain_host(os.uname().nodename)


def plain_host(name: str) -> str:
    """Return a host's name as probes write it: _ for each character that is not alphanumeric."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def observe(worker: Worker, now: float, *, proc: Path = Path("/proc")) -> Life:
    """Return whether ``worker`` is alive, the seconds since it last wrote, and its next unit; ``now`` is since 1970."""
    age = max(now - worker.at, 0.0)
    if worker.host != host() or not (proc / "self" / "stat").exists():
        return Life(worker.host == host(), None, age)
    alive = processes.alive(worker.pid, worker.at, proc)
    live = proc / str(worker.pid) / "fd" / str(worker.live)
    return Life(True, alive, age, _read_step_number(live) if alive else None)


def _read_step_number(file: Path) -> int | None:
    """Return the step number that a worker keeps in an 8-byte file in /dev/shm; None for any other file."""
    try:
        if not _SHARED.fullmatch(str(file.readlink())) or file.stat().st_size != _NUMBER.size:
            return None
        return int(_NUMBER.unpack(file.read_bytes())[0])
    except (OSError, struct.error):
        return None


def duration(seconds: float) -> str:
    """Return a rounded duration in the largest unit that it holds twice: 90 s, 5 min, 3 h, 2 days."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
