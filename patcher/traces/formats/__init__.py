"""The formats of foreign tools, one module each; ``read`` takes the one that the content of a file is of."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import reading
from patcher.traces import sidecar
from patcher.traces.formats import ascend_db, ascend_tables, ascend_text, torch
from patcher.traces.model import RankProfile
from patcher.traces.names import OUTPUT
from patcher.traces.timeline import NUMBERED, Timeline

_TEXTS = ("trace_view", "msprof_")
"""How the text of CANN is called, by torch_npu and by msprof."""


def read(path: Path, wanted: re.Pattern[str] | None = None, progress: Progress = ignore) -> list[Timeline]:
    """The timeline of each rank in the trace at ``path``, with the metadata beside it; Problem (TRACE) if it is none.

    A range of the host in whose name ``wanted`` is found marks a unit. A trace is of one rank, but for the files into
    which SGLang merges those of all. ``progress`` hears of the bytes of a text; a database tells none.
    """
    with reading(path) as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3\0"):
        every = [ascend_db.read(path, wanted)]
    elif path.name.startswith(_TEXTS) and path.suffix == ".json":
        every = [ascend_text.read(path, wanted, progress)]
    else:
        every = torch.read(path, wanted, progress)
    for found in every:
        _complete(found, path)
    return every


def tables(path: Path) -> tuple[RankProfile, tuple[str, ...]] | None:
    """The profile of a rank of which tables alone are there, and what its metadata contradicts; None for a trace."""
    if path.name != ascend_tables.STEPS:
        return None
    found = ascend_tables.read(path)
    metadata, doubts = sidecar.checked(Path(found.source), "npu", [unit.number for unit in found.units])
    rank = found.rank if metadata is None or found.rank is not None else metadata.rank
    return dataclasses.replace(found, metadata=metadata, rank=rank), doubts


def _complete(found: Timeline, path: Path) -> None:
    """Add what lies beside the trace."""
    place = path.parent.parent if path.parent.name == OUTPUT else path
    if place != path:
        found.source = str(place)
    steps = {mark.number for _, mark in found.marks if mark.number is not None and mark.family == NUMBERED}
    form = "torch" if found.form == "torch" else "npu"
    found.metadata, found.doubts = sidecar.checked(place, form, sorted(steps) or None)
    if found.metadata:
        found.rank = found.metadata.rank if found.rank is None else found.rank
        found.world = found.metadata.world or found.world
