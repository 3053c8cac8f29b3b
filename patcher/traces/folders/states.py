"""One trace on disk, by its name, its files and the metadata beside it, and the states that it can be in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patcher.messages import Text
from patcher.traces.model import Payload
from patcher.traces.sidecar import Metadata, TraceOrigin

WHOLE = Text("whole")
CUT = Text("cut off")
EMPTY = Text("empty")
WRITING = Text("still being written")
KILLED = Text("killed")
NOT_PARSED = Text("not parsed")
HALF_PARSED = Text("partly parsed")
FOREIGN = Text("from another tool")
STATES: Mapping[str, Text] = {
    CUT: Text("the file is cut off: the disk was full, or the process ended while writing"),
    KILLED: Text("profiler_info.json is missing: the process ended while it was recording, and the data is lost"),
    HALF_PARSED: Text("the parsing was interrupted or failed"),
    EMPTY: Text("the trace is empty"),
    WRITING: Text("a process is still recording or parsing the trace"),
    NOT_PARSED: Text("the trace must be parsed before it can be read"),
    FOREIGN: Text("another tool recorded the trace"),
    WHOLE: Text("complete: the trace has everything that a report needs"),
}
"""Meaning of each state, worst first: a group has the worst state of its traces."""


@dataclass(frozen=True)
class RecordedTrace(TraceOrigin, Payload):
    """One trace of one process. ``why`` says what is wrong with it, in words, if anything is.

    ``form`` is npu, torch, nsys or other; ``steps`` are the numbers of the units in it, None where they are not known.
    ``raw`` says whether what torch_npu recorded is there, to be parsed. ``metadata`` is what a probe of ours wrote
    beside it, ``doubts`` are what that contradicts.
    """

    KEYS = ("path", "state", "why", "size", "host", "replica", "rank", "pid", "exports", "ended", "facts", "doubts")

    path: Path
    form: str
    state: str
    size: int
    why: str = ""
    ours: bool = False
    steps: tuple[int, ...] | None = None
    ended: float = 0.0
    exports: tuple[str, ...] = ()
    raw: bool = False
    metadata: Metadata | None = field(default=None, compare=False)
    doubts: tuple[str, ...] = ()

    @property
    def requested(self) -> str:
        """Window that was requested, as text; "" if unknown."""
        return self.window.text if self.window else ""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Content of the metadata file; empty without one."""
        return self.metadata.raw if self.metadata else {}


def files_below(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of each file below a folder; files that vanish meanwhile are skipped."""
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):  # gone meanwhile: the parser tidies up
                yield os.lstat(os.path.join(place, name))  # noqa: PTH118  (a Path for each costs more)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    return sum(file.st_size for file in files_below(path)) if path.is_dir() else path.stat().st_size


def changed(path: Path) -> float:
    """Return the latest modification time of a path and the entries in it, in seconds since the epoch."""
    return max(file.stat().st_mtime for file in (path, *path.glob("*")))
