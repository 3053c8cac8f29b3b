"""The formats of foreign tools, one module each; ``read`` takes the one that the content of a file is of."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from patcher.progress import Progress, ignore
from patcher.store.filesystem.opened import reading
from patcher.traces import sidecar
from patcher.traces.formats import ascend_db, ascend_tables, ascend_text, nsys, torch
from patcher.traces.formats.chrome import first_bytes
from patcher.traces.marks import NUMBERED
from patcher.traces.model import RankProfile
from patcher.traces.names import JSON, OUTPUT
from patcher.traces.rank_trace import RankTrace

_TEXTS = ("trace_view", "msprof_")
"""Prefixes of the names of CANN's text, at torch_npu and at msprof."""

_ASCEND = re.compile(rb'"Ascend Hardware"|"Task Type"|"async_npu"|"HostToDevice\w*"|"CANN"')
"""Texts in the begin of an export of torch_npu or CANN that somebody renamed."""


def is_ascend_text(path: Path) -> bool:
    """Tell whether a JSON file is a trace in text of torch_npu or msprof; False for any other file.

    Its name begins with ``trace_view`` or ``msprof_``, or it is a plain list of events with CANN's words in its first
    64 KiB.
    """
    if not path.name.endswith(JSON):
        return False
    if path.name.startswith(_TEXTS):
        return True
    head = first_bytes(path)
    return head.lstrip()[:1] == b"[" and _ASCEND.search(head) is not None


def read(path: Path, mark_pattern: re.Pattern[str] | None = None, progress: Progress = ignore) -> list[RankTrace]:
    """Return the trace of each rank in a file, with its metadata: one, unless SGLang or nsys put several into it.

    A range of the host whose name matches ``mark_pattern`` marks a step. ``progress`` gets the number of bytes of each
    read of a text; a database reports none. Raises Problem (TRACE) for a file that is no trace, and OSError.
    """
    with reading(path) as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3\0"):
        if nsys.is_export(path):
            exported = nsys.read(path, mark_pattern)
            for process in exported:
                _add_metadata(process, path.with_name(f"{process.window}{nsys.SUFFIX}"))
            return [*exported]
        traces: list[RankTrace] = [ascend_db.read(path, mark_pattern)]
    elif is_ascend_text(path):
        traces = [ascend_text.read(path, mark_pattern, progress)]
    else:
        traces = torch.read(path, mark_pattern, progress)
    for trace in traces:
        _add_metadata(trace, path)
    return traces


def read_step_table(path: Path) -> tuple[RankProfile, tuple[str, ...]] | None:
    """Return the profile of a rank from its ``step_trace_time.csv``, and doubts; None for a file of another name.

    Doubts are sentences on contradictions between the table and the step metadata beside it. Raises Problem (TRACE) if
    the table has no step, or if two ranks share the folder.
    """
    if path.name != ascend_tables.STEPS:
        return None
    profile = ascend_tables.read(path)
    metadata, doubts = sidecar.read_and_check(Path(profile.source), "npu", [unit.number for unit in profile.units])
    rank = metadata.rank if metadata and profile.rank is None else profile.rank
    return dataclasses.replace(profile, metadata=metadata, rank=rank), doubts


def _add_metadata(trace: RankTrace, path: Path) -> None:
    """Set ``metadata`` of a trace from the file beside ``path``, and add to ``doubts`` what is wrong with that file.

    A contradiction to the trace is a doubt, too. The world size of the metadata replaces that of the trace, their rank
    only a missing one. The source of a parsed trace of torch_npu becomes the folder of its rank.
    """
    place = path
    if path.parent.name == OUTPUT:
        place = path.parent.parent
        trace.source = str(place)
    steps = {mark.number for _, mark in trace.marks if mark.number is not None and mark.family == NUMBERED}
    form = trace.form.partition("-")[0].replace("ascend", "npu")
    trace.metadata, doubts = sidecar.read_and_check(place, form, sorted(steps) or None)
    trace.doubts = (*doubts, *trace.doubts)
    if trace.metadata:
        trace.rank = trace.metadata.rank if trace.rank is None else trace.rank
        trace.world = trace.metadata.world or trace.world
