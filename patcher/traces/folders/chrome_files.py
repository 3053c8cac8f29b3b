"""A file of torch.profiler on disk: whether it is whole, and which of its units it holds."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

from patcher.messages import Text
from patcher.processes import alive
from patcher.progress import Progress, ignore
from patcher.traces import names
from patcher.traces.folders.states import CUT, EMPTY, FOREIGN, WHOLE, WRITING, RecordedTrace, changed
from patcher.traces.formats.chrome import Scan, scan

_RECENT_S = 60.0
_NOT_READ = Text("rlpatch cannot read traces of this kind")
_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|cpu_op|operator|user_annotation|python_function|(?:cuda|hip|xpu)_runtime)"',
    re.IGNORECASE,
)
"""Texts in the begin of a trace of torch.profiler: fields of its header, and categories of its events."""


def inspect(path: Path, progress: Progress = ignore) -> RecordedTrace:
    """Return the state, step numbers, rank and world of a torch.profiler trace, by its name and one pass over the file.

    A file in another format gets ``form`` "other", and one that cannot be read counts as cut off. ``progress`` gets the
    number of bytes of each read. Raises OSError if there is no file.
    """
    name = names.of(path)
    size, written = path.stat().st_size, changed(path)
    trace = RecordedTrace(
        path, "torch", EMPTY, size, Text("the file is empty"), ended=name.ended or written, **name.fields
    )
    if not size:
        return trace
    try:
        content = scan(path, progress)
    except OSError as error:
        return replace(trace, state=CUT, why=Text("the file cannot be read: {error}", error.strerror))
    rank = content.distributed("rank") if trace.rank is None else trace.rank
    trace = replace(trace, steps=content.steps, rank=rank, world=content.distributed("world_size"))
    state, why = _state(content, trace, name, written)
    return replace(trace, state=state, why=why, form="other" if why == _NOT_READ else trace.form)


def _state(content: Scan, trace: RecordedTrace, name: names.Name, written: float) -> tuple[str, str]:
    """Return the state of a scanned trace, such as whole or cut off, and the reason for it, "" for a whole one."""
    is_torch = names.is_torch(trace.path.name)
    if not content.is_json:
        return (EMPTY, Text("the file is not JSON")) if is_torch else (FOREIGN, _NOT_READ)
    if not content.events and not is_torch and b'"traceEvents"' not in content.head:
        return FOREIGN, _NOT_READ
    if content.cut and _is_writing(trace, name, written):
        return WRITING, Text("process {pid} is writing this file", trace.pid)
    if content.cut:
        return CUT, content.cut
    if not content.events:
        return EMPTY, Text("the file has no events")
    if trace.ours:
        return WHOLE, ""
    if is_torch or _KINETO.search(content.head):
        return FOREIGN, Text("torch.profiler recorded the trace without rlpatch")
    return FOREIGN, Text("the file is a trace in Chrome's format, but does not begin like a trace of torch.profiler")


def _is_writing(trace: RecordedTrace, name: names.Name, written: float) -> bool:
    """Tell whether the process that a trace is named after is writing it, or may be.

    A temporary file counts as long as the process runs on this host. A file that changed (``written``, seconds since
    the epoch) within the last minute counts, too, if the process runs, or is on another host.
    """
    recent = time.time() - written < _RECENT_S
    writes = bool(trace.pid and name.here and alive(trace.pid, written))
    return (name.temporary and writes) or (recent and (writes or bool(trace.pid and not name.here)))
